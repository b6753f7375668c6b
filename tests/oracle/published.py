"""Writes small containers in the layout of the published int4/int8 ones, with NumPy alone.

For: `make_fixtures` (committed containers with a transformers oracle) and tests that need a
container of another format at run time (with logits from `reference`).
Not for: the product, which only reads this layout.

A quantized tensor is two entries: `<name>` U8 flat and `<name>.qs` F32 flat. Nothing names the
format or the shape. Within a shard all F32 entries sorted by name come first, then all U8 entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .checkpoint import (
    BLOCK,
    Array,
    Raw,
    Stored,
    ceil_div,
    dequantize,
    fp8_table,
    write_safetensors,
)

SMALLEST_SCALE = np.float32(1e-8)


@dataclass(frozen=True)
class Style:
    """One kind of published container.

    `body` is the format of attention, MLPs and experts of the trunk, `edge` of embedding and head,
    `mtp` of every matrix of the layer behind the trunk; `indexer` tells whether the DSA indexer's
    tensors are shipped (if not, attention is dense).
    """

    body: str
    group: int = 0
    edge: str = "i8_row"
    mtp: str = "i8_row"
    indexer: bool = False


def quantize_i8(w: Array) -> tuple[Array, Array]:
    """int8 bytes [rows * cols] and scales [rows]."""
    scales = np.maximum(np.abs(w).max(-1) / np.float32(127), SMALLEST_SCALE).astype(np.float32)
    q = np.clip(np.rint(w / scales[:, None]), -127, 127).astype(np.int8)
    return q.view(np.uint8).ravel(), scales


def quantize_i4(w: Array, group: int) -> tuple[Array, Array]:
    """Nibbles [rows * ceil(cols / 2)] and scales [rows * ceil(cols / group)], as bytes and f32."""
    rows, cols = w.shape
    n = ceil_div(cols, group)
    padded = np.zeros((rows, n * group), np.float32)
    padded[:, :cols] = w
    grouped = padded.reshape(rows, n, group)
    scales = np.maximum(np.abs(grouped).max(-1) / np.float32(7), SMALLEST_SCALE).astype(np.float32)
    q = np.clip(np.rint(grouped / scales[..., None]), -8, 7).astype(np.int32) + 8
    q = q.reshape(rows, -1)[:, : cols + cols % 2]
    if cols % 2:
        q = np.pad(q[:, :cols], ((0, 0), (0, 1)), constant_values=8)
    return (q[:, 0::2] | (q[:, 1::2] << 4)).astype(np.uint8).ravel(), scales.ravel()


def quantize_fp8(w: Array) -> tuple[Array, Array]:
    """e4m3fn bytes [rows * cols] and scales [ceil(rows / 128) * ceil(cols / 128)]."""
    rows, cols = w.shape
    scales = np.zeros((ceil_div(rows, BLOCK), ceil_div(cols, BLOCK)), np.float32)
    q = np.empty(w.shape, np.uint8)
    values = fp8_table()[:127].astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    for a in range(scales.shape[0]):
        for b in range(scales.shape[1]):
            at = np.s_[a * BLOCK : (a + 1) * BLOCK, b * BLOCK : (b + 1) * BLOCK]
            scales[a, b] = np.float32(np.abs(w[at]).max() / 448)
            scaled = (w[at] / scales[a, b]).astype(np.float64)
            below = np.searchsorted(middles, np.abs(scaled), "left")
            above = np.searchsorted(middles, np.abs(scaled), "right")
            code = np.where((below != above) & (below % 2 == 1), above, below)  # ties to even
            q[at] = code + np.where(scaled < 0, 128, 0)
    return q.ravel(), scales.ravel()


def quantize(name: str, w: Array, fmt: str, group: int = 0) -> Stored:
    """Quantizes an f32 matrix to one of the four published formats."""
    rows, cols = w.shape
    if fmt == "i8_row":
        data, scales = quantize_i8(w)
    elif fmt == "i4_row":
        data, scales = quantize_i4(w, cols)
    elif fmt == "i4_group":
        data, scales = quantize_i4(w, group)
    elif fmt == "fp8_block":
        data, scales = quantize_fp8(w)
    else:
        raise ValueError(f"{name}: {fmt} is not a published format")
    return Stored(name, fmt, group, rows, cols, data, scales)


def is_matrix(name: str) -> bool:
    """Whether a tensor of a GLM checkpoint is quantized in a published container."""
    plain = ("norm.weight", "norm.bias", "mlp.gate.weight", "weights_proj.weight", "_bias")
    return not name.endswith((*plain, "layernorm.weight"))


def choose(name: str, style: Style, n_layers: int) -> tuple[str, int]:
    """Format and group of a matrix in a container of this style."""
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return style.edge, style.group
    if name.startswith(f"model.layers.{n_layers}."):
        return style.mtp, style.group
    if ".indexer." in name:
        return "i8_row", 0
    return style.body, style.group


def quantize_model(
    weights: Mapping[str, Array], style: Style, n_layers: int
) -> tuple[dict[str, Raw], dict[str, Array]]:
    """Entries of the container, and the f32 values that they stand for (`weights` without the
    indexer if the style ships none)."""
    entries: dict[str, Raw] = {}
    values: dict[str, Array] = {}
    for name, w in weights.items():
        if ".indexer." in name and not style.indexer:
            continue
        if not is_matrix(name):
            entries[name], values[name] = Raw("F32", w.shape, w), w
            continue
        stored = quantize(name, w, *choose(name, style, n_layers))
        entries[name] = Raw("U8", stored.data.shape, stored.data)
        entries[name + ".qs"] = Raw("F32", stored.scales.shape, stored.scales)
        values[name] = dequantize(stored)
    return entries, values


def write_shards(
    path: Path,
    entries: Mapping[str, Raw],
    shard_of: Callable[[str], str],
    empty: Iterable[str] = (),
) -> None:
    """Writes every entry into the shard that `shard_of(name)` gives, and 0-byte shards `empty`."""
    shards: dict[str, list[str]] = {}
    for name in entries:
        shards.setdefault(shard_of(name), []).append(name)
    for shard, names in shards.items():
        order = sorted(names, key=lambda n: (entries[n].dtype != "F32", n))
        write_safetensors(path / shard, {n: entries[n] for n in order})
    for shard in empty:
        (path / shard).write_bytes(b"")


def cut(entries: Mapping[str, Raw], n_shards: int, empty: int) -> dict[str, str]:
    """Shard of every entry when the writer's order (all F32, then all U8, by name) is cut into
    `n_shards` files `out-NNNNN` of about as many entries, wherever a cut falls; number `empty`
    gets nothing."""
    order = sorted(entries, key=lambda n: (entries[n].dtype != "F32", n))
    numbers = [n for n in range(n_shards) if n != empty]
    return {
        name: f"out-{numbers[i * len(numbers) // len(order)]:05d}.safetensors"
        for i, name in enumerate(order)
    }


def split_expert(n_layers: int) -> Callable[[str], str]:
    """Shard names as published: MTP and indexer apart; the weights of expert 1 of the last layer
    lie in another shard than its scales, and its down projection apart from gate and up."""

    def shard_of(name: str) -> str:
        if name.startswith(f"model.layers.{n_layers}."):
            return "out-mtp-00000.safetensors"
        if ".indexer." in name:
            return "out-idx-00000.safetensors"
        expert = f"model.layers.{n_layers - 1}.mlp.experts.1."
        if name.startswith(expert) and (name.endswith(".qs") or "down_proj" in name):
            return "out-00001.safetensors"
        return "out-00000.safetensors"

    return shard_of
