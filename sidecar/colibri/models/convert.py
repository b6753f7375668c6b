"""Converting models into our packed container: from GGUF files and from Hugging Face folders.

For: `coli convert`, `make model`. What each tensor becomes is a recipe (`recipe`); the result is a
complete model folder with config, tokenizer, template and every end-of-turn id. Matrices are made
in pieces of some rows, so memory stays bounded however large the model is. `convert_mtp` adds the
MTP layer to a finished container. Not for: opening models. Thread rule: one conversion per target
folder (`pack_writer` holds a lock).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri import __version__, regular
from colibri.engine.table import Format, Layout
from colibri.errors import ModelError, UsageError
from colibri.families.values import show
from colibri.models import formats, gguf_weights, packed, quantize, recipe, sources
from colibri.models.container import ModelFiles, open_folder
from colibri.models.pack_shards import Item, Part, Piece
from colibri.models.pack_writer import SHARD_BYTES, Addition, Job, Progress, add, write
from colibri.models.sources import Source, Weight

MTP: Final = "mtp"
# What tells two sources apart: this much of the start of each file, and samples over the rest.
_HEAD_BYTES: Final = 1 << 20
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 64 << 10
# Fields of the geometry that the MTP layer shares with the trunk.
_SAME: Final = (
    "n_layers",
    "hidden",
    "vocab",
    "n_heads",
    "q_lora",
    "kv_lora",
    "qk_nope",
    "qk_rope",
    "v_head",
    "n_experts",
    "experts_per_token",
    "n_shared_experts",
    "expert_ffn",
    "rope_theta",
)
# Numbers of a piece: its f32 values fit the caches, and several threads hold one each.
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How to convert. `tokenizer` replaces the source's tokenizer.json; `threads` 0 = as many as
    there are processors, up to 8.
    """

    weights: str = recipe.AUTO
    overwrite: bool = False
    verify: bool = True
    tokenizer: Path | None = None
    shard_bytes: int = SHARD_BYTES
    threads: int = 0


def convert(
    source: Path,
    out: Path,
    options: Options | None = None,
    progress: Progress | None = None,
    checking: Progress | None = None,
) -> list[str]:
    """Converts `source` (a GGUF file or a model folder) into the folder `out`; returns notes.

    `progress` counts bytes written, `checking` bytes read back. ModelError for a source that is
    damaged, incomplete or unknown; UsageError, ResourceError and IntegrityError as
    `pack_writer.write` says. Interrupted runs continue when repeated.
    """
    options = options or Options()
    _check_recipe(options.weights)
    opened = sources.open_source(source, options.tokenizer)
    chosen = recipe.resolve(options.weights, opened.kind, opened.family)
    items = _items(opened.weights, chosen)
    write(
        Job(
            out=out,
            family=opened.family,
            items=items,
            metadata=opened.metadata,
            info=_info(opened, source, chosen),
            fingerprint=_fingerprint(opened, items, chosen, options),
            overwrite=options.overwrite,
            verify=options.verify,
            shard_bytes=options.shard_bytes,
            threads=options.threads,
        ),
        progress,
        checking,
    )
    return opened.notes


def convert_mtp(
    source: Path,
    out: Path,
    options: Options | None = None,
    progress: Progress | None = None,
    checking: Progress | None = None,
) -> list[str]:
    """Adds the MTP layer of `source` to the finished container `out`; returns notes.

    Files that are there stay as they are. A layer that is there already is replaced with
    `overwrite` only: the index then points to the new one.
    """
    options = options or Options()
    _check_recipe(options.weights)
    target = open_folder(out) if (out / packed.INDEX_NAME).is_file() else None
    if target is None:
        raise UsageError(
            "the MTP layer can only be added to a finished packed container.",
            where=str(out),
            hint="Convert the whole model first.",
        )
    opened = sources.open_mtp(source)
    _check_same_model(opened, target, source)
    weights = opened.weights
    if not target.geometry.index_topk:  # attention is dense, in the MTP layer too
        weights = [weight for weight in weights if weight.spec.part != "indexer"]
    elif not any(weight.spec.part == "indexer" for weight in weights):
        raise ModelError(
            "the MTP layer of the source has no indexer, but the container's layers have one.",
            where=str(source),
        )
    chosen = recipe.resolve(options.weights, opened.kind, opened.family)
    items = _items(weights, chosen)
    config = json.loads((out / "config.json").read_bytes())
    metadata: dict[str, bytes] = {}
    if config.get("num_nextn_predict_layers") != opened.geometry.n_mtp_layers:
        config["num_nextn_predict_layers"] = opened.geometry.n_mtp_layers
        metadata["config.json"] = sources.to_json(config)
    add(
        Addition(
            Job(
                out=out,
                family=opened.family,
                items=items,
                metadata=metadata,
                info={"mtp_source": _info(opened, source, chosen)["source"]},
                fingerprint=_fingerprint(opened, items, chosen, options),
                overwrite=options.overwrite,
                verify=options.verify,
                shard_bytes=options.shard_bytes,
                threads=options.threads,
            ),
            label=MTP,
            prefix=f"model.layers.{opened.geometry.n_layers}.",
        ),
        progress,
        checking,
    )
    return opened.notes


def _check_recipe(name: str) -> None:
    if name not in recipe.NAMES:
        raise UsageError(f"--weights is {show(name)}; expected {', '.join(recipe.NAMES)}.")


def _check_same_model(source: Source, target: ModelFiles, where: Path) -> None:
    """Refuses the MTP layer of another model."""
    if source.family != target.family.name:
        raise ModelError(
            f"the source is {source.family}, the container {target.family.name}.", where=str(where)
        )
    for key in _SAME:
        ours, theirs = getattr(source.geometry, key), getattr(target.geometry, key)
        if ours != theirs:
            raise ModelError(
                f"the source is another model than the container: its {key} is {ours}, "
                f"in the container {theirs}.",
                where=str(where),
            )


