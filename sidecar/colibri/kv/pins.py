"""Which chains a person wants kept: a small text file that any process may change.

For: `coli cache pin`, also while a server runs, and the store, which looks before it evicts. Not
for: what slots hold for as long as they live (`Chains.hold`). Thread rule: any thread; changes
are made under a lock of their own, and the file is replaced at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Final

import filelock

from colibri.kv import files
from colibri.kv.blocks import ID_BYTES

log = logging.getLogger(__name__)

NAME: Final = "pins.json"
_LOCK: Final = "pins.lock"
_SCHEMA: Final = 1
_MOST_BYTES: Final = 1 << 20
_PATIENCE_SECONDS: Final = 5

Stamp = tuple[int, int, int]


def stamp(folder: Path) -> Stamp | None:
    """Changes when the file does; None without one."""
    try:
        stats = (folder / NAME).stat()
    except OSError:
        return None
    return stats.st_mtime_ns, stats.st_size, stats.st_ino


def load(folder: Path) -> frozenset[bytes]:
    """Pinned ids. A file that cannot be understood counts as none, with one line in the log."""
    try:
        tree = json.loads(files.read(folder / NAME, _MOST_BYTES))
        found = frozenset(bytes.fromhex(text) for text in tree["pins"])
        if tree["schema"] != _SCHEMA or any(len(own) != ID_BYTES for own in found):
            raise ValueError("it is of another version")
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("%s is not understood and counts as empty: %s", folder / NAME, error)
        return frozenset()
    return found


def change(
    folder: Path, *, add: frozenset[bytes] = frozenset(), remove: frozenset[bytes] = frozenset()
) -> frozenset[bytes]:
    """Adds and removes pins; returns all of them. Raises OSError."""
    try:
        with filelock.FileLock(folder / _LOCK, timeout=_PATIENCE_SECONDS):
            pins = (load(folder) | add) - remove
            text = json.dumps({"schema": _SCHEMA, "pins": sorted(own.hex() for own in pins)})
            files.replace(folder / NAME, text.encode() + b"\n", sync=True)
    except filelock.Timeout as error:
        raise OSError(f"{folder / _LOCK} is held by another process") from error
    return pins


def clear(folder: Path) -> None:
    """Forgets every pin."""
    with contextlib.suppress(OSError):
        files.remove(folder / NAME)
