"""The engine loop over the scripted engine: text, stops, limits, cancel, reuse of what a slot
holds.

Covers R001, R002, R021, R084, R085, R086, R093, R096, R101, R144, R146.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from colibri.engine import fake
from colibri.engine.fake import END_IDS, FakeBackend, Options, Script
from colibri.engine.protocol import (
    Accepted,
    Cancel,
    Done,
    Event,
    Failed,
    Progress,
    Stop,
    Submit,
    TakeSnapshot,
    Telemetry,
    Tokens,
)
from colibri.engine.worker import Worker
from tests.support.engineloop import text_of

TIMEOUT = 20


class Harness:
    """A worker in a thread, its events in one queue."""

    def __init__(self, parallel: int = 1, context: int = 4096, slots: int = 0) -> None:
        self.backend = FakeBackend(Options(context=context))
        self.events: queue.Queue[Event] = queue.Queue()
        self.worker = Worker(self.backend, self.events.put, slots=slots, parallel=parallel)
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()
        self._jobs = 0

    def submit(self, prompt: str = "hi", **fields: object) -> str:
        self._jobs += 1
        job = f"job{self._jobs}"
        values: dict[str, object] = {
            "max_tokens": 100,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 1,
            **fields,
        }
        self.worker.handle(Submit(job=job, prompt=fake.encode(prompt), **values))
        return job

    def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Events up to and including the first wanted one."""
        seen: list[Event] = []
        while True:
            seen.append(self.events.get(timeout=TIMEOUT))
            if wanted(seen[-1]):
                return seen

    def finish(self, job: str) -> list[Event]:
        def ended(event: Event) -> bool:
            return isinstance(event, Done | Failed) and event.job == job

        return [e for e in self.until(ended) if getattr(e, "job", None) == job]

    def answer(self, prompt: str = "hi", **fields: object) -> tuple[str, Done]:
        events = self.finish(self.submit(prompt, **fields))
        done = events[-1]
        assert isinstance(done, Done), done
        return text_of(events), done

    def close(self) -> None:
        self.worker.handle(Stop())
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


def test_a_job_is_accepted_reports_progress_streams_text_and_is_done(harness: Harness) -> None:
    harness.backend.enqueue(Script(pieces=("Hel", "lo")))
    events = harness.finish(harness.submit("abc"))
    kinds = [type(event) for event in events]
    assert kinds == [Accepted, Progress, Tokens, Tokens, Done]
    assert text_of(events) == "Hello"
    done = events[-1]
    assert isinstance(done, Done)
    assert done.finish_reason == "stop"
    assert (done.usage.prompt, done.usage.cached, done.usage.completion) == (3, 0, 2)


def test_the_last_progress_of_a_prompt_says_that_all_of_it_is_read(harness: Harness) -> None:
    progress = [e for e in harness.finish(harness.submit("abc")) if isinstance(e, Progress)][-1]
    assert (progress.done, progress.total) == (3, 3)
    assert (progress.fraction, progress.layer, progress.layers) == (1.0, 1, 1)
    assert progress.eta_seconds == 0


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (("mon, ", "tue, ", "wed, ", "thu, ", "fri"), ("thu",), "mon, tue, wed, "),
        (("I drink gre", "en te", "a daily"), ("green tea",), "I drink "),
        (("A ", "END", " B"), ("END",), "A "),
        (("1, 2, 3, 4, ", "5", ", 6"), ("x", "5"), "1, 2, 3, 4, "),
    ],
)
def test_text_ends_just_before_a_stop_string(
    harness: Harness, pieces: tuple[str, ...], stops: tuple[str, ...], text: str
) -> None:
    """R001, R002, R086: nothing of the stop string or behind it comes out."""
    harness.backend.enqueue(Script(pieces=pieces))
    answer, done = harness.answer(stops=stops)
    assert answer == text
    assert done.finish_reason == "stop"


def test_a_beginning_of_a_stop_string_that_never_completes_comes_out_at_the_end(
    harness: Harness,
) -> None:
    """R085: only true prefixes are held back, and the end releases them."""
    harness.backend.enqueue(Script(pieces=("abc", "XX")))
    assert harness.answer(stops=("XXXXXXXXXX",))[0] == "abcXX"


