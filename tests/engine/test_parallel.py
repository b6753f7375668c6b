"""Requests side by side on the real engine: each answer is the one that the request has alone.

R101 answers of different lengths in one batch, R102 the same tokens run after run. The fast path
with 16-bit KV, experts in a cache that does not hold them all, with and without drafts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colibri.engine.protocol import Accepted, Cancel, Done, Event, Failed, Tokens
from colibri.engine.table import EngineOptions
from colibri.models import backend as opening
from colibri.models.backend import NativeBackend, Options
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop, Fixed, text_of

EXPERT_SLOTS = 5  # of 32 experts of the trunk, and of 16 of the MTP layer
WIDTHS = (1, 2, 4, 8)
CONTEXT = 512
FAULT_BATCH_ORDER, FAULT_SHARED_BLOCK = 1, 5  # native/src/fault.h

Open = Callable[..., NativeBackend]
# Lengths of prompts and of answers, from one token to hundreds, short and long ones mixed.
LENGTHS = ((200, 1), (1, 200), (130, 2), (24, 150), (60, 17), (3, 64), (128, 111), (7, 33))
JOBS: list[dict[str, Any]] = [
    {"prompt": draftmodel.prompt(number, length), "max_tokens": tokens}
    for number, (length, tokens) in enumerate(LENGTHS)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("parallel") / "model")


@pytest.fixture
def open_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[NativeBackend] = []

    def open_one(drafts: str, *, fault: int = 0, parallel: int = 8) -> NativeBackend:
        options = functools.partial(EngineOptions, expert_slots=EXPERT_SLOTS, fault=fault)
        monkeypatch.setattr(opening, "EngineOptions", options)
        chosen = Options(
            folder=str(folder), context=CONTEXT, drafts=drafts, threads=2, parallel=parallel
        )
        opened.append(NativeBackend(chosen))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@contextmanager
def looped(backend: NativeBackend, parallel: int) -> Iterator[EngineLoop]:
    loop = EngineLoop(backend, parallel, Fixed)
    try:
        yield loop
    finally:
        loop.close()


def answers(backend: NativeBackend, width: int, **fields: object) -> list[tuple[str, int]]:
    """Text, a character a token, and token count of each job; `width` of them run at a time."""
    with looped(backend, width) as loop:
        names = [loop.submit(**job, seed=n, **fields) for n, job in enumerate(JOBS)]
        ends = loop.ends(*names)
        found = []
        for name in names:
            done = ends[name][-1]
            assert isinstance(done, Done), done
            found.append((text_of(ends[name]), done.usage.completion))
    return found


@pytest.mark.parametrize("drafts", ["0", "3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_R101_answers_side_by_side_equal_those_one_after_the_other(
    open_model: Open, temperature: float, drafts: str
) -> None:
    expected = answers(open_model("0"), 1, temperature=temperature)
    # Only a drawn token may end an answer before its length.
    wanted = [tokens for _, tokens in LENGTHS]
    assert [count for _, count in expected] == wanted or temperature
    backend = open_model(drafts)
    for width in WIDTHS:
        before = backend.counters()
        assert answers(backend, width, temperature=temperature) == expected, f"{width} at a time"
        after = backend.counters()
        assert after.streaming
        assert after.expert_misses > before.expert_misses


def test_R102_eight_at_a_time_are_the_same_in_every_run(open_model: Open) -> None:
    """Jobs start in another order each time, so that batches are put together anew."""
    backend = open_model("0")
    expected = answers(backend, 1)
    rng = random.Random(5)  # noqa: S311
    for width in (2, 4, 8, 8, 8):
        order = rng.sample(range(len(JOBS)), len(JOBS))
        with looped(backend, width) as loop:
            names = {loop.submit(**JOBS[n], seed=n): n for n in order}
            for name, events in loop.ends(*names).items():
                assert text_of(events) == expected[names[name]][0]


def test_a_planted_dependence_on_the_width_of_a_batch_breaks_the_equality_above(
    open_model: Open,
) -> None:
    expected = answers(open_model("0"), 1, temperature=1.0)
    for width in WIDTHS[1:]:
        found = answers(open_model("0", fault=FAULT_BATCH_ORDER), width, temperature=1.0)
        assert found != expected


# ---- a mixture -----------------------------------------------------------------------------------


def mixture(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Jobs of every kind: prompts that go on where another one began, stop texts, pinned slots,
    answers that fill the context, and prompts that do not fit.
    """
    made: list[dict[str, Any]] = []
    for number in range(count):
        prompt = draftmodel.prompt(rng.randrange(10**6), rng.randint(1, 60))
        if made and rng.random() < 0.6:
            old = rng.choice(made)["prompt"]
            prompt = old[: rng.randint(1, len(old))] + prompt
        kind = rng.random()
        if kind < 0.08:
            prompt = (prompt * CONTEXT)[: CONTEXT + rng.randint(0, 3)]
        elif kind < 0.2:
            prompt = (prompt * CONTEXT)[: CONTEXT - rng.randint(1, 40)]
        made.append(
            {
                "prompt": prompt,
                "max_tokens": 1000 if kind < 0.2 else rng.randint(1, 80),
                "temperature": rng.choice([0.0, 0.0, 1.0]),
                "seed": number,
                "stops": rng.choice([(), (chr(rng.randint(33, 126)) * rng.randint(1, 2),)]),
                "cache_slot": rng.choice([None, None, None, rng.randrange(8)]),
            }
        )
    return made


