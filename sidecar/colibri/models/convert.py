"""Converting models into our packed container: from GGUF files and from Hugging Face folders.

For: `coli convert`, `make model`. The numbers of the weights stay as they are (`as-is`), or
matrices become int8 per row (`int8`) or BF16 (`bf16`); norms, biases and routers are never
requantized. Config, tokenizer, template and every end-of-turn id are carried over, so the result is
a complete model folder. Not for: opening models. Thread rule: one conversion per target folder
(`pack_writer` holds a lock).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri import __version__
from colibri.engine.table import Format, Layout, Tensor
from colibri.errors import ModelError, UsageError
from colibri.families import TensorSpec, detect
from colibri.families.values import ConfigReader, parse_object, show
from colibri.models import gguf, gguf_text, gguf_weights, missing, model, packed
from colibri.models.container import ModelFiles, open_folder, read_file
from colibri.models.pack_writer import SHARD_BYTES, Item, Job, Part, Progress, write

WEIGHTS: Final = ("as-is", "int8", "bf16")
# Small files of a Hugging Face folder that belong to the model.
_METADATA: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_HEAD_BYTES: Final = 1 << 20
_QUANTIZE_ROWS: Final = 4096
# Matrices whose small errors flip choices: the expert router and the indexer's head weights.
_NEVER_REQUANTIZED: Final = ("mlp.gate.weight", "indexer.weights_proj.weight")

Loaded = tuple[NDArray[np.uint8], NDArray[np.uint8] | None]


@dataclass(frozen=True, slots=True)
class _Weight:
    """A tensor of the source: its plain format and how to read data and scales."""

    spec: TensorSpec
    format: Format
    group: int
    load: Callable[[], Loaded]


@dataclass(frozen=True, slots=True)
class _Source:
    """A model to convert."""

    family: str
    weights: list[_Weight]
    metadata: dict[str, bytes]
    files: list[Path]
    kind: str


@dataclass(frozen=True, slots=True)
class Options:
    """How to convert. `tokenizer` replaces the source's tokenizer.json."""

    weights: str = "as-is"
    overwrite: bool = False
    verify: bool = True
    tokenizer: Path | None = None
    shard_bytes: int = SHARD_BYTES


def convert(
    source: Path, out: Path, options: Options | None = None, progress: Progress | None = None
) -> None:
    """Converts `source` (a GGUF file or a model folder) into the folder `out`.

    ModelError for a source that is damaged, incomplete or unknown; UsageError, ResourceError and
    IntegrityError as `pack_writer.write` says. Interrupted runs continue when repeated.
    """
    options = options or Options()
    if options.weights not in WEIGHTS:
        raise UsageError(f"--weights is {show(options.weights)}; expected {', '.join(WEIGHTS)}.")
    opened = _open_gguf(source) if source.is_file() else _open_folder(source)
    if options.tokenizer is not None:
        opened.metadata["tokenizer.json"] = read_file(options.tokenizer)
    metadata = _complete_metadata(opened, source)
    items = _items(opened.weights, options.weights)
    write(
        Job(
            out=out,
            family=opened.family,
            items=items,
            metadata=metadata,
            info={
                "converter": __version__,
                "source": {"kind": opened.kind, "name": source.name, "weights": options.weights},
            },
            fingerprint=_fingerprint(opened, items, options),
            overwrite=options.overwrite,
            verify=options.verify,
            shard_bytes=options.shard_bytes,
        ),
        progress,
    )


def _open_folder(folder: Path) -> _Source:
    if (folder / packed.INDEX_NAME).exists():
        raise UsageError("this is a packed container already.", where=str(folder))
    if not (folder / "config.json").exists():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return _open_gguf(ggufs[0])
    files = open_folder(folder)
    tensors = {tensor.name: tensor for tensor in files.tensors}
    weights = [
        _Weight(spec, Format(tensor.format), tensor.group, _span_loader(files, tensor))
        for spec in files.family.tensors(files.geometry)
        if (tensor := tensors.get(spec.name)) is not None
    ]
    metadata = {name: read_file(folder / name) for name in _METADATA if (folder / name).exists()}
    return _Source(files.family.name, weights, metadata, list(files.paths), files.kind)


def _span_loader(files: ModelFiles, tensor: Tensor) -> Callable[[], Loaded]:
    def load() -> Loaded:
        data = _read_span(files.paths[tensor.file], tensor.offset, tensor.bytes)
        if tensor.scale_file < 0:
            return data, None
        path = files.paths[tensor.scale_file]
        return data, _read_span(path, tensor.scale_offset, tensor.scale_bytes)

    return load


