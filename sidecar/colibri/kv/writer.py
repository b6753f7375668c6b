"""The thread that stores blocks while nobody is kept waiting for it.

For: the worker, which hands over computed blocks at the end of a turn and goes on. Not for:
reading, and not for what is worth storing.

    submit -> queue (bounded in bytes) -> [nobody decodes: `rate` bytes a second]
                                          [a decode runs: at most DUTY of the time] -> store.put

While a decode runs the thread measures how long each piece of work took, the wait for the device
included, and rests about a hundred times as long. If its work stopped the decode altogether, that
would cost 1 %; the limit is 3 %, and a device may be busy a while after it said that it was done. A
block that does not fit into the queue is refused, not an older one: blocks build on those before
them.

Errors of the disk end in the store; anything else is logged and the thread goes on. Threads:
every method from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from colibri.kv.store import PrefixStore

log = logging.getLogger(__name__)

# Share of the time that writing may take while a decode runs.
DUTY: Final = 0.01
# Bytes a second with nobody decoding: what a SATA disk takes without a queue building up.
DEFAULT_RATE: Final = 300_000_000
DEFAULT_QUEUE_BYTES: Final = 256 << 20
# Written bytes after which the device is asked to have them.
_SYNC_BYTES: Final = 32 << 20
# The bucket: what may be written at once after a rest.
_BURST_SECONDS: Final = 0.1
# With nothing to write, the store's index is brought up to date so often.
_REMEMBER_SECONDS: Final = 60.0
# A change of `set_decoding` or a stop is noticed within this time.
_LONGEST_NAP: Final = 0.5


class Job(msgspec.Struct, frozen=True):
    """One block to store. `payload` belongs to the writer from `submit` to `done`."""

    parent: bytes
    tokens: tuple[int, ...]
    payload: memoryview
    done: Callable[[bytes | None], None] | None = None


class Piece(msgspec.Struct, frozen=True):
    """Something else to write in its turn: `run` does it, at the pace it is given, and says whether
    it did. `payload` counts as waiting in memory.
    """

    payload: memoryview
    run: Callable[[Callable[[int], None]], bool]
    done: Callable[[bytes | None], None] | None = None


class WriterStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start; bytes waiting now."""

    waiting_blocks: int
    waiting_bytes: int
    written_blocks: int
    refused_blocks: int
    failed_blocks: int


