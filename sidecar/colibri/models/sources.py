"""What a conversion reads: a GGUF file or a model folder as tensors that load rows on demand.

For: `convert`. A source is checked as a whole before anything is written: every tensor is there,
no file that an index or the numbering promises is absent, and the metadata makes a complete model.
The source is only ever read. Thread rule: `Weight.load` may run in several threads at once.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format, Geometry, Tensor
from colibri.errors import ModelError, ModelNotFoundError, UsageError
from colibri.families import TensorSpec, detect
from colibri.families.values import ConfigReader, parse_object, show
from colibri.models import formats, gguf, gguf_text, gguf_weights, missing, model, packed
from colibri.models.container import ModelFiles, open_folder, read_file

# Small files of a Hugging Face folder that belong to the model.
_METADATA: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
# Absent from complete models too, but worth naming.
_EXPECTED: Final = ("generation_config.json", "tokenizer_config.json")
_INDEX: Final = "model.safetensors.index.json"
_SHOWN: Final = 6

Loaded = tuple[NDArray[np.uint8], NDArray[np.uint8] | None]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a source in its plain format.

    `load(first, last)` gives data and scales of these rows; `first` is a multiple of 128. Where
    `by_rows` is false, only all rows at once can be loaded.
    """

    spec: TensorSpec
    format: Format
    group: int
    load: Callable[[int, int], Loaded]
    by_rows: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """A complete model to convert. `kind` is `gguf`, `original` or `published`; `notes` are
    sentences worth telling the user.
    """

    family: str
    geometry: Geometry
    weights: list[Weight]
    metadata: dict[str, bytes]
    files: list[Path]
    kind: str
    notes: list[str] = field(default_factory=list)


def open_mtp(source: Path) -> Source:
    """Opens the MTP layer of a model folder; its other files may be missing. Without metadata.

    ModelError as `open_source`, or when there is no such layer.
    """
    if source.is_file():
        raise ModelError("an MTP layer is read from a model folder only.", where=str(source))
    opened = _open_folder(source, mtp_only=True)
    if not opened.weights:
        raise ModelError(
            "the source has no MTP layer.",
            where=str(source),
            hint=f"Fetch the files that hold its last layer; {_INDEX} says which.",
        )
    return opened


def open_source(source: Path, tokenizer: Path | None = None) -> Source:
    """Opens and checks a source; `tokenizer` stands in for its tokenizer.json. ModelError names
    what is damaged, missing or unknown.
    """
    opened = _open_gguf(source) if source.is_file() else _open_folder(source)
    if tokenizer is not None:
        opened.metadata["tokenizer.json"] = read_file(tokenizer)
    _complete_metadata(opened, source)
    return opened


# ---- folders -------------------------------------------------------------------------------------


def _open_folder(folder: Path, mtp_only: bool = False) -> Source:
    if (folder / packed.INDEX_NAME).exists():
        raise UsageError(
            "this is a packed container already.",
            where=str(folder),
            hint="It needs no conversion: give it to --model, or convert what it was made from.",
        )
    if not mtp_only and not (folder / "config.json").exists():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return _open_gguf(ggufs[0])
        if not folder.is_dir():
            raise UsageError(
                "this is neither a folder nor a file of weights.",
                where=str(folder),
                hint="Give a Hugging Face folder with config.json and weights, or a .gguf file.",
            )
        raise ModelNotFoundError(
            "the folder holds no config.json, so it is no model.",
            where=str(folder),
            hint="Give a Hugging Face folder with config.json and weights, or a .gguf file.",
        )
    files = open_folder(folder, mtp_only)
    if not mtp_only:
        _check_promised(folder)
    tensors = {tensor.name: tensor for tensor in files.tensors}
    weights = [
        Weight(spec, Format(tensor.format), tensor.group, _span_loader(files, tensor))
        for spec in files.family.tensors(files.geometry)
        if (tensor := tensors.get(spec.name)) is not None
    ]
    names = () if mtp_only else _METADATA
    metadata = {name: read_file(folder / name) for name in names if (folder / name).exists()}
    return Source(
        files.family.name,
        files.geometry,
        weights,
        metadata,
        list(files.paths),
        files.kind,
        [] if mtp_only else list(files.notes),
    )


def _check_promised(folder: Path) -> None:
    """Refuses a folder that lacks a file or tensor which its index or numbering promises.

    `open_folder` accepts a model without MTP layer or indexer; here that would lose them for good
    when their shard is only missing.
    """
    names = {path.name for path in folder.glob("*.safetensors") if path.stat().st_size}
    path = folder / _INDEX
    promised: dict[str, Any] = {}
    if path.is_file():
        reader = ConfigReader(parse_object(read_file(path), str(path)), str(path))
        table = reader.object("weight_map")
        promised = dict(table.values) if table is not None else {}
        if not all(isinstance(name, str) for name in promised.values()):
            reader.fail("weight_map", "an object of file names")
    lost = [key for key, name in promised.items() if name not in names]
    if lost:
        problems = missing.missing_files(names, set(promised.values()))
    elif promised:
        problems = []
    else:  # only a numbering with a total promises anything
        numbered = {name for name in names if "-of-" in name}
        problems = [text for text in missing.missing_files(numbered) if "absent" in text]
    if problems:
        layers = missing.ranges(_layers(lost))
        held = f" They hold tensors of layers {layers}." if layers else ""
        raise ModelError(
            f"the source is incomplete: {'; '.join(problems[:_SHOWN])}.",
            where=str(folder),
            hint=f"Fetch the files named above into this folder.{held}",
        )


