"""What was computed is on disk: found by later conversations and after restarts, never believed
wrongly. The scripted engine's KV depends on all tokens before it, so wrong blocks would be noticed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colibri.engine import fake, persist
from colibri.engine.fake import BLOCK_BYTES, BLOCK_TOKENS, FakeBackend, Options, Script
from colibri.engine.protocol import Accepted, Cancel, Done, Event, Failed, Stop, Submit, Tokens
from colibri.engine.worker import Worker
from colibri.kv.disk import Disk
from colibri.kv.inventory import STORE_NAME

TIMEOUT = 20
LEAST_TAIL = 8
BUDGET = 1 << 24
SYSTEM = "You are a helpful system prompt of some length, the same for everyone. "


class Server:
    """A worker with a disk; made again on the same folder it is the restarted one."""

    def __init__(self, folder: Path, slots: int = 1, parallel: int = 1, window: int = 0) -> None:
        self.backend = FakeBackend(Options(context=1 << 16))
        self.backend.window = window
        self.disk = Disk(folder, "model", "layout", (BLOCK_TOKENS, BLOCK_BYTES), BUDGET)
        self.backend.disk = self.disk
        self.events: queue.Queue[Event] = queue.Queue()
        self.worker = Worker(self.backend, self.events.put, slots=slots, parallel=parallel)
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()
        self._jobs = 0

    def submit(self, prompt: str, slot: int | None = None) -> str:
        self._jobs += 1
        job = f"job{self._jobs}"
        tokens = fake.encode(prompt)
        self.worker.handle(
            Submit(
                job=job,
                prompt=tokens,
                max_tokens=50,
                temperature=0,
                top_p=1,
                seed=1,
                cache_slot=slot,
            )
        )
        return job

    def next(self, job: str) -> Event:
        while True:
            event = self.events.get(timeout=TIMEOUT)
            if getattr(event, "job", None) == job:
                return event

    def cached(self, prompt: str, slot: int | None = None) -> int:
        """Answers a prompt; returns the tokens that were not computed."""
        job = self.submit(prompt, slot)
        while not isinstance(event := self.next(job), Done):
            assert not isinstance(event, Failed), event
        return event.usage.cached

    def wait_saved(self) -> None:
        """Until everything that was computed is on disk."""
        end = time.monotonic() + TIMEOUT
        while self.worker._persist._saves:
            assert time.monotonic() < end
            time.sleep(0.01)

    def stop(self) -> None:
        self.worker.handle(Stop())
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.stop()


def blocks(text: str) -> int:
    return len(text) // BLOCK_TOKENS * BLOCK_TOKENS


def test_R117_after_a_restart_a_conversation_goes_on_from_its_last_token(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 5 + "and so on"
    assert first.cached(prompt) == 0
    first.stop()
    second = Server(tmp_path)
    try:
        assert second.cached(prompt + "and now?") == len(prompt)
        assert second.backend.imported == blocks(prompt) // BLOCK_TOKENS + 1
        assert second.cached(prompt + "and now? really?") >= len(prompt)
    finally:
        second.stop()


def test_a_killed_server_has_what_was_written_by_then(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 5
    first.cached(prompt)
    first.wait_saved()
    # No stop: the folder as a killed process leaves it, its lock included.
    copy = tmp_path / "copy"
    (copy / STORE_NAME).mkdir(parents=True)
    for path in (tmp_path / STORE_NAME).iterdir():
        (copy / STORE_NAME / path.name).write_bytes(path.read_bytes())
    first.stop()
    for lock in (copy / STORE_NAME).glob("*lock*"):
        lock.write_text("1")
    second = Server(copy)
    try:
        assert second.cached(prompt + "more") == blocks(prompt)
    finally:
        second.stop()


def test_a_new_conversation_takes_the_common_beginning_from_disk(tmp_path: Path) -> None:
    first = Server(tmp_path)
    first.cached(SYSTEM * 4 + "tell me about one thing")
    first.stop()
    second = Server(tmp_path)
    try:
        # Of a block that goes on otherwise the common beginning is used.
        assert second.cached(SYSTEM * 4 + "and now for another") == len(SYSTEM * 4)
    finally:
        second.stop()


def test_a_long_prompt_that_is_killed_in_the_middle_is_not_lost(tmp_path: Path) -> None:
    """Chunks that are finished are saved while the rest is read."""
    first = Server(tmp_path)
    first.backend.enqueue(Script(prefill_ms_per_token=2, chunk=2 * BLOCK_TOKENS))
    prompt = SYSTEM * 20
    job = first.submit(prompt)
    assert isinstance(first.next(job), Accepted)
    end = time.monotonic() + TIMEOUT
    while first.disk.store.stats().put_blocks < 6:
        assert time.monotonic() < end
        time.sleep(0.01)
    first.worker.handle(Cancel(job=job))
    first.stop()
    second = Server(tmp_path)
    try:
        assert second.cached(prompt) >= 6 * BLOCK_TOKENS
    finally:
        second.stop()


def test_a_damaged_block_is_computed_again(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 5
    first.cached(prompt)
    first.stop()
    (segment,) = (p for p in (tmp_path / STORE_NAME).iterdir() if p.stat().st_size > 3 * 8192)
    data = bytearray(segment.read_bytes())
    data[4096 + 5 * 8192 + 4096 + 17] ^= 1  # in the payload of the sixth block
    segment.write_bytes(data)
    second = Server(tmp_path)
    try:
        assert second.cached(prompt + "x") == 5 * BLOCK_TOKENS
        second.wait_saved()
    finally:
        second.stop()


def test_a_damaged_tail_is_computed_again(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 5 + "and so on"
    first.cached(prompt)
    first.stop()
    (segment,) = (p for p in (tmp_path / STORE_NAME).iterdir() if p.stat().st_size > 3 * 8192)
    data = bytearray(segment.read_bytes())
    data[-4096] ^= 1  # the first byte of the last payload
    segment.write_bytes(data)
    second = Server(tmp_path)
    try:
        assert second.cached(prompt + "x") == blocks(prompt)
    finally:
        second.stop()


def test_what_memory_holds_is_not_read_from_disk(server: Server) -> None:
    server.cached(SYSTEM * 4)
    server.wait_saved()
    assert server.cached(SYSTEM * 4 + "x" * 40) == len(SYSTEM * 4)
    assert server.backend.imported == 0


def test_a_block_is_stored_once(server: Server) -> None:
    server.cached(SYSTEM * 4)
    server.wait_saved()
    stored = server.disk.store.stats().put_blocks
    server.cached(SYSTEM * 4 + "y" * BLOCK_TOKENS * 2)
    server.wait_saved()
    assert server.disk.store.stats().put_blocks - stored <= 3
    server.cached(SYSTEM * 4)
    server.wait_saved()
    assert server.disk.store.stats().put_blocks - stored <= 3


def test_each_turn_replaces_the_tail_of_the_one_before(tmp_path: Path) -> None:
    """A conversation that goes on leaves no old ends behind, and a tail is written at a turn's end
    only.
    """
    server, said = Server(tmp_path), SYSTEM
    try:
        for turn in range(6):
            said += f"turn {turn}. "
            server.backend.enqueue(Script(pieces=()))
            server.cached(said)
            server.wait_saved()
            stats = server.disk.store.stats()
            tail = len(said) % BLOCK_TOKENS >= LEAST_TAIL
            assert stats.blocks == len(said) // BLOCK_TOKENS + tail
        before = stats.put_blocks
        server.backend.enqueue(Script(pieces=()))
        server.cached(said)
        server.wait_saved()
        assert server.disk.store.stats().put_blocks == before, "what is stored is not written again"
    finally:
        server.stop()


def test_short_ends_are_not_worth_a_block(tmp_path: Path) -> None:
    for more, blocks_stored in ((LEAST_TAIL - 1, 1), (LEAST_TAIL, 2)):
        server = Server(tmp_path)
        server.backend.enqueue(Script(pieces=()))
        server.cached("x" * (BLOCK_TOKENS + more))
        server.stop()
        server = Server(tmp_path)
        assert server.disk.store.stats().blocks == blocks_stored
        server.stop()


def test_each_slot_says_what_it_held(tmp_path: Path) -> None:
    server = Server(tmp_path, slots=3)
    server.cached(SYSTEM * 2, slot=0)
    server.cached("other " * 30, slot=2)
    server.stop()
    files = server.disk.files
    first, second, third = (files.load(slot) for slot in range(3))
    assert first is not None
    assert list(first.tokens)[: len(SYSTEM * 2)] == fake.encode(SYSTEM * 2)
    assert second is None
    assert third is not None
    assert list(third.tokens)[:180] == fake.encode("other " * 30)


def test_a_job_that_ends_while_blocks_are_read_leaves_its_slot_as_it_was(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 40
    first.cached(prompt)
    first.stop()
    second = Server(tmp_path)
    try:
        read = second.disk.store.read

        def slow(*arguments: object) -> bool:
            time.sleep(0.05)
            return read(*arguments)  # type: ignore[arg-type]

        second.disk.store.read = slow  # type: ignore[method-assign,assignment]
        job = second.submit(prompt)
        time.sleep(0.3)
        second.worker.handle(Cancel(job=job))
        done = second.next(job)
        assert isinstance(done, Done)
        assert done.finish_reason == "cancelled"
        second.disk.store.read = read  # type: ignore[method-assign]
        assert second.cached(prompt + "z") == len(prompt)
        assert second.backend.open_sessions <= 3
    finally:
        second.stop()


def test_blocks_taken_from_disk_are_progress_and_the_snapshot_tells_of_the_store(
    tmp_path: Path,
) -> None:
    """Reading a long context from a slow disk takes longer than the watchdog's patience."""
    prompt = SYSTEM * 5
    first = Server(tmp_path)
    first.cached(prompt)
    first.stop()
    server = Server(tmp_path, slots=2)
    try:
        before = server.worker.snapshot()
        held = server.cached(prompt)
        now = server.worker.snapshot()
    finally:
        server.stop()
    read = held // BLOCK_TOKENS
    assert read > 2
    assert now.progress >= before.progress + read
    assert now.kv.store is not None
    assert now.kv.store.state == "ready"
    assert now.kv.store.read_blocks == read
    assert now.kv.store.blocks >= read
    assert (now.kv.store.failed_blocks, now.kv.store.damaged_blocks) == (0, 0)
    assert (now.kv.prompt_tokens, now.kv.cached_tokens) == (len(fake.encode(prompt)), held)
    assert now.kv.slots[0].tokens >= len(fake.encode(prompt))
    assert now.kv.slots[1].tokens == 0
    assert server.worker.snapshot().kv.store is None, "a snapshot after the end is answered"


