"""The model that comes with the program: what it answers, computed by our engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from colibri.engine.ffi import Engine
from colibri.engine.table import EngineOptions, Precision
from colibri.models.container import open_folder
from starter.build import SHIPPED
from tests.support.serveprocess import ServeProcess, serve

# Written by `starter.reference`: what transformers computes from the weights before quantization.
REFERENCE = Path(__file__).parent / "fixtures" / "reference.json"
TIMEOUT = 60
# What people are shown first has to be right.
EXAMPLES = {
    "What is a hummingbird?": "Tiny American bird",
    "Define courage.": "A quality of spirit",
    "What does it mean to sing?": "Make music",
    "What is a piano?": "A keyboard instrument",
    "Is a guitar a man-made thing?": "It is a man-made thing, so yes.",
    "What is an expert?": "An expert is a small network",
    "How do I connect aider?": "Set OPENAI_API_BASE to http://localhost:8000/v1",
    "Why is it slow?": "Big models are slow because",
}
QUESTIONS = ("What is a dog?", "What is a piano?", "What does it mean to sing?")


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(REFERENCE.read_text())["prompts"]
    return found


def answers(engine: Engine, prompts: list[dict[str, Any]]) -> list[list[int]]:
    said = []
    for prompt in prompts:
        with engine.session() as session:
            session.prefill(prompt["ids"])
            tokens: list[int] = []
            for _ in prompt["greedy"]:
                tokens.append(session.sample())
                engine.decode([session], tokens[-1:])
            said.append(tokens)
    return said


@pytest.mark.parametrize("precision", [Precision.F32, Precision.FAST])
def test_known_words_are_answered_as_transformers_does(
    prompts: list[dict[str, Any]], precision: Precision
) -> None:
    """int4 experts and the sparse selection, which the last prompt needs, change no token."""
    files = open_folder(SHIPPED)
    options = EngineOptions(precision=precision, context=512)
    assert len(prompts[-1]["ids"]) > 4 * 64
    with Engine(files.paths, files.geometry, files.tensors, options) as engine:
        said = answers(engine, prompts)
        with engine.session() as session:
            session.prefill(prompts[0]["ids"])
            logits = session.logits()
    assert said == [prompt["greedy"] for prompt in prompts]
    wanted = {int(token): value for token, value in prompts[0]["logits"].items()}
    assert int(np.argmax(logits)) == max(wanted, key=lambda token: wanted[token])
    assert max(abs(float(logits[token]) - value) for token, value in wanted.items()) < 2


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with (
        serve(SHIPPED, "--drafts", "1") as with_drafts,
        serve(SHIPPED, "--drafts", "0") as without,
    ):
        yield with_drafts, without


def asked(server: ServeProcess, question: str) -> str:
    body = {"messages": [{"role": "user", "content": question}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=TIMEOUT)
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


@pytest.mark.e2e
def test_drafts_change_no_token_and_most_are_kept(
    servers: tuple[ServeProcess, ServeProcess],
) -> None:
    """R137."""
    with_drafts, without = servers
    for question in QUESTIONS:
        assert asked(with_drafts, question) == asked(without, question)
    state = httpx.get(f"{with_drafts.url}/health", timeout=TIMEOUT).json()["engine"]["drafts"]
    assert state["acceptance"] > 0.8, "the MTP layer and its hidden states do not fit each other"


@pytest.mark.e2e
def test_the_model_says_what_it_is_and_what_to_ask(
    servers: tuple[ServeProcess, ServeProcess],
) -> None:
    url = servers[0].url
    (model,) = httpx.get(f"{url}/v1/models", timeout=TIMEOUT).json()["data"]
    assert model["id"] == "colibri-starter"
    assert model["context_length"] == 2048
    assert "pocket dictionary" in model["about"]["note"]
    assert sorted(EXAMPLES) == sorted(model["about"]["examples"])
    for question, begins in EXAMPLES.items():
        assert asked(servers[0], question).startswith(begins)


def test_the_folder_is_whole_small_and_has_its_notices() -> None:
    files = [path for path in SHIPPED.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12_000_000
    names = {path.name for path in files}
    assert {"colibri.json", "about.json", "LICENSE.wordnet", "README.md"} <= names
    assert "WordNet" in (SHIPPED / "LICENSE.wordnet").read_text()