def _read_span(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    data = np.fromfile(path, dtype=np.uint8, count=size, offset=offset)
    if data.size != size:
        raise ModelError(f"read {data.size:,} of {size:,} bytes at {offset:,}.", where=str(path))
    return data


def _open_gguf(path: Path) -> _Source:
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
        raise ModelError(f"the file is incomplete: {'; '.join(lost[:6])}.", where=str(path))
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
        weights.append(_Weight(spec, gguf_weights.output_format(tensor), 0, load))
    metadata = {
        "config.json": _json(config),
        "tokenizer_config.json": _json(gguf_text.tokenizer_config(file)),
        "generation_config.json": _json({"eos_token_id": gguf_text.end_ids(file)}),
    }
    template = gguf_text.template(file)
    if template:
        metadata["chat_template.jinja"] = template.encode()
    with contextlib.suppress(ModelError):  # --tokenizer may stand in; _complete_metadata tells
        metadata["tokenizer.json"] = _json(gguf_text.tokenizer(file))
    return _Source(family.name, weights, metadata, [path], "gguf")


def _gguf_loader(
    file: gguf.GgufFile, name: str, tensor: gguf.GgufTensor, heads: int
) -> Callable[[], Loaded]:
    return lambda: (gguf_weights.load(file, name, tensor, heads).reshape(-1), None)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _complete_metadata(source: _Source, path: Path) -> dict[str, bytes]:
    """Metadata with every end id gathered in generation_config.json; checked by opening it as a
    model.
    """
    metadata = dict(source.metadata)
    if "tokenizer.json" not in metadata:
        if source.kind == "gguf":
            gguf_text.tokenizer(gguf.read(source.files[0]))  # raises with the reason
        raise ModelError(
            "the source has no tokenizer.json.", where=str(path), hint="Give one with --tokenizer."
        )
    with tempfile.TemporaryDirectory(prefix="colibri-convert-") as folder:
        for name, data in metadata.items():
            (Path(folder) / name).write_bytes(data)
        text = model.open_text(Path(folder))
    generation = parse_object(
        metadata.get("generation_config.json", b"{}"), "generation_config.json"
    )
    generation["eos_token_id"] = sorted(text.end_ids)
    metadata["generation_config.json"] = _json(generation)
    return metadata


def _fingerprint(source: _Source, items: Sequence[Item], options: Options) -> dict[str, Any]:
    """What makes two runs one conversion: source bytes (sizes, heads) and every parameter."""
    heads = []
    for path in source.files:
        size = path.stat().st_size
        heads.append([path.name, size, packed.hash_span(path, 0, min(size, _HEAD_BYTES))])
    plan = packed.new_hash()
    for item in items:
        plan.update(repr((item.name, item.parts)).encode())
    return {
        "version": packed.VERSION,
        "files": heads,
        "weights": options.weights,
        "shard_bytes": options.shard_bytes,
        "plan": plan.hexdigest(),
    }


def _items(weights: Sequence[_Weight], mode: str) -> tuple[Item, ...]:
    """Vectors first, then matrices, then experts in the order in which a layer asks for them."""
    vectors: list[_Weight] = []
    matrices: list[_Weight] = []
    experts: dict[str, list[_Weight]] = {}
    for weight in weights:
        if weight.spec.expert >= 0:
            experts.setdefault(weight.spec.name.rsplit(".", 2)[0], []).append(weight)
        else:
            (vectors if weight.spec.is_vector else matrices).append(weight)
    items = [_single(weight, mode) for weight in (*vectors, *matrices)]
    items += [_expert(prefix, parts, mode) for prefix, parts in experts.items()]
    return tuple(items)


def _single(weight: _Weight, mode: str) -> Item:
    spec = weight.spec
    if spec.is_vector:
        part = Part(spec.name, weight.format, 0, 1, spec.cols, Layout.PLAIN)
        return Item(spec.name, (part,), False, lambda: [weight.load()[0]])
    fmt, group = _target(weight, mode)
    part = Part(spec.name, fmt, group, spec.rows, spec.cols, Layout.PACKED)
    return Item(spec.name, (part,), False, lambda: [_pack(weight, fmt, group)])


def _expert(prefix: str, weights: Sequence[_Weight], mode: str) -> Item:
    by_name = {weight.spec.name.removeprefix(prefix + "."): weight for weight in weights}
    ordered = [by_name[name] for name in packed.EXPERT_PARTS]
    targets = [_target(weight, mode) for weight in ordered]
    parts = tuple(
        Part(name, fmt, group, weight.spec.rows, weight.spec.cols, Layout.PACKED)
        for name, weight, (fmt, group) in zip(packed.EXPERT_PARTS, ordered, targets, strict=True)
    )
    return Item(
        prefix,
        parts,
        True,
        lambda: [_pack(w, fmt, group) for w, (fmt, group) in zip(ordered, targets, strict=True)],
    )


def _target(weight: _Weight, mode: str) -> tuple[Format, int]:
    if mode == "as-is" or weight.spec.name.endswith(_NEVER_REQUANTIZED):
        return weight.format, weight.group
    return (Format.I8_ROW if mode == "int8" else Format.BF16), 0


def _pack(weight: _Weight, fmt: Format, group: int) -> NDArray[np.uint8]:
    """Packed bytes of a matrix, requantized when the target format differs."""
    from colibri.engine import ffi  # noqa: PLC0415 - the compiled extension, needed only here

    spec = weight.spec
    data, scales = weight.load()
    if (fmt, group) == (weight.format, weight.group):
        return ffi.weight_pack(fmt, group, spec.rows, spec.cols, data, scales)
    source = ffi.weight_pack(weight.format, weight.group, spec.rows, spec.cols, data, scales)
    values = ffi.weight_unpack(weight.format, weight.group, spec.rows, spec.cols, source)
    if fmt == Format.BF16:
        return ffi.weight_pack(fmt, 0, spec.rows, spec.cols, gguf_weights.as_bf16(values))
    quantized, row_scales = quantize_int8(values)
    return ffi.weight_pack(fmt, 0, spec.rows, spec.cols, quantized, row_scales)


def quantize_int8(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 per row of f32 [rows, cols]: scale = max(absmax / 127, 1e-8), round half to even."""
    rows = values.shape[0]
    result = np.empty(values.shape, dtype=np.int8)
    scales = np.empty(rows, dtype=np.float32)
    for start in range(0, rows, _QUANTIZE_ROWS):
        block = values[start : start + _QUANTIZE_ROWS]
        scale = np.maximum(np.abs(block).max(axis=1) / np.float32(127), np.float32(1e-8))
        result[start : start + _QUANTIZE_ROWS] = np.clip(np.rint(block / scale[:, None]), -127, 127)
        scales[start : start + _QUANTIZE_ROWS] = scale
    return result, scales