def _layers(names: list[str]) -> set[int]:
    """Layer numbers in names such as `model.layers.12.mlp...`."""
    found = set()
    for name in names:
        words = name.split(".")
        if words[:2] == ["model", "layers"] and len(words) > 2 and words[2].isdecimal():  # noqa: PLR2004
            found.add(int(words[2]))
    return found


def _span_loader(files: ModelFiles, tensor: Tensor) -> Callable[[int, int], Loaded]:
    fmt, group, cols = Format(tensor.format), tensor.group, tensor.cols

    def load(first: int, last: int) -> Loaded:
        skipped = formats.plain_bytes(fmt, first, cols)
        size = formats.plain_bytes(fmt, last, cols) - skipped
        data = _read_span(files.paths[tensor.file], tensor.offset + skipped, size)
        if tensor.scale_file < 0:
            return data, None
        skipped = 4 * formats.scale_count(fmt, group, first, cols)
        size = 4 * formats.scale_count(fmt, group, last, cols) - skipped
        path = files.paths[tensor.scale_file]
        return data, _read_span(path, tensor.scale_offset + skipped, size)

    return load


def _read_span(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    try:
        data = np.fromfile(path, dtype=np.uint8, count=size, offset=offset)
    except OSError as error:
        raise ModelError(
            f"reading {size:,} bytes at {offset:,} failed: {error.strerror or error}.",
            where=str(path),
        ) from error
    if data.size != size:
        raise ModelError(f"read {data.size:,} of {size:,} bytes at {offset:,}.", where=str(path))
    return data


# ---- GGUF ----------------------------------------------------------------------------------------


def _open_gguf(path: Path) -> Source:
    file = gguf.read(path)
    gguf_text.check_whole(file)
    gguf_text.check_architecture(file)
    config = gguf_text.config(file)
    family = detect(config, str(path))
    geometry = family.geometry(ConfigReader(config, str(path)))
    tensors = gguf_weights.canonical_names(file)
    specs = list(family.tensors(geometry))
    lost = missing.describe(specs, tensors)
    if lost:
        raise ModelError(f"the file is incomplete: {'; '.join(lost[:_SHOWN])}.", where=str(path))
    heads = {"self_attn.q_proj": geometry.n_heads, "self_attn.k_proj": geometry.n_kv_heads}
    weights = []
    for spec in specs:
        tensor = tensors[spec.name]
        if (tensor.rows, tensor.cols) != (spec.rows, spec.cols):
            raise ModelError(
                f"tensor {show(tensor.name)} is [{tensor.rows}, {tensor.cols}], "
                f"expected [{spec.rows}, {spec.cols}] from the metadata.",
                where=str(path),
            )
        turned = next((count for name, count in heads.items() if name in spec.name), 0)
        load = _gguf_loader(file, spec.name, tensor, turned)
        weights.append(Weight(spec, gguf_weights.output_format(tensor), 0, load, by_rows=False))
    metadata = {
        "config.json": to_json(config),
        "tokenizer_config.json": to_json(gguf_text.tokenizer_config(file)),
        "generation_config.json": to_json({"eos_token_id": gguf_text.end_ids(file)}),
    }
    template = gguf_text.template(file)
    if template:
        metadata["chat_template.jinja"] = template.encode()
    with contextlib.suppress(ModelError):  # --tokenizer may stand in; _complete_metadata tells
        metadata["tokenizer.json"] = to_json(gguf_text.tokenizer(file))
    return Source(family.name, geometry, weights, metadata, [path], "gguf")


def _gguf_loader(
    file: gguf.GgufFile, name: str, tensor: gguf.GgufTensor, heads: int
) -> Callable[[int, int], Loaded]:
    return lambda _first, _last: (
        gguf_weights.load(file, name, tensor, heads).reshape(-1),
        None,
    )


# ---- metadata ------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Indented JSON of the small files that a conversion writes."""
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _complete_metadata(source: Source, path: Path) -> None:
    """Gathers every end id in generation_config.json; checks the metadata by opening it as a
    model, and notes what is not there.
    """
    metadata = source.metadata
    if "tokenizer.json" not in metadata:
        if source.kind == "gguf":
            gguf_text.tokenizer(gguf.read(source.files[0]))  # raises with the reason
        raise ModelError(
            "the source has no tokenizer.json.", where=str(path), hint="Give one with --tokenizer."
        )
    lost = [name for name in _EXPECTED if name not in metadata]
    if lost:
        source.notes.append(f"the source has no {' and no '.join(lost)}")
    with tempfile.TemporaryDirectory(prefix="colibri-convert-") as folder:
        for name, data in metadata.items():
            (Path(folder) / name).write_bytes(data)
        text = model.open_text(Path(folder))
    if text.template is None:
        source.notes.append("the source has no chat template: it completes text only")
    elif not _has_template(metadata):
        source.notes.append("the source has no chat template: the family's own is used")
    generation = parse_object(
        metadata.get("generation_config.json", b"{}"), "generation_config.json"
    )
    generation["eos_token_id"] = sorted(text.end_ids)
    metadata["generation_config.json"] = to_json(generation)


def _has_template(metadata: dict[str, bytes]) -> bool:
    settings = parse_object(metadata.get("tokenizer_config.json", b"{}"), "tokenizer_config.json")
    return "chat_template.jinja" in metadata or settings.get("chat_template") is not None
