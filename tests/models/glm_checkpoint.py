"""Writes tiny GLM checkpoints in the layout of the original ones: BF16 or FP8, many shards, index.

For: tests of the converter and of opening such folders. Weights are random but keep activations at
about unit size. Written apart from the product's writers; shapes come from the family's table,
which `test_families.py` checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.values import ConfigReader
from tests.models import files
from tests.oracle.checkpoint import Raw, ceil_div, round_bf16, write_safetensors

Floats = NDArray[np.float32]
# Ragged on purpose: 160, 96 and 48 columns are no multiples of 64 or 128.
CONFIG: dict[str, Any] = {
    **files.GLM,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "index_n_heads": 8,
}
FP8 = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
}
# BF16 also in FP8 checkpoints.
_PLAIN = ("norm.weight", "norm.bias", "layernorm.weight", "mlp.gate.weight", "eh_proj.weight")
_KEPT = (*_PLAIN, "weights_proj.weight", "embed_tokens.weight", "lm_head.weight")


def values(config: Mapping[str, Any], seed: int = 1) -> dict[str, Floats]:
    """Every tensor of the complete model, exact in bf16 except the router's bias."""
    rng = np.random.default_rng(seed)
    result = {}
    for spec in GLM_MOE_DSA.tensors(GLM_MOE_DSA.geometry(ConfigReader(config, "test"))):
        shape = (spec.cols,) if spec.is_vector else (spec.rows, spec.cols)
        w = rng.standard_normal(shape, np.float32)
        if spec.name.endswith("e_score_correction_bias"):
            result[spec.name] = w * np.float32(0.05)
            continue
        if spec.name.endswith(("norm.weight", "layernorm.weight")):
            w = 1 + np.float32(0.1) * w
        elif spec.name.endswith("norm.bias"):
            w *= np.float32(0.1)
        elif "embed_tokens" not in spec.name:
            w *= np.float32(1.3 * shape[-1] ** -0.5)
        result[spec.name] = round_bf16(w).reshape(shape)
    return result


def bf16(w: Floats) -> Raw:
    """A BF16 entry of values that are exact in it."""
    return Raw("BF16", w.shape, (np.ascontiguousarray(w).view("<u4") >> 16).astype("<u2"))


def as_bf16(weights: Mapping[str, Floats]) -> dict[str, Raw]:
    """Entries of a BF16 checkpoint."""
    return {
        name: Raw("F32", w.shape, w) if name.endswith("correction_bias") else bf16(w)
        for name, w in weights.items()
    }


def as_fp8(weights: Mapping[str, Floats], seed: int = 2) -> dict[str, Raw]:
    """Entries of an FP8 checkpoint with the shapes of `weights`: random codes, none of them NaN,
    and block scales that are powers of two, so that every value is exact in bf16."""
    rng = np.random.default_rng(seed)
    entries = {}
    for name, raw in as_bf16(weights).items():
        if raw.dtype == "F32" or name.endswith(_KEPT):
            entries[name] = raw
            continue
        rows, cols = raw.shape
        codes = rng.integers(0, 0x70, (rows, cols)).astype(np.uint8)
        codes |= rng.integers(0, 2, (rows, cols)).astype(np.uint8) << 7
        grid = (ceil_div(rows, 128), ceil_div(cols, 128))
        scales = np.ldexp(1.0, rng.integers(-12, -6, grid)).astype(np.float32)
        entries[name] = Raw("F8_E4M3", raw.shape, codes)
        entries[name + "_scale_inv"] = Raw("F32", grid, scales)
    return entries


def fuse(entries: Mapping[str, Raw], suffix: str = "") -> dict[str, Raw]:
    """The entries with the experts of every layer fused into gate_up_proj and down_proj."""
    result = {name: raw for name, raw in entries.items() if ".experts." not in name}
    layers = sorted({name.split(".experts.")[0] for name in entries if ".experts." in name})
    for layer in layers:
        for tail in ("", "_scale_inv"):
            name_of = f"{layer}.experts.{{}}.up_proj.weight{tail}"
            numbers = [n for n in range(1000) if name_of.format(n) in entries]
            if not numbers:
                continue

            def stack(n: int, *parts: str, layer: str = layer, tail: str = tail) -> NDArray[Any]:
                raws = [entries[f"{layer}.experts.{n}.{part}_proj.weight{tail}"] for part in parts]
                return np.concatenate([raw.data.reshape(raw.shape) for raw in raws])

            for name, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
                whole = np.stack([stack(n, *parts) for n in numbers])
                dtype = entries[name_of.format(0)].dtype
                result[f"{layer}.experts.{name}{suffix}{tail}"] = Raw(dtype, whole.shape, whole)
    return result


def write(
    folder: Path,
    entries: Mapping[str, Raw],
    config: Mapping[str, Any] = CONFIG,
    shards: int = 3,
    index: bool = True,
) -> Path:
    """A model folder: text files, `shards` shards cut between names, and the index."""
    files.text_files(folder, {**config, "architectures": ["GlmMoeDsaForCausalLM"]})
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2, 3]}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    names = list(entries)
    where = {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        write_safetensors(folder / shard, {name: entries[name] for name in part})
        where.update(dict.fromkeys(part, shard))
    if index:
        table = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    return folder
