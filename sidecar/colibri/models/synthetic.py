"""Synthetic GLM-shaped models of any size: random weights, a working tokenizer, chosen routing.

For: `coli bench make-model`, benchmarks and tests that need a model larger than memory without
downloading one. Not for: text; what such a model writes is noise.

Weights are random codes with scales of 1/sqrt(columns), so that every matrix keeps the size of its
input and activations stay finite over any number of layers. Codes are symmetric around zero: a mean
would add up to one direction that all tokens share, and then all would ask for the same experts. A
tensor depends on the seed and its name alone, so the packed and the published layout of one seed
hold the same numbers.

Routing: the router is a random matrix, which spreads tokens evenly over the experts. A Zipf
exponent is reached as trained models reach balance, through `e_score_correction_bias`: the biases
are fitted on simulated router scores until expert number r of a layer's own random order is chosen
with a probability proportional to 1 / r^s (at most once per token). Routing that is sticky or
drifts comes from tokens with topics (`topics`).
Thread rule: one writer per target.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from colibri.engine import packing
from colibri.engine.table import Format, Layout
from colibri.errors import UsageError
from colibri.families import detect
from colibri.families.base import TensorSpec
from colibri.families.values import ConfigReader
from colibri.models import formats, packed, quantize, topics
from colibri.models.pack_shards import Item, Part, Piece
from colibri.models.pack_writer import Job, Progress, write

# What `--format` may be: format of the experts and columns per scale.
EXPERT_FORMATS: Final = {
    "int4g64": (Format.I4_GROUP, 64),
    "int4g32": (Format.I4_GROUP, 32),
    "int4row": (Format.I4_ROW, 0),
    "int8": (Format.I8_ROW, 0),
}
LAYOUTS: Final = ("packed", "published")
UNIFORM: Final = 0.0
CONTEXT: Final = 32_768
VOCAB: Final = 4096

_SPECIALS: Final = (
    "<|endoftext|>",
    "<|user|>",
    "<|observation|>",
    "<|system|>",
    "<|assistant|>",
    "[gMASK]",
    "<sop>",
)
_MARKERS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<tool_response>",
    "</tool_response>",
)
_N_END_TOKENS: Final = 3
_DENSE: Final = (Format.I4_GROUP, 64)
_SHARD_BYTES: Final = 3 << 30
_HEADER_PAD: Final = 8
# Standard deviations of the codes below, in units of the scale.
_INT4_DEVIATION: Final = 4.18
_INT8_DEVIATION: Final = 73.9
# Bits of the 16 nibbles of a 64-bit word.
_LOW: Final = np.uint64(0x7777777777777777)
_TOP: Final = np.uint64(0x8888888888888888)
_ATTENTION_GAIN: Final = 0.25
# Fitting of the routing biases.
_FIT_TOKENS: Final = 2048
_FIT_ROUNDS: Final = 150
_MOST_OFTEN: Final = 0.98

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What to make. `layers` 0 = as many as make the container about `gb` GB (1e9 bytes) large.

    `skew` is the Zipf exponent of the routing, 0 = uniform, and `routing` one of `topics.KINDS`.
    `format` is one of EXPERT_FORMATS and
    concerns the routed experts; the rest is as in published containers.
    """

    gb: float = 8.0
    layers: int = 0
    hidden: int = 2048
    experts: int = 128
    top_k: int = 8
    expert_ffn: int = 768
    layout: str = "packed"
    format: str = "int4g64"
    skew: float = UNIFORM
    routing: str = topics.STEADY
    mtp: bool = False
    seed: int = 1


