"""The queue alone, over an engine that does only what it is told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from colibri.engine.client import EngineClient
from colibri.engine.fake import FakeBackend
from colibri.engine.protocol import Accepted, Command, Done, Failed, Loaded, Sink, Submit, Usage
from colibri.errors import BusyError, ClientGoneError, RequestError, WorkerUnavailableError
from colibri.scheduler import Generation, GenerationRequest, Scheduler

TIMEOUT = 20


class HandEngine(EngineClient):
    """Takes jobs and keeps them; the test accepts and ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Sink] = {}
        self.refuse = False

    def start(self) -> None:
        self._dispatch(Loaded(info=FakeBackend().info))

    def stop(self) -> None:
        self._set_state("stopped")

    def _send(self, command: Command) -> None:
        pass

    def submit(self, command: Submit, sink: Sink) -> None:
        if self.refuse:
            raise RequestError("this prompt was being worked on at 2 crashes of the engine.")
        self.jobs[command.job] = sink

    def accept(self, job: str, slot: int) -> None:
        self.jobs[job](Accepted(job=job, prompt=1, cached=0, slot=slot))

    def end(self, job: str, how: str = "stop") -> None:
        sink = self.jobs.pop(job)
        if how == "failed":
            sink(Failed(job=job, code="engine_io", message="no"))
            return
        usage = Usage(prompt=1, cached=0, completion=1)
        sink(Done(job=job, finish_reason=how, usage=usage, prefill_ms=1, decode_ms=1))  # type: ignore[arg-type]


@pytest.fixture
def engine() -> HandEngine:
    made = HandEngine()
    made.start()
    return made


@pytest.fixture
def scheduler(engine: HandEngine) -> Iterator[Scheduler]:
    made = Scheduler(engine, max_queue=8, queue_timeout=TIMEOUT, parallel=2)
    yield made
    made.close()


def request(name: str, slot: int | None = None) -> GenerationRequest:
    return GenerationRequest(
        id=name, prompt=[1], max_tokens=1, temperature=0, top_p=1, seed=1, cache_slot=slot
    )


def in_thread(scheduler: Scheduler, name: str, slot: int | None = None) -> threading.Thread:
    thread = threading.Thread(
        target=lambda: scheduler.admit(request(name, slot), lambda: False), daemon=True
    )
    thread.start()
    return thread


def wait_until(scheduler: Scheduler, **counters: int) -> None:
    end = time.monotonic() + TIMEOUT
    while any(getattr(scheduler.counters(), name) != value for name, value in counters.items()):
        assert time.monotonic() < end, scheduler.counters()
        time.sleep(0.002)


def test_a_pinned_request_does_not_spend_its_turn_on_waiting_for_a_slot_just_taken(
    engine: HandEngine, scheduler: Scheduler
) -> None:
    """Which slot an unpinned job has got is known once it has been accepted; until then a pinned
    one may be for the same.
    """
    scheduler.admit(request("first"), lambda: False)
    pinned = in_thread(scheduler, "pinned", slot=0)
    wait_until(scheduler, queued=1)
    assert "pinned" not in engine.jobs
    scheduler.admit(request("behind"), lambda: False)
    engine.accept("first", slot=0)
    engine.accept("behind", slot=1)
    engine.end("behind")
    assert "pinned" not in engine.jobs
    engine.end("first")
    pinned.join(TIMEOUT)
    assert "pinned" in engine.jobs


def test_a_pinned_request_for_another_slot_starts_once_that_is_known(
    engine: HandEngine, scheduler: Scheduler
) -> None:
    scheduler.admit(request("first"), lambda: False)
    pinned = in_thread(scheduler, "pinned", slot=1)
    wait_until(scheduler, queued=1)
    engine.accept("first", slot=0)
    pinned.join(TIMEOUT)
    assert "pinned" in engine.jobs


def test_a_request_that_the_engine_refuses_counts_as_failed_and_gives_its_turn_back(
    engine: HandEngine, scheduler: Scheduler
) -> None:
    engine.refuse = True
    for n in range(3):
        with pytest.raises(RequestError):
            scheduler.admit(request(f"job{n}"), lambda: False)
    assert (scheduler.counters().failed, scheduler.counters().active) == (3, 0)


