"""The HTTP server: Werkzeug's threaded one, hardened for a local machine.

For: `coli serve`, `sidecar` and tests that want real sockets. One thread per connection, one
request per connection; a blocking engine call in one of them delays nobody. Not for: the open
internet.

    connections   at most MAX_CONNECTIONS at once, further ones are answered 503
    reading       a client that sends nothing for READ_SECONDS is cut off
    writing       a client that takes nothing for WRITE_SECONDS is cut off
    framing       contradicting lengths are refused; an early answer is followed by a drained
    close, so that
                  it arrives even if the client was still sending
    leaving       a client that goes away is one line in the log

`serve` runs until `stop`, which may be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from colibri import __version__
from colibri.api import errors
from colibri.errors import (
    ColibriError,
    PortInUseError,
    RequestError,
    UsageError,
    WorkerUnavailableError,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 160
READ_SECONDS = 10
WRITE_SECONDS = 60
LINGER_SECONDS = 1.0
_BACKLOG = 128
_CHUNK = 1 << 16
_BAD_STATUS = 400
# Answers without a body, besides those to HEAD.
_BODILESS = frozenset({204, 304})


class _Answer:
    """One response on the wire; WSGI's start_response and write."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self._status = 0
        self._reason = ""
        self._headers: list[tuple[str, str]] = []
        self._chunked = False
        self.started = False

    @property
    def status(self) -> int:
        return self._status

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if exc_info and self.started:
            raise exc_info[1].with_traceback(exc_info[2])
        code, _, self._reason = status.partition(" ")
        self._status, self._headers = int(code), headers
        return self.write

    def write(self, data: bytes) -> None:
        """Sends the head with the first piece; every piece goes out in one packet."""
        out = b"" if self.started else self._head()
        if data and self._chunked:
            out += b"%x\r\n%b\r\n" % (len(data), data)
        else:
            out += data
        if out:
            self._handler.wfile.write(out)

    def finish(self) -> None:
        if not self.started:
            self.write(b"")
        if self._chunked:
            self._handler.wfile.write(b"0\r\n\r\n")

    def _head(self) -> bytes:
        self.started = True
        self._handler.connection.settimeout(WRITE_SECONDS)
        names = {name.lower() for name, _ in self._headers}
        bodiless = self._handler.command == "HEAD" or self._status in _BODILESS
        lines = [f"HTTP/1.1 {self._status} {self._reason}"]
        lines += [f"{name}: {value}" for name, value in self._headers]
        lines += [f"Server: colibri/{__version__}", "Connection: close"]
        if "date" not in names:
            lines.append(f"Date: {self._handler.date_time_string()}")
        if not bodiless and "content-length" not in names:
            self._chunked = self._handler.request_version >= "HTTP/1.1"
            if self._chunked:
                lines.append("Transfer-Encoding: chunked")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class _Handler(WSGIRequestHandler):
    """One connection: one request, one answer, close."""

    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        self.close_connection = True
        started = time.monotonic()
        answer = _Answer(self)
        problem = self._framing_problem()
        try:
            if problem:
                self._refuse(answer, RequestError(problem, code="bad_framing"))
            else:
                self._call_app(answer)
        except (ConnectionError, TimeoutError) as error:
            log.info(
                "%s %s: the client left (%s)", self.command, self._path(), type(error).__name__
            )
            return
        milliseconds = (time.monotonic() - started) * 1000
        log.info("%s %s %d in %.0f ms", self.command, self._path(), answer.status, milliseconds)
        if answer.status >= _BAD_STATUS and self._announces_body():
            self._drain()

    def _call_app(self, answer: _Answer) -> None:
        pieces: Iterable[bytes] = ()
        try:
            pieces = self.server.app(self.make_environ(), answer.start)
            for data in pieces:
                answer.write(data)
            answer.finish()
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("a request failed outside the app")
            if not answer.started:
                self._refuse(answer, ColibriError("The server met an internal error."))
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()

    def _framing_problem(self) -> str | None:
        """Why the body's length cannot be trusted, or None; a guess could make a body a request."""
        lengths = self.headers.get_all("Content-Length", [])
        coding = self.headers.get("Transfer-Encoding")
        if coding is not None and (lengths or coding.strip().lower() != "chunked"):
            return "Transfer-Encoding must be chunked alone, without Content-Length."
        if len(set(lengths)) > 1 or any(not text.strip().isdecimal() for text in lengths):
            return "Content-Length must be one non-negative number."
        return None

    def _announces_body(self) -> bool:
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _refuse(self, answer: _Answer, error: ColibriError) -> None:
        body = msgspec.json.encode(errors.body(error))
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        answer.start(f"{error.http_status} Error", headers)
        answer.write(body)

    def _drain(self) -> None:
        """Takes what the client still sends: closing over unread bytes would destroy our answer."""
        deadline = time.monotonic() + LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_SECONDS)
            while time.monotonic() < deadline and self.connection.recv(_CHUNK):
                pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The base class's refusals (bad request line, endless header) in our shape."""
        self.close_connection = True
        answer = _Answer(self)
        if not hasattr(self, "command") or self.command is None:
            self.command, self.request_version = "", "HTTP/1.0"
        error = RequestError(message or "The request cannot be understood.", code="bad_request")
        body = msgspec.json.encode(errors.body(error))
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        answer.start(f"{code} Error", headers)
        with contextlib.suppress(OSError):
            answer.write(body)
        log.info("a malformed request was refused with %d", code)

    def _path(self) -> str:
        # Without the query, which may hold what is nobody's business.
        return str(getattr(self, "path", "?")).partition("?")[0][:200]

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        log.info("a client left (%s)", type(error).__name__)

    def log(self, type: str, message: str, *args: Any) -> None:
        log.debug(message.rstrip(), *args)


