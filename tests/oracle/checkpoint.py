"""Reads and writes the safetensors directories of the oracle tests, with NumPy alone.

For: the fixtures' generator (`make_fixtures`), the NumPy reference (`reference`) and the flat dump.
Not for: the product. It is written apart from `colibri.models` on purpose, so that a misreading of
a format in one of the two shows up as a difference; it trusts its input, which is always ours.
Threads: a `Checkpoint` may be read from several threads once it is built.

Published int4/int8 containers carry no shapes and no format names: shapes come from config.json,
and the format of a tensor from the number of its bytes and scales.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 128
GROUPS = (16, 32, 48, 64, 96, 128, 192, 256)
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}
NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "U8": "u1", "I32": "<i4"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Raw:
    """One entry of a safetensors header: `data` holds the stored bits (BF16 as u2, FP8 as u1)."""

    dtype: str
    shape: tuple[int, ...]
    data: Array


@dataclass(frozen=True)
class Stored:
    """A weight as stored: `format` is a `colibri_format` in lower case; `scales` may be empty."""

    name: str
    format: str
    group: int
    rows: int
    cols: int
    data: Array
    scales: Array


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def to_bf16(x: Array) -> Array:
    """The u2 bits of values that are exact in bf16; raises ValueError on any other value."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4")
    if np.any(bits & 0xFFFF):
        raise ValueError("a value is not exact in bf16")
    return (bits >> 16).astype("<u2")


def round_bf16(x: Array) -> Array:
    """f32 values rounded to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4").astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype("<u4").view("<f4")


def fp8_table() -> Array:
    """f32 [256]: the value of every e4m3fn byte (0x7f and 0xff are NaN)."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, (code & 7).astype(np.float64)
    value = np.where(
        exponent == 0,
        np.ldexp(fraction / 8, -6),
        np.ldexp(1 + fraction / 8, exponent - 7),
    )
    value[(code & 127) == 127] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)


def unpack_nibbles(data: Array, rows: int, cols: int) -> Array:
    """i4 [rows, cols] in -8..7 from rows of ceil(cols / 2) bytes, low nibble = even column."""
    packed = data.reshape(rows, ceil_div(cols, 2))
    both = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)
    return both[:, :cols].astype(np.int32) - 8


