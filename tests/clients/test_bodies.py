"""Requests of the shape that real clients send, answered by the real server.

Over the scripted engine: each request as recorded, and each generation in both modes, with an
answer of text and with a call of the first declared tool. Over a small GLM model: the same requests
through template, tokenizer, engine and parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

from colibri.engine.fake import Script
from colibri.models import synthetic
from colibri.models.synthetic import Shape
from tests.clients import answers, bodies
from tests.clients.answers import Answer
from tests.clients.bodies import Recorded
from tests.support.fakeserver import FakeServer
from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 120
CONTEXT = 200_000  # a token a byte
ALL = bodies.names()


@pytest.fixture(scope="module")
def scripted() -> Iterator[FakeServer]:
    made = FakeServer(context=CONTEXT)
    made.start()
    yield made
    made.stop()


def send(url: str, recorded: Recorded) -> Answer | None:
    response = httpx.request(
        recorded.method,
        url + recorded.target,
        headers={**recorded.headers, "authorization": "Bearer local"},
        json=recorded.body,
        timeout=TIMEOUT,
    )
    kind = response.headers["content-type"]
    assert response.headers["x-request-id"]
    return answers.read(recorded, response.status_code, kind, response.content)


def generates(recorded: Recorded) -> bool:
    return (
        recorded.method == "POST"
        and not recorded.path.endswith("/count_tokens")
        and answers.expected(recorded)[0] == 200
    )


GENERATIONS = [name for name in ALL if generates(bodies.build(name))]
WITH_TOOLS = [name for name in GENERATIONS if bodies.build(name).body.get("tools")]


def model_of(server: FakeServer) -> str:
    return server.model.id


@pytest.mark.parametrize("name", ALL)
def test_a_recorded_request_gets_what_it_is_owed(scripted: FakeServer, name: str) -> None:
    """R008, R028, R029, R030, R032, R034."""
    recorded = bodies.build(name, model_of(scripted))
    if generates(recorded):
        scripted.backend.enqueue(Script(pieces=("Hel", "lo <b>", " wörld")))
    answer = send(scripted.url, recorded)
    constrained = any(key in json.dumps(recorded.body or {}) for key in ("json_", '"any"'))
    if answer and not constrained and not _demands_a_call(recorded):
        assert answer.text.startswith("Hello <b>")


def _demands_a_call(recorded: Recorded) -> bool:
    choice = recorded.body.get("tool_choice")
    if isinstance(choice, dict):
        return choice["type"] in ("any", "tool", "function")
    return choice == "required"


@pytest.mark.parametrize("name", GENERATIONS)
def test_both_modes_give_the_same_answer(scripted: FakeServer, name: str) -> None:
    gathered = []
    for streaming in (False, True):
        recorded = bodies.build(name, model_of(scripted))
        recorded.body["stream"] = streaming
        recorded.body["max_tokens"] = 400
        if recorded.dialect == "openai":
            recorded.body["stream_options"] = {"include_usage": True} if streaming else None
        scripted.backend.enqueue(Script(pieces=("Hel", "lo <b>", " wörld")))
        answer = send(scripted.url, recorded)
        assert answer
        gathered.append((answer.text, answer.reasoning, answer.reason, len(answer.calls)))
    assert gathered[0] == gathered[1]


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_a_tool_call_reaches_the_client(scripted: FakeServer, name: str, streaming: bool) -> None:
    recorded = bodies.build(name, model_of(scripted))
    recorded.body["stream"] = streaming
    recorded.body["max_tokens"] = 4000
    tool = next(t for t in recorded.body["tools"] if _callable(t))
    called = tool.get("function", tool)["name"]
    call = ("<tool_call>", f'{{"name": "{called}"', ', "argu', 'ments": {}}', "</tool_call>")
    scripted.backend.enqueue(Script(pieces=call if _demands_a_call(recorded) else ("Yes. ", *call)))
    answer = send(scripted.url, recorded)
    assert answer
    assert [call.name for call in answer.calls] == [called]


def _callable(tool: Any) -> bool:
    name = tool.get("function", tool).get("name")
    return bool(name) and name != "DeferredToolPlaceholder" and not tool.get("defer_loading")


# ---- a small GLM model ---------------------------------------------------------------------------


def _tokenizer(folder: Path) -> None:
    """The model's tokenizer with merges of our own texts: bytes alone make prompts four times as
    long. Ids of bytes and control tokens stay as they are.
    """
    path = folder / "tokenizer.json"
    base = json.loads(path.read_text())
    first = max(token["id"] for token in base["added_tokens"]) + 1
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = [json.dumps(bodies.build(name).body) for name in ALL]
    trained.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False),
    )
    merges = json.loads(trained.to_str())["model"]["merges"]
    vocab = base["model"]["vocab"]
    for number, pair in enumerate(merges):
        vocab.setdefault("".join(pair), first + number)
    base["model"]["merges"] = merges
    path.write_text(json.dumps(base))


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("glm") / "model"
    synthetic.make(folder, Shape(layers=2, hidden=64, experts=8, top_k=2, expert_ffn=64))
    _tokenizer(folder)
    with serve(folder, "--ctx", "32768", "--max-tokens", "8") as running:
        yield running


@pytest.mark.e2e
@pytest.mark.parametrize("name", ALL)
def test_a_recorded_request_is_answered_by_a_glm_model(glm: ServeProcess, name: str) -> None:
    """Through the family's template and its own dialect; what it writes is noise."""
    recorded = bodies.build(name, "model")
    answer = send(glm.url, recorded)
    size = len(json.dumps(recorded.body))
    if answer and answer.usage and size > 3000:
        # Nothing of a long request was dropped on the way.
        assert answer.usage[0] > size / 12
