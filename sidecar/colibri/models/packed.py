"""Reading our packed container: the stamped index `colibri.json` beside safetensors files.

For: `container.open_folder` and the check command. Formats are stamped, never guessed; weights lie
in the engine's interleaved layout, an expert is one 4096-aligned range that holds gate, up and down
in this order. The index is untrusted like every other file of a model. Writing is `pack_writer.py`.
Thread rule: pure functions over files.

    {"format": "colibri-packed", "version": 1, "family": "llama", ...,
     "files":   [{"name": "packed-00000.safetensors", "bytes": 123}],
     "tensors": {NAME:   {STAMP, "layout": "packed", PLACE}},
     "experts": {PREFIX: {PLACE, "parts": [{"name": "gate_proj.weight", STAMP}, ...]}}}
    STAMP = "format": "Q4_1", "group": 0, "shape": [rows, cols]
    PLACE = "file": 0, "offset": 4096, "bytes": 640, "hash": "..."

Hashes are BLAKE2b-256 over exactly the `bytes` at `offset`. Offsets count from the start of the
file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from colibri import regular
from colibri.engine.table import Format, Layout, Tensor
from colibri.errors import ModelError
from colibri.families.base import MAX_COLS, MAX_ROWS
from colibri.families.values import ConfigReader, parse_object, show
from colibri.findings import device_hint
from colibri.models import formats
from colibri.models.manifest import is_plain_name

INDEX_NAME: Final = "colibri.json"
# What a conversion remembers in a folder that is not finished.
STATE_NAME: Final = ".convert.json"
FORMAT_NAME: Final = "colibri-packed"
VERSION: Final = 1
EXPERT_ALIGNMENT: Final = 4096
EXPERT_PARTS: Final = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_MAX_FILES: Final = 100_000
_MAX_BYTES: Final = 1 << 50
_CHUNK: Final = 8 << 20
# One thread hashes about 1 GB/s, less than a fast drive reads.
_HASHING_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes with a promised hash: `name` is a tensor's or an expert's."""

    name: str
    file: int
    offset: int
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Index:
    """A checked colibri.json. `tensors` hold the parts of every expert as well."""

    family: str
    paths: tuple[Path, ...]
    tensors: tuple[Tensor, ...]
    spans: tuple[Span, ...]


def new_hash() -> hashlib.blake2b:
    """The hash of the format."""
    return hashlib.blake2b(digest_size=32)


def read_index(folder: Path, mirrors: Sequence[Path] = ()) -> Index:
    """Reads and checks the index against itself and the sizes of its files. ModelError names the
    entry. A file that the folder lacks, or has with another size, may lie in a mirror.
    """
    path = folder / INDEX_NAME
    where = str(path)
    try:
        data = regular.read_file(path)
    except OSError as error:
        raise ModelError(
            f"the file cannot be read: {error.strerror or error}.",
            where=where,
            hint=device_hint(error),
        ) from error
    reader = ConfigReader(parse_object(data, where), where)
    if reader.string("format") != FORMAT_NAME:
        reader.fail("format", f'"{FORMAT_NAME}"')
    version = reader.integer("version", 1, 1 << 30)
    if version != VERSION:
        raise ModelError(
            f"the container has version {version}; this program reads version {VERSION}.",
            where=where,
            hint="Update this program, or convert the model again.",
        )
    sizes, paths = _files(reader, (folder, *mirrors))
    tensors: list[Tensor] = []
    spans: list[Span] = []
    for name, entry in _objects(reader, "tensors"):
        tensor = _tensor(name, entry, sizes)
        tensors.append(tensor)
        spans.append(Span(name, tensor.file, tensor.offset, tensor.bytes, _hash(entry)))
    for prefix, entry in _objects(reader, "experts"):
        span = Span(prefix, *_place(entry, sizes), _hash(entry))
        if span.offset % EXPERT_ALIGNMENT:
            entry.fail("offset", f"a multiple of {EXPERT_ALIGNMENT}")
        spans.append(span)
        tensors.extend(_parts(prefix, entry, span))
    _check_names(tensors, where)
    _check_overlaps(spans, where)
    return Index(reader.string("family"), paths, tuple(tensors), tuple(spans))


