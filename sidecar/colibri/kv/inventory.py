"""What lies in a store's folder, without knowing which model it belongs to.

For: `coli cache`, also while a server runs: looking takes no lock and changes nothing. Not for:
the engine process. Thread rule: pure functions over files.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from colibri.errors import ResourceError
from colibri.kv import files, index_file, lock, parked, pins, segments, slots
from colibri.kv.blocks import Geometry
from colibri.kv.contents import Contents
from colibri.kv.store import ChainInfo, describe

# The folder's name beside the slots' files.
STORE_NAME: Final = ".coli_kv_blocks"
_CLEARED_SEGMENT: Final = 1 << 28


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Prefixes of one model with one layout."""

    block_tokens: int
    block_bytes: int
    prefixes: tuple[ChainInfo, ...]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All of a folder: bytes of its segments, who writes to it, its pins, the slots' files."""

    folder: Path
    held_bytes: int
    writer: int | None
    pins: frozenset[bytes]
    layouts: tuple[Layout, ...]
    slots: tuple[Path, ...]


def look(state: Path) -> Inventory:
    """What is stored below a model's state directory. Raises OSError."""
    folder = state / STORE_NAME
    pinned = pins.load(folder)
    layouts = []
    size = 0
    for geometry in _geometries(folder):
        with _contents(folder, geometry, write=False) as contents:
            contents.chains.pins = pinned
            size = contents.size()
            layouts.append(
                Layout(
                    block_tokens=geometry.block_tokens,
                    block_bytes=geometry.block_bytes,
                    prefixes=tuple(describe(contents.chains, geometry.block_tokens)),
                )
            )
    beside = folder / parked.NAME
    return Inventory(
        folder=folder,
        held_bytes=size + sum(path.stat().st_size for path in beside.glob("*/*")),
        writer=lock.owner(folder),
        pins=pinned,
        layouts=tuple(layouts),
        slots=tuple(slots.all_files(state)) if state.is_dir() else (),
    )


def clear(state: Path, *, pinned: bool) -> None:
    """Deletes stored blocks and the slots' files; with `pinned`, what is pinned too.

    Raises ResourceError while another process writes there, and OSError.
    """
    folder = state / STORE_NAME
    if not folder.is_dir():
        _remove_slots(state)
        return
    taken = lock.WriterLock(folder)
    if not taken.take():
        raise ResourceError(
            f"process {lock.owner(folder) or '?'} keeps its context here.",
            where=str(folder),
            hint="Stop the server that uses this model first.",
        )
    try:
        if pinned:
            pins.clear(folder)
        kept = pins.load(folder)
        files.remove(folder / index_file.NAME)
        shutil.rmtree(folder / parked.NAME, ignore_errors=True)
        for geometry in _geometries(folder):
            with _contents(folder, geometry, write=True) as contents:
                contents.chains.pins = kept
                contents.clear()
        known = set(_geometries(folder))
        for _, path in segments.numbered(folder):
            if _geometry(path) not in known:
                files.remove(path)
        _remove_slots(state)
    finally:
        taken.release()


def _remove_slots(state: Path) -> None:
    for path in slots.all_files(state) if state.is_dir() else ():
        files.remove(path)


@contextlib.contextmanager
def _contents(folder: Path, geometry: Geometry, *, write: bool) -> Iterator[Contents]:
    capacity = max(1, _CLEARED_SEGMENT // geometry.stride)
    contents = Contents(folder, geometry, capacity, quiet=True)
    try:
        contents.load(write=write)
        yield contents
    finally:
        contents.abandon()


def _geometries(folder: Path) -> list[Geometry]:
    """Every model and layout that has segments here, oldest segment first."""
    if not folder.is_dir():
        return []
    found = [_geometry(path) for _, path in segments.numbered(folder)]
    return list(dict.fromkeys(geometry for geometry in found if geometry is not None))


def _geometry(path: Path) -> Geometry | None:
    """None for a segment that is damaged, of another version, or gone."""
    try:
        file = files.DataFile(path)
    except OSError:
        return None
    try:
        head = segments.read_head(file)
    except OSError:
        return None
    finally:
        file.close()
    return head.geometry if head is not None else None
