"""The engine's packed layout of weight matrices: sizes, packing, unpacking.

For: converters and tests. Not for: a running engine, which packs what it reads by itself. Threads:
any; every call releases the interpreter lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.engine.cvalues import Buffer, Call, Floats, ffi, float_buffer, lib
from colibri.engine.status import EngineError, Status


def weight_packed_bytes(format: int, group: int, rows: int, cols: int) -> int:
    """Bytes of a matrix in the packed layout; raises on an invalid combination."""
    size = int(lib.colibri_weight_packed_bytes(format, group, rows, cols))
    if size < 0:
        raise EngineError(
            Status.INVALID,
            f"no packed layout for format {format}, group {group}, shape [{rows}, {cols}]",
        )
    return size


def weight_pack(
    format: int,
    group: int,
    rows: int,
    cols: int,
    data: Buffer,
    scales: Buffer | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Plain layout to packed layout, lossless: uint8 [`weight_packed_bytes`], in `out` if given."""
    size = weight_packed_bytes(format, group, rows, cols)
    if out is None:
        out = np.empty(size, dtype=np.uint8)
    source = ffi.from_buffer(data)
    scale = ffi.NULL if scales is None else ffi.from_buffer(scales)
    call = Call()
    call.check(
        lib.colibri_weight_pack(
            format,
            group,
            rows,
            cols,
            source,
            len(source),
            scale,
            0 if scales is None else len(scale),
            ffi.from_buffer(out, require_writable=True),
            out.nbytes,
            call.text,
            call.len,
        )
    )
    return out


def weight_unpack(
    format: int, group: int, rows: int, cols: int, packed: Buffer, out: Floats | None = None
) -> Floats:
    """Packed layout to float32 [rows, cols], dequantized exactly, in `out` if given."""
    weight_packed_bytes(format, group, rows, cols)  # refuses absurd shapes before allocating
    if out is None:
        out = np.empty((rows, cols), dtype=np.float32)
    target = float_buffer(out, (rows, cols), "out")
    source = ffi.from_buffer(packed)
    call = Call()
    call.check(
        lib.colibri_weight_unpack(
            format, group, rows, cols, source, len(source), target, call.text, call.len
        )
    )
    return out