def test_text_that_is_no_prefix_of_a_stop_is_not_delayed(harness: Harness) -> None:
    """R085: the length of a stop string costs no latency."""
    harness.backend.enqueue(Script(pieces=("a", "b", "c")))
    events = harness.finish(harness.submit(stops=("XXXXXXXXXX",)))
    assert [e.parts[0].text for e in events if isinstance(e, Tokens)] == ["a", "b", "c"]


def test_a_character_cut_into_bytes_comes_out_whole(harness: Harness) -> None:
    """R084."""
    harness.backend.enqueue(Script(pieces=(b"\xf0", b"\x9f", b"\x98", b"\x80", "!")))
    assert harness.answer()[0] == "\N{GRINNING FACE}!"


def test_dangling_bytes_at_a_cut_are_dropped(harness: Harness) -> None:
    """R084: no replacement character when the budget ends inside a character."""
    harness.backend.enqueue(Script(pieces=("a", b"\xf0", b"\x9f", b"\x98", b"\x80")))
    answer, done = harness.answer(max_tokens=3)
    assert answer == "a"
    assert done.finish_reason == "length"
    assert done.usage.completion == 3


@pytest.mark.parametrize("end_id", sorted(END_IDS))
def test_every_end_id_ends_the_turn(harness: Harness, end_id: int) -> None:
    """R146."""
    harness.backend.enqueue(Script(pieces=("done",), end_id=end_id))
    answer, done = harness.answer()
    assert (answer, done.finish_reason) == ("done", "stop")


def test_max_tokens_is_clamped_to_the_room_left() -> None:
    """An endless answer ends at the context, with reason length."""
    harness = Harness(context=20)
    harness.backend.enqueue(Script(pieces=("x",), repeat=True))
    answer, done = harness.answer("12345678", max_tokens=1000)
    assert len(answer) == 12
    assert done.finish_reason == "length"
    harness.close()


def test_a_prompt_that_fills_the_context_fails_by_name() -> None:
    harness = Harness(context=8)
    failed = harness.finish(harness.submit("12345678"))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "context_length_exceeded"
    harness.close()


def test_sampling_parameters_reach_the_engine_unchanged(harness: Harness) -> None:
    """R021, R022: the seed and the temperature of the request are those of every draw."""
    harness.answer(seed=42, temperature=0.25, top_p=0.5)
    sampling = harness.backend.samplings[-1]
    assert (sampling.seed, sampling.temperature, sampling.top_p) == (42, 0.25, 0.5)


def test_the_common_prefix_of_the_next_prompt_is_not_computed_again(harness: Harness) -> None:
    harness.answer("the same beginning, one end")
    _, done = harness.answer("the same beginning, another end")
    assert done.usage.cached == len("the same beginning, ")


def test_the_same_prompt_again_computes_only_its_last_token(harness: Harness) -> None:
    """R018: cached tokens are told, and at least one token is computed for its logits."""
    harness.answer("again")
    _, done = harness.answer("again")
    assert done.usage.cached == len("again") - 1


def test_an_engine_error_ends_the_job_with_the_engines_sentence(harness: Harness) -> None:
    """R144: non-finite logits fail the request; the next one works."""
    harness.backend.enqueue(Script(pieces=("a", "b", "c"), fail_at=2))
    events = harness.finish(harness.submit())
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "engine_numeric"
    assert "not finite at position" in failed.message
    assert text_of(events) == "ab"
    assert harness.answer()[0] == "ok"


def test_a_failing_prefill_ends_the_job(harness: Harness) -> None:
    harness.backend.enqueue(Script(fail_prefill="out-00003.safetensors: read error at 4096"))
    failed = harness.finish(harness.submit())[-1]
    assert isinstance(failed, Failed)
    assert "out-00003" in failed.message


def test_a_fault_in_our_own_code_ends_the_job_and_not_the_worker(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(harness.worker._decoding, "run", broken)
    failed = harness.finish(harness.submit())[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "internal_error"
    assert "planted" in caplog.text
    monkeypatch.undo()
    assert harness.answer()[0] == "ok"


def test_cancel_during_prefill_frees_the_slot(harness: Harness) -> None:
    """R093, R096."""
    harness.backend.enqueue(Script(prefill_ms=600_000))
    job = harness.submit()
    harness.until(lambda event: isinstance(event, Accepted))
    harness.worker.handle(Cancel(job=job))
    done = harness.finish(job)[-1]
    assert isinstance(done, Done)
    assert done.finish_reason == "cancelled"
    assert harness.answer()[0] == "ok"


def test_cancel_during_decode_frees_the_slot(harness: Harness) -> None:
    """R093."""
    harness.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=1))
    job = harness.submit(max_tokens=10**6)
    harness.until(lambda event: isinstance(event, Tokens))
    harness.worker.handle(Cancel(job=job))
    done = harness.finish(job)[-1]
    assert isinstance(done, Done)
    assert done.finish_reason == "cancelled"


