"""The NumPy reference against the transformers oracle.

Two independent implementations agree on every committed number, so what the engine is held to
is not one program's opinion.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import fixture, reference
from tests.oracle.checkpoint import Checkpoint

TOLERANCE = 2e-4
GLM = [name for name in fixture.NAMES if name.startswith("glm")]


@pytest.mark.parametrize("name", fixture.NAMES)
def test_numpy_reference_gives_the_oracles_logits_at_every_position(name: str) -> None:
    one = fixture.load(name)
    weights = Checkpoint(one.model)
    for prompt in one.prompts:
        logits = reference.forward(weights, prompt.tokens).logits
        assert np.abs(logits - prompt.logits).max() < TOLERANCE


@pytest.mark.parametrize("name", fixture.NAMES)
def test_the_oracles_greedy_tokens_are_the_best_of_its_logits(name: str) -> None:
    for prompt in fixture.load(name).prompts:
        best = prompt.logits.argmax(-1)[len(prompt.prompt) - 1 : -1]
        assert best.tolist() == prompt.greedy


@pytest.mark.parametrize("name", GLM)
def test_absorbed_and_expanded_latent_attention_agree(name: str) -> None:
    one = fixture.load(name)
    weights = Checkpoint(one.model)
    prompt = one.prompts[2]
    expanded = reference.glm(weights, prompt.tokens, absorbed=False).logits
    assert np.abs(expanded - prompt.logits).max() < TOLERANCE


@pytest.mark.parametrize("name", ["glm_dsa", "llama_tied"])
def test_hidden_states_of_every_layer_agree(name: str) -> None:
    one = fixture.load(name)
    result = reference.forward(Checkpoint(one.model), one.prompts[2].tokens)
    for layer, hidden in enumerate(result.hidden):
        assert np.abs(hidden - one.tensors[f"p2.hidden.{layer}"]).max() < TOLERANCE, layer


def test_the_indexer_chooses_the_oracles_positions_and_shared_layers_have_none() -> None:
    one = fixture.load("glm_dsa")
    weights = Checkpoint(one.model)
    topk = reference.glm(weights, one.prompts[2].tokens).topk
    kinds = weights.config["indexer_types"]
    assert sorted(topk) == [layer for layer, kind in enumerate(kinds) if kind == "full"]
    assert "shared" in kinds
    for layer, rows in topk.items():
        expected = [[s for s in row if s >= 0] for row in one.tensors[f"p2.topk.{layer}"].tolist()]
        assert rows == expected


def test_the_mtp_layer_gives_the_oracles_logits() -> None:
    one = fixture.load("glm_dsa")
    weights, tokens = Checkpoint(one.model), one.prompts[2].tokens
    hidden = reference.glm(weights, tokens).hidden[-1]
    mtp = reference.glm_mtp(weights, tokens, hidden)
    assert np.abs(mtp - one.tensors["p2.mtp"]).max() < TOLERANCE
