"""Reading GGUF files: header, metadata and tensor infos, with every bound checked.

For: the converter; a GGUF is never opened by the engine itself. Why not the `gguf` package's
reader: it trusts counts and lengths of the file. Its table of dequantizers is used for formats that
are not kept (`gguf_weights.py`). Thread rule: pure functions over files; tensor data is read on
demand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from colibri.errors import ModelError
from colibri.families.values import show

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_KEYS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 20
_MAX_DIMENSIONS: Final = 4
_MAX_ELEMENTS: Final = 1 << 50
_MAX_ALIGNMENT: Final = 1 << 20
_MAX_ARRAY_DEPTH: Final = 4
_MAX_HEADER_BYTES: Final = 512 << 20
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}

# ggml type id: (name, weights per block, bytes per block)
TYPES: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `rows` x `cols` with cols the fastest dimension; a vector has rows 1.

    `type` is the ggml name; `offset` counts from the start of the file.
    """

    name: str
    type: str
    dimensions: int
    rows: int
    cols: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked GGUF header. Metadata arrays are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def read(self, tensor: GgufTensor) -> bytes:
        """The tensor's bytes as stored."""
        with self.path.open("rb") as stream:
            stream.seek(tensor.offset)
            data = stream.read(tensor.bytes)
        if len(data) != tensor.bytes:
            raise ModelError(
                f"tensor {show(tensor.name)}: read {len(data):,} of {tensor.bytes:,} bytes.",
                where=str(self.path),
            )
        return data


class _Cursor:
    """A position in the file that never passes its end."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self.size = path.stat().st_size
            self._stream = path.open("rb")
        except OSError as error:
            raise ModelError(
                f"the file cannot be read: {error.strerror or error}.", where=self.where
            ) from error
        self.position = 0

    def close(self) -> None:
        self._stream.close()

    def fail(self, what: str) -> ModelError:
        return ModelError(
            f"{what} (at byte {self.position:,} of {self.size:,}).",
            where=self.where,
            hint="Fetch the file again; it is truncated or no GGUF.",
        )

    def take(self, count: int, what: str) -> bytes:
        if count > min(self.size - self.position, _MAX_HEADER_BYTES - self.position):
            raise self.fail(f"{what} needs {count:,} bytes beyond what the header can hold")
        data = self._stream.read(count)
        if len(data) != count:
            raise self.fail(f"{what} ends after {len(data):,} of {count:,} bytes")
        self.position += count
        return data

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def count(self, code: str, high: int, what: str) -> int:
        value: int = self.number(code, what)
        if value > high:
            raise self.fail(f"{what} is {value:,}, expected at most {high:,}")
        return value

    def text(self, what: str) -> str:
        length = self.count("Q", self.size, f"the length of {what}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text(what)
        if kind == _BOOL:
            return self.count("B", 1, what) == 1
        if kind == _ARRAY:
            if depth >= _MAX_ARRAY_DEPTH:
                raise self.fail(f"{what} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
            return self._array(what, depth)
        code = _SCALARS.get(kind)
        if code is None:
            raise self.fail(f"{what} has the unknown type {kind}")
        return self.number(code, what)

    def _array(self, what: str, depth: int) -> list[Any]:
        kind = self.number("I", f"the element type of {what}")
        count = self.count("Q", self.size, f"the length of {what}")
        code = _SCALARS.get(kind)
        if code is not None:
            data = self.take(count * struct.calcsize("<" + code), what)
            return list(struct.unpack(f"<{count}{code}", data))
        return [self.value(kind, what, depth + 1) for _ in range(count)]


def read(path: Path) -> GgufFile:
    """Header, metadata and tensor infos; ModelError naming file, key or tensor."""
    cursor = _Cursor(path)
    try:
        if cursor.take(4, "the magic") != MAGIC:
            raise ModelError(
                "this is no GGUF file.",
                where=cursor.where,
                hint="Give a .gguf file, or a Hugging Face folder with config.json and weights.",
            )
        version = cursor.number("I", "the version")
        if version not in _VERSIONS:
            raise ModelError(
                f"GGUF version {version} is not read; expected 2 or 3.", where=cursor.where
            )
        n_tensors = cursor.count("Q", _MAX_TENSORS, "the number of tensors")
        n_keys = cursor.count("Q", _MAX_KEYS, "the number of metadata keys")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = cursor.text("a metadata key")
            if key in metadata:
                raise cursor.fail(f"the metadata key {show(key)} stands twice")
            kind = cursor.number("I", f"the type of {show(key)}")
            metadata[key] = cursor.value(kind, f"the metadata {show(key)}")
        infos = [_info(cursor) for _ in range(n_tensors)]
        return GgufFile(path, metadata, _place(cursor, metadata, infos))
    finally:
        cursor.close()


def _info(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    name = cursor.text("a tensor name")
    what = f"tensor {show(name)}"
    count = cursor.count("I", _MAX_DIMENSIONS, f"{what}: the number of dimensions")
    dims = [cursor.count("Q", _MAX_ELEMENTS, f"{what}: a dimension") for _ in range(count)]
    kind = cursor.number("I", f"{what}: the type")
    return name, dims, kind, cursor.count("Q", cursor.size, f"{what}: the offset")


def _place(
    cursor: _Cursor, metadata: dict[str, Any], infos: list[tuple[str, list[int], int, int]]
) -> dict[str, GgufTensor]:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT:
        raise cursor.fail(f"general.alignment is {show(alignment)}")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, dims, kind, offset in infos:
        what = f"tensor {show(name)}"
        if name in tensors:
            raise cursor.fail(f"{what} stands twice")
        if kind not in TYPES:
            raise cursor.fail(f"{what} has the unknown type {kind}")
        type_name, block, block_bytes = TYPES[kind]
        cols = dims[0] if dims else 1
        rows = 1
        for extent in dims[1:]:
            rows *= extent
        if not dims or cols < 1 or rows < 1 or rows * cols > _MAX_ELEMENTS:
            raise cursor.fail(f"{what} has the impossible shape {dims}")
        if cols % block:
            raise cursor.fail(f"{what} has {cols} columns, no multiple of {type_name}'s {block}")
        size = rows * (cols // block) * block_bytes
        if offset % alignment or start + offset + size > cursor.size:
            raise cursor.fail(
                f"{what} spans bytes {start + offset:,} to {start + offset + size:,}, "
                f"outside the file or unaligned"
            )
        tensors[name] = GgufTensor(name, type_name, len(dims), rows, cols, start + offset, size)
    _check_overlaps(cursor, tensors)
    return tensors


def _check_overlaps(cursor: _Cursor, tensors: dict[str, GgufTensor]) -> None:
    previous: GgufTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda item: item.offset):
        if previous is not None and tensor.offset < previous.offset + previous.bytes:
            raise cursor.fail(f"tensors {show(previous.name)} and {show(tensor.name)} overlap")
        previous = tensor
