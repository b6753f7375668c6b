"""Bounded first-in-first-out admission in front of the engine.

For: the API handlers, one call of `admit` per generation. Not for: anything inside the engine; by
the time the worker sees a job, its turn has come.

    admit --> [free turn?] --yes--> engine ready? --> submit --> Generation
                  |no                                              events: Accepted .. Done | Failed
                  +--> queue (max_queue) --> turn | timeout: 429 | client left: dropped
                          `--> full: 429

A request that names a KV slot in use waits for it without holding up those behind it; also while
one that has just started has not said yet which slot it got, because that may be the one.

Nobody knows how long a prompt may be before the model has been loaded for the first time, and
nobody can write one while another model is being loaded (`hold`). Requests that come then wait for
that (`wait_loaded`) before they can ask, with the same limits, and are let go in order. A request
whose prompt was made for a model that has left meanwhile (`GenerationRequest.load`) is refused.

Every request that asks ends in exactly one counter: completed, rejected (the queue is full, or the
server stops), timed_out, cancelled (its client left) or failed.

A turn is held until the worker says that the job has ended, not until the client is done with it,
so that `active` is the engine's truth. Nothing is sent to a client while it waits here; its status
is still open. Threads: `admit` blocks the calling (HTTP) thread; everything may be called from any
thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from colibri.engine.client import EngineClient
from colibri.engine.protocol import (
    Accepted,
    Done,
    EngineInfo,
    Failed,
    JobEvent,
    Tokens,
)
from colibri.errors import BusyError, ClientGoneError, ColibriError, WorkerUnavailableError
from colibri.scheduler.generation import (
    Activity,
    Generation,
    GenerationRequest,
    request_command,
)
from colibri.scheduler.measures import Measures
from colibri.scheduler.patience import Patience

log = logging.getLogger(__name__)

# How often a waiting request looks whether its client is still there: well below the promised
# second.
POLL_SECONDS = 0.25
_HANDOVER_SECONDS = 0.05
# Small on purpose: clients try three times and give up, so the wait itself belongs into our queue.
RETRY_AFTER_SECONDS = 5


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Requests now active and queued, and how those before them ended since the start."""

    active: int
    queued: int
    completed: int
    rejected: int
    timed_out: int
    cancelled: int
    failed: int


class _Ticket:
    """A place in the queue, and the KV slot that is asked for."""

    def __init__(self, slot: int | None) -> None:
        self.turn = threading.Event()
        self.slot = slot
        self.refusal: ColibriError | None = None  # set before the turn, in place of one


Observer: TypeAlias = Callable[[Generation, JobEvent], None]


