"""Shards of the packed container: what lies in them, and writing one.

For: `pack_writer`. A shard is a list of items (a tensor, or an expert) at planned offsets. Their
bytes are made in pieces by several threads and written in order; what is made ahead is bounded in
number and bytes. Not for: resuming, state or the index (`pack_writer`). Thread rule: one writer per
file; pieces are made in the threads of the pool that is given.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format, Layout
from colibri.models import formats, packed

# Large enough to matter for direct reads; smaller matrices only need the kernels' alignment.
_PAGE_ALIGNED_FROM: Final = 64 << 10
_PAGE: Final = packed.EXPERT_ALIGNMENT
_LINE: Final = 64
_AHEAD_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor to write: its stamp. `name` is the full name, or inside an expert the name after
    it.
    """

    name: str
    format: Format
    group: int
    rows: int
    cols: int
    layout: Layout

    @property
    def bytes(self) -> int:
        """Bytes in the container."""
        if self.layout == Layout.PLAIN:
            return formats.plain_bytes(self.format, self.rows, self.cols)
        return formats.packed_bytes(self.format, self.group, self.rows, self.cols)

    def stamp(self) -> dict[str, Any]:
        """What the index says about it, place and hash aside."""
        return {"format": self.format.name, "group": self.group, "shape": [self.rows, self.cols]}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an item's bytes: how many, and what makes them."""

    bytes: int
    make: Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Item:
    """What lies contiguously: one tensor, or the three matrices of an expert.

    `make` gives their bytes in order, as pieces that may be made in several threads at once.
    """

    name: str
    parts: tuple[Part, ...]
    is_expert: bool
    make: Callable[[], Iterable[Piece]]

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def alignment(self) -> int:
        """Where it may start."""
        if self.is_expert or self.bytes >= _PAGE_ALIGNED_FROM:
            return _PAGE
        return _LINE


@dataclass(slots=True)
class Shard:
    """A planned file: items with their offsets from the start of the data."""

    name: str
    placed: list[tuple[Item, int]] = field(default_factory=list)
    end: int = 0


def plan(items: Iterable[Item], stem: str, shard_bytes: int) -> list[Shard]:
    """Distributes the items, in order, over files of at most `shard_bytes` (one item may exceed
    it).
    """
    shards: list[Shard] = []
    for item in items:
        start = -(-shards[-1].end // item.alignment) * item.alignment if shards else 0
        if not shards or (shards[-1].placed and start + item.bytes > shard_bytes):
            shards.append(Shard(f"{stem}-{len(shards):05d}.safetensors"))
            start = 0
        shards[-1].placed.append((item, start))
        shards[-1].end = start + item.bytes
    return shards


def write_shard(
    path: Path,
    shard: Shard,
    made: Iterator[tuple[Item, NDArray[np.uint8]]],
    advance: Callable[[int], None],
) -> dict[str, str]:
    """Writes a file under a temporary name and renames it; returns the hash of every item."""
    temporary = path.with_name(path.name + ".tmp")
    head = header(shard)
    hashes: dict[str, str] = {}
    by_item = groupby(made, lambda pair: pair[0].name)
    with temporary.open("wb") as stream:
        stream.write(head)
        for (item, offset), (_, pieces) in zip(shard.placed, by_item, strict=True):
            stream.write(bytes(len(head) + offset - stream.tell()))
            hashes[item.name] = _write_item(stream, item, (data for _, data in pieces), advance)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
    return hashes


def _write_item(
    stream: Any, item: Item, pieces: Iterable[NDArray[np.uint8]], advance: Callable[[int], None]
) -> str:
    digest = packed.new_hash()
    written = 0
    for piece in pieces:
        stream.write(piece.data)
        digest.update(piece.data)
        written += piece.nbytes
        advance(piece.nbytes)
    if written != item.bytes:
        raise ValueError(f"{item.name}: {written:,} bytes were made, expected {item.bytes:,}")
    return digest.hexdigest()


def make_ahead(
    pool: ThreadPoolExecutor, ahead: int, items: Iterable[Item]
) -> Iterator[tuple[Item, NDArray[np.uint8]]]:
    """The pieces of all items in order, up to `ahead` of them in the making at once."""
    pending: deque[tuple[Item, int, Future[NDArray[np.uint8]]]] = deque()
    held = 0
    upcoming = ((item, piece) for item in items for piece in item.make())
    following = next(upcoming, None)
    while following is not None or pending:
        while following is not None:
            item, piece = following
            if pending and (len(pending) >= ahead or held + piece.bytes > _AHEAD_BYTES):
                break
            pending.append((item, piece.bytes, pool.submit(_make, item, piece)))
            held += piece.bytes
            following = next(upcoming, None)
        item, size, future = pending.popleft()
        held -= size
        yield item, future.result()


def _make(item: Item, piece: Piece) -> NDArray[np.uint8]:
    data = np.ascontiguousarray(piece.make()).view(np.uint8).reshape(-1)
    if data.nbytes != piece.bytes:
        raise ValueError(f"{item.name}: made {data.nbytes:,} bytes, expected {piece.bytes:,}")
    return data


def header(shard: Shard) -> bytes:
    """The safetensors header, padded so that the data starts on a page; gaps become padding
    entries.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": packed.FORMAT_NAME}}
    end = 0
    for item, start in shard.placed:
        if start > end:
            entries[f"colibri.padding.{end}"] = _entry("U8", [start - end], end)
        end = start
        if item.is_expert:
            entries[item.name] = _entry("U8", [item.bytes], start)
        else:
            part = item.parts[0]
            plain = part.layout == Layout.PLAIN
            shape = (
                ([part.cols] if part.rows == 1 else [part.rows, part.cols])
                if plain
                else [part.bytes]
            )
            entries[item.name] = _entry(part.format.name if plain else "U8", shape, start)
        end += item.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return len(text).to_bytes(8, "little") + text


def _entry(dtype: str, shape: list[int], start: int) -> dict[str, Any]:
    size = {"F32": 4, "BF16": 2, "F16": 2}.get(dtype, 1)
    for extent in shape:
        size *= extent
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder last, where the operating system can be asked to."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
