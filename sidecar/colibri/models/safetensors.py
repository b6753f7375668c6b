"""Reading the headers of safetensors files with every bound checked.

For: opening model folders and the converter; only headers are read here, tensor data stays on disk.
Why not the library: it maps whole files, stops at the first problem without naming file and tensor,
and refuses the gaps that aligned containers have. Thread rule: pure functions over files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from colibri import regular
from colibri.errors import ModelError
from colibri.families.values import parse_object, show
from colibri.findings import device_hint

# Bits per element of every dtype that the format defines.
DTYPE_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
# Real headers reach about 20 MB (118,000 entries); a larger length is damage or an attack.
MAX_HEADER_BYTES: Final = 128 << 20
_MAX_DIMENSIONS: Final = 16
_MAX_ELEMENTS: Final = 1 << 62
# Of a size or a place: what the engine counts in. A message may print sums of larger ones no more.
_MAX_COUNT: Final = (1 << 63) - 1
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: `offset` is absolute, `file` indexes the list of paths it came with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    bytes: int


@dataclass(slots=True)
class ShardSet:
    """All entries of a folder by name. `stamps`: the optional format names of `colibri.fmt`."""

    paths: list[Path] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    stamps: dict[str, str] = field(default_factory=dict)
    empty: list[Path] = field(default_factory=list)


def read_header(path: Path, file: int = 0) -> tuple[list[Entry], dict[str, str]]:
    """Entries (ascending offsets) and metadata of one file. Raises ModelError naming file and
    tensor.
    """
    where = str(path)
    try:
        with regular.open_file(path) as stream:
            size = path.stat().st_size
            start = stream.read(_LENGTH_BYTES)
            if len(start) < _LENGTH_BYTES:
                raise ModelError(
                    f"the file holds {size} bytes, expected a header of at least 8.",
                    where=where,
                    hint="Fetch the file again; it is truncated.",
                )
            (length,) = struct.unpack("<Q", start)
            if length > MAX_HEADER_BYTES:
                raise ModelError(
                    f"the header claims {length:,} bytes, expected at most {MAX_HEADER_BYTES:,}; "
                    "this is no safetensors file.",
                    where=where,
                )
            if length > size - _LENGTH_BYTES:
                raise ModelError(
                    f"the header claims {length:,} bytes, but the file holds {size:,}.",
                    where=where,
                    hint="Fetch the file again; it is truncated.",
                )
            raw = stream.read(length)
    except OSError as error:
        raise ModelError(
            f"the file cannot be read: {error.strerror or error}.",
            where=where,
            hint=device_hint(error),
        ) from error
    if len(raw) < length:
        raise ModelError(
            f"the header ends after {len(raw):,} of {length:,} bytes.",
            where=where,
            hint="Fetch the file again; it is truncated.",
        )
    header = parse_object(raw, where)
    metadata = _metadata(header.pop("__metadata__", None), where)
    data_start = _LENGTH_BYTES + length
    entries = [_entry(name, value, file, data_start, size, where) for name, value in header.items()]
    entries.sort(key=lambda entry: entry.offset)
    _check_overlaps(entries, where)
    return entries, metadata


def _metadata(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ModelError(
            f'"__metadata__" must map texts to texts, found {show(value)}.', where=where
        )
    return value


def _entry(name: str, value: Any, file: int, data_start: int, size: int, where: str) -> Entry:
    if not isinstance(value, dict):
        raise _bad(where, name, f"its entry must be an object, found {show(value)}")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None or not isinstance(dtype, str):
        raise _bad(
            where, name, f'"dtype" is {show(dtype)}, expected one of {", ".join(DTYPE_BITS)}'
        )
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(is_count, shape)):
        raise _bad(where, name, f'"shape" must be a list of sizes, found {show(shape)}')
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):  # noqa: PLR2004
        raise _bad(where, name, f'"data_offsets" must be [begin, end], found {show(offsets)}')
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > _MAX_ELEMENTS:
            raise _bad(where, name, f"the shape {show(shape)} overflows")
    begin, end = offsets
    expected = (elements * bits + 7) // 8
    if end - begin != expected:
        raise _bad(
            where,
            name,
            f"{dtype} {shape} needs {expected:,} bytes, but its span "
            f"[{begin}, {end}) holds {end - begin:,}",
        )
    if data_start + end > size:
        raise _bad(
            where,
            name,
            f"its data ends at byte {data_start + end:,}, but the file holds {size:,}",
            hint="Fetch the file again; it is truncated.",
        )
    return Entry(name, dtype, tuple(shape), file, data_start + begin, end - begin)


def is_count(value: Any) -> bool:
    """Whether a value of a header can be a size or a place."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _bad(where: str, name: str, what: str, hint: str | None = None) -> ModelError:
    return ModelError(f"tensor {show(name)}: {what}.", where=where, hint=hint)


def _check_overlaps(entries: Iterable[Entry], where: str) -> None:
    previous: Entry | None = None
    for entry in entries:
        if entry.bytes == 0:
            continue
        if previous is not None and entry.offset < previous.offset + previous.bytes:
            raise _bad(
                where,
                entry.name,
                f"its data starts at byte {entry.offset:,}, inside tensor "
                f"{show(previous.name)}, which ends at "
                f"{previous.offset + previous.bytes:,}",
            )
        previous = entry


def read_folder(folder: Path) -> ShardSet:
    """Headers of every `*.safetensors` of a folder as one table; a 0-byte shard is skipped and
    listed.

    Raises ModelError for the first file that is damaged and for a name that two files define.
    """
    shards = ShardSet()
    for path in sorted(folder.glob("*.safetensors")):
        if not path.is_file():
            raise ModelError("this is no readable file.", where=str(path))
        if path.stat().st_size == 0:
            shards.empty.append(path)
            continue
        add_shard(shards, path)
    return shards


def data_start(path: Path) -> int:
    """Bytes of the header, its length included. ModelError when there is no sane one."""
    with regular.open_file(path) as stream:
        start = stream.read(_LENGTH_BYTES)
    length = struct.unpack("<Q", start)[0] if len(start) == _LENGTH_BYTES else MAX_HEADER_BYTES + 1
    if length > MAX_HEADER_BYTES:
        raise ModelError("this is no safetensors file.", where=str(path))
    return _LENGTH_BYTES + int(length)


def add_shard(shards: ShardSet, path: Path) -> None:
    """Adds one file. ModelError, with nothing added, for a damaged one and for a name that another
    file defines.
    """
    entries, metadata = read_header(path, len(shards.paths))
    for entry in entries:
        other = shards.entries.get(entry.name)
        if other is not None:
            raise _bad(
                str(path),
                entry.name,
                f"it is also in {shards.paths[other.file].name}",
                hint="Remove the file that does not belong to this model.",
            )
    shards.paths.append(path)
    shards.entries.update((entry.name, entry) for entry in entries)
    if "colibri.fmt" in metadata:
        where = f"{path} (metadata colibri.fmt)"
        stamps = parse_object(metadata["colibri.fmt"].encode(), where)
        for name, value in stamps.items():
            if not isinstance(value, str):
                raise _bad(where, name, f"its format must be a text, found {show(value)}")
            shards.stamps[name] = value