class Scheduler:
    """See the module's text. `parallel` requests run at once; `queue_timeout` is in seconds."""

    def __init__(
        self, engine: EngineClient, *, max_queue: int, queue_timeout: float, parallel: int = 1
    ) -> None:
        self.max_queue = max_queue
        self.queue_timeout = queue_timeout
        self.parallel = parallel
        self.measures = Measures()
        self.patience = Patience()
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._granted: set[_Ticket] = set()  # turn given, not yet running
        self._loading: deque[_Ticket] = deque()  # waiting for the first load
        self._running: dict[str, Generation] = {}
        self._turns = 0
        self._closed = False
        self._held = False
        self._load = 0
        self._observers: list[Observer] = []
        self._completed = self._rejected = self._timed_out = self._cancelled = self._failed = 0

    def admit(self, request: GenerationRequest, gone: Callable[[], bool]) -> Generation:
        """Waits for a turn and starts the job.

        Raises BusyError (queue full, waited too long), ClientGoneError (`gone` became true),
        or what the engine says when it cannot take jobs.
        """
        started = time.monotonic() - request.waited_seconds
        ticket = self._wait_for_turn(started, request, gone)
        try:
            self._wait_for_engine(started, gone)
        except BaseException:
            self._pass_turn(ticket)
            raise
        waited = time.monotonic() - started
        self.measures.waited(waited)
        generation = Generation(request, self._engine, int(waited * 1000), self.patience)
        with self._lock:
            self._running[request.id] = generation
            self._granted.discard(ticket)
        try:
            self._engine.submit(
                request_command(request), lambda event: self._take(generation, event, started)
            )
        except BaseException:
            if self._end(request.id):
                with self._lock:
                    self._failed += 1
            raise
        return generation

    def wait_loaded(self, gone: Callable[[], bool]) -> EngineInfo:
        """Waits for the first load of the model, as one of the queue.

        Raises as `admit` does, and what made the engine fail.
        """
        started = time.monotonic()
        ticket = _Ticket(None)
        with self._lock:
            if self._closed:
                self._rejected += 1
                raise self._stopping()
            # Nothing runs yet, so those that will run at once wait here too.
            if len(self._loading) >= self.max_queue + self.parallel:
                self._rejected += 1
                raise BusyError(
                    f"The model is still being loaded, and {len(self._loading)} requests wait for "
                    "it. Try again later.",
                    retry_after=RETRY_AFTER_SECONDS,
                    code="queue_full",
                )
            self._loading.append(ticket)
        try:
            return self._until_loaded(ticket, started, gone)
        finally:
            with self._lock:
                self._loading.remove(ticket)

    # ---- changing the model ----

    def hold(self) -> None:
        """From now on requests without a prompt wait in `wait_loaded`. Those in the queue and in
        the engine go on.
        """
        with self._lock:
            self._held = True

    def release(self) -> None:
        """Lets those go who waited."""
        with self._lock:
            self._held = False

    @property
    def held(self) -> bool:
        """Whether the model is being changed."""
        return self._held

    def switch(self, load: int, parallel: int) -> bool:
        """Numbers the load that prompts must be made for from now on, of which `parallel` run at
        once; False, and nothing happens, while something runs or waits for its turn.
        """
        with self._lock:
            if self._turns or self._waiting:
                return False
            self._load, self.parallel = load, parallel
            self.patience = Patience()  # another model has another pace
            return True

    def abort(self, failure: ColibriError) -> None:
        """Ends everything that runs or waits for its turn; their clients are told `failure`."""
        with self._lock:
            waiting, running = list(self._waiting), list(self._running.values())
            self._waiting.clear()
            for ticket in waiting:
                ticket.refusal = failure
        for ticket in waiting:
            ticket.turn.set()
        for generation in running:
            job = generation.request.id
            self._engine.cancel(job)
            self._take(
                generation,
                Failed(job=job, code=failure.code, message=failure.message, hint=failure.hint),
                0.0,
            )

    def observe(self, observer: Observer) -> None:
        """Calls `observer` with every event of every generation, after the generation has taken it:
        in the transport's thread, so it must be quick and must not raise.
        """
        self._observers.append(observer)

    def counters(self) -> Counters:
        with self._lock:
            return Counters(
                active=self._turns,
                queued=len(self._waiting) + len(self._loading),
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

    def _wait_for_turn(
        self, started: float, request: GenerationRequest, gone: Callable[[], bool]
    ) -> _Ticket:
        ticket = _Ticket(request.cache_slot)
        with self._lock:
            if self._closed:
                self._rejected += 1
                raise self._stopping()
            if request.load != self._load:
                self._rejected += 1
                raise WorkerUnavailableError(
                    "The model was changed while this request was being read.",
                    hint="Send it again.",
                    code="model_changed",
                )
            self._waiting.append(ticket)
            if self._loading:
                self._loading[0].turn.set()
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
        if ticket.refusal is not None:
            with self._lock:
                self._failed += 1
            raise ticket.refusal
        if self._turned_away(ticket):
            raise self._stopping()
        return ticket

    def _until_loaded(
        self, ticket: _Ticket, started: float, gone: Callable[[], bool]
    ) -> EngineInfo:
        while True:
            with self._lock:
                if self._closed:
                    self._rejected += 1
                    raise self._stopping()
            if gone():
                with self._lock:
                    self._cancelled += 1
                raise ClientGoneError("the client left while the model was being loaded.")
            if time.monotonic() - started > self.queue_timeout:
                with self._lock:
                    self._timed_out += 1
                raise self._too_long()
            if self._held:
                time.sleep(_HANDOVER_SECONDS)
                continue
            try:
                info = self._engine.wait_ready(POLL_SECONDS)
            except ColibriError:
                if self._held or self._engine.status().state in ("loading", "restarting"):
                    continue
                with self._lock:
                    self._failed += 1
                raise
            # The one before asks for its turn first, unless it asks for none: its prompt was wrong.
            if ticket.turn.wait(_HANDOVER_SECONDS) or self._loading[0] is ticket:
                return info

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

    def _take(self, generation: Generation, event: JobEvent, started: float) -> None:
        if isinstance(event, Tokens) and not generation.begun_answer:
            generation.begun_answer = True
            self.measures.first_token(time.monotonic() - started)
        elif isinstance(event, Done):
            self.measures.done(event)
            self.patience.learn(event)
        if isinstance(event, Done | Failed):
            if not self._end(event.job):
                return  # it was aborted before
            with self._lock:
                if isinstance(event, Failed):
                    self._failed += 1
                elif event.finish_reason == "cancelled":
                    self._cancelled += 1
                else:
                    self._completed += 1
        generation.take(event)
        for observer in self._observers:
            observer(generation, event)
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
