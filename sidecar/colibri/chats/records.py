"""Chats as the store gives and takes them, and the limits of what it takes.

For: store, transfer and the routes. Not for: SQL. Ids are made by clients, so that a request may be
repeated; `settings`, `meta` and parts of unknown types belong to the page and are kept as they are.
Thread rule: plain values.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec

from colibri.errors import BodyTooLargeError, RequestError

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Part: TypeAlias = dict[str, Any]

MOST_TITLE_CHARS: Final = 300
MOST_OBJECT_BYTES: Final = 64 << 10
MOST_MESSAGE_BYTES: Final = 8 << 20
MOST_PARTS: Final = 1000
MOST_MESSAGES: Final = 20_000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# What a part of a known type must hold as text.
_TEXTS: Final = {
    "text": ("text",),
    "reasoning": ("text",),
    "tool_call": ("id", "name", "arguments"),
    "tool_result": ("id", "text"),
    "file": ("name", "text"),
}


class Chat(msgspec.Struct, kw_only=True):
    """A chat without its messages, of which there are so many. `active` is the leaf shown last."""

    id: str
    title: str
    pinned: bool
    settings: dict[str, Any]
    active: str | None
    created_at_ms: int
    updated_at_ms: int
    revision: int
    messages: int


class Message(msgspec.Struct, kw_only=True):
    """One message of the tree; `parent` is None at a root."""

    id: str
    parent: str | None
    role: Role
    parts: list[Part]
    meta: dict[str, Any] = {}
    created_at_ms: int = 0
    updated_at_ms: int = 0


class ChatTree(msgspec.Struct, kw_only=True):
    """A chat with its messages, parents before children, siblings oldest first."""

    id: str
    title: str = ""
    pinned: bool = False
    settings: dict[str, Any] = {}
    active: str | None = None
    created_at_ms: int = 0
    updated_at_ms: int = 0
    revision: int = 0
    messages: list[Message] = []


class Preset(msgspec.Struct, kw_only=True):
    """Settings under a name, to begin chats with."""

    id: str
    name: str
    settings: dict[str, Any]
    updated_at_ms: int = 0


class Piece(msgspec.Struct):
    """A stretch of a search hit's text; `hit` is what was looked for."""

    text: str
    hit: bool


class Hit(msgspec.Struct, kw_only=True):
    """Where a search found its words; `message` is None in a title."""

    chat: str
    title: str
    message: str | None
    role: Role | None
    at_ms: int
    pieces: list[Piece]


def check_id(value: str, field: str) -> str:
    """The id; raises RequestError for what cannot be one."""
    if not _ID.fullmatch(value):
        raise RequestError(
            f"'{field}' must be 1 to 64 letters, digits, - or _, not {value[:80]!r}.", param=field
        )
    return value


def check_title(value: str, field: str = "title") -> str:
    """One line of text; raises RequestError if it is too long."""
    title = " ".join(value.split())
    if len(title) > MOST_TITLE_CHARS:
        raise RequestError(
            f"'{field}' has {len(title)} characters; at most {MOST_TITLE_CHARS} are kept.",
            param=field,
        )
    return title


def dump(value: Any, field: str, limit: int = MOST_OBJECT_BYTES) -> str:
    """JSON text of a value; raises BodyTooLargeError naming the field."""
    data = msgspec.json.encode(value)
    if len(data) > limit:
        raise BodyTooLargeError(
            f"'{field}' takes {len(data):,} bytes; at most {limit:,} are kept.", param=field
        )
    return data.decode()


def check_parts(parts: list[Part], field: str = "parts") -> list[Part]:
    """The parts; raises RequestError for one that contradicts its type."""
    if len(parts) > MOST_PARTS:
        raise RequestError(
            f"'{field}' has {len(parts)} entries; at most {MOST_PARTS} are kept.", param=field
        )
    for number, part in enumerate(parts):
        kind = part.get("type")
        if not isinstance(kind, str) or not kind:
            raise RequestError(
                f"'{field}[{number}].type' must be a string.", param=f"{field}[{number}].type"
            )
        for name in _TEXTS.get(kind, ()):
            if not isinstance(part.get(name), str):
                raise RequestError(
                    f"'{field}[{number}].{name}' must be a string.",
                    param=f"{field}[{number}].{name}",
                )
    return parts


def searchable(parts: list[Part]) -> str:
    """What a person would look for: what was said, and names of files; not thoughts, not files."""
    found = []
    for part in parts:
        if part.get("type") == "text":
            found.append(part["text"])
        elif part.get("type") == "file":
            found.append(part["name"])
    return "\n".join(found)
