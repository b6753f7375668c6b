"""A long mixture of jobs with drafts: each text is the one that the job alone has without them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.protocol import Cancel, Done, Event, Tokens
from colibri.engine.table import EngineOptions
from colibri.models import backend as opening
from colibri.models.backend import NativeBackend, Options
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop, Fixed, text_of

JOBS = 160
PARALLEL = 4


class Restless(DraftPolicy):
    """Another depth for every step."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._depths = random.Random(3)  # noqa: S311

    def note(self, cost: Any) -> None:
        self.depth = self.wanted = self._depths.randint(0, self._most)


def jobs(rng: random.Random) -> list[dict[str, Any]]:
    """Prompts that often go on where another one began; every kind of end."""
    made: list[dict[str, Any]] = []
    for number in range(JOBS):
        prompt = draftmodel.prompt(rng.randrange(10**6), rng.randint(1, 90))
        if made and rng.random() < 0.6:
            old = rng.choice(made)["prompt"]
            prompt = old[: rng.randint(1, len(old))] + prompt[: rng.randint(1, 60)]
        made.append(
            {
                "prompt": prompt[:300],
                "max_tokens": rng.randint(1, 120),
                "temperature": rng.choice([0.0, 0.0, 0.6, 1.0]),
                "seed": number,
                "stops": rng.choice([(), (), (chr(rng.randint(33, 126)) * rng.randint(1, 2),)]),
            }
        )
    return made


def open_model(folder: Path, drafts: str, monkeypatch: pytest.MonkeyPatch) -> NativeBackend:
    def options(**chosen: Any) -> EngineOptions:
        return EngineOptions(**{**chosen, "expert_slots": 5, "sessions": PARALLEL})

    monkeypatch.setattr(opening, "EngineOptions", options)
    return NativeBackend(Options(folder=str(folder), context=512, drafts=drafts, threads=2))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Fixed, Restless, DraftPolicy])
def test_every_text_of_a_mixed_load_is_the_one_without_drafts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeded: random.Random,
    scale: int,
    policy: type[DraftPolicy],
) -> None:
    folder = draftmodel.make(tmp_path / "model")
    for _ in range(scale):
        wanted = jobs(seeded)
        plain = open_model(folder, "0", monkeypatch)
        loop = EngineLoop(plain)
        expected = [loop.answer(**job) for job in wanted]
        loop.close()
        plain.close()
        drafting = open_model(folder, "3", monkeypatch)
        loop = EngineLoop(drafting, PARALLEL, policy)
        cancel_at: dict[str, int] = {}

        def on_event(
            event: Event, loop: EngineLoop = loop, cancel_at: dict[str, int] = cancel_at
        ) -> None:
            if isinstance(event, Tokens) and event.generated >= cancel_at.get(event.job, 10**9):
                loop.worker.handle(Cancel(job=event.job))

        loop.on_event = on_event
        for number in range(JOBS):
            if seeded.random() < 0.2:
                cancel_at[f"job{number + 1}"] = seeded.randint(1, 60)
        names = [loop.submit(**job) for job in wanted]
        ends = loop.ends(*names)
        cancelled = 0
        for name, (text, done) in zip(names, expected, strict=True):
            end, got = ends[name][-1], text_of(ends[name])
            assert isinstance(end, Done), end
            if end.finish_reason == "cancelled":
                cancelled += 1
                assert text.startswith(got)
                assert end.usage.completion <= done.usage.completion
            else:
                assert (got, end.finish_reason) == (text, done.finish_reason)
                assert end.usage.completion == done.usage.completion
        state = loop.worker.snapshot().drafts
        assert cancelled > 0
        assert state.accepted > 0
        loop.close()
        drafting.close()
