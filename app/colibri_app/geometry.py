"""Where the window was, and whether it may be there again.

For: `window`. What is kept may be old, damaged, or from a desk with more screens, so it is believed
only as far as it fits what is there now: whatever the file holds, the window is reachable.
Positions and sizes are pixels of the whole desktop. Pure but for `load` and `save`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

MIN_WIDTH: Final = 360
MIN_HEIGHT: Final = 480
# Of its title bar this much must lie on a screen for a window to be moved by hand.
_GRIP: Final = 80
# Sizes are those of the content; the frame, and a panel that no toolkit tells of, need room too.
_FRAME: Final = 48
_LARGEST: Final = 65_536


@dataclass(frozen=True, slots=True)
class Rect:
    """A screen."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Size and place of the window when it is not maximised; no place: let the system choose."""

    width: int = 1180
    height: int = 800
    x: int | None = None
    y: int | None = None
    maximized: bool = False


def parse(data: Any) -> Geometry:
    """What a file held, field by field; whatever is no sane number has its default."""
    usual = Geometry()
    if not isinstance(data, dict):
        return usual

    def number(name: str, default: int | None, low: int) -> int | None:
        value = data.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if type(value) is int and low <= value <= _LARGEST else default

    x, y = number("x", None, -_LARGEST), number("y", None, -_LARGEST)
    return Geometry(
        width=number("width", None, 1) or usual.width,
        height=number("height", None, 1) or usual.height,
        x=x if y is not None else None,
        y=y if x is not None else None,
        maximized=data.get("maximized") is True,
    )


def fit(wanted: Geometry, screens: Sequence[Rect]) -> Geometry:
    """The geometry moved and shrunk so that it lies on a screen; without screens as it is."""
    usable = [screen for screen in screens if screen.width > 0 and screen.height > 0]
    if not usable:
        return wanted
    screen, placed = usable[0], False
    if wanted.x is not None and wanted.y is not None:
        for candidate in usable:
            left = max(wanted.x, candidate.x)
            right = min(wanted.x + wanted.width, candidate.x + candidate.width)
            on_top = candidate.y <= wanted.y < candidate.y + candidate.height - _GRIP // 2
            if on_top and right - left >= _GRIP:
                screen, placed = candidate, True
                break
    width = max(min(wanted.width, screen.width), min(MIN_WIDTH, screen.width))
    room = max(screen.height - _FRAME, 1)
    height = max(min(wanted.height, room), min(MIN_HEIGHT, screen.height))
    if not placed or wanted.x is None or wanted.y is None:
        return Geometry(width, height, maximized=wanted.maximized)
    x = max(screen.x, min(wanted.x, screen.x + screen.width - width))
    y = max(screen.y, min(wanted.y, screen.y + screen.height - height))
    return Geometry(width, height, x, y, wanted.maximized)


def load(path: Path) -> Geometry:
    """What was kept; the usual geometry where nothing sensible was."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return Geometry()


def save(path: Path, geometry: Geometry) -> None:
    """Keeps a geometry, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(geometry)), encoding="utf-8")
    partial.replace(path)
