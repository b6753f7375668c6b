"""Bounded first-in-first-out admission in front of the engine.

For: the API handlers, one call of `admit` per generation. Not for: anything inside the engine; by
the time the worker sees a job, its turn has come.

    admit --> [free turn?] --yes--> engine ready? --> submit --> Generation
                  |no                                              events: Accepted .. Done | Failed
                  +--> queue (max_queue) --> turn | timeout: 429 | client left: dropped
                          `--> full: 429

A request that names a KV slot in use waits for it without holding up those behind it; also while
one that has just started has not said yet which slot it got, because that may be the one.

Every request that asks ends in exactly one counter: completed, rejected (the queue is full, or the
server stops), timed_out, cancelled (its client left) or failed.

A turn is held until the worker says that the job has ended, not until the client is done with it,
so that `active` is the engine's truth. Nothing is sent to a client while it waits here; its status
is still open. Threads: `admit` blocks the calling (HTTP) thread; everything may be called from any
thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from colibri.engine.client import EngineClient
from colibri.engine.protocol import (
    Accepted,
    Done,
    Failed,
    JobEvent,
    Phase,
    Progress,
    Submit,
    Tokens,
)
from colibri.errors import BusyError, ClientGoneError, WorkerUnavailableError

# How often a waiting request looks whether its client is still there: well below the promised
# second.
POLL_SECONDS = 0.25
# Small on purpose: clients try three times and give up, so the wait itself belongs into our queue.
RETRY_AFTER_SECONDS = 5


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What every dialect's request comes down to. All defaults are resolved; lengths in tokens."""

    id: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stops: tuple[str, ...] = ()
    ignore_leading_stop: bool = False
    cache_slot: int | None = None


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Requests now active and queued, and how those before them ended since the start."""

    active: int
    queued: int
    completed: int
    rejected: int
    timed_out: int
    cancelled: int
    failed: int


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A running request as people want to see it.

    `prompt_fraction` is the share of the prompt's reading that is done, `eta_seconds` what is left
    of it; `layer` of `layers` and the bytes are those of `Progress`.
    """

    id: str
    phase: Phase
    prompt_tokens: int
    prompt_tokens_done: int
    generated_tokens: int
    running_seconds: float
    eta_seconds: float | None
    prompt_fraction: float
    layer: int
    layers: int
    bytes_read: int
    bytes_left: int


class _Ticket:
    """A place in the queue, and the KV slot that is asked for."""

    def __init__(self, slot: int | None) -> None:
        self.turn = threading.Event()
        self.slot = slot


class Generation:
    """A job in the engine: its events, in order, for one consumer. Close it whatever happens."""

    def __init__(
        self, request: GenerationRequest, engine: EngineClient, queue_wait_ms: int
    ) -> None:
        self.request = request
        self.queue_wait_ms = queue_wait_ms
        self.slot = request.cache_slot  # an unpinned job's is known once it has been accepted
        self._engine = engine
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self._ended = False
        self._started = time.monotonic()
        self._phase: Phase = "waiting"
        self._progress: Progress | None = None
        self._progress_at = 0.0
        self._done = 0
        self._generated = 0

    def next_event(self, timeout: float) -> JobEvent | None:
        """The next event, or None after `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Cancels the job unless it has ended."""
        if not self._ended:
            self._engine.cancel(self.request.id)

    def take(self, event: JobEvent) -> None:
        """Sink of the engine's events."""
        if isinstance(event, Accepted):
            self._phase = "prefill"
            self.slot = event.slot
            self._done = event.cached
        elif isinstance(event, Progress):
            self._done = event.done
            self._progress, self._progress_at = event, time.monotonic()
            self._phase = "decode" if event.done == event.total else "prefill"
        elif isinstance(event, Tokens):
            self._generated = event.generated
        elif isinstance(event, Done | Failed):
            self._ended = True
        self._events.put(event)

    def activity(self) -> Activity:
        """Where the job stands, from the events so far."""
        now, progress = time.monotonic(), self._progress
        left = progress.eta_seconds if progress and self._phase == "prefill" else None
        return Activity(
            id=self.request.id,
            phase=self._phase,
            prompt_tokens=len(self.request.prompt),
            prompt_tokens_done=self._done,
            generated_tokens=self._generated,
            running_seconds=round(now - self._started, 1),
            eta_seconds=None
            if left is None
            else round(max(left - now + self._progress_at, 0.0), 1),
            prompt_fraction=round(progress.fraction, 4) if progress else 0.0,
            layer=progress.layer if progress else 0,
            layers=progress.layers if progress else 0,
            bytes_read=progress.bytes_read if progress else 0,
            bytes_left=progress.bytes_left if progress else 0,
        )


