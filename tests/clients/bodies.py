"""Requests with the structure of those that real clients send; every text in them is our own.

For: tests that replay what editors, agents and SDKs send, and the fuzzers' corpus. Not for:
contents; a description of 3,000 characters is 3,000 characters of ours. `structures.json` says of
each recorded request: method, path, query, names of headers that matter, and the body with its
keys, types, order and sizes. It is written from recordings by `learn`, and `check` compares what is
built with them again; both are run by hand, since the recordings are not part of the project:

    python -m tests.clients.bodies check FOLDER

In a structure a string is `~N`, a text of N characters, or `~N|beginning`, one that begins so;
`@N` is one of the tools that several requests share; `{"~json": ...}` is a string that holds JSON.
Every other string is meant as it stands, because it says what kind of thing something is: a type, a
role, the name of a tool or of a field.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

STRUCTURES = Path(__file__).parent / "structures.json"
MODEL = "recorded"
# Fields whose strings say what something is.
_KINDS = {
    "type", "role", "name", "tool_name", "$schema", "format", "tool_choice", "effort", "display",
    "reasoning_effort", "verbosity", "service_tier", "encoding_format", "media_type", "summary",
    "keep", "url", "context", "modalities", "include", "$ref",
}  # fmt: skip
_IDS = {"id", "tool_use_id", "tool_call_id", "call_id", "previous_message_id"}
_HEADERS = {"anthropic-version", "anthropic-beta"}
_BEGINNINGS = ("x-anthropic-billing-header: cc_version=",)
_TEXT = (
    "the hummingbird counts every flower it passes and returns to those that were full while a "
    "small engine reads its experts one after the other so that nothing waits for long"
)
_WORDS = _TEXT.split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request: `name` is client and number, `body` None for a GET, `headers` those that change
    what the server does.
    """

    name: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any = field(compare=False)

    @property
    def dialect(self) -> str:
        """Which API answers it: `anthropic` or `openai`."""
        messages = "/messages" in self.path or "anthropic-version" in self.headers
        return "anthropic" if messages else "openai"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path


# ---- building ------------------------------------------------------------------------------------


class _Builder:
    """Turns structures into bodies; no two texts of a body begin alike."""

    def __init__(self, tools: list[Any]) -> None:
        self._tools = tools
        self._numbers = itertools.count()

    def build(self, structure: Any, key: str = "") -> Any:
        if isinstance(structure, dict):
            if set(structure) == {"~json"}:
                spaced = structure["~json"]
                separators = (", ", ": ") if spaced["spaced"] else (",", ":")
                return json.dumps(self.build(spaced["value"]), separators=separators)
            return {name: self.build(value, name) for name, value in structure.items()}
        if isinstance(structure, list):
            return [self.build(value, key) for value in structure]
        if isinstance(structure, str):
            if re.fullmatch(r"@\d+", structure):
                return self.build(self._tools[int(structure[1:])])
            found = re.fullmatch(r"~(\d+)(?:\|(.*))?", structure, re.DOTALL)
            if found:
                return self._text(int(found[1]), found[2] or "", key)
        return structure

    def _text(self, length: int, beginning: str, key: str) -> str:
        if key == "pattern":
            return ("^" + "a" * max(0, length - 1))[:length]
        number = next(self._numbers)
        if length < 12:
            # Short ones are values of an enum, which must differ: a number in letters.
            return "".join(
                _LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)]
                for place in range(length)
            )
        words = (_WORDS[(number * 7 + place) % len(_WORDS)] for place in itertools.count())
        text = beginning
        while len(text) < length:
            text += (" " if text and text is not beginning else "") + next(words)
        return text[: length - 1] + "." if length > len(beginning) else text[:length]


@cache
def _data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STRUCTURES.read_text())
    return found


def names() -> list[str]:
    """Names of all requests, in order."""
    return list(_data()["requests"])


def build(name: str, model: str = MODEL) -> Recorded:
    """The request of this name, its `model` and the model in its path replaced by `model`."""
    raw = _data()["requests"][name]
    body = _Builder(_data()["tools"]).build(raw.get("body"))
    if isinstance(body, dict) and "model" in body:
        body["model"] = model
    return Recorded(
        name=name,
        method=raw["method"],
        path=raw["path"].replace("{model}", model),
        query=raw.get("query", ""),
        headers=raw.get("headers", {}),
        body=body,
    )


# ---- learning and checking, by hand --------------------------------------------------------------


def recordings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, recording) of every file CLIENT/NUMBER.json below the folder, in order."""
    for path in sorted(folder.glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", json.loads(path.read_text())


def _embedded(text: str) -> tuple[Any, bool] | None:
    """(value, whether it is written with spaces) of a string that holds a JSON object."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    for spaced, separators in ((True, (", ", ": ")), (False, (",", ":"))):
        if json.dumps(value, separators=separators) == text:
            return value, spaced
    return None


