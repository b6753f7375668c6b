"""What generated text consists of - text, reasoning, tool calls - and the parsers' common ground.

For: the dialects (`tagged.py`, `inkling.py`), which turn pieces of generated text into parts, and
whoever encodes parts for a client. A parser of one request is made by `Family.parts(...)`:

    parser = family.parts(tools, reasoning=True, tokens=...)
    parser.push(text) -> list[Part]     pieces as the detokeniser gives them
    parser.flush() -> list[Part]        the generation is over; everything held back comes out

Joined (`joined`), the parts are the same for every split of the text into pieces. Held back is only
what may still become a marker, and what is ambiguous until it is complete. Model text can never
raise: what is no valid call of a declared tool is text. Order of one call: `CallStart`, pieces of
`CallArguments` that together are one JSON object, `CallEnd`; calls never overlap.

Control tokens: where a marker is a token of its own (`Detokenizer(marks=...)`), its text arrives
behind the character MARK, and the same letters without it are ordinary text. Not for: stop texts
(`stop.py`, which see only visible text) or HTTP. Thread rule: one owner at a time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from colibri.engine.answer import CallArguments, Part, Reasoning, Text

# Stands before the text of a control token. A noncharacter, so no text contains it.
MARK: Final = "\ufdd0"
# Blanks before a marker that belong to the marker's layout, not to the text.
_GAP: Final = 2


NewId: TypeAlias = Callable[[], str]


class PartsParser(Protocol):
    """The incremental parser of one answer."""

    @property
    def reasoning(self) -> bool:
        """Whether what comes next belongs to the reasoning, as far as can be told yet."""
        ...

    @property
    def in_call(self) -> bool:
        """Whether a call has begun, or what may turn out to be one inside the reasoning."""
        ...

    def push(self, text: str) -> list[Part]:
        """Takes the next piece of text and returns what is certain."""
        ...

    def flush(self) -> list[Part]:
        """The text is over; returns the rest. The parser is not used again."""
        ...


def call_id() -> str:
    """An id no other call has."""
    return "call_" + secrets.token_hex(12)


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same parts with neighbouring pieces of one kind made one, and empty pieces dropped."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, Text | Reasoning):
            if not part.text:
                continue
            if type(last) is type(part) and isinstance(last, Text | Reasoning):
                result[-1] = type(part)(last.text + part.text)
                continue
        elif isinstance(part, CallArguments):
            if not part.text:
                continue
            if isinstance(last, CallArguments) and last.index == part.index:
                result[-1] = CallArguments(part.index, last.text + part.text)
                continue
        result.append(part)
    return result


def plain(text: str) -> str:
    """The text without the sign of control tokens."""
    return text.replace(MARK, "") if MARK in text else text


class MarkFilter:
    """Lets MARK through only before one of `markers`, whatever pieces the text comes in."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._marked = tuple(MARK + marker for marker in markers)
        known = "|".join(re.escape(marked[1:]) for marked in self._marked)
        self._stray = re.compile(f"{MARK}(?!{known})" if known else MARK)
        self._held = ""

    def push(self, text: str, final: bool) -> str:
        """The text without stray marks, less an end that may still become a marker."""
        text = self._held + text
        self._held = ""
        if MARK not in text:
            return text
        at = text.rindex(MARK)
        if not final and any(
            len(marked) > len(text) - at and marked.startswith(text[at:]) for marked in self._marked
        ):
            text, self._held = text[:at], text[at:]
        return self._stray.sub("", text)


def open_tail(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a marker."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(len(marker) > length and marker.startswith(tail) for marker in markers):
            return length
    return 0


def first_of(text: str, markers: Sequence[str], start: int = 0) -> tuple[int, str]:
    """(position, marker) of the marker that comes first; (-1, "") without one."""
    found = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(found, default=(-1, ""))


def gap(text: str) -> int:
    """How many blanks at the end of `text` would belong to a marker that follows."""
    blanks = len(text) - len(text.rstrip())
    return min(blanks, _GAP)
