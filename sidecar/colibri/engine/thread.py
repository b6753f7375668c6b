"""The engine in a thread of this process.

For: tests and one-shot commands, where a child process would cost more than it protects. Not for:
a server; a crash in native code here takes everything with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from colibri.engine.backend import EngineBackend
from colibri.engine.client import EngineClient, load_failure
from colibri.engine.protocol import Command, Loaded, Stop
from colibri.engine.worker import Worker


class ThreadEngine(EngineClient):
    """`factory` opens the backend in the engine's thread; the thread owns and closes it."""

    def __init__(
        self, factory: Callable[[], EngineBackend], *, slots: int = 1, parallel: int = 1
    ) -> None:
        super().__init__()
        self._factory = factory
        self._slots, self._parallel = slots, parallel
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._set_state("stopped")
        if self._worker is not None:
            self._worker.handle(Stop())
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            backend = self._factory()
        except Exception as error:
            # Whatever the reason, whoever waits for the engine must hear of it.
            self._dispatch(load_failure(error))
            return
        try:
            self._worker = Worker(
                backend, self._dispatch, slots=self._slots, parallel=self._parallel
            )
            if self._state == "stopped":
                return
            self._dispatch(Loaded(info=backend.info))
            self._worker.run()
        finally:
            backend.close()

    def _send(self, command: Command) -> None:
        if self._worker is None:
            raise OSError("there is no engine thread")
        self._worker.handle(command)
