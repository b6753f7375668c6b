"""Measurements on the real engine: whose tokens went to which experts, exactly, without a trace.

Its MTP layer would draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.engine import experts
from colibri.engine.fake import FakeBackend
from colibri.engine.protocol import Done, Failed, Routing
from colibri.models.backend import NativeBackend, Options
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop

PROMPT = draftmodel.prompt(1, 40)
FIRST = 6  # tokens before it are the same in every prompt
ANSWER = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("counting") / "model")


@pytest.fixture
def backend(folder: Path, tmp_path: Path) -> Iterator[NativeBackend]:
    options = Options(
        folder=str(folder), context=256, threads=1, drafts="2", slots=2, parallel=2,
        state_dir=str(tmp_path),
    )  # fmt: skip
    opened = NativeBackend(options)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def loop(backend: NativeBackend) -> Iterator[EngineLoop]:
    running = EngineLoop(backend, parallel=2)
    yield running
    running.close()


def rows(routing: Routing | None, part: str) -> NDArray[np.uint32]:
    """[layers, experts]"""
    assert routing is not None
    counts = np.frombuffer(getattr(routing, part), "<u4")
    return counts.reshape(len(routing.layers), routing.cols)


def token_by_token(backend: NativeBackend, tokens: list[int]) -> NDArray[np.uint32]:
    """Counts of tokens from FIRST on, of a session that takes them one at a time."""
    session = backend._engine.session()
    session.count(FIRST)
    for token in tokens:
        backend._engine.decode([session], [token])
    counts = session.counts()
    session.close()
    return counts[draftmodel.config()["first_k_dense_replace"] :]


def measure(loop: EngineLoop, prompt: list[int] = PROMPT) -> tuple[str, Done]:
    return loop.answer(prompt, count_from=FIRST, max_tokens=ANSWER)


def test_every_token_behind_the_first_position_is_counted_once(
    loop: EngineLoop, backend: NativeBackend
) -> None:
    _, done = measure(loop)
    prompt, answer = rows(done.routing, "prompt"), rows(done.routing, "answer")
    k = draftmodel.SHAPE.top_k
    assert prompt.sum(axis=1).tolist() == [k * (len(PROMPT) - FIRST)] * len(prompt[:-1]) + [0]
    assert answer.sum(axis=1).tolist() == [k * (ANSWER - 1)] * len(answer[:-1]) + [0]
    assert (prompt == token_by_token(backend, PROMPT)).all()


def test_what_is_known_already_and_what_runs_beside_it_change_no_count(loop: EngineLoop) -> None:
    text, alone = measure(loop)
    plain, _ = loop.answer(PROMPT, max_tokens=ANSWER)
    beside = loop.submit(draftmodel.prompt(2, 60), max_tokens=40)
    job = loop.submit(PROMPT, count_from=FIRST, max_tokens=ANSWER)
    again = loop.ends(job, beside)[job][-1]
    assert isinstance(again, Done)
    assert again.usage.cached == FIRST
    assert again.routing == alone.routing
    assert text == plain


def test_a_measurement_drafts_nothing_and_leaves_nothing_behind(
    loop: EngineLoop, backend: NativeBackend
) -> None:
    measure(loop)
    shape = backend._engine.expert_shape
    assert not experts.usage(backend._engine, *shape).any()
    assert loop.worker.snapshot().drafts.proposed == 0
    assert all(slot.tokens == 0 for slot in loop.worker.snapshot().kv.slots)
    _, plain = loop.answer(PROMPT, max_tokens=ANSWER)
    assert plain.usage.cached == 0
    assert plain.routing is None
    assert experts.usage(backend._engine, *shape).any()
    assert loop.worker.snapshot().drafts.proposed > 0


def test_a_conversation_is_still_known_after_a_measurement(loop: EngineLoop) -> None:
    loop.answer(PROMPT, max_tokens=ANSWER, cache_slot=0)
    loop.answer(draftmodel.prompt(3, 40), count_from=0, max_tokens=2, cache_slot=0)
    _, done = loop.answer(PROMPT, max_tokens=ANSWER)
    assert done.usage.cached == len(PROMPT) - 1


def test_a_model_without_experts_refuses_to_count() -> None:
    loop = EngineLoop(FakeBackend())
    job = loop.submit([1, 2, 3], count_from=0)
    end = loop.ends(job)[job][-1]
    loop.close()
    assert isinstance(end, Failed)
    assert "experts" in end.message
