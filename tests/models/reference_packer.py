"""The packed layout of weight.h in NumPy, to compare with the engine's packer.

For: `test_packed.py`. Written from the description of the layout, element by element where that is
clearer than fast; matrices are small. Plain bytes in, packed bytes out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format

ROWS = 32
Bytes = NDArray[np.uint8]


def pack(fmt: Format, group: int, rows: int, cols: int, data: bytes, scales: bytes | None) -> bytes:
    """Packed bytes of a plain matrix."""
    codes, bits, segment = _codes(fmt, group, rows, cols, data)
    blocks = -(-rows // ROWS)
    segments = -(-cols // segment)
    padded = np.full((blocks * ROWS, segments * segment), _zero(fmt), dtype=codes.dtype)
    padded[:rows, :cols] = codes
    out = bytearray()
    for block in range(blocks):
        lines = padded[block * ROWS : (block + 1) * ROWS]
        for number in range(segments):
            part = lines[:, number * segment : (number + 1) * segment]
            if fmt == Format.FP8_BLOCK:  # columns 0 2 1 3 of every four
                part = part.reshape(ROWS, -1, 2, 2).swapaxes(2, 3).reshape(ROWS, -1)
            out += _interleave(part, bits)
            out += _segment_scales(fmt, group, (rows, cols), data, scales, block, number * segment)
        if fmt in (Format.I8_ROW, Format.I4_ROW):
            row_scales = np.zeros(blocks * ROWS, np.float32)
            row_scales[:rows] = np.frombuffer(scales or b"", np.float32)
            out += row_scales[block * ROWS : (block + 1) * ROWS].tobytes()
    return bytes(out)


def _zero(fmt: Format) -> int:
    """Code of the value 0, which pads rows and columns."""
    if fmt in (Format.I8_ROW, Format.Q8_0):
        return 0x80
    return 8 if fmt in (Format.I4_ROW, Format.I4_GROUP, Format.Q4_0) else 0


def _codes(
    fmt: Format, group: int, rows: int, cols: int, data: bytes
) -> tuple[NDArray[Any], int, int]:
    """(codes [rows, cols], bits per code, columns per segment)."""
    raw = np.frombuffer(data, np.uint8)
    if fmt == Format.F32:
        codes, bits, segment = raw.view(np.uint32).reshape(rows, cols), 32, 1
    elif fmt in (Format.BF16, Format.F16):
        codes, bits, segment = raw.view(np.uint16).reshape(rows, cols), 16, 2
    elif fmt == Format.FP8_BLOCK:
        codes, bits, segment = raw.reshape(rows, cols), 8, 128
    elif fmt == Format.I8_ROW:
        codes, bits, segment = raw.reshape(rows, cols) ^ 0x80, 8, 64
    elif fmt in (Format.I4_ROW, Format.I4_GROUP):
        pairs = raw.reshape(rows, -1)
        codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(rows, -1)[:, :cols]
        bits, segment = 4, 64 if fmt == Format.I4_ROW else math.gcd(group, 64)
    else:
        head = {Format.Q4_0: 2, Format.Q4_1: 4, Format.Q8_0: 2}[fmt]
        body = raw.reshape(rows, cols // 32, -1)[:, :, head:]
        bits, segment = (8 if fmt == Format.Q8_0 else 4), 32
        codes = body ^ 0x80 if bits == 8 else np.concatenate([body & 15, body >> 4], axis=2)
        codes = codes.reshape(rows, cols)
    return codes, bits, segment


def _interleave(part: NDArray[Any], bits: int) -> bytes:
    """A segment as steps of 32-bit lanes, one lane per row."""
    if bits == 4:
        half = part.shape[1] // 2
        part = part[:, :half] | (part[:, half:] << 4)
    per_lane = {4: 4, 8: 4, 16: 2, 32: 1}[bits]
    steps = part.reshape(ROWS, -1, per_lane).swapaxes(0, 1)
    return np.ascontiguousarray(steps).tobytes()


def _segment_scales(
    fmt: Format,
    group: int,
    shape: tuple[int, int],
    data: bytes,
    scales: bytes | None,
    block: int,
    column: int,
) -> bytes:
    """Scales that follow the segment which starts at `column`."""
    rows, cols = shape
    first = block * ROWS
    if fmt == Format.FP8_BLOCK:
        grid = np.frombuffer(scales or b"", np.float32).reshape(-1, -(-cols // 128))
        return grid[first // 128, column // 128].tobytes().ljust(64, b"\0")
    if fmt == Format.I4_GROUP:
        table = np.frombuffer(scales or b"", np.float32).reshape(rows, -1)
        result = np.zeros(ROWS, np.float32)
        own = table[first : first + ROWS, column // group]
        result[: len(own)] = own
        return result.tobytes()
    heads = {Format.Q4_0: 1, Format.Q4_1: 2, Format.Q8_0: 1}.get(fmt, 0)
    out = b""
    for head in range(heads):
        halves = np.frombuffer(data, np.uint8).reshape(rows, cols // 32, -1)[:, :, : 2 * heads]
        values = np.zeros((ROWS, 2), np.uint8)
        own = halves[first : first + ROWS, column // 32, 2 * head : 2 * head + 2]
        values[: len(own)] = own
        out += values.tobytes()
    return out
