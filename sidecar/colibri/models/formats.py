"""Which weight format a published tensor has, and how many bytes each format takes.

For: opening containers, the packed container, the converter. The byte counts repeat the engine's
(`native/src/weight.c`), which checks them again; a test compares the two. Not for: the numbers
inside. Thread rule: pure functions.

Published int8/int4 containers carry no format id. It follows from the byte counts of `<name>` and
`<name>.qs` against the logical shape, with three rules where the counts alone do not decide:
- int8 per row against fp8 blocks (equal for 6144 x 16384): an unstamped tensor is int8 per row,
  because the writers of such containers never emit fp8 where the counts collide.
- one group per row is int4 per row, which is the same numbers.
- several group sizes fit: one container uses one size, so only sizes that fit every grouped tensor
  count; of those, one that divides every width (no short tail group) wins. Otherwise refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from colibri.engine.table import Format

GROUP_SIZES: Final = (16, 32, 48, 64, 96, 128, 192, 256)
FP8_BLOCK: Final = 128
# GGUF blocks of 32 weights.
BLOCK_COLS: Final = 32
BLOCK_BYTES: Final = {Format.Q4_0: 18, Format.Q4_1: 20, Format.Q8_0: 34}
PLAIN_DTYPES: Final = {"F32": Format.F32, "BF16": Format.BF16, "F16": Format.F16}
_ELEMENT_BYTES: Final = {
    Format.F32: 4,
    Format.BF16: 2,
    Format.F16: 2,
    Format.I8_ROW: 1,
    Format.FP8_BLOCK: 1,
}
BLOCK_ROWS: Final = 32
# Packed layout: columns per segment, bytes of a segment with its scales, row scales after a block.
_SEGMENTS: Final = {
    Format.F32: (1, 128, 0),
    Format.BF16: (2, 128, 0),
    Format.F16: (2, 128, 0),
    Format.I8_ROW: (64, 2048, 128),
    Format.I4_ROW: (64, 1024, 128),
    Format.I4_GROUP: (0, 0, 0),
    Format.FP8_BLOCK: (128, 4096 + 64, 0),
    Format.Q4_0: (32, 512 + 64, 0),
    Format.Q4_1: (32, 512 + 128, 0),
    Format.Q8_0: (32, 1024 + 64, 0),
}
# Names that newer containers stamp, and what they are here.
STAMP_NAMES: Final = {
    "int8-row": Format.I8_ROW,
    "int4-row": Format.I4_ROW,
    "int4-grouped": Format.I4_GROUP,
    "fp8-e4m3-b128": Format.FP8_BLOCK,
}


def ceil_div(value: int, divisor: int) -> int:
    """Quotient rounded up."""
    return -(-value // divisor)


def plain_bytes(fmt: int, rows: int, cols: int) -> int:
    """Bytes of the data span in the plain layout."""
    if fmt in (Format.I4_ROW, Format.I4_GROUP):
        return rows * ceil_div(cols, 2)
    block = BLOCK_BYTES.get(Format(fmt))
    if block is not None:
        return rows * ceil_div(cols, BLOCK_COLS) * block
    return rows * cols * _ELEMENT_BYTES[Format(fmt)]


def scale_count(fmt: int, group: int, rows: int, cols: int) -> int:
    """Number of f32 scales in the plain layout's second span; 0 where the format has none."""
    if fmt in (Format.I8_ROW, Format.I4_ROW):
        return rows
    if fmt == Format.I4_GROUP:
        return rows * ceil_div(cols, group)
    if fmt == Format.FP8_BLOCK:
        return ceil_div(rows, FP8_BLOCK) * ceil_div(cols, FP8_BLOCK)
    return 0


def packed_bytes(fmt: int, group: int, rows: int, cols: int) -> int:
    """Bytes of the packed layout: blocks of 32 rows, each a stream of segments (see weight.h)."""
    segment, segment_bytes, row_scales = _SEGMENTS[Format(fmt)]
    if fmt == Format.I4_GROUP:
        segment = math.gcd(group, 64)
        segment_bytes = BLOCK_ROWS * segment // 2 + 4 * BLOCK_ROWS
    block = ceil_div(cols, segment) * segment_bytes + row_scales
    return ceil_div(rows, BLOCK_ROWS) * block


@dataclass(frozen=True, slots=True)
class Quantized:
    """Byte counts of a published pair: `name` (data) and `name.qs` (`scales` floats)."""

    name: str
    rows: int
    cols: int
    data_bytes: int
    scales: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the counts allow: formats without group, and group sizes of int4 grouped."""

    formats: frozenset[Format]
    groups: frozenset[int]

    def __bool__(self) -> bool:
        return bool(self.formats or self.groups)


def candidates(pair: Quantized) -> Candidates:
    """Every format whose byte counts equal the pair's."""
    return _candidates(pair.rows, pair.cols, pair.data_bytes, pair.scales)


@lru_cache(maxsize=4096)  # a container of 59,000 pairs has some dozen different ones
def _candidates(rows: int, cols: int, data_bytes: int, scales: int) -> Candidates:
    formats = {
        fmt
        for fmt in (Format.I8_ROW, Format.I4_ROW, Format.FP8_BLOCK)
        if (data_bytes, scales) == (plain_bytes(fmt, rows, cols), scale_count(fmt, 0, rows, cols))
    }
    groups: set[int] = set()
    if Format.I4_ROW not in formats and data_bytes == plain_bytes(Format.I4_ROW, rows, cols):
        groups = {
            size for size in GROUP_SIZES if scales == scale_count(Format.I4_GROUP, size, rows, cols)
        }
    return Candidates(frozenset(formats), frozenset(groups))


def resolve(pair: Quantized, found: Candidates, stamp: Format | None, group: int) -> Format | None:
    """The format of one pair, or None when it stays ambiguous.

    `group` is the container's group size, 0 when undecided. A stamp that contradicts the counts is
    the caller's error to report before; here it only chooses between candidates.
    """
    if found.groups and not found.formats:
        return Format.I4_GROUP if group in found.groups else None
    if stamp is not None and stamp in found.formats:
        return stamp
    if len(found.formats) == 1 and not found.groups:
        return next(iter(found.formats))
    if found.formats == {Format.I8_ROW, Format.FP8_BLOCK}:
        return Format.I8_ROW
    return None


def container_group(pairs: list[tuple[Quantized, Candidates]]) -> tuple[int, frozenset[int]]:
    """(the one group size of a container or 0, the sizes that remained possible)."""
    grouped = [(pair, found) for pair, found in pairs if found.groups]
    if not grouped:
        return 0, frozenset()
    left = frozenset.intersection(*(found.groups for _, found in grouped))
    if len(left) > 1:
        widths = {pair.cols for pair, _ in grouped}
        exact = frozenset(size for size in left if all(cols % size == 0 for cols in widths))
        left = exact if len(exact) == 1 else left
    return (next(iter(left)) if len(left) == 1 else 0), left


def stamp_allows(stamp: Format, found: Candidates) -> bool:
    """Whether a stamped format agrees with the byte counts."""
    if stamp == Format.I4_GROUP:
        return bool(found.groups) or Format.I4_ROW in found.formats
    return stamp in found.formats
