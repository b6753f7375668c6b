"""A client's connection while its request is answered: is it still there, and WebSockets.

For: everything that waits while nothing is written. A write would notice, but a long prompt
writes nothing, and a generation without a reader must not go on. Not for: servers that hide their
socket; there the answer is always "still there". Threads: `client_gone` belongs to the thread that
serves the request; an `UpgradedSocket` may be used by several.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

# poll where there is one: select fails on descriptors from 1024 up.
_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)
# Tells a closed connection also behind a request that the client has sent ahead.
_HANG_UP = getattr(select, "POLLRDHUP", 0)
_SEND_SECONDS = 20.0


def client_gone(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether the client of this request has closed its connection."""
    connection = environ.get("werkzeug.socket")
    if not isinstance(connection, socket.socket):
        return lambda: False

    def gone() -> bool:
        try:
            if _HANG_UP:
                poll = select.poll()
                poll.register(connection, _HANG_UP)
                return bool(poll.poll(0))
            with _Selector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                readable = bool(selector.select(0))
            # Readable and empty is a closed connection; data is a next request.
            return readable and connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    return gone


class UpgradedSocket:
    """A connection that became a WebSocket, with as much of a socket as a WebSocket needs.

    `taken` is true once something has been sent on it, so the app has answered by itself. `send`
    sends all or raises within 20 seconds, also if the client takes nothing; pieces that several
    threads send are never mixed. `recv` waits as long as it takes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.taken = False
        self._connection = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, data: bytes) -> int:
        self.taken = True
        deadline = time.monotonic() + _SEND_SECONDS
        left = memoryview(data)
        with self._sending:
            self._connection.setblocking(False)
            while left:
                try:
                    left = left[self._connection.send(left) :]
                except (BlockingIOError, InterruptedError):
                    self._wait(selectors.EVENT_WRITE, deadline - time.monotonic())
        return len(data)

    def recv(self, size: int) -> bytes:
        while True:
            try:
                self._connection.setblocking(False)
                return self._connection.recv(size)
            except (BlockingIOError, InterruptedError):
                self._wait(selectors.EVENT_READ, None)

    def hang_up(self) -> None:
        """Ends it from outside; whoever waits on it wakes up."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    close = hang_up  # the server closes it, after the request's thread is done with it

    def _wait(self, event: int, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            raise TimeoutError("the client of a WebSocket takes nothing")
        try:
            with _Selector() as selector:
                selector.register(self._connection, event)
                ready = selector.select(seconds)
        except ValueError as error:
            raise OSError("the connection is closed") from error
        if not ready:
            raise TimeoutError("the client of a WebSocket takes nothing")