def _files(reader: ConfigReader, places: Sequence[Path]) -> tuple[list[int], tuple[Path, ...]]:
    listed = reader.values.get("files")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MAX_FILES:
        reader.fail("files", "a list of files")
    sizes, paths = [], []
    for number, value in enumerate(listed):
        if not isinstance(value, dict):
            reader.fail("files", "a list of objects")
        entry = ConfigReader(value, reader.where, f"files[{number}].")
        name = entry.string("name")
        if not is_plain_name(name):
            entry.fail("name", "the plain name of a file beside it")
        size = entry.integer("bytes", 1, _MAX_BYTES)
        path = places[0] / name
        found = _size(path)
        if found != size:
            path = next((p / name for p in places[1:] if _size(p / name) == size), path)
        if found != size and path.parent == places[0]:
            what = "is missing" if found is None else f"holds {found:,} bytes"
            raise ModelError(
                f"the file {what}, expected {size:,} bytes.",
                where=str(path),
                hint="Convert the model again, or copy this file again.",
            )
        sizes.append(size)
        paths.append(path)
    return sizes, tuple(paths)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _objects(reader: ConfigReader, key: str) -> Iterator[tuple[str, ConfigReader]]:
    table = reader.object(key)
    for name, value in table.values.items() if table is not None else ():
        if not isinstance(value, dict):
            reader.fail(key, f"a table of objects (entry {show(name)} is none)")
        yield name, ConfigReader(value, reader.where, f"{key}.{name[:100]}.")


def _hash(entry: ConfigReader) -> str:
    value = entry.string("hash")
    if len(value) != 2 * new_hash().digest_size or set(value) - set("0123456789abcdef"):
        entry.fail("hash", "64 hexadecimal digits")
    return value


def _place(entry: ConfigReader, sizes: list[int]) -> tuple[int, int, int]:
    file = entry.integer("file", 0, len(sizes) - 1)
    offset = entry.integer("offset", 0, sizes[file])
    size = entry.integer("bytes", 1, _MAX_BYTES)
    if offset + size > sizes[file]:
        entry.fail(
            "bytes", f"at most {sizes[file] - offset} (the file holds {sizes[file]:,} bytes)"
        )
    return file, offset, size


def _stamp(entry: ConfigReader) -> tuple[Format, int, int, int]:
    """(format, group, rows, cols) of a tensor or expert part."""
    name = entry.string("format")
    if name not in Format.__members__:
        entry.fail("format", f"one of {', '.join(Format.__members__)}")
    fmt = Format[name]
    group = entry.integer("group", 0, max(formats.GROUP_SIZES), 0)
    if (group not in formats.GROUP_SIZES) if fmt == Format.I4_GROUP else group:
        entry.fail("group", "the columns per scale (int4 grouped) or 0")
    shape = entry.values.get("shape")
    bounds = (MAX_ROWS, MAX_COLS)
    if (
        not isinstance(shape, list)
        or len(shape) != len(bounds)
        or not all(
            isinstance(extent, int) and not isinstance(extent, bool) and 1 <= extent <= bound
            for extent, bound in zip(shape, bounds, strict=True)
        )
    ):
        entry.fail("shape", f"[rows, cols] within [{MAX_ROWS}, {MAX_COLS}]")
    return fmt, group, shape[0], shape[1]


