"""A small GLM-shaped model whose MTP layer drafts well, made with NumPy in a moment.

For: tests of drafts on the real engine. Not for: text; it writes printable characters in a fixed
round, with deviations.

Without any training, by construction: the output row of character f(t) is the embedding of t, so
the token after t is mostly f(t). Attention and experts add to the residual stream at random, so
what is drawn depends on the whole context, on every expert, and now and then is another token. The
MTP layer's projection passes the embedding of the next token on, hence predicts f of it, as the
trunk does one step later. One column of that projection belongs to a channel that no embedding
uses; its values are large. They ruin the scale of an int4 row, and with it the drafts, while an
int8 row has room for both (R136).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from colibri.families import detect
from colibri.families.base import TensorSpec
from colibri.families.values import ConfigReader
from colibri.models import synthetic
from colibri.models.synthetic import Shape
from tests.oracle import published
from tests.oracle.checkpoint import Array, Raw, write_safetensors

LAYERS = 3
SHAPE = Shape(layers=LAYERS, hidden=128, experts=16, top_k=3, expert_ffn=64, mtp=True)
VOCAB = 288  # bytes, control tokens, and some that do not exist
CHARACTERS = 94  # ids of ! to ~ in the synthetic tokenizer: all that the model writes
_QUIET = 5  # the channel that no embedding uses
_OUTLIER = 30.0
# Scale of the logits: at temperature 1 about a quarter of the drafts fails.
_SURE = 0.18
# What attention and experts add to the residual stream, relative to it: some tokens deviate.
_NOISE = 1.3


def prompt(seed: int, length: int = 24) -> list[int]:
    """Token ids of a prompt."""
    return np.random.default_rng(seed).integers(0, CHARACTERS, length).tolist()


def config() -> dict[str, Any]:
    return synthetic.config(SHAPE, LAYERS) | {"vocab_size": VOCAB}


def make(folder: Path, mtp: str = "i8_row", seed: int = 1) -> Path:
    """Writes the model; `mtp` is the format of the matrices of its MTP layer."""
    values = config()
    family = detect(values, "draft model")
    specs = family.tensors(family.geometry(ConfigReader(values, "draft model")))
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal((VOCAB, SHAPE.hidden)).astype(np.float32)
    embedding[:, _QUIET] = 0
    entries: dict[str, Raw] = {}
    for spec in specs:
        weights = _weights(spec, embedding, rng)
        if not published.is_matrix(spec.name):
            shape = weights.shape if spec.rows > 1 else (spec.cols,)
            entries[spec.name] = Raw("F32", shape, weights)
            continue
        fmt = "i8_row" if spec.layer is None else mtp if spec.part == "mtp" else "i4_group"
        stored = published.quantize(spec.name, weights, fmt, 64)
        entries[spec.name] = Raw("U8", stored.data.shape, stored.data)
        entries[spec.name + ".qs"] = Raw("F32", stored.scales.shape, stored.scales)
    folder.mkdir(parents=True)
    order = sorted(entries, key=lambda name: (entries[name].dtype != "F32", name))
    write_safetensors(folder / "out-00000.safetensors", {name: entries[name] for name in order})
    (folder / "config.json").write_text(json.dumps(values))
    ends = json.dumps({"eos_token_id": values["eos_token_id"]})
    (folder / "generation_config.json").write_text(ends)
    (folder / "tokenizer.json").write_text(synthetic._tokenizer().to_str())
    return folder


def _weights(spec: TensorSpec, embedding: Array, rng: np.random.Generator) -> Array:
    """f32 [rows, cols] of one tensor."""
    name, shape = spec.name, (spec.rows, spec.cols)
    noise = rng.standard_normal(shape).astype(np.float32)
    if name == "model.embed_tokens.weight":
        return embedding
    if name == "lm_head.weight":
        head = np.zeros_like(embedding)
        # One round through all characters; other tokens are never the best.
        round_trip = np.random.default_rng(0).permutation(CHARACTERS)
        head[np.roll(round_trip, -1)] = embedding[round_trip] * np.float32(_SURE)
        return head
    if name.endswith("eh_proj.weight"):
        weights = noise * np.float32(0.03)
        weights[:, : spec.rows] += np.eye(spec.rows, dtype=np.float32)
        weights[:, _QUIET] = _OUTLIER
        return weights
    if name.endswith("e_score_correction_bias"):
        return noise * np.float32(0.02)
    if spec.is_vector:
        return np.ones(shape, np.float32)
    gain = _NOISE if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return noise * np.float32(gain * spec.cols**-0.5)
