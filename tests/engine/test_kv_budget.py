"""Many slots in little KV: requests are answered as ever, and the engine never holds more than was
granted.

`--parallel 2` grants KV for two full contexts; six slots, the sessions kept beside them and what
comes back from disk share it, copy-on-write included. What no job uses makes room.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.protocol import Accepted, Cancel, Done, Event, Failed, Tokens
from colibri.engine.table import EngineOptions
from colibri.models import backend as opening
from colibri.models.backend import NativeBackend, Options
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop, text_of

PARALLEL, SLOTS, CONTEXT = 2, 6, 384
BLOCK = 128
GRANTED = PARALLEL * CONTEXT // BLOCK
JOBS = 60

Open = Callable[..., NativeBackend]


class SlotLoop(EngineLoop):
    """An engine loop with more slots than jobs run at once; looks at KV between all steps."""

    def __init__(self, backend: NativeBackend, parallel: int, slots: int) -> None:
        self.least_room = GRANTED
        super().__init__(backend, parallel, slots=slots)
        self.on_event = self.look
        self.then: Callable[[Event], None] = lambda event: None

    def look(self, event: Event) -> None:
        room = self.worker._backend.kv_room()
        assert room is not None
        self.least_room = min(self.least_room, room)
        self.then(event)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("kv") / "model")


@pytest.fixture
def open_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[NativeBackend] = []

    def open_one(drafts: str, parallel: int, slots: int, **fields: Any) -> NativeBackend:
        monkeypatch.setattr(
            opening, "EngineOptions", functools.partial(EngineOptions, expert_slots=5)
        )
        chosen = Options(
            folder=str(folder),
            drafts=drafts,
            threads=2,
            parallel=parallel,
            slots=slots,
            ram="2",
            **{"context": CONTEXT, **fields},
        )
        opened.append(NativeBackend(chosen))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


def conversations(rng: random.Random) -> list[dict[str, Any]]:
    """Turns of conversations that share beginnings, in slots of their own or anywhere."""
    made: list[dict[str, Any]] = []
    for number in range(JOBS):
        prompt = draftmodel.prompt(rng.randrange(10**6), rng.randint(1, 200))
        if made and rng.random() < 0.7:
            old = rng.choice(made)["prompt"]
            prompt = old[: rng.randint(1, len(old))] + prompt
        made.append(
            {
                "prompt": prompt[: CONTEXT - rng.randint(1, 40)],
                "max_tokens": rng.choice([1, 5, 30, 1000]),
                "seed": number,
                "cache_slot": rng.choice([None, *range(SLOTS)]),
            }
        )
    return made


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("drafts", ["0", "3"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_job_fails_and_no_token_changes_where_six_slots_share_kv_for_two(
    open_model: Open, tmp_path: Path, drafts: str, seed: int, *, disk: bool
) -> None:
    rng = random.Random(seed)  # noqa: S311
    wanted = conversations(rng)
    plain = EngineLoop(open_model("0", 1, 1), policy=DraftPolicy)
    alone = [plain.answer(**{**job, "cache_slot": None}) for job in wanted]
    plain.close()

    stored: dict[str, Any] = {}
    if disk:
        stored = {"state_dir": str(tmp_path / "state"), "prefix_store_gb": 0.1}
        before = EngineLoop(open_model(drafts, 1, 1, **stored))
        for job in wanted[::3]:
            before.answer(**{**job, "cache_slot": None, "max_tokens": 1})
        before.close()  # saves what it holds
    backend = open_model(drafts, PARALLEL, SLOTS, **stored)
    assert backend.kv_room() == GRANTED
    loop = SlotLoop(backend, PARALLEL, SLOTS)
    cancel_at = {f"job{n + 1}": rng.randint(0, 20) for n in range(JOBS) if rng.random() < 0.15}

    def then(event: Event) -> None:
        generated = event.generated if isinstance(event, Tokens) else 0
        if isinstance(event, Accepted | Tokens) and generated >= cancel_at.get(event.job, 10**9):
            loop.worker.handle(Cancel(job=event.job))

    loop.then = then
    names = [loop.submit(**job) for job in wanted]
    ends = loop.ends(*names)
    kv = loop.worker.snapshot().kv
    loop.close()
    assert backend.kv_room() == GRANTED, "everything is given back"
    for name, (text, done) in zip(names, alone, strict=True):
        end, found = ends[name][-1], text_of(ends[name])
        assert isinstance(end, Done), end
        if end.finish_reason == "cancelled":
            assert text.startswith(found)
        else:
            assert (found, end.finish_reason) == (text, done.finish_reason)
            assert end.usage.completion == done.usage.completion
    assert 0 <= loop.least_room <= 1, "the KV is there to be used"
    assert kv.dropped_sessions > 0
    assert kv.cached_tokens > 0
    if disk:
        assert kv.store is not None
        assert kv.store.read_blocks > 0


def test_a_session_that_finds_no_kv_says_so_and_the_others_go_on(open_model: Open) -> None:
    """Somebody else holds the KV, which the loop cannot know: the error is clear and final."""
    backend = open_model("0", PARALLEL, SLOTS)
    other = backend.session()
    other.prefill_start(draftmodel.prompt(1, CONTEXT - 1))
    while not other.prefill_step(100).finished:
        pass
    loop = SlotLoop(backend, PARALLEL, SLOTS)
    jobs = [
        loop.submit(draftmodel.prompt(2, 100), max_tokens=100),
        loop.submit(draftmodel.prompt(3, CONTEXT - 10), max_tokens=5),
    ]
    ends = loop.ends(*jobs)
    assert isinstance(ends[jobs[0]][-1], Done)
    failed = ends[jobs[1]][-1]
    assert isinstance(failed, Failed)
    assert failed.code == "engine_memory"
    assert "KV" in failed.message
    assert isinstance(loop.answer(draftmodel.prompt(4, 100), max_tokens=100)[1], Done)
    other.close()
    assert isinstance(loop.answer(draftmodel.prompt(3, CONTEXT - 10), max_tokens=5)[1], Done)
    loop.close()


def test_long_prompts_that_start_together_find_the_room_that_each_of_them_was_promised(
    open_model: Open,
) -> None:
    """Each makes room when it starts and takes it while it is read: the next one starts between."""
    backend = open_model("0", 4, 8, context=1024)
    loop = EngineLoop(backend, 4, slots=8)
    for slot in range(8):
        loop.answer(draftmodel.prompt(slot, 500), max_tokens=1, cache_slot=slot)
    jobs = [loop.submit(draftmodel.prompt(10 + n, 1000), max_tokens=1000) for n in range(4)]
    for events in loop.ends(*jobs).values():
        assert isinstance(events[-1], Done), events[-1]
    loop.close()