def _info(source: Source, path: Path, chosen: str) -> dict[str, Any]:
    return {
        "converter": __version__,
        "source": {"kind": source.kind, "name": path.name, "weights": chosen},
    }


def _fingerprint(
    source: Source, items: Sequence[Item], chosen: str, options: Options
) -> dict[str, Any]:
    """What makes two runs one conversion: the source's bytes (sizes, heads, samples), its small
    files and every parameter.
    """
    plan = packed.new_hash()
    for item in items:
        plan.update(repr((item.name, item.parts)).encode())
    small = packed.new_hash()
    for name, data in sorted(source.metadata.items()):
        small.update(repr((name, data)).encode())
    return {
        "version": packed.VERSION,
        "files": [_file_fingerprint(path) for path in source.files],
        "metadata": small.hexdigest(),
        "weights": chosen,
        "shard_bytes": options.shard_bytes,
        "plan": plan.hexdigest(),
    }


def _file_fingerprint(path: Path) -> list[Any]:
    size = path.stat().st_size
    digest = packed.new_hash()
    with regular.open_file(path) as stream:
        digest.update(stream.read(_HEAD_BYTES))
        for number in range(1, _SAMPLES + 1):
            stream.seek(max(0, size * number // _SAMPLES - _SAMPLE_BYTES))
            digest.update(stream.read(_SAMPLE_BYTES))
    return [path.name, size, digest.hexdigest()]


# ---- items ---------------------------------------------------------------------------------------


def _items(weights: Sequence[Weight], chosen: str) -> tuple[Item, ...]:
    """Vectors first, then matrices, then experts in the order in which a layer asks for them."""
    vectors: list[Weight] = []
    matrices: list[Weight] = []
    experts: dict[str, list[Weight]] = {}
    for weight in weights:
        if weight.spec.expert >= 0:
            experts.setdefault(weight.spec.name.rsplit(".", 2)[0], []).append(weight)
        else:
            (vectors if weight.spec.is_vector else matrices).append(weight)
    items = [_item(weight.spec.name, [weight], chosen) for weight in (*vectors, *matrices)]
    items += [_expert(prefix, parts, chosen) for prefix, parts in experts.items()]
    return tuple(items)


def _expert(prefix: str, weights: Sequence[Weight], chosen: str) -> Item:
    by_name = {weight.spec.name.removeprefix(prefix + "."): weight for weight in weights}
    return _item(prefix, [by_name[name] for name in packed.EXPERT_PARTS], chosen, is_expert=True)


def _item(name: str, weights: Sequence[Weight], chosen: str, is_expert: bool = False) -> Item:
    parts: list[Part] = []
    makers: list[Callable[[], Iterator[Piece]]] = []
    for weight in weights:
        spec = weight.spec
        fmt, group = recipe.target(chosen, spec, weight.format, weight.group)
        layout = Layout.PLAIN if spec.is_vector else Layout.PACKED
        part_name = spec.name.removeprefix(name + ".") if is_expert else spec.name
        parts.append(Part(part_name, fmt, group, spec.rows, spec.cols, layout))
        makers.append(partial(_pieces, weight, fmt, group))
    return Item(
        name, tuple(parts), is_expert, lambda: (piece for maker in makers for piece in maker())
    )


def _pieces(weight: Weight, fmt: Format, group: int) -> Iterator[Piece]:
    """The bytes of a tensor, some rows at a time.

    The packed layout is cut into blocks of 32 rows, and FP8 scales cover 128, so pieces of a
    multiple of 128 rows lie one behind the other.
    """
    spec = weight.spec
    rows = max(formats.FP8_BLOCK, _PIECE // spec.cols // formats.FP8_BLOCK * formats.FP8_BLOCK)
    if not weight.by_rows or spec.is_vector:
        rows = spec.rows
    for first in range(0, spec.rows, rows):
        last = min(first + rows, spec.rows)
        if spec.is_vector:
            size = formats.plain_bytes(fmt, 1, spec.cols)
        else:
            size = formats.packed_bytes(fmt, group, last - first, spec.cols)
        yield Piece(size, partial(_make, weight, fmt, group, first, last))


def _make(weight: Weight, fmt: Format, group: int, first: int, last: int) -> NDArray[np.uint8]:
    """Bytes of rows [first, last), requantized when the target format differs."""
    from colibri.engine import packing  # noqa: PLC0415 - the compiled extension, needed only here

    rows, cols, name = last - first, weight.spec.cols, weight.spec.name
    data, scales = weight.load(first, last)
    if (fmt, group) == (weight.format, weight.group):
        if weight.spec.is_vector:
            return data
        return packing.weight_pack(fmt, group, rows, cols, data, scales)
    if quantize.can_widen(weight.format):
        values = quantize.widen(weight.format, rows, cols, data, scales)
    else:
        source = packing.weight_pack(weight.format, weight.group, rows, cols, data, scales)
        values = packing.weight_unpack(weight.format, weight.group, rows, cols, source)
    if fmt == Format.F32:
        plain = values.view(np.uint8).reshape(-1)
        return plain if weight.spec.is_vector else packing.weight_pack(fmt, 0, rows, cols, plain)
    if fmt == Format.BF16:
        return packing.weight_pack(fmt, 0, rows, cols, gguf_weights.as_bf16(values))
    if fmt == Format.I8_ROW:
        return packing.weight_pack(fmt, 0, rows, cols, *quantize.as_int8(values, name, first))
    codes, code_scales = quantize.as_int4(values, group, name, first)
    return packing.weight_pack(fmt, group, rows, cols, codes, code_scales)