def config(shape: Shape, layers: int) -> dict[str, Any]:
    """config.json of a model with this shape: one dense layer, then sparse ones."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "num_attention_heads": max(2, shape.hidden // 128),
        "num_key_value_heads": max(2, shape.hidden // 128),
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "q_lora_rank": max(32, shape.hidden // 4),
        "kv_lora_rank": max(32, shape.hidden // 8),
        "n_routed_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "n_shared_experts": 1,
        "moe_intermediate_size": shape.expert_ffn,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": int(shape.mtp),
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "eos_token_id": list(range(256, 256 + _N_END_TOKENS)),
    }


def make(out: Path, shape: Shape, progress: Progress | None = None) -> int:
    """Writes the model into the folder `out` and returns its layers. UsageError if it exists."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the folder exists already.", where=str(out), hint="Choose another one.")
    layers = shape.layers or _layers_for(shape)
    topics.check(shape.routing)
    weights = _Weights(shape, layers)
    metadata = {
        "config.json": _json(config(shape, layers)),
        "generation_config.json": _json({"eos_token_id": config(shape, layers)["eos_token_id"]}),
        "tokenizer_config.json": _json({"eos_token": _SPECIALS[0]}),
        "tokenizer.json": _tokenizer().to_str().encode(),
    }
    specs = list(_specs(shape, layers))
    if shape.layout == "packed":
        _write_packed(out, shape, specs, weights, metadata, progress)
    else:
        _write_published(out, specs, weights, metadata, progress)
    return layers


def expert_bytes(shape: Shape) -> int:
    """Bytes of one routed expert in the packed layout."""
    fmt, group = EXPERT_FORMATS[shape.format]
    sides = ((shape.expert_ffn, shape.hidden),) * 2 + ((shape.hidden, shape.expert_ffn),)
    return sum(formats.packed_bytes(fmt, group, rows, cols) for rows, cols in sides)


def _specs(shape: Shape, layers: int) -> Iterator[TensorSpec]:
    values = config(shape, layers)
    family = detect(values, "synthetic model")
    return family.tensors(family.geometry(ConfigReader(values, "synthetic model")))


def _layers_for(shape: Shape) -> int:
    weights = _Weights(shape)

    def size(layers: int) -> int:
        return sum(weights.bytes(spec) for spec in _specs(shape, layers))

    small, large = size(2), size(3)
    wanted = round((shape.gb * 1e9 - small) / (large - small)) + 2
    if wanted < 2:  # noqa: PLR2004 - one dense layer and a sparse one
        raise UsageError(
            f"{shape.gb} GB are less than the smallest such model ({small / 1e9:.2f} GB).",
            hint="Choose fewer or smaller experts.",
        )
    return wanted


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _tokenizer() -> Tokenizer:
    """One token per byte, and the family's control tokens: any text goes in and comes out whole."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in _SPECIALS]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _MARKERS])
    return tokenizer


# ---- weights -------------------------------------------------------------------------------------


class _Weights:
    """Random numbers of every tensor, by name."""

    def __init__(self, shape: Shape, layers: int = 0) -> None:
        self._shape = shape
        self._layers = layers
        self._bias: Floats | None = None

    def format(self, spec: TensorSpec) -> tuple[Format, int]:
        """Format and columns per scale, as published containers choose them."""
        if spec.is_vector or spec.name.endswith("mlp.gate.weight"):
            return Format.F32, 0
        if spec.part == "mtp" or spec.layer is None:
            return Format.I8_ROW, 0
        return EXPERT_FORMATS[self._shape.format] if spec.expert >= 0 else _DENSE

    def bytes(self, spec: TensorSpec) -> int:
        """Bytes in the container (packed; the published layout differs by padding only)."""
        fmt, group = self.format(spec)
        if spec.is_vector:
            return formats.plain_bytes(fmt, 1, spec.cols)
        return formats.packed_bytes(fmt, group, spec.rows, spec.cols)

    def data(self, spec: TensorSpec) -> Bytes:
        """The plain bytes."""
        fmt, _ = self.format(spec)
        random = self._random(spec.name)
        if fmt == Format.F32:
            return self._floats(spec, random).view(np.uint8).reshape(-1)
        if (matrix := self._topical(spec)) is not None:
            return matrix[0]
        size = formats.plain_bytes(fmt, spec.rows, spec.cols)
        words = random.integers(0, 1 << 64, -(-size // 8), dtype=np.uint64)
        if fmt != Format.I8_ROW:
            words = _symmetric(words)
        return words.view(np.uint8)[:size]

    def scales(self, spec: TensorSpec) -> Floats | None:
        """The scales of a quantized tensor, flat."""
        fmt, group = self.format(spec)
        count = formats.scale_count(fmt, group, spec.rows, spec.cols)
        if not count:
            return None
        if (matrix := self._topical(spec)) is not None:
            return matrix[1]
        deviation = _INT8_DEVIATION if fmt == Format.I8_ROW else _INT4_DEVIATION
        # Tokens enter at the size that layers add, and attention, which mixes them, adds little: so
        # they stay different from each other and ask for different experts.
        gain = 1.0 if spec.name == "model.embed_tokens.weight" else spec.cols**-0.5
        if spec.name.endswith("self_attn.o_proj.weight"):
            gain *= _ATTENTION_GAIN
        random = self._random(spec.name + ".qs")
        return random.uniform(0.75, 1.25, count).astype(np.float32) * np.float32(gain / deviation)

    def _topical(self, spec: TensorSpec) -> tuple[Bytes, Floats] | None:
        """Codes and scales of a matrix that depends on the tokens' topics, None for others."""
        kind, seed = self._shape.routing, self._shape.seed
        if kind == topics.STEADY:
            return None
        if spec.name == "model.embed_tokens.weight":
            matrix = topics.embedding(kind, spec.rows, spec.cols, seed)
        elif spec.name == "lm_head.weight":
            matrix = topics.head(kind, spec.rows, spec.cols, self._layers, seed)
        else:
            return None
        codes, scales = quantize.as_int8(matrix, spec.name)
        return codes.view(np.uint8).reshape(-1), scales.reshape(-1)

    def _random(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self._shape.seed, zlib.crc32(name.encode())]))

    def _floats(self, spec: TensorSpec, random: np.random.Generator) -> Floats:
        if spec.name.endswith("e_score_correction_bias"):
            if self._bias is None:
                shape = self._shape
                self._bias = routing_bias(shape.experts, shape.top_k, shape.skew, shape.seed)
            return random.permutation(self._bias)
        if spec.is_vector:
            return np.ones(spec.cols, dtype=np.float32)
        scale = np.float32(spec.cols**-0.5)
        return random.standard_normal((spec.rows, spec.cols), dtype=np.float32) * scale


