"""What was computed is on disk: found by later conversations and after restarts, never believed
wrongly. The scripted engine's KV depends on all tokens before it, so wrong blocks would be noticed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.engine import fake
from colibri.engine.fake import BLOCK_BYTES, BLOCK_TOKENS, FakeBackend, Options, Script
from colibri.engine.protocol import Accepted, Cancel, Done, Event, Failed, Stop, Submit, Tokens
from colibri.engine.worker import Worker
from colibri.kv.disk import Disk
from colibri.kv.inventory import STORE_NAME

TIMEOUT = 20
BUDGET = 1 << 24
SYSTEM = "You are a helpful system prompt of some length, the same for everyone. "


class Server:
    """A worker with a disk; made again on the same folder it is the restarted one."""

    def __init__(self, folder: Path, slots: int = 1, parallel: int = 1, window: int = 0) -> None:
        self.backend = FakeBackend(Options(context=1 << 16))
        self.backend.window = window
        self.disk = Disk(folder, "model", (BLOCK_TOKENS, BLOCK_BYTES), BUDGET)
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


def test_after_a_restart_a_conversation_goes_on_from_its_last_whole_block(tmp_path: Path) -> None:
    first = Server(tmp_path)
    prompt = SYSTEM * 5
    assert first.cached(prompt) == 0
    first.stop()
    second = Server(tmp_path)
    try:
        assert second.cached(prompt + "and now?") == blocks(prompt)
        assert second.backend.imported == blocks(prompt) // BLOCK_TOKENS
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
        assert second.cached(SYSTEM * 4 + "and now for another") == blocks(SYSTEM * 4)
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
        assert second.cached(prompt + "z") == blocks(prompt)
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
        assert second.cached(SYSTEM * 4 + "x" * 20) == blocks(SYSTEM * 4)
        # Behind the window: neither memory nor a block's border can be gone back to.
        assert second.cached(SYSTEM * 2 + "other") == blocks(SYSTEM * 2)
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
        assert second.cached(prompt + "and now?") == blocks(prompt)
    finally:
        second.stop()


def test_writing_goes_on_while_others_decode(tmp_path: Path) -> None:
    server = Server(tmp_path, slots=2, parallel=2)
    try:
        server.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=2))
        endless = server.submit("endless")
        while not isinstance(server.next(endless), Tokens):
            pass
        server.worker._running[0].job.limit = 1 << 15
        server.cached(SYSTEM * 2)
        end = time.monotonic() + TIMEOUT
        while server.disk.store.stats().put_blocks < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        server.worker.handle(Cancel(job=endless))
    finally:
        server.stop()
