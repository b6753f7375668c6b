"""The engine as the HTTP side sees it: submit, cancel, snapshot, and whether it is there at all.

For: scheduler, API and commands, whatever the transport. `ThreadEngine` and `ProcessEngine` add
only how a command gets to the worker and what happens when the worker ends. Not for: the worker's
own side.

    loading --> ready --> restarting --> ready ...        stopped        unloaded (an empty `Seat`)
        \\-> failed <---------/   (a process may leave `failed` again by itself)

A job's events go to the sink given at submit, in order, from the transport's thread; a sink must
not block. Every submitted job gets exactly one Done or Failed, also when the worker dies.
Threads: every method may be called from any thread.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import msgspec

from colibri import errors
from colibri.engine.protocol import (
    Cancel,
    Command,
    Done,
    EngineInfo,
    EngineSnapshot,
    Event,
    ExpertMap,
    Experts,
    Failed,
    Loaded,
    LoadFailed,
    Loading,
    Sink,
    Submit,
    TakeExperts,
    TakeSnapshot,
    Telemetry,
)
from colibri.engine.status import EngineError, Status
from colibri.errors import (
    ColibriError,
    EngineFailure,
    ModelError,
    ResourceError,
    WorkerLostError,
    WorkerUnavailableError,
)

log = logging.getLogger(__name__)

WorkerState: TypeAlias = Literal["loading", "ready", "restarting", "failed", "stopped", "unloaded"]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told about the worker at any time. `pid` and sizes are None without a process,
    `loading` unless a model is being opened and the worker has said how far it is.
    """

    state: WorkerState
    info: EngineInfo | None
    restarts: int
    last_failure: str | None
    pid: int | None
    rss_bytes: int | None
    loading: Loading | None = None


def load_failure(error: Exception) -> LoadFailed:
    """What a worker tells when its engine could not be opened."""
    if isinstance(error, ColibriError):
        return LoadFailed(
            kind=type(error).__name__,
            code=error.code,
            message=error.message,
            hint=error.hint,
            where=error.where,
        )
    if isinstance(error, EngineError):
        kinds: dict[Status, type[ColibriError]] = {
            Status.IO: ModelError,
            Status.FORMAT: ModelError,
            Status.MEMORY: ResourceError,
        }
        kind = kinds.get(error.code, EngineFailure)
        return LoadFailed(kind=kind.__name__, code=kind.default_code, message=error.message)
    log.error("opening the engine failed", exc_info=error)
    return LoadFailed(
        kind="EngineFailure", code="internal_error", message=f"opening the engine failed: {error}"
    )


def _raised(event: LoadFailed) -> ColibriError:
    kind = getattr(errors, event.kind, EngineFailure)
    failure: ColibriError = kind(event.message, hint=event.hint, where=event.where, code=event.code)
    return failure