def told(events: list[Event]) -> tuple[str, str, int]:
    """Text, how it ended, and how many tokens were used."""
    end = events[-1]
    if isinstance(end, Failed):
        return text_of(events), end.code, 0
    assert isinstance(end, Done), end
    return text_of(events), end.finish_reason, end.usage.completion


def run_mixed(
    loop: EngineLoop, wanted: list[dict[str, Any]], rng: random.Random
) -> tuple[list[list[Event]], int]:
    """All events of each job, and how many were cancelled. Jobs arrive while others decode."""
    names = [f"job{n + 1}" for n in range(len(wanted))]
    cancel_at = {name: rng.randint(0, 30) for name in names if rng.random() < 0.2}
    left = list(reversed(wanted))

    def on_event(event: Event) -> None:
        generated = event.generated if isinstance(event, Tokens) else -1
        if isinstance(event, Accepted):
            generated = 0
        if generated >= cancel_at.get(getattr(event, "job", ""), 10**9):
            loop.worker.handle(Cancel(job=getattr(event, "job", "")))
        if left and (isinstance(event, Done | Failed) or rng.random() < 0.05):
            loop.submit(**left.pop())

    loop.on_event = on_event
    for _ in range(4):
        loop.submit(**left.pop())
    ends = loop.ends(*names)
    return [ends[name] for name in names], len(cancel_at)


@pytest.mark.parametrize("drafts", ["0", "3"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_mixture_of_jobs_gives_each_the_answer_that_it_has_alone(
    open_model: Open, drafts: str, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311
    wanted = mixture(rng, 48)
    with looped(open_model("0", parallel=1), 1) as loop:
        alone = []
        for job in wanted:
            name = loop.submit(**{**job, "cache_slot": None})
            alone.append(told(loop.ends(name)[name]))
    backend = open_model(drafts)
    with looped(backend, 8) as loop:
        found, cancels = run_mixed(loop, wanted, rng)
        assert not any(slot.busy for slot in loop.worker._slots.slots)
    reasons = set()
    for events, expected in zip(found, alone, strict=True):
        text, reason, count = told(events)
        reasons.add(reason)
        if reason == "cancelled":
            assert expected[0].startswith(text)
        else:
            assert (text, reason, count) == expected
    assert cancels > 0
    assert reasons == {"stop", "length", "cancelled", "context_length_exceeded"}
    shared = [e.cached for events in found for e in events if isinstance(e, Accepted)]
    assert sum(length > 0 for length in shared) > 10, "prompts share their beginnings"