class HttpServer(ThreadedWSGIServer):
    """See the module's text. Takes over a listening socket of `listen` and closes it at the end."""

    daemon_threads = True

    def __init__(self, app: WSGIApplication, listener: socket.socket) -> None:
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open = 0
        self._changed = threading.Condition()
        host, port = listener.getsockname()[:2]
        with listener:
            super().__init__(host, port, app, _Handler, fd=listener.fileno())

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host, port = self.server_address[:2]
        name = str(host)
        if name in ("0.0.0.0", "::"):  # noqa: S104 - told apart, not bound
            name = "127.0.0.1"
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def serve(self) -> None:
        """Answers until `stop`."""
        self.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Ends `serve` and closes the listening socket; answers that are being given go on."""
        self.shutdown()

    def wait_idle(self, timeout: float) -> bool:
        """Waits until no answer is being given any more; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def serve_forever(self, poll_interval: float = 0.1) -> None:
        try:
            super().serve_forever(poll_interval)
        finally:
            self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            log.warning("%d connections are open; one more was refused", MAX_CONNECTIONS)
            self._turn_away(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._open += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
            self._slots.release()

    def _turn_away(self, request: socket.socket) -> None:
        error = WorkerUnavailableError(
            "Too many connections are open.", code="too_many_connections"
        )
        body = msgspec.json.encode(errors.body(error))
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            request.settimeout(0.2)
            request.sendall(head.encode() + body)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("a connection ended on an internal error")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortInUseError or UsageError naming address and remedy."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error}.", where="--host"
        ) from error
    listener = socket.socket(family, kind)
    try:
        if os.name == "posix":
            # A restart must not wait for old connections to be forgotten. Elsewhere this option
            # would let two servers share a port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            reason = "in use" if error.errno == errno.EADDRINUSE else "reserved"
            raise PortInUseError(
                f"port {port} on {host} is {reason}.",
                hint="Stop the program that listens there, or choose another port with --port.",
            ) from error
        raise UsageError(f"cannot listen on {host}: {error.strerror}.", where="--host") from error
    return listener
