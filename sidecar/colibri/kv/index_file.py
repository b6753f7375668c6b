"""The accelerator: what a scan of all segments would find, in one file.

For: the store, which starts faster with it and remembers what was used last. Not for: truth: it
may be lost, old or of another store at any time. It only says which records of a segment's first
part are worth knowing; every read checks the record itself. Pure encoding and decoding.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec

from colibri.kv import blocks
from colibri.kv.blocks import Geometry
from colibri.kv.chains import Block

NAME: Final = "index"
VERSION: Final = 2
# A million blocks; more is no index of ours.
MOST_BYTES: Final = 128 << 20

# id, parent, serial, used, written, depth, segment, place
_ENTRY: Final = struct.Struct("<32s32sQQQIII")
_HASH_BYTES: Final = 16
# Twelve digits, as in the names of segments.
_MOST_NUMBER: Final = 10**12


class _Index(msgspec.Struct, array_like=True, frozen=True):
    version: int
    root: bytes
    block_tokens: int
    block_bytes: int
    segments: dict[int, int]
    entries: bytes
    tails: dict[bytes, bytes]


class Index(msgspec.Struct, frozen=True):
    """`segments`: places per segment number that the blocks speak for."""

    segments: dict[int, int]
    blocks: list[Block]


def _hash(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()


def encode(geometry: Geometry, index: Index) -> bytes:
    """The file's content."""
    entries = b"".join(
        _ENTRY.pack(b.id, b.parent, b.serial, b.used, b.written, b.depth, b.segment, b.index)
        for b in index.blocks
    )
    body = msgspec.msgpack.encode(
        _Index(
            VERSION,
            geometry.root,
            geometry.block_tokens,
            geometry.block_bytes,
            index.segments,
            entries,
            {b.id: b.tail for b in index.blocks if b.tail},
        )
    )
    return _hash(body) + body


def decode(data: bytes, geometry: Geometry) -> Index | None:
    """None if the file is damaged, of another version or of another store."""
    body = data[_HASH_BYTES:]
    if data[:_HASH_BYTES] != _hash(body):
        return None
    try:
        raw = msgspec.msgpack.decode(body, type=_Index)
    except (msgspec.DecodeError, RecursionError):
        return None
    own = Geometry(raw.root, raw.block_tokens, raw.block_bytes)
    if raw.version != VERSION or own != geometry or len(raw.entries) % _ENTRY.size:
        return None
    if any(places < 0 or not 0 < number < _MOST_NUMBER for number, places in raw.segments.items()):
        return None
    found = []
    for entry in _ENTRY.iter_unpack(raw.entries):
        own_id, parent, serial, used, written, depth, segment, index = entry
        if index < raw.segments.get(segment, 0) and max(serial, used) <= blocks.MOST_SERIAL:
            tail = raw.tails.get(own_id, b"")
            found.append(Block(own_id, parent, serial, depth, segment, index, used, written, tail))
    return Index(raw.segments, found)