def test_requests_that_a_stopping_server_turns_away_count_as_rejected(
    engine: HandEngine, scheduler: Scheduler
) -> None:
    for n in range(2):
        scheduler.admit(request(f"job{n}"), lambda: False)
    failures: list[Exception] = []

    def wait() -> None:
        try:
            scheduler.admit(request("waiting"), lambda: False)
        except WorkerUnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(scheduler, queued=1)
    scheduler.close()
    thread.join(TIMEOUT)
    with pytest.raises(WorkerUnavailableError):
        scheduler.admit(request("late"), lambda: False)
    assert len(failures) == 1
    assert (scheduler.counters().rejected, scheduler.counters().queued) == (2, 0)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_in_exactly_one_counter(engine: HandEngine, seed: int) -> None:
    """Many clients at once, pinned and not, impatient and not; jobs end in every way."""
    rng = random.Random(seed)  # noqa: S311
    scheduler = Scheduler(engine, max_queue=3, queue_timeout=0.3, parallel=3)
    seen: dict[str, int] = {"started": 0, "rejected": 0, "timed_out": 0, "gone": 0}
    lock, stop = threading.Lock(), threading.Event()
    pins: dict[str, int | None] = {}

    def ask(name: str, slot: int | None, leaves: float) -> str:
        try:
            scheduler.admit(request(name, slot), lambda: time.monotonic() > leaves)
        except BusyError as error:
            return "timed_out" if error.code == "queue_timeout" else "rejected"
        except ClientGoneError:
            return "gone"
        return "started"

    def client(number: int) -> None:
        mine = random.Random(100 * seed + number)  # noqa: S311
        for n in range(12):
            name = f"{number}-{n}"
            pins[name] = mine.choice([None, None, mine.randrange(4)])
            how = ask(name, pins[name], time.monotonic() + mine.choice([0.0, 0.3, 60.0, 60.0]))
            with lock:
                seen[how] += 1

    def run_jobs() -> None:
        slots: dict[str, int] = {}
        while not stop.is_set() or engine.jobs:
            for job in list(engine.jobs):
                if job not in slots and rng.random() < 0.5:
                    free = {slot for slot in range(4) if slot not in slots.values()}
                    asked = pins.get(job)
                    if asked is not None and asked not in free:
                        continue  # as the worker does, until the slot is free
                    slots[job] = rng.choice(sorted(free)) if asked is None else asked
                    engine.accept(job, slots[job])
                elif job in slots and rng.random() < 0.3:
                    del slots[job]
                    engine.end(job, rng.choice(["stop", "length", "cancelled", "failed"]))
            time.sleep(0.005)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(10)]
    runner = threading.Thread(target=run_jobs)
    for thread in (*clients, runner):
        thread.start()
    for thread in clients:
        thread.join(TIMEOUT)
    stop.set()
    runner.join(TIMEOUT)
    now = scheduler.counters()
    assert (now.active, now.queued) == (0, 0)
    assert now.rejected == seen["rejected"]
    assert now.timed_out == seen["timed_out"]
    assert now.completed + now.failed + now.cancelled == seen["started"] + seen["gone"]
    assert sum(seen.values()) == 120
    assert min(seen["started"], seen["rejected"], now.completed, now.failed) > 0


def test_the_wait_is_told_in_milliseconds(engine: HandEngine, scheduler: Scheduler) -> None:
    for n in range(2):
        scheduler.admit(request(f"job{n}"), lambda: False)
    made: list[Generation] = []
    thread = threading.Thread(
        target=lambda: made.append(scheduler.admit(request("waiting"), lambda: False))
    )
    thread.start()
    wait_until(scheduler, queued=1)
    time.sleep(0.1)
    engine.end("job0")
    thread.join(TIMEOUT)
    assert 100 <= made[0].queue_wait_ms < TIMEOUT * 1000