class Scheduler:
    """See the module's text. `parallel` requests run at once; `queue_timeout` is in seconds."""

    def __init__(
        self, engine: EngineClient, *, max_queue: int, queue_timeout: float, parallel: int = 1
    ) -> None:
        self.max_queue = max_queue
        self.queue_timeout = queue_timeout
        self.parallel = parallel
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._granted: set[_Ticket] = set()  # turn given, not yet running
        self._running: dict[str, Generation] = {}
        self._turns = 0
        self._closed = False
        self._completed = self._rejected = self._timed_out = self._cancelled = self._failed = 0

    def admit(self, request: GenerationRequest, gone: Callable[[], bool]) -> Generation:
        """Waits for a turn and starts the job.

        Raises BusyError (queue full, waited too long), ClientGoneError (`gone` became true),
        or what the engine says when it cannot take jobs.
        """
        started = time.monotonic()
        ticket = self._wait_for_turn(started, request.cache_slot, gone)
        try:
            self._wait_for_engine(started, gone)
        except BaseException:
            self._pass_turn(ticket)
            raise
        waited_ms = int((time.monotonic() - started) * 1000)
        generation = Generation(request, self._engine, waited_ms)
        with self._lock:
            self._running[request.id] = generation
            self._granted.discard(ticket)
        try:
            self._engine.submit(
                request_command(request), lambda event: self._take(generation, event)
            )
        except BaseException:
            if self._end(request.id):
                with self._lock:
                    self._failed += 1
            raise
        return generation

    def counters(self) -> Counters:
        with self._lock:
            return Counters(
                active=self._turns,
                queued=len(self._waiting),
                completed=self._completed,
                rejected=self._rejected,
                timed_out=self._timed_out,
                cancelled=self._cancelled,
                failed=self._failed,
            )

    def activities(self) -> list[Activity]:
        """The running requests, oldest first."""
        with self._lock:
            running = list(self._running.values())
        return [generation.activity() for generation in running]

    def close(self) -> None:
        """Turns away everyone who waits and everyone who comes. Running jobs are the engine's."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for ticket in waiting:
            ticket.turn.set()

    # ---- inside ----

    def _wait_for_turn(self, started: float, slot: int | None, gone: Callable[[], bool]) -> _Ticket:
        ticket = _Ticket(slot)
        with self._lock:
            if self._closed:
                self._rejected += 1
                raise self._stopping()
            self._waiting.append(ticket)
            self._grant()
            if not ticket.turn.is_set() and len(self._waiting) > self.max_queue:
                self._waiting.remove(ticket)
                self._rejected += 1
                raise BusyError(
                    f"The server is busy: {self._turns} active and {len(self._waiting)} waiting "
                    f"requests (the queue holds {self.max_queue}). Try again later.",
                    retry_after=RETRY_AFTER_SECONDS,
                    code="queue_full",
                )
        while not ticket.turn.wait(POLL_SECONDS):
            if gone():
                if self._leave(ticket):
                    with self._lock:
                        self._cancelled += 1
                    raise ClientGoneError("the client left while it was waiting for its turn.")
            elif time.monotonic() - started > self.queue_timeout and self._leave(ticket):
                with self._lock:
                    self._timed_out += 1
                raise self._too_long()
        if self._turned_away(ticket):
            raise self._stopping()
        return ticket

    def _turned_away(self, ticket: _Ticket) -> bool:
        """Whether the server stops; the turn, if there was one, is passed on then."""
        with self._lock:
            if self._closed:
                self._rejected += 1
            closed, granted = self._closed, ticket in self._granted
        if closed and granted:
            self._pass_turn(ticket)
        return closed

    def _leave(self, ticket: _Ticket) -> bool:
        """Gives the place up; False when the turn came at this very moment."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return True
        return False

    def _wait_for_engine(self, started: float, gone: Callable[[], bool]) -> None:
        """A worker that loads or restarts is worth waiting for, within the same time limit."""
        while True:
            if gone():
                with self._lock:
                    self._cancelled += 1
                raise ClientGoneError("the client left before its turn came.")
            if self._engine.status().state not in ("loading", "restarting"):
                return
            if time.monotonic() - started > self.queue_timeout:
                with self._lock:
                    self._timed_out += 1
                raise self._too_long()
            try:
                self._engine.wait_ready(POLL_SECONDS)
            except WorkerUnavailableError:
                continue

    def _take(self, generation: Generation, event: JobEvent) -> None:
        if isinstance(event, Done | Failed) and self._end(event.job):
            with self._lock:
                if isinstance(event, Failed):
                    self._failed += 1
                elif event.finish_reason == "cancelled":
                    self._cancelled += 1
                else:
                    self._completed += 1
        generation.take(event)
        if isinstance(event, Accepted):
            with self._lock:
                self._grant()

    def _end(self, job: str) -> bool:
        """Takes the turn back from a running job; False when that has been done before."""
        with self._lock:
            running = self._running.pop(job, None)
        if running is None:
            return False
        self._pass_turn(None)
        return True

    def _pass_turn(self, ticket: _Ticket | None) -> None:
        with self._lock:
            if ticket is not None:
                self._granted.discard(ticket)
            self._turns -= 1
            self._grant()

    def _grant(self) -> None:
        """Gives free turns to the first that may run; called with the lock held."""
        used = {generation.slot for generation in self._running.values()}
        used |= {ticket.slot for ticket in self._granted}
        unknown = None in used
        for ticket in tuple(self._waiting):
            if self._turns >= self.parallel:
                return
            if ticket.slot is None or not (unknown or ticket.slot in used):
                self._waiting.remove(ticket)
                self._granted.add(ticket)
                used.add(ticket.slot)
                unknown |= ticket.slot is None
                self._turns += 1
                ticket.turn.set()

    def _too_long(self) -> BusyError:
        return BusyError(
            f"The request waited {self.queue_timeout:g} seconds for its turn and was given up. "
            "Try again later.",
            retry_after=RETRY_AFTER_SECONDS,
            code="queue_timeout",
        )

    def _stopping(self) -> WorkerUnavailableError:
        return WorkerUnavailableError("the server is being stopped.")


def request_command(request: GenerationRequest) -> Submit:
    """The engine's form of a request."""
    return Submit(
        job=request.id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stops=request.stops,
        ignore_leading_stop=request.ignore_leading_stop,
        cache_slot=request.cache_slot,
    )
