"""Prompts by topic: the bundled ones, a model's own, or a person's.

For: `coli atlas run`. A topic has two sets, `a` and `b`, that share no prompt: what one set shows
is tried on the other. Files come from anywhere and are checked. Thread rule: pure functions.

    ["topic"]            TOML; a table for each topic, 2 to 64 of them
    a = ["prompt", ...]
    b = ["prompt", ...]
"""

from __future__ import annotations

import hashlib
import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from colibri.errors import UsageError

SETS: Final = ("a", "b")
# A model folder may hold prompts that suit the model better than the bundled ones.
NAME: Final = "atlas-topics.toml"
BUNDLED: Final = Path(__file__).with_name("topics.toml")
FEWEST_TOPICS: Final = 2
MOST_TOPICS: Final = 64
_MOST_BYTES: Final = 8 << 20
_MOST_NAME: Final = 60
_MOST_TEXT: Final = 20_000
_HINT: Final = 'Each topic is a table with two lists of prompts: [code] a = ["..."] b = ["..."].'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `set` is a or b."""

    topic: str
    set: str
    text: str

    @property
    def key(self) -> str:
        """A name that stays the same wherever the prompt stands."""
        text = f"{self.topic}\0{self.set}\0{self.text}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics in the order of their file; `sets[topic][set]` are texts."""

    sets: dict[str, dict[str, tuple[str, ...]]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sets)

    def prompts(self, most: int | None = None) -> list[Prompt]:
        """All prompts, or the first `most` of each set: topics and sets take turns, so that what an
        interrupted measurement has is balanced.
        """
        longest = max(len(texts) for sets in self.sets.values() for texts in sets.values())
        rounds = range(longest if most is None else min(most, longest))
        return list(self._rounds(rounds))

    def _rounds(self, rounds: range) -> Iterator[Prompt]:
        for number, side in itertools.product(rounds, SETS):
            for topic, sets in self.sets.items():
                if number < len(sets[side]):
                    yield Prompt(topic, side, sets[side][number])


def find(folder: Path | None) -> Path:
    """The file for the model in a folder."""
    own = folder / NAME if folder is not None else BUNDLED
    return own if own.is_file() else BUNDLED


def load(path: Path) -> Topics:
    """Reads a file. Raises UsageError with the path and what is wrong."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _refusal(path, f"the file has more than {_MOST_BYTES >> 20} MiB")
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"the topics cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    except (ValueError, RecursionError) as error:
        raise _refusal(path, str(error) or "this is no TOML") from error
    return Topics(_checked(values, path))


def _refusal(path: Path, reason: str) -> UsageError:
    return UsageError(f"the topics cannot be used: {reason}.", where=str(path), hint=_HINT)


def _checked(values: dict[str, Any], path: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    if not FEWEST_TOPICS <= len(values) <= MOST_TOPICS:
        raise _refusal(
            path, f"{len(values)} topics are given, {FEWEST_TOPICS} to {MOST_TOPICS} are needed"
        )
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    seen: dict[str, str] = {}
    for name, table in values.items():
        if not is_name(name):
            raise _refusal(path, f"{name[:80]!r} is no name of a topic")
        if not isinstance(table, dict) or set(table) != set(SETS):
            raise _refusal(path, f"the topic {name!r} needs exactly the two lists a and b")
        found[name] = {side: _texts(table[side], name, side, path) for side in SETS}
        for text in (*found[name]["a"], *found[name]["b"]):
            if text in seen:
                raise _refusal(
                    path, f"the prompt {text[:60]!r} stands in {seen[text]!r} and in {name!r}"
                )
            seen[text] = name
    return found


def _texts(value: Any, topic: str, side: str, path: Path) -> tuple[str, ...]:
    fine = isinstance(value, list) and all(
        isinstance(text, str) and text.strip() and len(text) <= _MOST_TEXT for text in value
    )
    if not fine or not value:
        raise _refusal(
            path,
            f"set {side} of {topic!r} must be a list of prompts of 1 to {_MOST_TEXT} characters",
        )
    return tuple(value)


def is_name(name: object) -> bool:
    """Whether this can name a topic: a short line that can be printed."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= _MOST_NAME
        and name == name.strip()
        and name.isprintable()
    )