class EngineClient(ABC):
    """Base of the transports; see the module's text."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state: WorkerState = "loading"
        self._info: EngineInfo | None = None
        self._loading: Loading | None = None
        self._failure: ColibriError | None = None
        self._sinks: dict[str, Sink] = {}
        self._serials = itertools.count()
        self._answers: dict[int, Telemetry | Experts | None] = {}
        self._restarts = 0
        self._last_failure: str | None = None

    # ---- what a transport adds ----

    @abstractmethod
    def start(self) -> None:
        """Begins loading and returns at once."""

    @abstractmethod
    def stop(self) -> None:
        """Ends jobs and worker; returns when nothing of it is left. May be called twice."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands a command to the worker. Raises OSError when there is none."""

    def _process(self) -> tuple[int | None, int | None]:
        """Process id and resident bytes of the worker."""
        return None, None

    # ---- for everyone above ----

    def wait_ready(self, timeout: float | None = None) -> EngineInfo:
        """Waits until jobs can be submitted.

        Raises what made the engine fail, or WorkerUnavailableError after `timeout` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state in ("ready", "failed", "stopped"), timeout)
            if self._state == "ready" and self._info is not None:
                return self._info
            raise self._unavailable()

    def submit(self, command: Submit, sink: Sink) -> None:
        """Starts a job; raises WorkerUnavailableError when there is no worker to take it."""
        with self._changed:
            if self._state != "ready":
                raise self._unavailable()
            self._sinks[command.job] = sink
        try:
            self._send(command)
        except OSError as error:
            self._sinks.pop(command.job, None)
            raise WorkerLostError(
                "the engine process has just ended.", hint="Try again."
            ) from error
        except BaseException:
            # What cannot be sent is no job: one that waits for ever looks like a hung engine.
            self._sinks.pop(command.job, None)
            raise

    def cancel(self, job: str) -> None:
        """Ends a job soon; harmless when it has ended already."""
        if job in self._sinks:
            try:
                self._send(Cancel(job=job))
            except OSError:
                log.debug("job %s ended with its worker", job)

    def snapshot(self, timeout: float = 1.0) -> EngineSnapshot | None:
        """Counters and jobs now; None when there is no worker or it does not answer in time."""
        answer = self._ask(TakeSnapshot(serial=next(self._serials)), timeout)
        return answer.snapshot if isinstance(answer, Telemetry) else None

    def experts(self, timeout: float = 1.0) -> ExpertMap | None:
        """The map of experts now; None for a dense model, and as `snapshot`."""
        answer = self._ask(TakeExperts(serial=next(self._serials)), timeout)
        return answer.map if isinstance(answer, Experts) else None

    def _ask(
        self, command: TakeSnapshot | TakeExperts, timeout: float
    ) -> Telemetry | Experts | None:
        serial = command.serial
        with self._changed:
            if self._state != "ready":
                return None
            self._answers[serial] = None
        try:
            self._send(command)
            with self._changed:
                self._changed.wait_for(lambda: self._answers[serial] is not None, timeout)
        except OSError:
            return None
        finally:
            with self._changed:
                result = self._answers.pop(serial)
        return result

    def status(self) -> EngineStatus:
        """State of the worker, never waiting for it."""
        pid, rss = self._process()
        with self._changed:
            return EngineStatus(
                state=self._state,
                info=self._info,
                restarts=self._restarts,
                last_failure=self._last_failure,
                pid=pid,
                rss_bytes=rss,
                loading=self._loading,
            )

    # ---- for the transports ----

    def _unavailable(self) -> ColibriError:
        if self._state == "failed" and self._failure is not None:
            return self._failure
        texts = {
            "loading": "The model is still being loaded.",
            "restarting": "The engine process is being restarted.",
            "stopped": "The engine has been stopped.",
        }
        return WorkerUnavailableError(
            texts.get(self._state, "The engine is not available."), hint="Try again in a moment."
        )

    def _set_state(self, state: WorkerState, failure: ColibriError | None = None) -> None:
        with self._changed:
            self._state = state
            self._loading = None
            if failure is not None:
                self._failure = failure
                self._last_failure = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {failure}"
            self._changed.notify_all()

    def _dispatch(self, event: Event) -> None:
        """Takes an event of the worker."""
        if isinstance(event, Loading):
            self._loading = event
        elif isinstance(event, Loaded):
            with self._changed:
                self._info = event.info
            self._set_state("ready")
        elif isinstance(event, LoadFailed):
            self._set_state("failed", _raised(event))
        elif isinstance(event, Telemetry | Experts):
            with self._changed:
                if event.serial in self._answers:
                    self._answers[event.serial] = event
                    self._changed.notify_all()
        else:
            ended = isinstance(event, Done | Failed)
            sink = self._sinks.pop(event.job, None) if ended else self._sinks.get(event.job)
            if sink is not None:
                sink(event)

    def _fail_jobs(self, failure: ColibriError) -> None:
        """Ends every job in flight with the failure of its worker."""
        for job in tuple(self._sinks):
            sink = self._sinks.pop(job, None)
            if sink is not None:
                sink(Failed(job=job, code=failure.code, message=failure.message, hint=failure.hint))