def test_with_windows_the_better_of_memory_and_disk_is_taken(tmp_path: Path) -> None:
    first = Server(tmp_path, window=8)
    first.cached(SYSTEM * 4)
    first.stop()
    second = Server(tmp_path, window=8)
    try:
        assert second.cached(SYSTEM * 4 + "x" * 20) == len(SYSTEM * 4)
        # Behind the window: memory cannot go back to it.
        assert second.cached(SYSTEM * 2 + "other") == len(SYSTEM * 2)
    finally:
        second.stop()


def test_a_conversation_that_leaves_its_slot_is_still_written_to_its_end(tmp_path: Path) -> None:
    """An agent asks for a title right behind an answer; with one slot that takes its place."""
    first = Server(tmp_path)
    held = first.disk.writer.submit
    given: list[object] = []

    def slow(job: object) -> bool:
        given.append(job)
        time.sleep(0.02)
        return held(job)  # type: ignore[arg-type]

    first.disk.writer.submit = slow  # type: ignore[method-assign,assignment]
    prompt = SYSTEM * 20
    jobs = [first.submit(prompt), first.submit("a title, please " * 8), first.submit("x" * 300)]
    for job in jobs:
        while not isinstance(first.next(job), Done):
            pass
    first.stop()
    second = Server(tmp_path)
    try:
        assert second.cached(prompt + "and now?") == len(prompt)
    finally:
        second.stop()


