"""The one place of a server that an engine takes: taken, empty, or between two engines.

For: the server, whose scheduler, telemetry and API keep one `EngineClient` while models are loaded
and unloaded behind it. Not for: deciding when that may happen; `models.loading` lets no job run
while it does. A seat has no jobs of its own: what is asked is passed to the engine that sits there.
Threads: as `EngineClient`; `put` and `take` belong to one thread at a time.
"""

from __future__ import annotations

import time

from colibri.engine.client import EngineClient, EngineStatus
from colibri.engine.protocol import Command, EngineInfo, EngineSnapshot, ExpertMap, Sink, Submit
from colibri.errors import ColibriError, NoModelError, WorkerUnavailableError


class Seat(EngineClient):
    """See the module's text. `start` and `stop` are those of the engine that sits there."""

    def __init__(self, engine: EngineClient | None = None) -> None:
        super().__init__()
        self._engine = engine
        self._between = False
        self._reason = ""

    def take(self, *, between: bool = False, reason: str = "") -> EngineClient | None:
        """Empties the seat; the engine that sat there is the caller's to stop.

        `between`: another one comes soon, and whoever waits goes on waiting. `reason` is a sentence
        for those who ask an empty seat, why it is empty.
        """
        with self._changed:
            engine, self._engine = self._engine, None
            self._between, self._reason = between, reason
            self._changed.notify_all()
        return engine

    def put(self, engine: EngineClient) -> None:
        """Seats an engine, started or about to be."""
        with self._changed:
            self._engine, self._between, self._reason = engine, False, ""
            self._changed.notify_all()

    # ---- EngineClient ----

    def start(self) -> None:
        if self._engine is not None:
            self._engine.start()

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    def wait_ready(self, timeout: float | None = None) -> EngineInfo:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._engine is not None or not self._between, timeout)
            engine = self._engine
        if engine is None:
            raise self.missing()
        return engine.wait_ready(None if deadline is None else max(deadline - time.monotonic(), 0))

    def submit(self, command: Submit, sink: Sink) -> None:
        engine = self._engine
        if engine is None:
            raise self.missing()
        engine.submit(command, sink)

    def cancel(self, job: str) -> None:
        if (engine := self._engine) is not None:
            engine.cancel(job)

    def snapshot(self, timeout: float = 1.0) -> EngineSnapshot | None:
        engine = self._engine
        return None if engine is None else engine.snapshot(timeout)

    def experts(self, timeout: float = 1.0) -> ExpertMap | None:
        engine = self._engine
        return None if engine is None else engine.experts(timeout)

    def status(self) -> EngineStatus:
        with self._changed:
            engine, between, reason = self._engine, self._between, self._reason
        if engine is not None:
            return engine.status()
        return EngineStatus(
            state="loading" if between else "unloaded",
            info=None,
            restarts=0,
            last_failure=reason or None,
            pid=None,
            rss_bytes=None,
        )

    def missing(self) -> ColibriError:
        """What somebody is told who needs an engine while there is none."""
        if self._between:
            return WorkerUnavailableError(
                "The model is still being loaded.", hint="Try again in a moment."
            )
        return NoModelError(self._reason)

    def _send(self, command: Command) -> None:
        raise AssertionError("a seat hands commands to its engine's own methods")