class Writer:
    """See the module's text. `rate` in bytes a second; `clock` as time.monotonic."""

    def __init__(
        self,
        store: PrefixStore,
        *,
        rate: float = DEFAULT_RATE,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rate = rate
        self._limit = queue_bytes
        self._clock = clock
        self._jobs: deque[Job | Piece] = deque()
        self._bytes = 0
        self._busy = False
        self._unsynced = 0
        self._decoding = 0
        self._hurry = False
        self._quick = False  # until what waits is written
        self._ending = False
        self._counts = dict.fromkeys(("written", "refused", "failed"), 0)
        self._changed = threading.Condition()
        # The bucket's fill, and when work was last resumed.
        self._allowance = 0.0
        self._filled = self._resumed = clock()
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    # ---- any thread ----

    @property
    def limit(self) -> int:
        """Bytes that may wait at most."""
        return self._limit

    def submit(self, job: Job | Piece) -> bool:
        """Takes a block to store; False if the queue is full or the writer has ended."""
        with self._changed:
            if self._ending or self._bytes + len(job.payload) > self._limit:
                self._counts["refused"] += 1
                return False
            self._jobs.append(job)
            self._bytes += len(job.payload)
            self._changed.notify_all()
        return True

    def room(self) -> int:
        """Bytes that `submit` would take now; asked before a block is exported."""
        with self._changed:
            return 0 if self._ending else self._limit - self._bytes

    @property
    def busy(self) -> bool:
        """Whether it has something to write."""
        with self._changed:
            return bool(self._jobs) or self._busy

    def decode_started(self) -> None:
        """A decode runs: writing yields. Calls may overlap."""
        with self._changed:
            self._decoding += 1

    def decode_ended(self) -> None:
        """The reverse of `decode_started`."""
        with self._changed:
            self._decoding -= 1
            self._changed.notify_all()

    def hurry(self) -> None:
        """Writes what waits now without rests; returns at once."""
        with self._changed:
            self._quick = bool(self._jobs) or self._busy
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Writes what waits, without rests, and syncs; False if `timeout` seconds are too few."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(
                    lambda: not (self._jobs or self._busy or self._unsynced),
                    max(0.0, deadline - time.monotonic()),
                )
            finally:
                self._hurry = self._ending
        return done

    def stop(self, timeout: float) -> bool:
        """Flushes and ends the thread; what did not get written in time is dropped, False."""
        done = self.flush(timeout)
        with self._changed:
            self._ending = self._hurry = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._bytes -= sum(len(job.payload) for job in dropped)
            self._counts["failed"] += len(dropped)
            self._changed.notify_all()
        if dropped:
            log.warning("%d blocks of KV were not stored before the end", len(dropped))
        for job in dropped:
            _tell(job, None)
        self._thread.join(timeout)
        return done

    def stats(self) -> WriterStats:
        """Counters and what waits."""
        with self._changed:
            return WriterStats(
                waiting_blocks=len(self._jobs) + self._busy,
                waiting_bytes=self._bytes,
                written_blocks=self._counts["written"],
                refused_blocks=self._counts["refused"],
                failed_blocks=self._counts["failed"],
            )

    # ---- the writer's thread ----

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if job == "nothing":
                self._remember()
                continue
            stored = None
            try:
                self._resumed = self._clock()
                if isinstance(job, Piece):
                    stored = b"" if job.run(self._pace) else None
                else:
                    stored = self._store.put(job.parent, job.tokens, job.payload, self._pace)
            except Exception:
                # A fault of ours costs a block, not the thread and not the worker.
                log.exception("a block of KV was not stored")
            with self._changed:
                if not isinstance(job, Piece):
                    self._counts["written" if stored else "failed"] += 1
                self._bytes -= len(job.payload)
                self._unsynced += len(job.payload) if stored else 0
                last = not self._jobs
                self._quick = self._quick and not last
            if last or self._unsynced >= _SYNC_BYTES:
                self._sync()
            _tell(job, stored)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> Job | Piece | Literal["nothing"] | None:
        """What is to be written; "nothing" for a while, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._ending, _REMEMBER_SECONDS)
            if not self._jobs:
                return None if self._ending else "nothing"
            self._busy = True
            return self._jobs.popleft()

    def _remember(self) -> None:
        try:
            self._store.remember()
        except Exception:
            log.exception("the prefix store's index could not be written")

    def _sync(self) -> None:
        self._resumed = self._clock()
        try:
            self._store.sync()
        except Exception:
            log.exception("the prefix store could not be synced")
        with self._changed:
            self._unsynced = 0
        self._pace(0)

    def _pace(self, size: int) -> None:
        """Called after each piece of work: rests as long as the rules want."""
        now = self._clock()
        worked = now - self._resumed
        self._allowance -= size
        with self._changed:
            while not (self._hurry or self._quick):
                since = self._clock() - now
                duty = worked * (1 / DUTY - 1) - since if self._decoding else 0.0
                wait = max(duty, self._bucket())
                if wait <= 0:
                    break
                self._rest(min(wait, _LONGEST_NAP))
        self._resumed = self._clock()

    def _rest(self, seconds: float) -> None:
        """Rests, or less long if something changes."""
        self._changed.wait(seconds)

    def _bucket(self) -> float:
        """Seconds until the bucket is no longer overdrawn."""
        now = self._clock()
        filled = self._allowance + (now - self._filled) * self._rate
        self._allowance = min(filled, self._rate * _BURST_SECONDS)
        self._filled = now
        return max(0.0, -self._allowance / self._rate)


def _tell(job: Job | Piece, stored: bytes | None) -> None:
    if job.done is not None:
        try:
            job.done(stored)
        except Exception:
            log.exception("the owner of a stored block failed")