def test_a_waiting_job_that_is_cancelled_never_starts(harness: Harness) -> None:
    """R094: the script of the cancelled one is still there for the next."""
    harness.backend.enqueue(
        Script(pieces=("x",), repeat=True, token_ms=1), Script(pieces=("second",))
    )
    first = harness.submit(max_tokens=10**6)
    harness.until(lambda event: isinstance(event, Tokens))
    second = harness.submit()
    harness.worker.handle(Cancel(job=second))
    harness.worker.handle(Cancel(job=first))
    harness.finish(first)
    assert harness.answer()[0] == "second"


def test_a_snapshot_is_answered_while_a_step_runs(harness: Harness) -> None:
    """The reader thread answers; the loop may be anywhere."""
    harness.backend.enqueue(Script(prefill_ms=600_000))
    job = harness.submit()
    harness.until(lambda event: isinstance(event, Accepted))
    harness.worker.handle(TakeSnapshot(serial=7))
    telemetry = harness.until(lambda event: isinstance(event, Telemetry))[-1]
    assert isinstance(telemetry, Telemetry)
    assert telemetry.serial == 7
    assert [state.phase for state in telemetry.snapshot.jobs] == ["prefill"]
    harness.worker.handle(Cancel(job=job))
    harness.finish(job)


def test_a_snapshot_tells_what_each_slot_holds_and_how_much_was_not_computed() -> None:
    harness = Harness(parallel=2, slots=3)
    try:
        harness.backend.enqueue(Script(pieces=("a", "b"), end_id=0), Script(prefill_ms=600_000))
        harness.answer("0123456789", cache_slot=1)
        running = harness.submit("0123456789 and more", cache_slot=2)
        harness.until(lambda e: isinstance(e, Accepted) and e.job == running)
        kv = harness.worker.snapshot().kv
        assert [(slot.index, slot.busy) for slot in kv.slots] == [(0, False), (1, False), (2, True)]
        assert [slot.tokens for slot in kv.slots] == [0, 12, 10]
        assert (kv.prompt_tokens, kv.cached_tokens) == (29, 10)
        assert (kv.kept_sessions, kv.dropped_sessions, kv.room_blocks) == (0, 0, None)
        assert kv.store is None
    finally:
        harness.close()
    assert harness.backend.open_sessions == 0, "the loop gives back what it held"


def test_stop_ends_running_and_waiting_jobs() -> None:
    harness = Harness()
    harness.backend.enqueue(Script(prefill_ms=600_000))
    first = harness.submit()
    second = harness.submit()
    harness.until(lambda event: isinstance(event, Accepted))
    harness.worker.handle(Stop())
    ends = [harness.finish(first)[-1], harness.finish(second)[-1]]
    assert [end.code for end in ends if isinstance(end, Failed)] == ["engine_stopped"] * 2
    harness.thread.join(TIMEOUT)
    assert not harness.thread.is_alive()


def test_answers_side_by_side_equal_answers_one_after_the_other() -> None:
    """R101: lengths differ, one ends early, none disturbs the others."""
    pieces = [tuple(f"{n}.{i} " for i in range(n)) for n in (1, 40, 3, 200)]
    harness = Harness(parallel=4)
    for script in pieces:
        harness.backend.enqueue(Script(pieces=script))
    jobs = [harness.submit(f"prompt {n}", max_tokens=1000) for n in range(4)]
    events: list[Event] = []
    while sum(isinstance(event, Done) for event in events) < 4:
        events.append(harness.events.get(timeout=TIMEOUT))
    texts = {
        text_of([event for event in events if getattr(event, "job", "") == job]) for job in jobs
    }
    assert texts == {"".join(script) for script in pieces}
    harness.close()


