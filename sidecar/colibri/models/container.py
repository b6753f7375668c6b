"""Opening a model folder: from files nobody has checked to one table of tensors for the engine.

For: `model.open_model`, the converter, the check command. Reads config.json and file headers, never
tensor data. Opens original checkpoints (F32, BF16, F16, FP8 with block scales), published int8/int4
containers (`<name>` + `<name>.qs`) and our packed container (`packed.py`). GGUF files are input of
the converter only. Thread rule: pure functions over files; the result is immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from colibri import regular
from colibri.engine.table import Format, Geometry, Tensor
from colibri.errors import ModelError
from colibri.families import Family, TensorSpec, detect
from colibri.families.values import ConfigReader, parse_object, show
from colibri.findings import device_hint
from colibri.models import formats, fused, manifest, mirror, missing, packed
from colibri.models.formats import Candidates, Quantized
from colibri.models.mirror import Place
from colibri.models.safetensors import Entry, ShardSet, read_folder

_SHOWN: Final = 6
_GOOD_GROUP: Final = 64
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model folder that has been read and found complete.

    `tensors[i].file` indexes `paths`. `kind` is `original`, `published` or `packed`. `notes` are
    sentences worth telling the user (a missing optional part, a container known to be weak).
    `places` tells with mirrors where every file can be read, the model's own folder first; it is
    empty without.
    """

    folder: Path
    kind: str
    family: Family
    geometry: Geometry
    config: dict[str, Any]
    paths: tuple[Path, ...]
    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()

    @property
    def own_paths(self) -> tuple[Path | None, ...]:
        """`paths` for the engine: None where only a mirror has the file."""
        return self.places[0].paths if self.places else self.paths

    @property
    def mirror_paths(self) -> tuple[tuple[Path | None, ...], ...]:
        """Copies for the engine, one row per mirror."""
        return tuple(place.paths for place in self.places[1:])


@dataclass(slots=True)
class _Reading:
    """What one pass over a folder collects; problems do not stop it, so that all are reported."""

    folder: Path
    shards: ShardSet
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    pairs: list[tuple[TensorSpec, Quantized, Candidates]] = field(default_factory=list)


def read_config(folder: Path) -> tuple[dict[str, Any], ConfigReader]:
    """config.json of a folder; ModelError when there is none or it is no object."""
    path = folder / "config.json"
    config = parse_object(read_file(path), str(path))
    return config, ConfigReader(config, str(path))


