"""The front of the HTTP server: one thread that holds every connection nobody works on.

For: `server`, which gets whole requests from it and gives connections back. Not for: answers of the
app; the front itself only refuses.

    idle --first byte--> head --complete--> body --complete--> handed over --answered--> idle
      |                   |                  |                     `--to be closed--> leaving
      `- closed in time   `- 408, closed     `- 408, closed                             (drained)

A connection costs no thread until its request is there as a whole, so neither idle clients nor slow
ones delay others. Connections, bytes that wait in memory, and time are bounded (`Limits`); where
room is needed, who has been silent longest goes first. A request that is going to be refused
(`refuses`) is handed over without its body, which is drained after the answer: closing over unread
bytes would destroy the answer on its way.

A connection is kept for further requests. What the client has sent ahead stays in its buffer until
its turn; a body is always consumed whole or the connection is closed, so it never becomes a
request.

Threads: `run` is the front's thread and owns all state; `give_back` and `stop` may be called from
any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from colibri.api import errors
from colibri.api.body import MAX_BODY_BYTES
from colibri.api.ids import new_request_id
from colibri.api.wire import MAX_HEAD_BYTES, Body, Head, take_head
from colibri.errors import ColibriError, ProtocolError, WorkerUnavailableError
from colibri.logs import request_id

log = logging.getLogger(__name__)

_READ_BYTES = 256 << 10
_SWEEP_SECONDS = 0.25
_ACCEPTS_AT_ONCE = 64
# Without a descriptor to spare, accepting would only spin.
_ACCEPT_PAUSE_SECONDS = 0.2
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server; times in seconds.

    `connections` open at once; `handlers` that work at once; `held_bytes` of requests that are not
    complete. A connection may be silent for `idle` before a request; a head has `head` to arrive;
    a body may pause for `pause` and has `body` in all; an answer that nobody takes is given up
    after `write`; what a refused client still sends is drained for `linger`.
    """

    connections: int = 4096
    handlers: int = 160
    held_bytes: int = 256 << 20
    idle: float = 75.0
    head: float = 15.0
    pause: float = 15.0
    body: float = 600.0
    write: float = 60.0
    linger: float = 2.0


class State(Enum):
    """Where a connection stands; see the module's text."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    HANDED_OVER = auto()
    LEAVING = auto()


class After(Enum):
    """What becomes of a connection after its answer."""

    KEEP = auto()  # for another request
    DRAIN = auto()  # closed once the client has taken the answer
    CLOSE = auto()  # at once: there is nobody any more


class Connection:
    """A client's connection and what it has sent; `head` and `body` are those of its request."""

    __slots__ = (
        "address",
        "body",
        "buffer",
        "head",
        "held",
        "scanned",
        "since",
        "socket",
        "state",
        "touched",
    )

    def __init__(self, sock: socket.socket, address: tuple[str, int], now: float) -> None:
        self.socket = sock
        self.address = address
        self.buffer = bytearray()
        self.scanned = 0
        self.head: Head | None = None
        self.body: Body | None = None
        self.held = 0
        self.state = State.IDLE
        self.since = self.touched = now


def victim(connections: Iterable[Connection]) -> Connection | None:
    """Who makes room: a client that leaves, else an idle one, else the one that is silent longest.

    Nobody whose request is being worked on; None if there are only such.
    """
    order = {State.LEAVING: 0, State.IDLE: 1, State.HEAD: 2, State.BODY: 2}
    waiting = [one for one in connections if one.state in order]
    return min(waiting, key=lambda one: (order[one.state], one.touched), default=None)