def _tensor(name: str, entry: ConfigReader, sizes: list[int]) -> Tensor:
    fmt, group, rows, cols = _stamp(entry)
    layout_name = entry.string("layout")
    if layout_name == "packed":
        layout, needed = Layout.PACKED, formats.packed_bytes(fmt, group, rows, cols)
    elif layout_name == "plain" and fmt in formats.PLAIN_DTYPES.values():
        layout, needed = Layout.PLAIN, formats.plain_bytes(fmt, rows, cols)
    else:
        entry.fail("layout", '"packed", or "plain" for F32, BF16 and F16')
    file, offset, size = _place(entry, sizes)
    if size != needed:
        entry.fail("bytes", f"{needed} for {fmt.name} [{rows}, {cols}] {layout_name}")
    return Tensor(
        name=name,
        format=fmt,
        rows=rows,
        cols=cols,
        file=file,
        offset=offset,
        bytes=size,
        layout=layout,
        group=group,
    )


def _parts(prefix: str, entry: ConfigReader, span: Span) -> Iterator[Tensor]:
    listed: Any = entry.values.get("parts")
    if not isinstance(listed, list) or len(listed) != len(EXPERT_PARTS):
        entry.fail("parts", f"the list of {', '.join(EXPERT_PARTS)}")
    offset = 0
    for number, (value, name) in enumerate(zip(listed, EXPERT_PARTS, strict=True)):
        part = ConfigReader(
            value if isinstance(value, dict) else {},
            entry.where,
            f"{prefix[:100]}.parts[{number}].",
        )
        if part.string("name") != name:
            part.fail("name", f'"{name}"')
        fmt, group, rows, cols = _stamp(part)
        size = formats.packed_bytes(fmt, group, rows, cols)
        yield Tensor(
            name=f"{prefix}.{name}",
            format=fmt,
            rows=rows,
            cols=cols,
            file=span.file,
            offset=span.offset + offset,
            bytes=size,
            layout=Layout.PACKED,
            group=group,
        )
        offset += size
    if offset != span.bytes:
        entry.fail("bytes", f"{offset}, the sum of its parts")


def _check_names(tensors: list[Tensor], where: str) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise ModelError(f"tensor {show(tensor.name)} is defined twice.", where=where)
        seen.add(tensor.name)


def _check_overlaps(spans: list[Span], where: str) -> None:
    previous: Span | None = None
    for span in sorted(spans, key=lambda item: (item.file, item.offset)):
        if (
            previous is not None
            and span.file == previous.file
            and span.offset < previous.offset + previous.bytes
        ):
            raise ModelError(
                f"the bytes of {show(span.name)} overlap those of {show(previous.name)}.",
                where=where,
            )
        previous = span


def verify(folder: Path) -> list[str]:
    """Compares every byte of a container with its hashes; one sentence per difference."""
    return [sentence for _, sentence in differing(folder)]


def differing(
    folder: Path, progress: Callable[[int, int], None] | None = None
) -> list[tuple[str, str]]:
    """(name of the file, sentence) for every range that differs from its hash; `progress` counts
    bytes.
    """
    index = read_index(folder)
    spans = sorted(index.spans, key=lambda span: (span.file, span.offset))
    total, done = sum(span.bytes for span in spans), 0
    found: list[tuple[str, str]] = []

    def hashed(span: Span) -> str:
        return hash_span(index.paths[span.file], span.offset, span.bytes)

    with ThreadPoolExecutor(_HASHING_THREADS, "colibri-hash") as pool:
        for span, value in zip(spans, pool.map(hashed, spans), strict=True):
            if value != span.hash:
                name = index.paths[span.file].name
                sentence = (
                    f"{name}: {show(span.name)} differs from its hash "
                    f"(expected {span.hash[:16]}..., found {value[:16]}...)"
                )
                found.append((name, sentence))
            done += span.bytes
            if progress is not None:
                progress(done, total)
    return found


def hash_span(path: Path, offset: int, size: int) -> str:
    """Hash of a range of a file, read in bounded pieces; ModelError when the file ends early."""
    digest = new_hash()
    with regular.open_file(path) as stream:
        stream.seek(offset)
        left = size
        while left:
            piece = stream.read(min(left, _CHUNK))
            if not piece:
                raise ModelError(f"the file ends {left:,} bytes early.", where=str(path))
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
