"""What the page in the window and the window say to each other.

For: `window`. The page keeps an object, `window.colibriShell`; the window asks it a few times a
second for what it has to say, and calls it with what it has to tell. So nothing in the page has to
be evaluated from text (its Content-Security-Policy forbids it), and nothing depends on how a
toolkit hands messages over.

    TAKE         script: {"at": address of the page, "said": [{"id", "name", "args"}] or null}
    tell(...)    script that hands the page one of
                   {"kind": "answer", "id", "value"}      to what it asked
                   {"kind": "command", "name"}            of the menu
                   {"kind": "notice", "code", "values"}   for the person

Pure. What a page says is believed only in this shape, and only from the server's own pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

TAKE: Final = (
    "JSON.stringify({at: location.href, said: window.colibriShell ? "
    "window.colibriShell.take() : null})"
)
_MOST_BYTES: Final = 256 << 20
_MOST_NAME: Final = 40


@dataclass(frozen=True, slots=True)
class Said:
    """One wish of the page. `id` is 0 where it expects no answer."""

    id: int
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the page. `said` is None when no page of ours is there (yet, or any more)."""

    at: str
    said: tuple[Said, ...] | None


def parse(text: object) -> Look | None:
    """What `TAKE` has brought; None when it brought nothing that can be understood."""
    if not isinstance(text, str) or len(text) > _MOST_BYTES:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("at"), str):
        return None
    said = data.get("said")
    if not isinstance(said, list):
        return Look(data["at"], None)
    return Look(data["at"], tuple(one for item in said if (one := _said(item)) is not None))


def _said(item: Any) -> Said | None:
    if not isinstance(item, dict):
        return None
    number, name, args = item.get("id"), item.get("name"), item.get("args")
    if type(number) is not int or not isinstance(name, str) or not isinstance(args, dict):
        return None
    return Said(number, name, args) if len(name) <= _MOST_NAME else None


def tell(message: dict[str, Any]) -> str:
    """The script that hands a message to the page. All of it is ASCII, so no text can break out."""
    return f"window.colibriShell && window.colibriShell.tell({json.dumps(message)})"


def is_own(at: str, home: str | None) -> bool:
    """Whether an address is a page of the server at `home`, or one of the window's own pages."""
    if at.startswith("about:") or at == "":
        return True
    if home is None:
        return False
    here, there = urlsplit(at), urlsplit(home)
    return (here.scheme, here.netloc) == (there.scheme, there.netloc)