def test_writing_goes_on_while_others_decode(tmp_path: Path) -> None:
    server = Server(tmp_path, slots=2, parallel=2)
    try:
        server.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=2))
        endless = server.submit("endless")
        while not isinstance(server.next(endless), Tokens):
            pass
        server.worker._jobs.running[0].job.limit = 1 << 15
        server.cached(SYSTEM * 2)
        end = time.monotonic() + TIMEOUT
        while server.disk.store.stats().put_blocks < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        server.worker.handle(Cancel(job=endless))
    finally:
        server.stop()


@contextmanager
def blocked_disk(server: Server) -> Iterator[threading.Event]:
    """A disk that takes nothing until the event is set, and a queue of two blocks before it."""
    free, put = threading.Event(), server.disk.store.put

    def slow(*args: Any) -> bytes | None:
        free.wait(TIMEOUT)
        return put(*args)

    server.disk.store.put = slow  # type: ignore[method-assign]
    server.disk.writer._limit = 2 * BLOCK_BYTES
    try:
        yield free
    finally:
        free.set()


def test_the_loop_goes_on_while_a_conversation_that_has_to_go_is_saved(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to be saved whole, however long that takes; meanwhile a cancel is served at once."""
    monkeypatch.setattr(persist, "_RESCUE_SECONDS", 1e6)
    long = SYSTEM * 5
    with blocked_disk(server) as free:
        server.cached(long)
        server.backend.room = 0  # whoever comes needs what that conversation holds
        other = server.submit("Something else. " * 20)
        end = time.monotonic() + TIMEOUT
        while not server.worker._slots.kept:
            assert time.monotonic() < end
            time.sleep(0.01)
        server.worker.handle(Cancel(job=other))
        ended = server.next(other)
        assert isinstance(ended, Done)
        assert ended.finish_reason == "cancelled"
        assert server.worker._slots.dropped == 0
        waiting = server.submit("Something else. " * 20)
        free.set()
        while not isinstance(event := server.next(waiting), Done):
            assert not isinstance(event, Failed), event
        assert server.worker._slots.dropped == 1
    server.backend.room = None
    server.wait_saved()
    assert server.cached(long) >= blocks(long) - BLOCK_TOKENS
    assert server.backend.imported > 0, "it came from disk"


def test_a_disk_that_takes_nothing_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "_RESCUE_SECONDS", 0.05)
    with blocked_disk(server):
        server.cached(SYSTEM * 5)
        server.backend.room = 0
        assert server.cached("Something else. " * 20) == 0
        assert server.worker._slots.dropped == 1