def test_one_failing_job_of_a_batch_does_not_take_the_others_down() -> None:
    harness = Harness(parallel=2)
    harness.backend.enqueue(Script(pieces=("x",) * 50), Script(pieces=("y",) * 50, fail_at=5))
    jobs = [harness.submit(f"prompt {n}", max_tokens=1000) for n in range(2)]
    ends: dict[str, Event] = {}
    while len(ends) < 2:
        event = harness.events.get(timeout=TIMEOUT)
        if isinstance(event, Done | Failed):
            ends[event.job] = event
    assert sorted(type(ends[job]).__name__ for job in jobs) == ["Done", "Failed"]
    harness.close()


def test_a_pinned_job_waits_for_its_slot_without_holding_up_those_behind_it() -> None:
    harness = Harness(slots=3, parallel=3)
    try:
        harness.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=1))
        first = harness.submit("one", cache_slot=1, max_tokens=100_000)
        harness.until(lambda e: isinstance(e, Tokens))
        pinned = harness.submit("two", cache_slot=1)
        behind = harness.submit("three")
        accepted = next(e for e in harness.finish(behind) if isinstance(e, Accepted))
        assert accepted.slot == 0
        harness.worker.handle(Cancel(job=first))
        assert next(e for e in harness.finish(pinned) if isinstance(e, Accepted)).slot == 1
    finally:
        harness.close()


def test_conversations_that_take_turns_in_one_slot_both_stay(harness: Harness) -> None:
    first, second = "a" * 200, "b" * 300
    for prompt in (first, second):
        assert harness.answer(prompt)[1].usage.cached == 0
    for prompt in (first, second):
        usage = harness.answer(f"{prompt} and more")[1].usage
        assert usage.cached == len(prompt)


def test_a_failed_step_keeps_what_was_computed_unless_it_may_hold_what_is_not_finite(
    harness: Harness,
) -> None:
    prompt = "p" * 100
    harness.answer(prompt)
    harness.backend.enqueue(Script(fail_prefill="disk: cannot read"))
    assert isinstance(harness.finish(harness.submit(prompt + "q" * 50))[-1], Failed)
    assert harness.answer(prompt + "r")[1].usage.cached == len(prompt)
    harness.backend.enqueue(Script(pieces=("x", "y"), break_at=1))
    assert isinstance(harness.finish(harness.submit(prompt + "r"))[-1], Failed)
    assert harness.answer(prompt + "r")[1].usage.cached == 0


def test_chores_are_done_while_idle_and_give_way_to_a_job(harness: Harness) -> None:
    harness.backend.chores = 10_000  # minutes of work
    harness.answer()
    assert harness.backend.chores > 0
    before = harness.backend.idled
    harness.answer()
    assert harness.backend.chores > 0
    while harness.backend.idled == before:
        time.sleep(0.001)


def test_chores_that_fail_do_not_end_the_worker(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_max_ms: int) -> bool:
        raise OSError("no space")

    monkeypatch.setattr(harness.backend, "idle", fail)
    assert harness.answer()[1].finish_reason
    assert harness.answer()[1].finish_reason


def test_a_running_stream_keeps_half_its_rate_while_prompts_are_read() -> None:
    """R092: counted in steps against slices, not in seconds: both are scripted to take as long."""
    harness = Harness(parallel=3)
    try:
        harness.backend.enqueue(
            Script(pieces=("x",), repeat=True, token_ms=10),
            Script(prefill_ms=1000),
            Script(prefill_ms=1000),
        )
        stream = harness.submit("stream", max_tokens=100_000)
        harness.until(lambda e: isinstance(e, Tokens))
        jobs = [harness.submit("long prompt"), harness.submit("another")]
        before = len(harness.backend.steps)
        harness.until(lambda e: isinstance(e, Done) and e.job == jobs[0])
        steps = len(harness.backend.steps) - before
        # About two seconds of slices: 200 steps of 10 ms would be half the time, a step for each
        # slice would be 20. A busy machine loses some of them.
        assert steps >= 40
        harness.worker.handle(Cancel(job=stream))
        harness.finish(jobs[1])
    finally:
        harness.close()


def test_prompts_that_are_read_side_by_side_take_turns() -> None:
    harness = Harness(parallel=2)
    try:
        harness.backend.enqueue(Script(prefill_ms=600), Script(prefill_ms=400))
        long = harness.submit("long")
        short = harness.submit("short")
        events = harness.until(lambda e: isinstance(e, Done) and e.job == short)
        assert not any(isinstance(e, Done) and e.job == long for e in events)
        harness.finish(long)
    finally:
        harness.close()
