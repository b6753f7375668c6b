"""The engine in a child process, watched and restarted.

For: the server and the app. A crash or an out-of-memory kill in native code ends the child, not
the server: requests in flight get an error that says what happened, and the next ones meet a new
child. Not for: what the child does (`child`, `worker`).

    supervisor thread   starts the child, looks at it every second, restarts it
    reader thread       one per child: events -> sinks
    log thread          one per child: its stderr -> our log, the last lines kept as last words

Restarts wait longer each time. After `crash_limit` crashes within `crash_window_seconds` requests
are refused until the window has passed. A child whose progress counter stands still for
`hang_seconds` while it has work is killed; a long step alone is no reason. A prompt that was in
flight at two crashes is refused. Threads: as `EngineClient`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass
from typing import BinaryIO, cast

import psutil

from colibri.engine.child import CHILD_FLAG, ChildSpec
from colibri.engine.client import EngineClient
from colibri.engine.protocol import (
    Command,
    Done,
    Event,
    Failed,
    FrameError,
    JobEvent,
    Sink,
    Stop,
    Submit,
    read_frame,
    write_frame,
)
from colibri.errors import (
    ColibriError,
    EngineFailure,
    RequestError,
    WorkerLostError,
    WorkerUnavailableError,
)

log = logging.getLogger(__name__)
child_log = logging.getLogger("colibri.engine.child")

# Set in the child: an engine process must never start engine processes, whatever its program is.
_CHILD_MARK = "COLIBRI_ENGINE_CHILD"
_LAST_WORDS = 20
_CRASHES_PER_PROMPT = 2
# What the child's lines begin with (`child.main`).
_LEVELS = {
    logging.getLevelName(level): level
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """When the supervisor acts. Defaults are what users get; tests shorten them."""

    poll_seconds: float = 1.0
    hang_seconds: float = 30.0
    backoff_seconds: float = 0.5
    backoff_limit_seconds: float = 30.0
    crash_limit: int = 3
    crash_window_seconds: float = 600.0
    # A worker that is told to stop writes what its disk lacks (`persist`), gigabytes at worst.
    stop_seconds: float = 20.0


def _command_line() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, CHILD_FLAG]
    return [sys.executable, "-m", "colibri.engine.child"]


def _environment() -> dict[str, str]:
    """Ours without the API key, which is no business of the engine's."""
    environment = {name: text for name, text in os.environ.items() if name != "COLI_API_KEY"}
    environment[_CHILD_MARK] = "1"
    if not getattr(sys, "frozen", False):
        # The child must import the very package that started it, however that one was found.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment


def _leveled(line: str) -> tuple[int, str]:
    """The level that a line of the child begins with, and the rest. A line without one, of a
    library or of the system's last words, is information.
    """
    name, _, rest = line.partition(" ")
    level = _LEVELS.get(name)
    return (logging.INFO, line) if level is None else (level, rest)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _fingerprint(command: Submit) -> bytes:
    """Of what a job may crash by: its prompt and the form that its answer shall have."""
    found = hashlib.sha256(array("q", command.prompt).tobytes())
    found.update(command.answer.grammar.source.encode("utf-8", "surrogatepass"))
    return found.digest()


class _Child:
    """One process with its pipes and what was last seen of it."""

    def __init__(self, spec: ChildSpec) -> None:
        own_group = {"start_new_session": True} if os.name == "posix" else {}
        windows = {} if os.name == "posix" else {"creationflags": 0x08000000}  # CREATE_NO_WINDOW
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            _command_line(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            **own_group,  # type: ignore[call-overload]
            **windows,
        )
        self.commands = cast(BinaryIO, self.process.stdin)
        self.events = cast(BinaryIO, self.process.stdout)
        self.errors = cast(BinaryIO, self.process.stderr)
        self.last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.rss_bytes = 0
        self.killed_as_hung = False
        self._write = threading.Lock()
        self.send(spec)

    def send(self, message: Command | ChildSpec) -> None:
        with self._write:
            write_frame(self.commands, message)

    def measure(self) -> None:
        """Remembers the resident size, the thing to tell after a kill."""
        try:
            size = psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            return
        if size:  # a dead child that nobody waited for yet holds nothing
            self.rss_bytes = size

    def close(self) -> None:
        for stream in (self.commands, self.events, self.errors):
            try:
                stream.close()
            except OSError:
                log.debug("a pipe of the engine process was already broken")


