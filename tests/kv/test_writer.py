"""The thread that writes behind: in order, within its memory, and out of a decode's way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from colibri.kv.store import PrefixStore
from colibri.kv.writer import DUTY, Job, Writer
from tests.kv.make import BYTES, STRIDE, open_store, payload_of, read_all, tokens_of

SECONDS = 20


def jobs_of(store: PrefixStore, tokens: Sequence[int], done: Any = None) -> list[Job]:
    from colibri.kv import blocks

    return [
        Job(
            part.parent,
            part.tokens,
            payload_of(blocks.block_id(part.parent, blocks.pack_tokens(part.tokens))),
            done,
        )
        for part in store.missing(tokens)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PrefixStore]:
    opened = open_store(tmp_path, 1000 * STRIDE)
    yield opened
    opened.close()


def test_what_is_submitted_is_stored_in_order(store: PrefixStore) -> None:
    writer, told = Writer(store), []
    tokens = tokens_of(*range(20))
    jobs = jobs_of(store, tokens, told.append)
    assert all(writer.submit(job) for job in jobs)
    assert writer.flush(SECONDS)
    assert read_all(store, tokens) == 20
    assert told == [ref.id for ref in store.match(tokens)]
    stats = writer.stats()
    assert (stats.written_blocks, stats.waiting_blocks, stats.waiting_bytes) == (20, 0, 0)
    assert writer.stop(SECONDS)
    assert not writer.submit(jobs[0])
    assert writer.room() == 0
    assert writer.stop(SECONDS), "stopping twice is harmless"


class SlowStore:
    """Stores nothing; every put waits until it may go on, and works through pieces."""

    def __init__(self, work: Callable[[], None] = lambda: None, pieces: int = 1) -> None:
        self.may = threading.Event()
        self.started = threading.Event()
        self.order: list[tuple[int, ...]] = []
        self.synced = 0
        self._work, self._pieces = work, pieces

    def put(
        self, _parent: bytes, tokens: tuple[int, ...], payload: memoryview, pace: Any
    ) -> bytes | None:
        self.started.set()
        assert self.may.wait(SECONDS)
        if tokens == (0,):
            raise RuntimeError("a fault of ours")
        for _ in range(self._pieces):
            self._work()
            pace(len(payload) // self._pieces)
        self.order.append(tokens)
        return b"id"

    def sync(self) -> bool:
        self.synced += 1
        return True


def job(number: int, size: int = 100) -> Job:
    return Job(b"", (number,), memoryview(bytes(size)))


def test_memory_is_bounded_and_the_newest_block_is_the_one_refused() -> None:
    slow: Any = SlowStore()
    writer = Writer(slow, queue_bytes=300)
    assert [writer.submit(job(number)) for number in range(1, 6)] == [True] * 3 + [False] * 2
    assert slow.started.wait(SECONDS)
    assert not writer.submit(job(6)), "a block that is being written still counts"
    assert writer.room() == 0
    slow.may.set()
    assert writer.flush(SECONDS)
    assert writer.room() == 300
    assert writer.submit(job(7))
    assert writer.stop(SECONDS)
    assert slow.order == [(1,), (2,), (3,), (7,)]
    assert writer.stats().refused_blocks == 3


def test_a_block_larger_than_the_queue_is_refused() -> None:
    slow: Any = SlowStore()
    writer = Writer(slow, queue_bytes=300)
    assert not writer.submit(job(1, 301))
    assert writer.stop(SECONDS)


def test_a_fault_costs_one_block_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    slow: Any = SlowStore()
    slow.may.set()
    writer, told = Writer(slow), []

    def fail(stored: bytes | None) -> None:
        told.append(stored)
        raise RuntimeError("a fault of the owner")

    writer.submit(Job(b"", (0,), memoryview(b"x"), fail))
    writer.submit(Job(b"", (1,), memoryview(b"x"), told.append))
    assert writer.stop(SECONDS)
    assert told == [None, b"id"]
    assert writer.stats().failed_blocks == 1
    assert "was not stored" in caplog.text
    assert "the owner" in caplog.text


def test_stopping_does_not_wait_for_a_disk_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    slow: Any = SlowStore()
    writer, told = Writer(slow), []
    for number in range(1, 4):
        writer.submit(Job(b"", (number,), memoryview(b"x"), told.append))
    assert slow.started.wait(SECONDS)
    assert not writer.stop(0.01)
    assert "2 blocks" in caplog.text
    assert told == [None, None]
    slow.may.set()
    writer._thread.join(SECONDS)
    assert slow.order == [(1,)]


class FakeTime:
    """A clock that moves when somebody works or rests."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []
        self.work_seconds = 0.010

    def clock(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += self.work_seconds


class TimedWriter(Writer):
    """Rests on the fake clock."""

    def __init__(self, store: Any, time: FakeTime, **other: Any) -> None:
        self._time = time
        self.on_rest: Callable[[], None] = lambda: None
        super().__init__(store, clock=time.clock, **other)

    def _rest(self, seconds: float) -> None:
        self._time.now += seconds
        self._time.rests.append(seconds)
        self.on_rest()


def timed(rate: float, decoding: bool, blocks: int = 10) -> tuple[FakeTime, SlowStore]:
    """Writes blocks of 1000 bytes, 10 ms of work in each of four pieces; nobody hurries."""
    time = FakeTime()
    slow = SlowStore(time.work, pieces=4)
    untyped: Any = slow
    writer = TimedWriter(untyped, time, rate=rate)
    if decoding:
        writer.decode_started()
    written = threading.Event()
    for number in range(1, blocks + 1):
        writer.submit(Job(b"", (number,), memoryview(bytes(1000)), None))
    writer.submit(Job(b"", (99,), memoryview(b""), lambda _: written.set()))
    slow.may.set()
    assert written.wait(SECONDS)
    writer.stop(SECONDS)
    return time, slow


def test_while_a_decode_runs_writing_takes_one_percent_of_the_time() -> None:
    time, slow = timed(rate=1e12, decoding=True)
    worked = 11 * 4 * 0.010
    assert len(slow.order) == 11
    assert worked / (time.now - 100.0) <= DUTY * 1.01
    # Piece by piece: a decode step never meets more than one piece of work in a row.
    assert max(time.rests) <= 0.5


def test_with_nobody_decoding_only_the_rate_counts() -> None:
    time, _ = timed(rate=1e12, decoding=False)
    assert time.rests == []
    time, _ = timed(rate=2000.0, decoding=False)
    assert 10 * 1000 / (time.now - 100.0) <= 2000 * 1.05
    assert 10 * 1000 / (time.now - 100.0) >= 2000 * 0.8


def test_a_decode_that_ends_ends_the_rest() -> None:
    time = FakeTime()
    slow: Any = SlowStore(time.work)
    writer = TimedWriter(slow, time, rate=1e12)
    writer.decode_started()
    writer.decode_started()
    writer.on_rest = writer.decode_ended
    # Ten seconds of work would be a quarter of an hour of rest.
    time.work_seconds = 10.0
    slow.may.set()
    written = threading.Event()
    writer.submit(Job(b"", (1,), memoryview(b"x"), lambda _: written.set()))
    assert written.wait(SECONDS)
    assert writer.stop(SECONDS)
    assert len(time.rests) == 2


def test_a_flush_does_not_rest() -> None:
    time = FakeTime()
    slow: Any = SlowStore(time.work, pieces=4)
    writer = TimedWriter(slow, time, rate=1.0)
    writer.decode_started()
    for number in range(1, 6):
        writer.submit(job(number))
    flushed: list[bool] = []
    thread = threading.Thread(target=lambda: flushed.append(writer.flush(SECONDS)))
    thread.start()
    while not writer._hurry:
        pass
    slow.may.set()
    thread.join(SECONDS)
    assert flushed == [True]
    assert time.rests == []
    assert slow.synced >= 1
    assert writer.stop(SECONDS)


def test_blocks_of_a_store_that_is_off_are_dropped_without_a_fuss(tmp_path: Path) -> None:
    off = open_store(tmp_path / "kv", 0)
    writer = Writer(off)
    assert writer.submit(Job(off.root, tuple(tokens_of(1)), memoryview(bytes(BYTES))))
    assert writer.stop(SECONDS)
    assert writer.stats().failed_blocks == 1
