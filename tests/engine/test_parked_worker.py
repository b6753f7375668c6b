"""A client that gives up while its prompt is read and asks again: the loop over the C engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri.engine import ffi
from colibri.engine.protocol import Cancel, Done, Event, Failed, Progress, Stop, Submit, Tokens
from colibri.engine.worker import Worker
from colibri.models import synthetic
from colibri.models.backend import NativeBackend, Options
from colibri.models.synthetic import Shape

PROMPT = [300 + i * 37 % 3000 for i in range(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    synthetic.make(folder, Shape(layers=3, hidden=64, experts=8, top_k=2, expert_ffn=64))
    return folder


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small slice per turn of the loop, so that a chunk takes many of them on any machine."""
    step = ffi.Session.prefill_step
    monkeypatch.setattr(ffi.Session, "prefill_step", lambda session, max_ms=0: step(session, -1))


def submit(job: str, prompt: list[int]) -> Submit:
    return Submit(job=job, prompt=prompt, max_tokens=3, temperature=0.0, top_p=1.0, seed=1)


def serve(
    model: Path, state: Path, jobs: list[Submit], broken_off: dict[str, int]
) -> tuple[dict[str, list[Event]], int]:
    """Runs the jobs one after the other; those in `broken_off` are cancelled after so many slices.
    Returns their events and the experts that were asked for."""
    backend = NativeBackend(
        Options(folder=str(model), context=4096, state_dir=str(state), prefill_chunk=256)
    )
    events: dict[str, list[Event]] = {job.job: [] for job in jobs}
    left = list(jobs)

    def emit(event: Event) -> None:
        events[event.job].append(event)  # type: ignore[union-attr]
        if isinstance(event, Done | Failed):
            worker.handle(left.pop(0) if left else Stop())

    slices = 0
    current = ""

    def count(step: Callable[..., object]) -> Callable[..., object]:
        def run(session: ffi.Session, max_ms: int = 0) -> object:
            nonlocal slices, current
            (job,) = (job for job in events if worker.snapshot().jobs[0].job == job)
            slices = slices + 1 if job == current else 1
            current = job
            if slices == broken_off.get(job):
                worker.handle(Cancel(job=job))
            return step(session, max_ms)

        return run

    worker = Worker(backend, emit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ffi.Session, "prefill_step", count(ffi.Session.prefill_step))
        worker.handle(left.pop(0))
        worker.run()
    lookups = backend.counters().expert_lookups
    backend.close()
    return events, lookups


def done(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done), events[-1]
    return events[-1]


def text(events: list[Event]) -> str:
    return "".join(part.text for e in events if isinstance(e, Tokens) for part in e.parts)


@pytest.mark.parametrize("slices", [2, 20, 60, 120, 145])
def test_a_retry_goes_on_where_the_reading_was_broken_off(
    model: Path, tmp_path: Path, slices: int
) -> None:
    """Nothing is routed twice, the answer is the same, and `cached` counts only what was held."""
    whole, expected = serve(model, tmp_path / "a", [submit("a", PROMPT)], {})
    events, lookups = serve(
        model, tmp_path / "b", [submit("a", PROMPT), submit("b", PROMPT)], {"a": slices}
    )
    assert done(events["a"]).finish_reason == "cancelled"
    assert text(events["b"]) == text(whole["a"])
    assert lookups == expected
    usage = done(events["b"]).usage
    assert (usage.prompt, usage.cached) == (300, 256 if slices == 145 else 0)
    shares = [event.fraction for event in events["b"] if isinstance(event, Progress)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_another_prompt_after_a_broken_off_one_is_not_mistaken_for_it(
    model: Path, tmp_path: Path
) -> None:
    other = [*PROMPT[:100], 299, *PROMPT[101:]]
    whole, _ = serve(model, tmp_path / "a", [submit("a", other)], {})
    events, _ = serve(model, tmp_path / "b", [submit("a", PROMPT), submit("b", other)], {"a": 20})
    assert text(events["b"]) == text(whole["a"])
    assert done(events["b"]).usage.cached == 0
