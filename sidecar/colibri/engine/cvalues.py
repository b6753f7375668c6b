"""Python values as the compiled engine wants them, and its statuses as exceptions.

For: `ffi`, `packing` and `experts`, the binding's modules. Not for: anyone else. What a call is
given stays alive in the object that is returned for it. Threads: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri import paths
from colibri.engine.status import EngineError, Status
from colibri.engine.table import EngineOptions, Geometry, Tensor

try:
    from colibri.engine._colibri import ffi, lib
except ImportError as error:
    todo = "build it with `make setup`" if paths.in_source_tree() else "install Colibri again"
    raise ImportError(
        f"the engine's compiled extension cannot be loaded ({error}); {todo}"
    ) from error

__all__ = [
    "Buffer",
    "Call",
    "Floats",
    "Inputs",
    "Tokens",
    "c_path",
    "closed_error",
    "ffi",
    "fill",
    "float_buffer",
    "int32_array",
    "lib",
]

Floats: TypeAlias = NDArray[np.float32]
Tokens: TypeAlias = Sequence[int] | NDArray[np.int32]
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]

ERROR_BYTES = 1024  # longest sentence kept from the engine


class Call:
    """Error buffer of one call; `check` turns a status into an exception."""

    def __init__(self) -> None:
        self.text = ffi.new("char[]", ERROR_BYTES)
        self.len = ERROR_BYTES

    def message(self) -> str:
        return bytes(ffi.string(self.text)).decode("utf-8", "replace")

    def check(self, status: int) -> None:
        if status != Status.OK:
            raise EngineError(Status(status), self.message())


def closed_error(what: str) -> EngineError:
    return EngineError(Status.INVALID, f"this {what} is closed; open a new one")


def fill(struct: Any, value: msgspec.Struct, skip: frozenset[str] = frozenset()) -> Any:
    """Copies the fields of a Python struct into the C struct of the same field names."""
    struct.struct_size = ffi.sizeof(ffi.typeof(struct).item)
    for name in value.__struct_fields__:
        if name not in skip:
            try:
                setattr(struct, name, getattr(value, name))
            except (OverflowError, TypeError) as error:
                kind = type(value).__name__
                raise EngineError(Status.INVALID, f"{kind}.{name}: {error}") from None
    return struct


class Inputs:
    """The C side of options, geometry and table, with all that they point to kept alive."""

    def set_options(self, options: EngineOptions) -> None:
        self.options = fill(ffi.new("colibri_engine_options *"), options)

    _LAYERS = frozenset({"layer_sparse", "layer_indexer"})

    def __init__(
        self, geometry: Geometry, tensors: Sequence[Tensor], options: EngineOptions
    ) -> None:
        self.set_options(options)
        self.geometry = fill(ffi.new("colibri_geometry *"), geometry, self._LAYERS)
        self._layers = {}
        for name in self._LAYERS:
            flags: bytes = getattr(geometry, name)
            if flags and len(flags) != geometry.n_layers:
                raise EngineError(
                    Status.INVALID,
                    f"Geometry.{name} has {len(flags)} entries for {geometry.n_layers} layers; "
                    "give one byte per layer or none",
                )
            if flags:
                self._layers[name] = ffi.from_buffer("uint8_t[]", flags)
                setattr(self.geometry, name, self._layers[name])
        self.n_tensors = len(tensors)
        self._names, self._rows = _tensor_rows(tensors)
        self.tensors = ffi.from_buffer("colibri_tensor[]", self._rows)


def _tensor_dtype() -> np.dtype[Any]:
    """numpy's view of `colibri_tensor`, laid out as the compiler did it."""
    struct = ffi.typeof("colibri_tensor")
    numpy_type = {"int32_t": "i4", "int64_t": "i8", "char *": "u8"}
    names, formats, offsets = [], [], []
    for name, field in struct.fields:
        names.append(name)
        formats.append(numpy_type[field.type.cname])
        offsets.append(field.offset)
    return np.dtype(
        {
            "names": names,
            "formats": formats,
            "offsets": offsets,
            "itemsize": ffi.sizeof(struct),
        }
    )


def _tensor_rows(tensors: Sequence[Tensor]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The table as an array of C structs, and the names that it points into.

    Built column by column: a published model has 118,000 entries, and one Python assignment per
    field would take seconds.
    """
    encoded = [tensor.name.encode("utf-8", "surrogatepass") for tensor in tensors]
    for name in encoded:
        if b"\0" in name:
            raise EngineError(
                Status.FORMAT, f"tensor name {name!r} holds a NUL byte; refuse the file"
            )
    blob = np.frombuffer(b"\0".join(encoded) + b"\0", dtype=np.uint8)
    lengths = np.fromiter((len(name) + 1 for name in encoded), np.uint64, len(encoded))
    rows: NDArray[Any] = np.zeros(len(tensors), dtype=_tensor_dtype())
    rows["name"] = np.uint64(blob.ctypes.data) + np.cumsum(lengths, dtype=np.uint64) - lengths
    for field in Tensor.__struct_fields__[1:]:
        values = np.array([getattr(tensor, field) for tensor in tensors] or [0])
        bounds = np.iinfo(rows.dtype[field])
        # Floats and integers beyond 64 bits come out as other kinds: refused, never rounded.
        if values.dtype.kind not in "iu" or values.min() < bounds.min or values.max() > bounds.max:
            raise EngineError(
                Status.FORMAT,
                f"tensor {_first_unfit(tensors, field, bounds.bits)}: {field} is no whole number "
                f"of {bounds.bits} bits; the file that names it is damaged",
            )
        rows[field] = values[: len(rows)]
    return blob, rows


def _first_unfit(tensors: Sequence[Tensor], field: str, bits: int) -> str:
    bound = 1 << (bits - 1)
    for tensor in tensors:
        value = getattr(tensor, field)
        if not isinstance(value, int) or not -bound <= value < bound:
            return tensor.name
    return "?"


def int32_array(tokens: Tokens) -> NDArray[np.int32]:
    """Token ids as a contiguous int32 array; ids that do not fit are refused, never wrapped."""
    ids = np.asarray(tokens).reshape(-1)
    bounds = np.iinfo(np.int32)
    if ids.size and (
        ids.dtype.kind not in "iu" or ids.min() < bounds.min or ids.max() > bounds.max
    ):
        raise EngineError(Status.INVALID, "token ids must be whole numbers below 2^31")
    return np.ascontiguousarray(ids, dtype=np.int32)


def float_buffer(array: Floats, shape: tuple[int, ...], what: str) -> Any:
    """C view of an f32 array, refused unless the engine may write exactly `shape` into it."""
    fits = array.dtype == np.float32 and array.shape == shape and array.flags.c_contiguous
    if not (fits and array.flags.writeable):
        raise EngineError(
            Status.INVALID, f"{what} must be a writable contiguous float32 array of shape {shape}"
        )
    return ffi.from_buffer("float[]", array)


def c_path(path: str | Path | None) -> Any:
    """A C string that lives as long as the result; NULL for None."""
    if path is None:
        return ffi.NULL
    return ffi.new("char[]", str(path).encode("utf-8", "surrogateescape"))