def _symmetric(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Nibbles without 0, which stands for -8 and has no counterpart on the positive side."""
    zero = ~(((words & _LOW) + _LOW) | words) & _TOP
    result: NDArray[np.uint64] = words | zero
    return result


def routing_bias(experts: int, top_k: int, skew: float, seed: int) -> Floats:
    """Biases, most frequent expert first, that give choices the Zipf exponent `skew`.

    Scores are simulated as the sigmoid of a standard normal number, which is what a random router
    makes of normed activations.
    """
    bias = np.zeros(experts)
    if skew == UNIFORM or top_k >= experts:
        return bias.astype(np.float32)
    random = np.random.default_rng(seed)
    scores = 1 / (1 + np.exp(-random.standard_normal((_FIT_TOKENS, experts))))
    target = _frequencies(experts, top_k, skew)
    for turn in range(_FIT_ROUNDS):
        chosen = np.argpartition(scores + bias, experts - top_k, axis=1)[:, experts - top_k :]
        found = np.bincount(chosen.reshape(-1), minlength=experts) / _FIT_TOKENS
        step = 0.1 / (1 + turn / 20)
        bias += step * np.log((target + 1 / _FIT_TOKENS) / (found + 1 / _FIT_TOKENS))
    centred: Floats = (bias - bias.mean()).astype(np.float32)
    return centred


def _frequencies(experts: int, top_k: int, skew: float) -> NDArray[np.float64]:
    """How often each rank is chosen per token: Zipf, but no expert more than once per token."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    result: NDArray[np.float64] = np.minimum(weights * top_k / weights.sum(), _MOST_OFTEN)
    for _ in range(50):  # hands on what the most frequent ones cannot take
        free = result < _MOST_OFTEN
        rest = top_k - result[~free].sum()
        result[free] = np.minimum(weights[free] * rest / weights[free].sum(), _MOST_OFTEN)
    return result


# ---- writing -------------------------------------------------------------------------------------


def _pack(weights: _Weights, spec: TensorSpec) -> Bytes:
    fmt, group = weights.format(spec)
    scales = weights.scales(spec)
    return packing.weight_pack(fmt, group, spec.rows, spec.cols, weights.data(spec), scales)


def _write_packed(
    out: Path,
    shape: Shape,
    specs: Sequence[TensorSpec],
    weights: _Weights,
    metadata: Mapping[str, bytes],
    progress: Progress | None,
) -> None:
    items: list[Item] = []
    experts: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        if spec.expert >= 0:
            experts.setdefault(spec.name.rsplit(".", 2)[0], []).append(spec)
            continue
        fmt, group = weights.format(spec)
        layout = Layout.PLAIN if spec.is_vector else Layout.PACKED
        part = Part(spec.name, fmt, group, spec.rows, spec.cols, layout)
        items.append(Item(spec.name, (part,), False, _maker(weights, [spec])))
    for prefix, members in experts.items():
        by_name = {spec.name.removeprefix(prefix + "."): spec for spec in members}
        parts = tuple(
            Part(name, *weights.format(spec), spec.rows, spec.cols, Layout.PACKED)
            for name, spec in ((name, by_name[name]) for name in packed.EXPERT_PARTS)
        )
        make_parts = _maker(weights, [by_name[name] for name in packed.EXPERT_PARTS])
        items.append(Item(prefix, parts, True, make_parts))
    info = {"synthetic": {"seed": shape.seed, "skew": shape.skew, "routing": shape.routing}}
    job = Job(
        out, "glm_moe_dsa", tuple(items), metadata, info, {"shape": repr(shape)}, verify=False
    )
    write(job, progress)


def _maker(weights: _Weights, specs: Sequence[TensorSpec]) -> Callable[[], list[Piece]]:
    return lambda: [Piece(weights.bytes(spec), partial(_make, weights, spec)) for spec in specs]


def _make(weights: _Weights, spec: TensorSpec) -> Bytes:
    return weights.data(spec) if spec.is_vector else _pack(weights, spec)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a published shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    load: Callable[[], NDArray[Any]]


def _entries(weights: _Weights, spec: TensorSpec) -> Iterator[_Entry]:
    fmt, group = weights.format(spec)
    size = formats.plain_bytes(fmt, spec.rows, spec.cols)
    quantized = fmt != Format.F32
    extents = (size,) if quantized else (spec.cols,) if spec.is_vector else (spec.rows, spec.cols)
    dtype = "U8" if quantized else "F32"
    yield _Entry(spec.name, dtype, extents, size, lambda: weights.data(spec))
    count = formats.scale_count(fmt, group, spec.rows, spec.cols)
    if count:
        name = spec.name + ".qs"
        yield _Entry(name, "F32", (count,), 4 * count, lambda: _scales(weights, spec))


def _scales(weights: _Weights, spec: TensorSpec) -> Floats:
    scales = weights.scales(spec)
    assert scales is not None  # noqa: S101 - its entry exists because it has some
    return scales


def _write_published(
    out: Path,
    specs: Sequence[TensorSpec],
    weights: _Weights,
    metadata: Mapping[str, bytes],
    progress: Progress | None,
) -> None:
    """Shards as the usual writer lays them: all F32 tensors by name, then all U8 ones."""
    out.mkdir(parents=True, exist_ok=True)
    shards: list[list[_Entry]] = [[]]
    filled = 0
    for entry in (entry for spec in specs for entry in _entries(weights, spec)):
        if filled + entry.bytes > _SHARD_BYTES and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += entry.bytes
    total = sum(entry.bytes for shard in shards for entry in shard)
    done = 0
    for number, shard in enumerate(shards):
        path = out / f"out-{number:05d}.safetensors"
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as stream:
            for entry in _start_shard(stream, shard):
                stream.write(np.ascontiguousarray(entry.load()).data)
                done += entry.bytes
                if progress is not None:
                    progress(done, total)
        temporary.replace(path)
    for name, data in metadata.items():
        (out / name).write_bytes(data)


def _start_shard(stream: BinaryIO, shard: Sequence[_Entry]) -> list[_Entry]:
    """Writes the header; returns the entries in file order."""
    ordered = sorted(shard, key=lambda entry: (entry.dtype, entry.name))
    header: dict[str, Any] = {}
    end = 0
    for entry in ordered:
        offsets = [end, end + entry.bytes]
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
        end += entry.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_PAD)
    stream.write(len(text).to_bytes(8, "little") + text)
    return ordered
