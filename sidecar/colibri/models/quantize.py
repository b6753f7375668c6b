"""The converter's arithmetic: stored numbers to f32, and f32 to int8 and int4 codes with scales.

For: `convert`. Works on a range of rows at a time, so that memory stays bounded whatever the size
of a matrix. Not for: layouts (the engine's `weight_pack` interleaves) or the choice of formats
(`recipe`). Rounding is half to even everywhere. Thread rule: pure functions; numpy releases the
interpreter lock, so several threads really work side by side.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format
from colibri.errors import ModelError
from colibri.families.values import show
from colibri.models.formats import FP8_BLOCK

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_SMALLEST_SCALE: Final = np.float32(1e-8)
_WIDENED: Final = (Format.F32, Format.BF16, Format.F16, Format.FP8_BLOCK)


def _fp8_values() -> Floats:
    """f32 [256]: the value of every e4m3 code; 0x7f and 0xff are NaN."""
    code = np.arange(128)
    exponent, fraction = code >> 3, (code & 7) / 8
    value = np.where(
        exponent == 0, np.ldexp(fraction, -6), np.ldexp(1 + fraction, np.maximum(exponent, 1) - 7)
    )
    value[127] = np.nan
    return np.concatenate([value, -value]).astype(np.float32)


_FP8: Final = _fp8_values()


def can_widen(fmt: Format) -> bool:
    """Whether `widen` reads the format; the others go through the engine's own unpacking."""
    return fmt in _WIDENED


def widen(fmt: Format, rows: int, cols: int, data: Bytes, scales: Bytes | None) -> Floats:
    """f32 [rows, cols] of plain bytes. FP8 rows must start at a block of 128; `scales` are the
    f32 block scales of these rows. Products with scales round to f32.
    """
    if fmt == Format.F32:
        return data.view(np.float32).reshape(rows, cols)
    if fmt == Format.F16:
        return data.view(np.float16).reshape(rows, cols).astype(np.float32)
    if fmt == Format.BF16:
        bits = data.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32).reshape(rows, cols)
    if fmt != Format.FP8_BLOCK or scales is None:
        raise ValueError(f"{fmt.name} is not widened here")
    values = _FP8.take(data).reshape(rows, cols)
    grid = scales.view(np.float32).reshape(-1, -(-cols // FP8_BLOCK))
    with np.errstate(invalid="ignore", over="ignore"):  # reported by name when it is quantized
        for number, line in enumerate(grid):
            block = values[number * FP8_BLOCK : (number + 1) * FP8_BLOCK]
            block *= np.repeat(line, FP8_BLOCK)[:cols]
    return values


def as_int8(values: Floats, name: str, first_row: int = 0) -> tuple[NDArray[np.int8], Floats]:
    """int8 codes [rows, cols] and a scale per row: max(absmax / 127, 1e-8). ModelError for values
    that are not finite, naming the tensor and the row.
    """
    absmax = np.abs(values).max(axis=1)
    _check_finite(absmax, name, first_row)
    scales = np.maximum(absmax / np.float32(127), _SMALLEST_SCALE)
    codes = values / scales[:, None]
    np.rint(codes, out=codes)
    return codes.astype(np.int8), scales


def as_int4(values: Floats, group: int, name: str, first_row: int = 0) -> tuple[Bytes, Floats]:
    """int4 codes [rows, ceil(cols / 2)], stored + 8 and low nibble first, and scales [rows, groups]
    of max(absmax / 7, 1e-8) per `group` columns. ModelError as `as_int8`.

    Codes need no clipping: a scale is rounded by less than 2^-23 of itself, so no quotient reaches
    7.5; the code -8 is never used.
    """
    rows, cols = values.shape
    groups = -(-cols // group)
    if cols % group:
        whole = np.zeros((rows, groups * group), dtype=np.float32)
        whole[:, :cols] = values
        values = whole
    values = values.reshape(rows, groups, group)
    absmax = np.abs(values).max(axis=2)
    _check_finite(absmax.max(axis=1), name, first_row)
    scales = np.maximum(absmax / np.float32(7), _SMALLEST_SCALE)
    quotients = values / scales[:, :, None]
    np.rint(quotients, out=quotients)
    quotients += np.float32(8)
    codes = quotients.astype(np.uint8).reshape(rows, -1)[:, : cols + cols % 2]
    # An odd last column has a neighbour in its byte: the padding above, whose code is 8 (zero).
    return codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4)), scales


def _check_finite(absmax: Floats, name: str, first_row: int) -> None:
    bad = np.flatnonzero(~np.isfinite(absmax))
    if bad.size:
        raise ModelError(
            f"tensor {show(name)}: row {first_row + int(bad[0])} holds a value that is not finite "
            "(NaN or infinite).",
            hint="The source is damaged; fetch the file that holds this tensor again.",
        )