class _Learner:
    """Turns bodies into structures."""

    def __init__(self) -> None:
        self._tools: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._ids: dict[str, str] = {}

    def structure(self, value: Any, key: str = "", parent: str = "") -> Any:
        if isinstance(value, dict):
            return {
                name: self.structure(inner, name, parent if name == "function" else key)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            if key == "required":
                return value
            if key == "tools":
                return [self._shared(self.structure(inner)) for inner in value]
            return [self.structure(inner, key, parent) for inner in value]
        if isinstance(value, str):
            return self._string(value, key, parent)
        return value

    def _string(self, text: str, key: str, parent: str) -> Any:
        if key in _IDS:
            # Calls and results stay paired, under ids of our own of the same length.
            return self._ids.setdefault(text, str(len(self._ids)).zfill(len(text)))
        embedded = _embedded(text)
        if embedded:
            value, spaced = embedded
            return {"~json": {"value": self.structure(value), "spaced": spaced}}
        if key in _KINDS and parent != "properties":
            return text
        for beginning in _BEGINNINGS:
            if text.startswith(beginning):
                return f"~{len(text)}|{beginning}"
        return f"~{len(text)}"

    def _shared(self, tool: Any) -> Any:
        text = json.dumps(tool)
        self._counts[text] = self._counts.get(text, 0) + 1
        self._tools.setdefault(text, tool)
        return tool

    def finish(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Everything learnt, tools that occur more than once written down once."""
        shared = [text for text, count in self._counts.items() if count > 1]
        for request in requests.values():
            tools = (request.get("body") or {}).get("tools")
            for place, tool in enumerate(tools or ()):
                text = json.dumps(tool)
                if text in shared:
                    tools[place] = f"@{shared.index(text)}"
        return {"tools": [self._tools[text] for text in shared], "requests": dict(requests)}


def learn(folder: Path) -> None:
    """Writes `structures.json` from recordings."""
    learner = _Learner()
    requests: dict[str, Any] = {}
    for name, raw in recordings(folder):
        headers = {key.lower(): value for key, value in raw["headers"]}
        model = (raw.get("body") or {}).get("model") or "stub-model"
        entry: dict[str, Any] = {
            "method": raw["method"],
            "path": raw["path"].replace(model, "{model}"),
        }
        if raw.get("query"):
            entry["query"] = raw["query"]
        kept = {key: value for key, value in headers.items() if key in _HEADERS}
        if kept:
            entry["headers"] = kept
        if raw.get("body") is not None:
            entry["body"] = learner.structure(raw["body"])
        requests[name] = entry
    data = learner.finish(requests)
    lines = [f'"tools": [\n{_lines(data["tools"])}\n]']
    inner = ",\n".join(f"{json.dumps(k)}: {_compact(v)}" for k, v in data["requests"].items())
    lines.append(f'"requests": {{\n{inner}\n}}')
    STRUCTURES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(values: list[Any]) -> str:
    return ",\n".join(map(_compact, values))


def differences(built: Any, recorded: Any, where: str = "body") -> Iterator[str]:
    """What of keys, their order, types, lengths and numbers differs."""
    if where == "body.model":
        return
    if type(built) is not type(recorded):
        yield f"{where}: {type(built).__name__} instead of {type(recorded).__name__}"
    elif isinstance(recorded, dict):
        if list(built) != list(recorded):
            yield f"{where}: keys {list(built)} instead of {list(recorded)}"
            return
        for key, value in recorded.items():
            yield from differences(built[key], value, f"{where}.{key}")
    elif isinstance(recorded, list):
        if len(built) != len(recorded):
            yield f"{where}: {len(built)} items instead of {len(recorded)}"
            return
        for number, value in enumerate(recorded):
            yield from differences(built[number], value, f"{where}[{number}]")
    elif isinstance(recorded, str):
        if len(built) != len(recorded):
            yield f"{where}: {len(built)} characters instead of {len(recorded)}"
    elif built != recorded:
        yield f"{where}: {built} instead of {recorded}"


def check(folder: Path) -> int:
    """Compares what is built with recordings; prints each difference, returns their number."""
    found = 0
    seen = []
    for name, raw in recordings(folder):
        seen.append(name)
        if name not in names():
            found += 1
            print(f"{name}: is not in structures.json")
            continue
        built = build(name)
        for difference in differences(built.body, raw.get("body")):
            found += 1
            print(f"{name}: {difference}")
    for name in set(names()) - set(seen):
        found += 1
        print(f"{name}: was not recorded")
    print(f"{len(seen)} recordings, {found} differences")
    return found


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "learn":
        learn(Path(rest[0]))
    elif verb == "check":
        sys.exit(1 if check(Path(rest[0])) else 0)
    else:
        sys.exit(f"usage: {__spec__.name if __spec__ else 'bodies'} learn|check FOLDER")
