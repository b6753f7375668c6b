"""Main program of the engine process.

Started as `python -m colibri.engine.child`, or, frozen, as the program itself with CHILD_FLAG.

For: `process`, which starts it and speaks frames over its stdin and stdout. Not for: people;
started by hand it waits for a frame and leaves at the end of input. The first frame says what to
open; what opens it is named by the parent, so that this module knows no model formats.

    main thread     Worker.run                       native code and Python faults end this
    process only reader thread   frames -> Worker.handle          end of input = the parent is
    gone: leave at once
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from colibri.engine import processor
from colibri.engine.client import load_failure
from colibri.engine.protocol import Command, Event, Loaded, Loading, Stop, read_frame, write_frame

if TYPE_CHECKING:
    # Imported when the processor is known to be able to: what they import may end the process.
    from colibri.engine.backend import EngineBackend, Tell
    from colibri.engine.worker import Worker

log = logging.getLogger(__name__)

# The frozen program's own first argument for this role (a frozen sys.executable is the program
# itself).
CHILD_FLAG = "--engine-child"


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process has to open. `factory` is `module:callable`, called with `options` and with
    a function that it may tell how far it is (`backend.Tell`).
    """

    factory: str
    options: dict[str, Any]
    slots: int = 1
    parallel: int = 1
    log_level: str = "info"


class _Pipe:
    """Our ends of the two pipes, taken away from everyone else who might print or read."""

    def __init__(self) -> None:
        self.commands: BinaryIO = os.fdopen(os.dup(0), "rb")
        self.events: BinaryIO = os.fdopen(os.dup(1), "wb")
        self._lock = threading.Lock()
        # A stray print of any library must not land between frames.
        os.dup2(2, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def emit(self, event: Event) -> None:
        """Sends an event; without a parent there is nothing left to do here."""
        try:
            with self._lock:
                write_frame(self.events, event)
        except OSError:
            os._exit(1)


def _open(spec: ChildSpec, emit: Callable[[Event], None]) -> EngineBackend:
    processor.require()
    module, _, name = spec.factory.partition(":")
    factory: Callable[[dict[str, Any], Tell], EngineBackend] = getattr(
        importlib.import_module(module), name
    )
    return factory(
        spec.options, lambda done, total: emit(Loading(bytes_read=done, bytes_total=total))
    )


class _Child:
    """The worker, once there is one."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._worker: Worker | None = None

    def serve_commands(self) -> None:
        """Reader thread: leaves the process when the parent is gone or talks nonsense."""
        code = 1
        try:
            while (command := read_frame(self._pipe.commands, Command)) is not None:
                if self._worker is not None:
                    self._worker.handle(command)
                elif isinstance(command, Stop):
                    break  # while loading; there is nothing to tidy up
            code = 0
        finally:
            os._exit(code)

    def run(self, spec: ChildSpec) -> int:
        """Main thread: opens the engine, then drives it until Stop."""
        try:
            backend = _open(spec, self._pipe.emit)
        except Exception as error:
            # Whatever the reason, the parent must hear of it.
            self._pipe.emit(load_failure(error))
            return 1
        from colibri.engine.worker import Worker  # noqa: PLC0415 - see above

        self._worker = Worker(backend, self._pipe.emit, slots=spec.slots, parallel=spec.parallel)
        self._pipe.emit(Loaded(info=backend.info))
        self._worker.run()
        backend.close()
        return 0


def main() -> int:
    """Runs until told to stop; returns the exit code."""
    faulthandler.enable()
    # Ctrl-C in a terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = _Pipe()
    spec = read_frame(pipe.commands, ChildSpec)
    if spec is None:
        return 0
    logging.basicConfig(
        level=spec.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
    child = _Child(pipe)
    threading.Thread(target=child.serve_commands, name="commands", daemon=True).start()
    return child.run(spec)


if __name__ == "__main__":
    sys.exit(main())