class ProcessEngine(EngineClient):
    """See the module's text."""

    def __init__(self, spec: ChildSpec, supervision: Supervision | None = None) -> None:
        super().__init__()
        self._spec = spec
        self._rules = supervision or Supervision()
        self._child: _Child | None = None
        self._stopping = threading.Event()
        self._crashes: deque[float] = deque()
        self._in_flight: dict[str, bytes] = {}
        self._suspects: Counter[bytes] = Counter()
        self._supervisor = threading.Thread(
            target=self._supervise, name="engine-supervisor", daemon=True
        )

    # ---- EngineClient ----

    def start(self) -> None:
        if os.environ.get(_CHILD_MARK):
            raise EngineFailure("an engine process must not start another engine process.")
        self._supervisor.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()
        self._set_state("stopped")

    def submit(self, command: Submit, sink: Sink) -> None:
        fingerprint = _fingerprint(command)
        if self._suspects[fingerprint] >= _CRASHES_PER_PROMPT:
            # Not a 5xx: clients would send it again, and the next crash is what this prevents.
            raise RequestError(
                f"this prompt was being worked on at {_CRASHES_PER_PROMPT} crashes of the engine.",
                hint="Change the prompt, or restart the server to try it again.",
                code="prompt_refused",
            )
        self._in_flight[command.job] = fingerprint
        if (child := self._child) is not None:
            # So that a process that dies before the next look is not without figures.
            child.measure()

        def until_the_end(event: JobEvent) -> None:
            if isinstance(event, Done | Failed):
                self._in_flight.pop(command.job, None)
            sink(event)

        try:
            super().submit(command, until_the_end)
        except BaseException:
            self._in_flight.pop(command.job, None)
            raise

    def _send(self, command: Command) -> None:
        child = self._child
        if child is None:
            raise OSError("there is no engine process")
        try:
            child.send(command)
        except ValueError as error:  # the pipe has been closed on our side
            raise OSError("the engine process is gone") from error

    def _process(self) -> tuple[int | None, int | None]:
        child = self._child
        return (child.process.pid, child.rss_bytes or None) if child else (None, None)

    # ---- supervisor thread ----

    def _supervise(self) -> None:
        backoff = self._rules.backoff_seconds
        while not self._stopping.is_set():
            started = time.monotonic()
            failure = self._run_child()
            if failure is None:
                return
            if time.monotonic() - started > self._rules.crash_window_seconds:
                backoff = self._rules.backoff_seconds
            wait = self._note_crash(failure, backoff)
            backoff = min(2 * backoff, self._rules.backoff_limit_seconds)
            self._stopping.wait(wait)

    def _run_child(self) -> ColibriError | None:
        """Life of one child. None means that there shall be no further one."""
        try:
            child = _Child(self._spec)
        except OSError as error:
            return WorkerLostError(f"the engine process could not be started: {error}")
        self._child = child
        threads = [
            threading.Thread(target=self._read_events, args=(child,), name="engine-events"),
            threading.Thread(target=self._read_errors, args=(child,), name="engine-log"),
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        self._watch(child)
        stopping = self._stopping.is_set()
        if stopping:
            self._end(child)
        for thread in threads:
            thread.join(self._rules.stop_seconds)
        self._child = None
        child.close()
        if stopping:
            self._fail_jobs(WorkerUnavailableError("the server is being stopped."))
            return None
        if self._state == "failed":
            return None  # LoadFailed: the same files would fail again
        return self._death(child)

    def _watch(self, child: _Child) -> None:
        """Returns when the child has ended or shall be ended."""
        progress, since = -1, time.monotonic()
        while child.process.poll() is None and not self._stopping.wait(self._rules.poll_seconds):
            child.measure()
            if not self._sinks:
                progress, since = -1, time.monotonic()
                continue
            snapshot = self.snapshot(timeout=self._rules.poll_seconds)
            if snapshot is not None and snapshot.progress != progress:
                progress, since = snapshot.progress, time.monotonic()
            elif self._state == "ready" and time.monotonic() - since > self._rules.hang_seconds:
                log.error("the engine process makes no progress; it is killed")
                child.killed_as_hung = True
                child.process.kill()
                child.process.wait()

    def _end(self, child: _Child) -> None:
        """Asks, then insists."""
        try:
            child.send(Stop())
        except (OSError, ValueError):
            log.debug("the engine process ended by itself")
        for insist in (child.process.terminate, child.process.kill):
            try:
                child.process.wait(self._rules.stop_seconds)
                return
            except subprocess.TimeoutExpired:
                insist()
        child.process.wait()

    def _death(self, child: _Child) -> ColibriError:
        """What to tell about a child that ended by itself."""
        code = child.process.returncode
        budget = self._info.memory_budget if self._info else 0
        held = f"it held {_gigabytes(child.rss_bytes)}" if child.rss_bytes else ""
        if held and budget:
            held += f" of a budget of {_gigabytes(budget)}"
        hint = "The engine is being restarted; send the request again."
        if child.killed_as_hung:
            seconds = f"{self._rules.hang_seconds:g}"
            text = f"the engine made no progress for {seconds} seconds and was ended"
        elif code == -signal.SIGKILL if os.name == "posix" else False:
            text = "the engine process was killed (signal 9), likely because memory ran out"
            hint += " If it happens again, choose a smaller --ctx or a smaller model."
        elif code < 0:
            text = f"the engine process crashed (signal {-code}, {signal.Signals(-code).name})"
        else:
            text = f"the engine process ended unexpectedly with exit code {code}"
        for line in child.last_words:
            log.error("last words of the engine process: %s", line)
        return WorkerLostError(f"{text}; {held}" if held else text, hint=hint)

    def _note_crash(self, failure: ColibriError, backoff: float) -> float:
        """Ends the jobs in flight; returns how long to wait before the next child."""
        log.error("%s", failure)
        # A prompt that ran twice at one crash has been at one crash.
        self._suspects.update({self._in_flight.get(job, b"") for job in tuple(self._sinks)})
        self._in_flight.clear()
        now = time.monotonic()
        self._crashes.append(now)
        while now - self._crashes[0] > self._rules.crash_window_seconds:
            self._crashes.popleft()
        self._restarts += 1
        if len(self._crashes) < self._rules.crash_limit:
            self._set_state("restarting", failure)
            self._fail_jobs(failure)
            return backoff
        minutes = f"{self._rules.crash_window_seconds / 60:g}"
        given_up = WorkerUnavailableError(
            f"the engine crashed {len(self._crashes)} times within {minutes} minutes, "
            f"most recently: {failure.message}",
            hint="See the server's log; restart the server to try again at once.",
        )
        self._set_state("failed", given_up)
        self._fail_jobs(failure)
        return self._rules.crash_window_seconds - (now - self._crashes[0])

    # ---- threads of one child ----

    def _read_events(self, child: _Child) -> None:
        try:
            while (event := read_frame(child.events, Event)) is not None:
                self._dispatch(event)
        except (FrameError, OSError, ValueError) as error:
            if child.process.poll() is None:
                log.error("the engine process cannot be understood: %s", error)
                child.process.kill()

    def _read_errors(self, child: _Child) -> None:
        for raw in child.errors:
            line = raw.decode("utf-8", "replace").rstrip()
            child.last_words.append(line)
            level, text = _leveled(line)
            child_log.log(level, "%s", text)