class Front:
    """See the module's text. `begin` takes over a connection with a whole request and returns at
    once; `refuses` judges a head. Takes over the listening socket.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: Limits,
        begin: Callable[[Connection], None],
        refuses: Callable[[Connection], bool],
    ) -> None:
        self._listener = listener
        self._limits = limits
        self._begin = begin
        self._refuses = refuses
        self._connections: dict[int, Connection] = {}
        self._held = 0
        self._handlers = 0
        self._paused_until = 0.0
        self._told_full = 0.0
        self._returned: deque[tuple[Connection, After]] = deque()
        self._lock = threading.Lock()  # guards `_returned` against the end of `run`
        self._stopping = threading.Event()
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    # ---- from any thread ----

    def stop(self) -> None:
        """Ends `run` soon."""
        self._stopping.set()
        self._wake()

    def give_back(self, connection: Connection, after: After) -> None:
        """Returns a connection whose request has been answered."""
        with self._lock:
            if not self._ended:
                self._returned.append((connection, after))
                self._wake()
                return
        self._close_late(connection)

    def close(self) -> None:
        """Closes what is not in use. For a front that has not been started, or has ended."""
        with self._lock:
            self._ended = True
        for connection in [one for one, _ in self._returned]:
            self._close_late(connection)
        self._returned.clear()
        for connection in list(self._connections.values()):
            if connection.state is not State.HANDED_OVER:
                connection.socket.close()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.close()
        self._selector.close()

    def _wake(self) -> None:
        # Full means that it is awake already, closed that it has ended.
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    @staticmethod
    def _close_late(connection: Connection) -> None:
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.close()

    # ---- the front's thread ----

    def run(self) -> None:
        """Serves until `stop`."""
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(_SWEEP_SECONDS):
                    if isinstance(key.data, Connection):
                        self._guarded(key.data, self._readable)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._drain_wakes()
                self._take_back()
                now = time.monotonic()
                if now >= sweep_at:
                    sweep_at = now + _SWEEP_SECONDS
                    self._sweep(now)
        finally:
            self.close()

    def _drain_wakes(self) -> None:
        with contextlib.suppress(OSError):
            while self._wake_read.recv(4096):
                pass

    def _guarded(self, connection: Connection, step: Callable[[Connection], None]) -> None:
        """Whatever a step raises ends its connection alone."""
        try:
            step(connection)
        except ProtocolError as error:
            self._refuse(connection, error)
        except OSError:
            self._close(connection)
        except Exception:
            log.exception("a connection ended on an internal error")
            self._close(connection)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM and self._make_room(error):
                    continue
                # Otherwise no one is waiting, or the client has already left.
                return
            if len(self._connections) >= self._limits.connections:
                self._shed()  # if it can; otherwise the new one is refused below
            connection = Connection(sock, (str(address[0]), int(address[1])), time.monotonic())
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(sock, selectors.EVENT_READ, connection)
            except (OSError, ValueError):
                sock.close()
                continue
            self._connections[id(connection)] = connection
            if len(self._connections) > self._limits.connections:
                self._refuse(connection, _too_many())

    def _make_room(self, error: OSError) -> bool:
        """The system has no descriptor left. True if somebody could go; else accepting rests."""
        now = time.monotonic()
        if now - self._told_full > 10:  # noqa: PLR2004 - seconds between two lines
            self._told_full = now
            log.warning("no more connections can be taken: %s", error.strerror)
        if self._shed():
            return True
        self._selector.unregister(self._listener)
        self._paused_until = now + _ACCEPT_PAUSE_SECONDS
        return False

    def _shed(self) -> bool:
        silent = victim(self._connections.values())
        if silent is None:
            return False
        log.info("a silent connection makes room for another one")
        self._close(silent)
        return True

    def _readable(self, connection: Connection) -> None:
        reading_body = connection.state in (State.BODY, State.LEAVING)
        try:
            data = connection.socket.recv(_READ_BYTES if reading_body else MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            if connection.state in (State.HEAD, State.BODY):
                log.info("a client left before its request was complete")
            self._close(connection)
            return
        if connection.state is State.LEAVING:
            return
        connection.buffer += data
        connection.touched = time.monotonic()
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Goes on with what is in the buffer, as far as it goes."""
        if connection.state in (State.IDLE, State.HEAD):
            head = take_head(connection.buffer, connection.scanned)
            connection.scanned = len(connection.buffer)
            if head is None:
                if connection.state is State.IDLE and connection.buffer:
                    connection.state, connection.since = State.HEAD, connection.touched
                self._account(connection)
                return
            self._judge(connection, head)
        if connection.state is State.BODY:
            assert connection.body is not None  # noqa: S101 - set with the state
            if connection.body.feed(connection.buffer):
                self._hand_over(connection)
            else:
                self._account(connection)

    def _judge(self, connection: Connection, head: Head) -> None:
        """After the head: is the body wanted?"""
        connection.head, connection.scanned = head, 0
        connection.body = Body(head.length, MAX_BODY_BYTES)
        if connection.body.too_large or self._refuses(connection):
            connection.body.refused = True
            self._hand_over(connection)
            return
        connection.state, connection.since = State.BODY, connection.touched
        if head.length == 0:
            return
        if head.expects_continue and not connection.buffer:
            connection.socket.send(_CONTINUE)

    def _hand_over(self, connection: Connection) -> None:
        if self._handlers >= self._limits.handlers:
            log.warning("%d requests are being worked on; one more was refused", self._handlers)
            self._refuse(connection, _too_many())
            return
        self._selector.unregister(connection.socket)
        connection.state = State.HANDED_OVER
        self._account(connection)
        self._handlers += 1
        connection.socket.settimeout(self._limits.write)
        try:
            self._begin(connection)
        except RuntimeError:  # no thread to be had
            self._handlers -= 1
            connection.socket.setblocking(False)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._refuse(connection, _too_many())

    def _take_back(self) -> None:
        while self._returned:
            connection, after = self._returned.popleft()
            self._handlers -= 1
            self._guarded(connection, partial(self._resume, after))

    def _resume(self, after: After, connection: Connection) -> None:
        connection.head = connection.body = None
        connection.since = connection.touched = time.monotonic()
        if after is After.CLOSE:
            self._close(connection)
            return
        connection.socket.setblocking(False)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        if after is After.DRAIN:
            self._leave(connection)
            return
        connection.state = State.IDLE
        if connection.buffer:
            self._advance(connection)

    def _refuse(self, connection: Connection, error: ColibriError) -> None:
        """Answers a request that never gets to the app."""
        head = connection.head
        token = request_id.set(new_request_id(head.get("x-request-id") if head else None))
        try:
            status, headers, data = errors.render(error, head.path if head else "")
            headers += [("x-request-id", request_id.get()), ("Connection", "close")]
            log.info("a request was refused with %s: %s", status, error.message)
        finally:
            request_id.reset(token)
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
        answer = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        try:
            # One small packet into an empty buffer: it fits, or nobody takes it anyway.
            connection.socket.send(answer if head and head.method == "HEAD" else answer + data)
        except OSError:
            self._close(connection)
            return
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """No more answers; what still comes is drained, so that the last one arrives."""
        connection.state = State.LEAVING
        connection.since = time.monotonic()
        connection.buffer.clear()
        connection.body = None
        self._account(connection)
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(id(connection), None) is None:
            return
        self._held -= connection.held
        # Not registered while it was handed over.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        with contextlib.suppress(OSError):
            # Wakes whatever thread of a WebSocket still waits on it.
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()

    def _account(self, connection: Connection) -> None:
        """Keeps count of what is held in memory; too much costs who has been silent longest."""
        held = 0
        if connection.state in (State.IDLE, State.HEAD, State.BODY):
            held = len(connection.buffer) + (len(connection.body.data) if connection.body else 0)
        self._held += held - connection.held
        connection.held = held
        while self._held > self._limits.held_bytes:
            holders = [one for one in self._connections.values() if one.held]
            silent = min(holders, key=lambda one: one.touched)
            log.warning("requests that are not complete take too much memory; one is refused")
            self._refuse(silent, _too_many())

    def _sweep(self, now: float) -> None:
        """Ends what has taken too long."""
        limits = self._limits
        if self._paused_until and now >= self._paused_until:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection in list(self._connections.values()):
            age = now - connection.since
            if connection.state is State.IDLE:
                if age > limits.idle:
                    self._close(connection)
            elif connection.state is State.HEAD:
                if age > limits.head:
                    self._refuse(connection, _too_slow())
            elif connection.state is State.BODY:
                if age > limits.body or now - connection.touched > limits.pause:
                    self._refuse(connection, _too_slow())
            elif connection.state is State.LEAVING and age > limits.linger:
                self._close(connection)


def _too_many() -> ColibriError:
    return WorkerUnavailableError("Too many connections are open.", code="too_many_connections")


def _too_slow() -> ColibriError:
    return ProtocolError("The request did not arrive in time.", status=408, code="request_timeout")