def read_file(path: Path) -> bytes:
    """A small file as a whole, failures as ModelError."""
    try:
        return regular.read_file(path)
    except OSError as error:
        raise ModelError(
            f"the file cannot be read: {error.strerror or error}.",
            where=str(path),
            hint=device_hint(error),
        ) from error


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that one look at a folder's headers tells. `files` is None with any problem.

    `lost` says which layers or tensors are missing and `absent` which files probably hold them,
    about `lost_bytes` in all (0 = cannot be told); `problems` are tensors that are there and wrong.
    """

    files: ModelFiles | None
    problems: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    absent: tuple[missing.Absent, ...] = ()
    lost_bytes: int = 0
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """All problems, what is missing first."""
        return [*self.lost, *(gap.sentence for gap in self.absent), *self.problems]


def open_folder(folder: Path, mtp_only: bool = False, mirrors: Sequence[Path] = ()) -> ModelFiles:
    """Reads a model folder. ModelError names the first problems found and how many there are.
    `mtp_only` asks for the tensors of the MTP layer alone; the others may be missing. `mirrors` are
    folders with copies of its files, or with a part of them.
    """
    found = inspect(folder, mtp_only=mtp_only, mirrors=mirrors)
    if found.files is not None:
        return found.files
    problems = found.sentences()
    shown = "; ".join(problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN} more problems" if len(problems) > _SHOWN else ""
    raise ModelError(
        f"the model is damaged or incomplete: {shown}{more}.",
        where=str(folder),
        hint=_fetch_hint(folder, found.absent),
    )


def _fetch_hint(folder: Path, absent: Sequence[missing.Absent]) -> str:
    """How to get what is absent; the check command says the rest."""
    if not absent:
        return "Copy or download the files named above again into this folder."
    try:
        known = manifest.read(folder)
    except ModelError:
        known = None
    names = [name for gap in absent for name in gap.names]
    command = manifest.fetch_command(folder, names, known, absent[0].pattern)
    unknown = "" if known is not None and known.repo else " (REPO is where the model came from)"
    return f"Go on with: {command}{unknown}. `coli doctor {folder}` tells more."


def inspect_folder(folder: Path) -> tuple[ModelFiles | None, list[str]]:
    """(the model, []) or (None, every problem of its tensors). Raises as `inspect`."""
    found = inspect(folder)
    return found.files, found.sentences()


def inspect(
    folder: Path,
    shards: ShardSet | None = None,
    mtp_only: bool = False,
    mirrors: Sequence[Path] = (),
) -> Inspection:
    """What the headers tell; `shards` are those already read. ModelError for what hides all
    others: no folder, no config, an unknown family, a file whose header is damaged. UsageError for
    mirrors that are none.
    """
    mirror.check_folders(folder, mirrors)
    if not folder.is_dir():
        raise ModelError("there is no such folder.", where=str(folder))
    config, reader = read_config(folder)
    family = detect(config, reader.where)
    geometry = family.geometry(reader)
    if (folder / packed.INDEX_NAME).exists():
        return _open_packed(folder, family, geometry, config, mirrors)
    _check_quantization(reader)
    bad: dict[Path, list[mirror.BadShard]] = {}
    if mirrors:
        shards, bad = mirror.read_shards(folder, mirrors)
    reading = _Reading(folder, read_folder(folder) if shards is None else shards)
    kind = (
        "published" if any(name.endswith(".qs") for name in reading.shards.entries) else "original"
    )
    uncut = fused.expand(reading.shards.entries, family.tensors(geometry))
    reading.problems += uncut
    geometry = _drop_absent_parts(reading, family, geometry)
    specs = list(family.tensors(geometry))
    if mtp_only:
        specs = [s for s in specs if s.layer is not None and s.layer >= geometry.n_layers]
    _read_specs(reading, specs)
    _resolve_pairs(reading)
    # With an uncut tensor each of its experts would be reported as missing.
    lost, absent, lost_bytes = _find_missing(reading, specs) if not uncut else ((), (), 0)
    if reading.problems or lost:
        notes = tuple(reading.notes)
        reading.problems += [
            f"{place / shard.name} is left out: {shard.reason}"
            for place, shards_left_out in bad.items()
            for shard in shards_left_out
        ]
        return Inspection(None, tuple(reading.problems), lost, absent, lost_bytes, notes)
    shards = reading.shards
    used = {name for tensor in reading.tensors for name in (tensor.name,)}
    _note_unused(reading, used)
    notes = tuple(reading.notes)
    files = ModelFiles(
        folder,
        kind,
        family,
        geometry,
        config,
        tuple(shards.paths),
        tuple(reading.tensors),
        notes,
        mirror.places(folder, mirrors, shards.paths, bad) if mirrors else (),
    )
    return Inspection(files, notes=notes)


def _open_packed(
    folder: Path,
    family: Family,
    geometry: Geometry,
    config: dict[str, Any],
    mirrors: Sequence[Path],
) -> Inspection:
    index = packed.read_index(folder, mirrors)
    if index.family != family.name:
        raise ModelError(
            f'"family" is {show(index.family)}, but config.json is of {family.name}.',
            where=str(folder / packed.INDEX_NAME),
        )
    present = {tensor.name: tensor for tensor in index.tensors}
    notes: list[str] = []
    geometry = _without_parts(present, family, geometry, notes)
    specs = list(family.tensors(geometry))
    lost = missing.describe(specs, present)
    problems: list[str] = []
    chosen: list[Tensor] = []
    for spec in specs:
        tensor = present.get(spec.name)
        if tensor is None:
            continue
        if (tensor.rows, tensor.cols) != (spec.rows, spec.cols):
            problems.append(
                f"tensor {show(spec.name)} is [{tensor.rows}, {tensor.cols}] in "
                f"{packed.INDEX_NAME}, expected [{spec.rows}, {spec.cols}] from config.json"
            )
        chosen.append(tensor)
    if problems or lost:
        return Inspection(None, tuple(problems), tuple(lost), notes=tuple(notes))
    files = ModelFiles(
        folder,
        "packed",
        family,
        geometry,
        config,
        index.paths,
        tuple(chosen),
        tuple(notes),
        mirror.places(folder, mirrors, index.paths) if mirrors else (),
    )
    return Inspection(files, notes=tuple(notes))


def _check_quantization(reader: ConfigReader) -> None:
    """Refuses checkpoints quantized by methods whose tensors this program does not read."""
    settings = reader.object("quantization_config")
    if settings is None:
        return
    if settings.string("quant_method", "fp8") != "fp8":
        settings.unsupported("quant_method", 'checkpoints in "fp8" or without quantization')
    block = settings.values.get("weight_block_size")
    if block is not None and block != [formats.FP8_BLOCK, formats.FP8_BLOCK]:
        settings.unsupported("weight_block_size", "blocks of [128, 128]")


def _drop_absent_parts(reading: _Reading, family: Family, geometry: Geometry) -> Geometry:
    return _without_parts(reading.shards.entries, family, geometry, reading.notes)


def _without_parts(
    present: dict[str, Any], family: Family, geometry: Geometry, notes: list[str]
) -> Geometry:
    """Takes out the optional parts of which not one tensor is there."""
    explain = {
        "indexer": "no indexer tensors: attention is dense",
        "mtp": "no MTP head: no drafting",
    }
    for part in family.optional_parts:
        names = [spec.name for spec in family.tensors(geometry) if spec.part == part]
        if names and not any(name in present for name in names):
            geometry = family.without(geometry, part)
            notes.append(explain.get(part, f"no {part} tensors"))
    return geometry


def _read_specs(reading: _Reading, specs: Sequence[TensorSpec]) -> None:
    entries = reading.shards.entries
    for spec in specs:
        entry = entries.get(spec.name)
        if entry is None:
            continue
        scale = entries.get(spec.name + ".qs")
        if scale is not None:
            _read_pair(reading, spec, entry, scale)
        elif entry.dtype == "F8_E4M3":
            _read_fp8(reading, spec, entry)
        elif entry.dtype in formats.PLAIN_DTYPES:
            _read_plain(reading, spec, entry)
        elif entry.dtype == "U8" and spec.name + ".qs" not in entries:
            _problem(
                reading,
                entry,
                f"its data is U8, but its scales {show(spec.name + '.qs')} are missing",
            )
        else:
            _problem(
                reading,
                entry,
                f"dtype {entry.dtype} is not read; expected F32, BF16, F16, "
                "F8_E4M3 or U8 with scales",
            )


def _problem(reading: _Reading, entry: Entry, what: str) -> None:
    path = reading.shards.paths[entry.file]
    reading.problems.append(f"{path.name}: tensor {show(entry.name)}: {what}")


def _shape_fits(spec: TensorSpec, entry: Entry) -> bool:
    shapes = [(spec.rows, spec.cols), (spec.rows * spec.cols,)]
    return entry.shape in shapes


def _read_plain(reading: _Reading, spec: TensorSpec, entry: Entry) -> None:
    if not _shape_fits(spec, entry):
        _problem(
            reading,
            entry,
            f"its shape is {list(entry.shape)}, expected {_expected(spec)} from config.json",
        )
        return
    reading.tensors.append(_tensor(spec, entry, formats.PLAIN_DTYPES[entry.dtype]))


def _expected(spec: TensorSpec) -> str:
    return f"[{spec.cols}]" if spec.is_vector else f"[{spec.rows}, {spec.cols}]"


def _read_fp8(reading: _Reading, spec: TensorSpec, entry: Entry) -> None:
    scale = reading.shards.entries.get(spec.name + fused.SCALE_INV)
    if scale is None:
        _problem(
            reading,
            entry,
            f"its data is F8_E4M3, but its scales {show(spec.name + fused.SCALE_INV)} are missing",
        )
        return
    grid = (
        formats.ceil_div(spec.rows, formats.FP8_BLOCK),
        formats.ceil_div(spec.cols, formats.FP8_BLOCK),
    )
    if not _shape_fits(spec, entry):
        _problem(
            reading,
            entry,
            f"its shape is {list(entry.shape)}, expected {_expected(spec)} from config.json",
        )
    elif scale.dtype != "F32" or scale.shape != grid:
        _problem(
            reading, scale, f"it is {scale.dtype} {list(scale.shape)}, expected F32 {list(grid)}"
        )
    else:
        reading.tensors.append(_tensor(spec, entry, Format.FP8_BLOCK, scale=scale))


def _read_pair(reading: _Reading, spec: TensorSpec, entry: Entry, scale: Entry) -> None:
    if spec.is_vector:
        _problem(
            reading, entry, "a vector cannot be quantized; expected F32, BF16 or F16 without scales"
        )
        return
    if scale.dtype != "F32":
        _problem(reading, scale, f"scales must be F32, found {scale.dtype}")
        return
    if entry.dtype not in ("U8", "I8", "F8_E4M3"):
        _problem(reading, entry, f"it has scales, so its data must be U8, found {entry.dtype}")
        return
    pair = Quantized(spec.name, spec.rows, spec.cols, entry.bytes, scale.bytes // 4)
    found = formats.candidates(pair)
    if not found:
        _problem(
            reading,
            entry,
            f"{pair.data_bytes:,} bytes with {pair.scales:,} scales fit no format for "
            f"[{spec.rows}, {spec.cols}]; expected for example "
            f"{formats.plain_bytes(Format.I4_ROW, spec.rows, spec.cols):,} bytes (int4) or "
            f"{formats.plain_bytes(Format.I8_ROW, spec.rows, spec.cols):,} bytes (int8)",
        )
        return
    stamp_name = reading.shards.stamps.get(spec.name)
    if stamp_name is not None:
        stamp = formats.STAMP_NAMES.get(stamp_name)
        if stamp is None or not formats.stamp_allows(stamp, found):
            _problem(
                reading,
                entry,
                f"it is stamped {show(stamp_name)}, but {pair.data_bytes:,} bytes with "
                f"{pair.scales:,} scales are {_names(found)}",
            )
            return
    reading.pairs.append((spec, pair, found))


def _names(found: Candidates) -> str:
    names = [fmt.name for fmt in sorted(found.formats)]
    names += [f"I4_GROUP of {size}" for size in sorted(found.groups)]
    return " or ".join(names)


def _resolve_pairs(reading: _Reading) -> None:
    """Decides the format of every quantized pair; what stays open is refused by name."""
    group, possible = formats.container_group([(pair, found) for _, pair, found in reading.pairs])
    entries = reading.shards.entries
    row_experts = False
    for spec, pair, found in reading.pairs:
        entry, scale = entries[spec.name], entries[spec.name + ".qs"]
        stamp = formats.STAMP_NAMES.get(reading.shards.stamps.get(spec.name, ""))
        fmt = formats.resolve(pair, found, stamp, group)
        if fmt is None:
            sizes = (
                f"; group sizes that fit every tensor: {sorted(possible)}" if found.groups else ""
            )
            _problem(
                reading,
                entry,
                f"{pair.data_bytes:,} bytes with {pair.scales:,} scales may be "
                f"{_names(found)}{sizes}; nothing in the container decides",
            )
            continue
        # A row as narrow as a group has the group's precision.
        wide = spec.cols > (group or _GOOD_GROUP)
        row_experts |= spec.expert >= 0 and fmt == Format.I4_ROW and wide
        size = group if fmt == Format.I4_GROUP else 0
        reading.tensors.append(_tensor(spec, entry, fmt, size, scale))
    if row_experts:
        reading.notes.append(
            "experts are int4 with one scale per row, which answers clearly worse than "
            "containers with one scale per 64 columns; prefer such a container"
        )


def _tensor(
    spec: TensorSpec, entry: Entry, fmt: Format, group: int = 0, scale: Entry | None = None
) -> Tensor:
    return Tensor(
        name=spec.name,
        format=fmt,
        rows=spec.rows,
        cols=spec.cols,
        file=entry.file,
        offset=entry.offset,
        bytes=entry.bytes,
        group=group,
        scale_file=scale.file if scale is not None else -1,
        scale_offset=scale.offset if scale is not None else 0,
        scale_bytes=scale.bytes if scale is not None else 0,
    )


def _find_missing(
    reading: _Reading, specs: Sequence[TensorSpec]
) -> tuple[tuple[str, ...], tuple[missing.Absent, ...], int]:
    """(what is missing, the files that probably hold it, about how many bytes)."""
    entries = reading.shards.entries
    lost = missing.describe(specs, entries)
    if not lost:
        return (), (), 0
    empty = [path.name for path in reading.shards.empty]
    absent = missing.absent_files(
        [*(path.name for path in reading.shards.paths), *empty], _indexed_files(reading.folder)
    )
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        sentence = f"files without content: {', '.join(empty[:_SHOWN])}{more}"
        absent.insert(0, missing.Absent(sentence, tuple(empty)))
    sizes = {name: entry.bytes for name, entry in entries.items()}
    return tuple(lost), tuple(absent), missing.lost_bytes(specs, sizes)


def _indexed_files(folder: Path) -> set[str]:
    path = folder / _INDEX
    if not path.is_file():
        return set()
    files = parse_object(read_file(path), str(path)).get("weight_map")
    if not isinstance(files, dict):
        raise ModelError('"weight_map" must be an object.', where=str(path))
    # Others are no files that could be fetched, and may hold anything.
    return {n for n in files.values() if isinstance(n, str) and manifest.is_plain_name(n)}


def _note_unused(reading: _Reading, used: set[str]) -> None:
    extra = [
        name
        for name in reading.shards.entries
        if name not in used and name.removesuffix(".qs").removesuffix(fused.SCALE_INV) not in used
    ]
    if extra:
        reading.notes.append(
            f"{len(extra)} tensors are not used by this family, for example {show(extra[0])}"
        )
    if reading.shards.empty:
        reading.notes.append(f"{len(reading.shards.empty)} empty files were skipped")
