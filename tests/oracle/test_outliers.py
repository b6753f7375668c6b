"""R134: one input channel with large weights, as trained models have them, and int4 scales.

Per row, that channel sets the scale of everything else in the row; per group only of its group. A
model with such a channel is made without changing what it computes: columns times a factor, the
norm before them divided by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine.table import Format, Precision
from colibri.models.container import open_folder
from colibri.models.convert import convert
from tests.models import files, glm_checkpoint
from tests.oracle import published
from tests.oracle.checkpoint import Array
from tests.oracle.published import Style
from tests.oracle.test_engine import engine_of, prefill

CONFIG: dict[str, Any] = {
    **glm_checkpoint.CONFIG, "hidden_size": 512, "moe_intermediate_size": 256,
    "intermediate_size": 384, "q_lora_rank": 192, "kv_lora_rank": 192, "v_head_dim": 96,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
CHANNEL, FACTOR = 77, 32.0
GAIN = 0.1  # of what layers add: else random layers turn any rounding into another text
PROMPT, STEPS = 12, 20
READERS = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight", "gate_proj.weight", "up_proj.weight",
           "gate.weight", "indexer.wk.weight", "indexer.weights_proj.weight")  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> dict[str, Array]:
    result = glm_checkpoint.values(CONFIG)
    for name, w in result.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            w[CHANNEL] /= FACTOR
        elif name.endswith(READERS) and name.startswith("model.layers."):
            w[:, CHANNEL] *= FACTOR
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            result[name] = GAIN * w
    return result


@pytest.fixture(scope="module")
def original(weights: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return glm_checkpoint.write(
        tmp_path_factory.mktemp("original"), glm_checkpoint.as_bf16(weights), CONFIG
    )


def logits(folder: Path, tokens: list[int]) -> Array:
    with engine_of(open_folder(folder), Precision.F32) as engine:
        return prefill(engine, tokens)


def greedy_text(folder: Path) -> list[int]:
    tokens = np.random.default_rng(2).integers(3, CONFIG["vocab_size"], PROMPT).tolist()
    with engine_of(open_folder(folder), Precision.F32) as engine, engine.session() as session:
        session.prefill(tokens)
        for _ in range(STEPS):
            tokens.append(int(session.logits().argmax()))
            engine.decode([session], tokens[-1:])
    return tokens


def divergence(expected: Array, found: Array) -> float:
    """Mean KL(expected || found) over the taught tokens, in nats."""

    def log_softmax(x: Array) -> Array:
        x = x.astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(expected), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_R134_group_scales_keep_what_row_scales_lose_to_an_outlier_channel(
    weights: dict[str, Array], original: Path, tmp_path: Path
) -> None:
    tokens = greedy_text(original)
    taught = slice(PROMPT - 1, PROMPT + STEPS - 1)
    expected = logits(original, tokens)[taught]
    assert expected.argmax(-1).tolist() == tokens[PROMPT:]
    matches, lost = {}, {}
    for style in (Style("i4_group", 64), Style("i4_group", 128), Style("i4_row")):
        folder = tmp_path / f"{style.body}{style.group}"
        files.text_files(folder, CONFIG)
        entries, _ = published.quantize_model(
            weights, Style(style.body, style.group, indexer=True), CONFIG["num_hidden_layers"]
        )
        published.write_shards(folder, entries, lambda name: "out-00000.safetensors")
        found = logits(folder, tokens)[taught]
        matches[style.group] = int((found.argmax(-1) == expected.argmax(-1)).sum())
        lost[style.group] = divergence(expected, found)
    assert lost[64] < lost[128] < lost[0], (lost, matches)
    assert lost[64] < 0.5 * lost[0], (lost, matches)
    assert matches[64] > matches[0], (lost, matches)


def test_R134_groups_are_the_default_and_the_weaker_kind_is_recognised(
    weights: dict[str, Array], original: Path, tmp_path: Path
) -> None:
    convert(original, tmp_path / "out")
    formats = {
        (Format(tensor.format), tensor.group)
        for tensor in open_folder(tmp_path / "out").tensors
        if ".experts." in tensor.name
    }
    assert formats == {(Format.I4_GROUP, 64)}
    folder = tmp_path / "row"
    files.text_files(folder, CONFIG)
    entries, _ = published.quantize_model(weights, Style("i4_row", indexer=True), 4)
    published.write_shards(folder, entries, lambda name: "out-00000.safetensors")
    assert any("clearly worse" in note for note in open_folder(folder).notes)
