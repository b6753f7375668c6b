"""SmolLM2-135M-Instruct, converted from its published file: the real model gives the real answers.

`data/smollm2_reference.json` holds what transformers computes in f32 from the dequantized weights
of that file: prompt ids (chat template applied), greedy tokens, the first step's best logits. The
f32 path must give exactly these tokens. The fast path rounds activations: a step is compared only
where the two best logits lie further apart than rounding can bring them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from colibri.engine.ffi import Engine, has_isa
from colibri.engine.table import EngineOptions, Isa, Precision
from colibri.models.container import open_folder
from tests.oracle.checkpoint import Array

REFERENCE = Path(__file__).parent / "data" / "smollm2_reference.json"
FRANCE, SUM = "What is the capital of France?", "What is 2+2? Answer with a number."
ISAS = [isa for isa in Isa if isa != Isa.AUTO and has_isa(isa)]
F32_LOGIT_TOLERANCE = 5e-3  # logits lie around 25; transformers sums in another order


@cache
def prompts() -> dict[str, dict[str, Any]]:
    return {p["text"]: p for p in json.loads(REFERENCE.read_text())["prompts"]}


def open_engine(folder: Path, precision: Precision, isa: Isa = Isa.AUTO) -> Engine:
    files = open_folder(folder)
    options = EngineOptions(precision=precision, isa=isa, context=512)
    return Engine(files.paths, files.geometry, files.tensors, options)


def answer(engine: Engine, text: str) -> tuple[list[int], Array]:
    """Greedy tokens of the length of the reference's, and the logits of the first step."""
    prompt = prompts()[text]
    tokens: list[int] = []
    with engine.session() as session:
        session.prefill(prompt["prompt_ids"])
        first = session.logits()
        for _ in prompt["greedy"]:
            tokens.append(session.sample())
            engine.decode([session], tokens[-1:])
    return tokens, first


def steps(engine: Engine, text: str) -> Array:
    """Logits of every step that chooses one of the reference's tokens, [len(greedy), vocab]."""
    prompt = prompts()[text]
    ids = prompt["prompt_ids"] + prompt["greedy"][:-1]
    logits = np.empty((len(ids), engine.vocab), np.float32)
    with engine.session() as session:
        session.prefill(ids, logits)
    return logits[len(prompt["prompt_ids"]) - 1 :]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("text", [FRANCE, SUM])
def test_the_f32_path_gives_exactly_the_reference_tokens(
    text: str, isa: Isa, smollm2_folder: Path
) -> None:
    expected = prompts()[text]
    with open_engine(smollm2_folder, Precision.F32, isa) as engine:
        tokens, first = answer(engine, text)
    assert tokens == expected["greedy"]
    best = np.argsort(-first)[:5]
    assert best.tolist() == expected["first_top5"]
    assert np.abs(first[best] - expected["first_top5_logits"]).max() < F32_LOGIT_TOLERANCE
    decoded = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json")).decode(tokens)
    assert decoded == expected["answer"].removesuffix("<|im_end|>")


@pytest.mark.parametrize("isa", ISAS)
def test_the_fast_path_names_paris(isa: Isa, smollm2_folder: Path) -> None:
    with open_engine(smollm2_folder, Precision.FAST, isa) as engine:
        tokens, _ = answer(engine, FRANCE)
    assert "Paris" in Tokenizer.from_file(str(smollm2_folder / "tokenizer.json")).decode(tokens)


def test_the_fast_path_agrees_wherever_rounding_cannot_decide(smollm2_folder: Path) -> None:
    with open_engine(smollm2_folder, Precision.F32) as engine:
        exact = {text: steps(engine, text) for text in prompts()}
    with open_engine(smollm2_folder, Precision.FAST) as engine:
        fast = {text: steps(engine, text) for text in prompts()}
    compared = 0
    for text in prompts():
        # Measured on the other prompts: an error taken from the compared step would prove nothing.
        error = max(
            np.abs(fast[other] - exact[other]).max() for other in prompts() if other != text
        )
        top = np.sort(exact[text], -1)[:, -2:]
        clear = top[:, 1] - top[:, 0] > 2 * error
        assert np.array_equal(fast[text].argmax(-1)[clear], exact[text].argmax(-1)[clear]), error
        compared += int(clear.sum())
    # Enough steps are clear; if not, the fast path has become too coarse to say anything.
    assert compared >= len(prompts()[FRANCE]["greedy"])
