"""Starts the sidecar, keeps it running and ends it; knows no window.

For: `shell`. Not for: what the sidecar does; from its handshake on everybody speaks HTTP to it.

    supervisor thread   starts the sidecar, reads its handshake, waits for its end, starts it again
                        after a wait (`restarts`)
    two reader threads  one per child: stdout (handshake, then noise) and stderr (log, last words)

The sidecar's stdin is a pipe that nobody writes to after the first line. It closes when this
process is gone, however it went, and the sidecar then leaves by itself; so `stop` begins with
closing it, which works everywhere, and insists after that. `on_change` is called from the
supervisor's threads with every new state. Other methods: any thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

from colibri_app import sidecar
from colibri_app.handshake import Handshake, Wishes, encode, is_handshake, parse_handshake
from colibri_app.restarts import Restarts

log = logging.getLogger(__name__)
sidecar_log = logging.getLogger("colibri_app.sidecar_output")

LAST_WORDS: Final = 30
# From the start to the handshake: a cold disk and a busy machine are slow, a hung process is
# slower.
HANDSHAKE_SECONDS: Final = 60.0
# What each way of ending it gets before the next, harder one.
CLOSE_SECONDS: Final = 3.0
TERMINATE_SECONDS: Final = 1.0
# A server that was there before is looked at this often, and given up after some silence.
LOOK_SECONDS: Final = 2.0
_MOST_SILENCES: Final = 3


@dataclass(frozen=True, slots=True)
class State:
    """What is to be told about the sidecar.

    starting   no handshake yet          running   `handshake` says where
    waiting    ended; starts again in `wait_seconds`
    failed     ended, and is not started again by itself     stopped   on our wish
    """

    name: Literal["starting", "running", "waiting", "failed", "stopped"]
    handshake: Handshake | None = None
    problem: str = ""
    last_words: tuple[str, ...] = ()
    wait_seconds: float = 0.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    started: float
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))
    greeted: threading.Event = field(default_factory=threading.Event)
    handshake: Handshake | None = None
    readers: tuple[threading.Thread, ...] = ()


class Supervisor:
    """See the module's text. `command` starts the sidecar; `arguments` follow it."""

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        *,
        on_change: Callable[[State], None],
        record: Path | None = None,
        environ: Mapping[str, str] | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self._command = tuple(command)
        self.arguments = tuple(arguments)
        self._on_change = on_change
        self._record = record
        self._environ = environ
        self._restarts = restarts or Restarts()
        self._ports: tuple[int, ...] = remembered_ports(record)
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._again = threading.Event()  # a person asks for a start now
        self._thread: threading.Thread | None = None
        self.state = State("starting")

    def start(self) -> None:
        """Starts the sidecar and the thread that keeps it."""
        self._thread = threading.Thread(target=self._run, name="sidecar-supervisor", daemon=True)
        self._thread.start()

    def restart(self, arguments: Sequence[str] | None = None) -> None:
        """Ends the sidecar, if there is one, and starts it at once, with these arguments now."""
        with self._lock:
            if arguments is not None:
                self.arguments = tuple(arguments)
            self._restarts.forget()
            self._again.set()
            child = self._child
        if child is not None:
            _end(child.process)

    def stop(self) -> None:
        """Ends the sidecar, for good; takes some seconds at most. A server that was there before
        goes on.
        """
        self._stopping.set()
        self._again.set()
        with self._lock:
            child = self._child
        if child is not None:
            _end(child.process)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    # ---- the supervisor's thread ----

    def _tell(self, state: State) -> None:
        self.state = state
        try:
            self._on_change(state)
        except Exception:
            log.exception("the sidecar's state %s could not be told", state.name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._again.clear()
            self._tell(State("starting"))
            wait = self._one_life()
            if wait is None:
                self._again.wait()  # for a person
            else:
                self._again.wait(wait)
        self._tell(State("stopped"))

    def _one_life(self) -> float | None:
        """From start to end of one sidecar. Seconds until the next; None: a person decides."""
        started = time.monotonic()
        try:
            child = self._spawn()
        except OSError as error:
            self._tell(State("failed", problem=f"the server could not be started: {error}"))
            return None
        heard = child.greeted.wait(HANDSHAKE_SECONDS)
        if heard and child.handshake is not None:
            self._greet(child)
        elif not _ends_within(child.process, CLOSE_SECONDS if heard else 0):
            child.last_words.append(
                f"(the server did not say where it is within {HANDSHAKE_SECONDS:g} seconds)"
            )
            _end(child.process)
        code = child.process.wait()
        with contextlib.suppress(OSError):
            cast(BinaryIO, child.process.stdin).close()
        if child.handshake is not None and child.handshake.reused and code == 0:
            self._watch_foreign(child.handshake)
            return 0.0
        for reader in child.readers:
            reader.join(TERMINATE_SECONDS)
        with self._lock:
            self._child = None
        return self._judge(child, code, started)

    def _judge(self, child: _Child, code: int, started: float) -> float | None:
        if self._stopping.is_set() or self._again.is_set():
            return 0.0
        wait = self._restarts.after(code, started=started, now=time.monotonic())
        problem = describe_end(code)
        log.error("%s; %s", problem, "giving up" if wait is None else f"again in {wait:g} s")
        words = tuple(child.last_words)
        if wait is None:
            self._tell(State("failed", problem=problem, last_words=words))
        else:
            self._tell(State("waiting", problem=problem, last_words=words, wait_seconds=wait))
        return wait

    def _spawn(self) -> _Child:
        with self._lock:
            if self._stopping.is_set():
                raise OSError("the app is being closed")
            windows = {} if os.name == "posix" else {"creationflags": 0x08000000}  # no console
            # A group of its own: a Ctrl-C in the terminal is for the window, which then ends it.
            group = {"start_new_session": True} if os.name == "posix" else {}
            process = subprocess.Popen(  # noqa: S603 - our own program
                [*self._command, *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._environ if self._environ is not None else os.environ),
                **group,  # type: ignore[call-overload]
                **windows,
            )
            child = _Child(process, time.monotonic())
            self._child = child
        log.info("the server was started as process %d", process.pid)
        # Its own options mean a server of its own; without any, one that runs is as good.
        wishes = Wishes(ports=self._ports, reuse=not self.arguments)
        with contextlib.suppress(OSError):
            stdin = cast(BinaryIO, process.stdin)
            stdin.write(encode(wishes))
            stdin.flush()
        child.readers = (
            threading.Thread(target=_read_output, args=(child,), name="sidecar-stdout"),
            threading.Thread(target=_read_errors, args=(child,), name="sidecar-stderr"),
        )
        for reader in child.readers:
            reader.daemon = True
            reader.start()
        return child

    def _greet(self, child: _Child) -> None:
        handshake = child.handshake
        assert handshake is not None  # noqa: S101 - asked before
        said = sidecar.instance_of(handshake.url)
        if said != handshake.instance:
            # Something else answers there, whatever the handshake says.
            child.last_words.append(f"(another server answers at {handshake.url})")
            _end(child.process)
            return
        self._ports = (handshake.port,)
        if self._record is not None and not handshake.reused:
            write_record(self._record, handshake)
        self._tell(State("running", handshake))

    def _watch_foreign(self, handshake: Handshake) -> None:
        """Returns when a server that we did not start has gone, or when we are told to stop."""
        silences = 0
        with self._lock:
            self._child = None
        while silences < _MOST_SILENCES and not self._again.wait(LOOK_SECONDS):
            here = sidecar.instance_of(handshake.url) == handshake.instance
            silences = 0 if here else silences + 1
        if silences:
            log.info("the server at %s has gone", handshake.url)


def describe_end(code: int) -> str:
    """How a process ended, as words for people."""
    if code < 0:
        return f"the server was ended by signal {-code}"
    return f"the server ended with exit code {code}"


def remembered_ports(record: Path | None) -> tuple[int, ...]:
    """The port of last time: the page's storage belongs to an address, port included."""
    known = read_record(record)
    return (known.port,) if known is not None else ()


def read_record(record: Path | None) -> Handshake | None:
    """The handshake of the sidecar that was started last; None where nothing sensible is kept."""
    try:
        return parse_handshake(record.read_bytes()) if record is not None else None
    except (OSError, ValueError):
        return None


def write_record(record: Path, handshake: Handshake) -> None:
    """Keeps the handshake, without its token. A record that cannot be kept costs nothing now."""
    data = json.loads(encode(handshake))
    data["token"] = None
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        partial = record.with_name(f"{record.name}.{os.getpid()}")
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(record)
    except OSError as error:
        log.warning("%s cannot be written: %s", record, error)


def end_stale(record: Path) -> bool:
    """Ends the sidecar of an app that is gone, if it still answers; whether there was one.

    Its stdin ended with its app, so it is on its way out. Only what proves to be that very server
    is ended: the process id alone may mean another program by now. Call with the instance's lock
    held.
    """
    known = read_record(record)
    if known is None or sidecar.instance_of(known.url) != known.instance:
        return False
    log.warning("ending the server of an app that is gone (process %d)", known.pid)
    deadline = time.monotonic() + CLOSE_SECONDS
    while time.monotonic() < deadline:
        if sidecar.instance_of(known.url) != known.instance:
            return True
        time.sleep(0.1)
    with contextlib.suppress(OSError):
        os.kill(known.pid, 9 if os.name == "posix" else 15)
    return True


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """A process that ends closes its stdout a moment before it is gone."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks by closing its stdin, then insists."""
    with contextlib.suppress(OSError):
        cast(BinaryIO, process.stdin).close()
    for seconds, insist in ((CLOSE_SECONDS, process.terminate), (TERMINATE_SECONDS, process.kill)):
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            log.warning("the server (process %d) does not leave", process.pid)
            insist()
    process.wait()


def _read_output(child: _Child) -> None:
    """Finds the handshake, and keeps reading so that the pipe never fills."""
    with cast(BinaryIO, child.process.stdout) as stream:
        for line in stream:
            if child.handshake is None and is_handshake(line):
                try:
                    child.handshake = parse_handshake(line)
                except ValueError as error:
                    log.error("the server's handshake is wrong: %s", error)
                child.greeted.set()
            else:
                sidecar_log.info("%s", line.decode("utf-8", "replace").rstrip())
    child.greeted.set()


def _read_errors(child: _Child) -> None:
    with cast(BinaryIO, child.process.stderr) as stream:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip()
            child.last_words.append(line)
            sidecar_log.info("%s", line)
