"""Blocks: how they are named, and how a segment file holds them. Pure encoding and decoding.

For: the store and the inventory. Not for: files.

A block is the KV of `block_tokens` tokens over all layers, or of fewer: a tail, the end of what a
conversation held. Its id says what it stands for, so equal prefixes have equal ids and a block is
stored once:

    root      = H("root" | fingerprint)          fingerprint: weights, tokenizer, layout
    id of i   = H(id of i - 1 | tokens of i)     i = 0: the root

    segment   +--------------+--------+---------------+--------+---------------+ ...
              | segment head | record | payload,      | record | payload,      |
              | 4096         | head   | zeros to 4096 | head   | zeros to 4096 |
              +--------------+--------+---------------+--------+---------------+

All records of a segment have one length, so a damaged head hides no other record, and everything
starts at a multiple of 4096. Integers are little-endian. Both kinds of head end in a CRC-32 of
their page, seeded with the fingerprint's root: a record that strays into another model's segment
is not valid there. The record head holds the CRC-32 of the payload.

Why CRC-32: it is in every Python, runs at several GB/s without the interpreter's lock, and finds
every damage of up to 32 adjacent bits for certain, any other but one in four billion. It guards
against accidents of disks and crashes; a BLAKE2b of the payload would quadruple the cost.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

PAGE: Final = 4096
ID_BYTES: Final = 32
VERSION: Final = 1
# A record head is one page; this many tokens fit beside its fields.
MOST_TOKENS: Final = 768
MOST_BLOCK_BYTES: Final = 1 << 30
# Leaves room to count on from any serial number that is believed.
MOST_SERIAL: Final = 1 << 62

_SEGMENT_MAGIC: Final = b"COLIKVS1"
_RECORD_MAGIC: Final = b"COLIKVR1"
# magic, version, block tokens, block bytes, number of the segment, root
_SEGMENT: Final = struct.Struct("<8sIIQQ32s")
# magic, id, parent, serial, written (seconds since 1970), depth, tokens, payload bytes, its CRC
_RECORD: Final = struct.Struct("<8s32s32sQQIIQI")
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = PAGE - _CRC.size


class Geometry(msgspec.Struct, frozen=True):
    """What all blocks of a store have in common."""

    root: bytes
    block_tokens: int
    block_bytes: int

    @property
    def payload_room(self) -> int:
        """Bytes of a payload with its padding."""
        return -(-self.block_bytes // PAGE) * PAGE

    @property
    def stride(self) -> int:
        """Bytes of a record: its head, its payload, the padding."""
        return PAGE + self.payload_room

    def offset(self, index: int) -> int:
        """Where record `index` of a segment starts."""
        return PAGE + index * self.stride


class SegmentHead(msgspec.Struct, frozen=True):
    """First page of a segment file."""

    geometry: Geometry
    number: int


class RecordHead(msgspec.Struct, frozen=True):
    """What a record says about its block. `serial` grows with every record of a store."""

    id: bytes
    parent: bytes
    serial: int
    written: int
    depth: int
    payload_crc: int
    tokens: bytes


def root_id(fingerprint: str) -> bytes:
    """Parent of every first block."""
    return hashlib.blake2b(b"root\0" + fingerprint.encode(), digest_size=ID_BYTES).digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as they are hashed and stored: 32 bits each. Raises ValueError."""
    try:
        return struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error as error:
        raise ValueError(f"a token id does not fit into 32 bits: {error}") from None


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """The reverse of `pack_tokens`; `data` has a whole number of tokens."""
    return struct.unpack(f"<{len(data) // 4}I", data)


def block_id(parent: bytes, tokens: bytes) -> bytes:
    """Id of the block with these packed tokens that follows `parent`."""
    return hashlib.blake2b(parent + tokens, digest_size=ID_BYTES).digest()


def chain_ids(root: bytes, tokens: bytes, block_tokens: int) -> Iterator[bytes]:
    """Ids of the whole blocks of packed tokens, first to last."""
    parent, step = root, 4 * block_tokens
    for start in range(0, len(tokens) - step + 1, step):
        parent = block_id(parent, tokens[start : start + step])
        yield parent


def _seal(page: bytearray, seed: int) -> bytes:
    _CRC.pack_into(page, _CRC_AT, zlib.crc32(memoryview(page)[:_CRC_AT], seed))
    return bytes(page)


def _whole(page: memoryview, seed: int) -> bool:
    (crc,) = _CRC.unpack_from(page, _CRC_AT)
    return bool(crc == zlib.crc32(page[:_CRC_AT], seed))


def encode_segment(head: SegmentHead) -> bytes:
    """The first page of a segment."""
    page, geometry = bytearray(PAGE), head.geometry
    _SEGMENT.pack_into(
        page,
        0,
        _SEGMENT_MAGIC,
        VERSION,
        geometry.block_tokens,
        geometry.block_bytes,
        head.number,
        geometry.root,
    )
    return _seal(page, 0)


def decode_segment(page: memoryview) -> SegmentHead | None:
    """None if the page is no whole segment head of this version."""
    if len(page) != PAGE or not _whole(page, 0):
        return None
    magic, version, tokens, size, number, root = _SEGMENT.unpack_from(page)
    if magic != _SEGMENT_MAGIC or version != VERSION:
        return None
    if not (0 < tokens <= MOST_TOKENS and 0 < size <= MOST_BLOCK_BYTES):
        return None
    return SegmentHead(Geometry(root, tokens, size), number)


def encode_record(head: RecordHead, geometry: Geometry) -> bytes:
    """The page before a payload."""
    page = bytearray(PAGE)
    _RECORD.pack_into(
        page,
        0,
        _RECORD_MAGIC,
        head.id,
        head.parent,
        head.serial,
        head.written,
        head.depth,
        len(head.tokens) // 4,
        geometry.block_bytes,
        head.payload_crc,
    )
    page[_RECORD.size : _RECORD.size + len(head.tokens)] = head.tokens
    return _seal(page, zlib.crc32(geometry.root))


def decode_record(page: memoryview, geometry: Geometry) -> RecordHead | None:
    """None if the page is no whole record head of this geometry."""
    if len(page) != PAGE or not _whole(page, zlib.crc32(geometry.root)):
        return None
    magic, own, parent, serial, written, depth, count, size, crc = _RECORD.unpack_from(page)
    if (magic, size) != (_RECORD_MAGIC, geometry.block_bytes) or serial > MOST_SERIAL:
        return None
    if not 0 < count <= geometry.block_tokens:
        return None
    tokens = bytes(page[_RECORD.size : _RECORD.size + 4 * count])
    return RecordHead(own, parent, serial, written, depth, crc, tokens)


def payload_crc(payload: memoryview) -> int:
    """Checksum of a payload."""
    return zlib.crc32(payload)