def dequantize(t: Stored) -> Array:
    """f32 [rows, cols] of a stored weight."""
    shape = (t.rows, t.cols)
    match t.format:
        case "f32" | "f16":
            return t.data.reshape(shape).astype(np.float32)
        case "bf16":
            return (t.data.astype("<u4") << 16).view("<f4").reshape(shape)
        case "i8_row":
            return t.data.view(np.int8).reshape(shape) * t.scales[:, None]
        case "i4_row":
            return (unpack_nibbles(t.data, *shape) * t.scales[:, None]).astype(np.float32)
        case "i4_group":
            scales = t.scales.reshape(t.rows, -1)[:, np.arange(t.cols) // t.group]
            return (unpack_nibbles(t.data, *shape) * scales).astype(np.float32)
        case "fp8_block":
            scales = t.scales.reshape(ceil_div(t.rows, BLOCK), -1)
            row, col = np.arange(t.rows)[:, None] // BLOCK, np.arange(t.cols)[None] // BLOCK
            return fp8_table()[t.data].reshape(shape) * scales[row, col]
    raise ValueError(f"{t.name}: unknown format {t.format}")


def read_safetensors(path: Path) -> dict[str, Raw]:
    """Every tensor of one file, name -> stored bits."""
    blob = path.read_bytes()
    if not blob:
        return {}
    start = 8 + int.from_bytes(blob[:8], "little")
    out = {}
    for name, entry in json.loads(blob[8:start]).items():
        if name == "__metadata__":
            continue
        a, b = entry["data_offsets"]
        data = np.frombuffer(
            blob, NUMPY[entry["dtype"]], offset=start + a, count=(b - a) // BYTES[entry["dtype"]]
        )
        out[name] = Raw(entry["dtype"], tuple(entry["shape"]), data)
    return out


def write_safetensors(path: Path, tensors: Mapping[str, Raw]) -> None:
    """Writes the tensors in the order given, data back to back, header padded to 8 bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, t in tensors.items():
        size = t.data.size * BYTES[t.dtype]
        header[name] = {
            "dtype": t.dtype,
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(np.ascontiguousarray(t.data, NUMPY[t.dtype]).tobytes())


def glm_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Logical shape of every matrix that a published glm_moe_dsa container may hold quantized."""
    c = config
    hidden, heads, q_lora, kv_lora = (
        c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"],
    )  # fmt: skip
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "lm_head.weight": (c["vocab_size"], hidden),
    }

    def mlp(prefix: str, width: int) -> None:
        shapes[f"{prefix}gate_proj.weight"] = shapes[f"{prefix}up_proj.weight"] = (width, hidden)
        shapes[f"{prefix}down_proj.weight"] = (hidden, width)

    n = c["num_hidden_layers"]
    for i in range(n + 1):
        a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        shapes[a + "q_a_proj.weight"] = (q_lora, hidden)
        shapes[a + "q_b_proj.weight"] = (heads * (nope + rope), q_lora)
        shapes[a + "kv_a_proj_with_mqa.weight"] = (kv_lora + rope, hidden)
        shapes[a + "kv_b_proj.weight"] = (heads * (nope + value), kv_lora)
        shapes[a + "o_proj.weight"] = (hidden, heads * value)
        shapes[a + "indexer.wq_b.weight"] = (c["index_n_heads"] * c["index_head_dim"], q_lora)
        shapes[a + "indexer.wk.weight"] = (c["index_head_dim"], hidden)
        if i < n and c["mlp_layer_types"][i] == "dense":
            mlp(m, c["intermediate_size"])
            continue
        mlp(m + "shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
        for e in range(c["n_routed_experts"]):
            mlp(f"{m}experts.{e}.", c["moe_intermediate_size"])
    shapes[f"model.layers.{n}.eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


class Checkpoint:
    """A model directory: its config and, by Hugging Face name, its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self._raw: dict[str, Raw] = {}
        for file in sorted(path.glob("*.safetensors")):
            self._raw |= read_safetensors(file)
        self._values: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def __call__(self, name: str) -> Array:
        """f32 values of a weight: [rows, cols] of a matrix, [n] of a vector."""
        if name not in self._values:
            values = dequantize(self.stored(name))
            is_vector = len(self._raw[name].shape) == 1 and name not in self._shapes
            self._values[name] = values[0] if is_vector else values
        return self._values[name]

    def names(self) -> Iterator[str]:
        """Names of the weights, without those of their scales."""
        return (n for n in self._raw if not n.endswith((".qs", "_scale_inv")))

    def stored(self, name: str) -> Stored:
        """The weight as stored, its format resolved."""
        raw = self._raw[name]
        if name + "_scale_inv" in self._raw:
            scales = self._raw[name + "_scale_inv"].data
            return Stored(name, "fp8_block", 0, *raw.shape, raw.data, scales)
        if name + ".qs" in self._raw:
            rows, cols = self._shapes[name]
            scales = self._raw[name + ".qs"].data
            kinds = _kinds(raw.data.size, scales.size, rows, cols)
            if self._group and ("i4_group", self._group) in kinds:
                return Stored(name, "i4_group", self._group, rows, cols, raw.data, scales)
            return Stored(name, *kinds[0], rows, cols, raw.data, scales)
        rows, cols = raw.shape if len(raw.shape) > 1 else (1, *raw.shape)
        return Stored(name, raw.dtype.lower(), 0, rows, cols, raw.data, np.empty(0, "<f4"))

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        published = any(n.endswith(".qs") for n in self._raw)
        return glm_shapes(self.config) if published else {}

    @cached_property
    def _group(self) -> int:
        """The one group size that fits every int4 tensor of the container; 0 if there is none."""
        groups = set(GROUPS)
        for name in self._raw:
            if not name.endswith(".qs"):
                continue
            of = name.removesuffix(".qs")
            kinds = _kinds(self._raw[of].data.size, self._raw[name].data.size, *self._shapes[of])
            if any(kind == "i4_group" for kind, _ in kinds):
                groups &= {group for kind, group in kinds if kind == "i4_group"}
            elif kinds[0][0] == "i4_row":
                return 0
        return min(groups, key=lambda g: (g != 64, g)) if groups else 0


def _kinds(n_bytes: int, n_scales: int, rows: int, cols: int) -> list[tuple[str, int]]:
    """Every (format, group) that the sizes of a published tensor allow, the likeliest first."""
    kinds = []
    if n_bytes == rows * cols:
        if n_scales == rows:
            kinds.append(("i8_row", 0))
        if n_scales == ceil_div(rows, BLOCK) * ceil_div(cols, BLOCK):
            kinds.append(("fp8_block", 0))
    if n_bytes == rows * ceil_div(cols, 2):
        if n_scales == rows:
            kinds.append(("i4_row", 0))
        kinds += [("i4_group", g) for g in GROUPS if n_scales == rows * ceil_div(cols, g)]
    if not kinds:
        raise ValueError(f"{n_bytes} bytes and {n_scales} scales fit no format of [{rows}, {cols}]")
    return kinds
