"""The HTTP server: a front that waits for requests, and a thread for each one that is answered.

For: `coli serve`, `sidecar` and tests that want real sockets. A blocking engine call in one thread
delays nobody. Not for: the open internet.

    waiting       idle connections, half-sent requests and slow clients cost no thread (`front`)
    working       at most `Limits.handlers` requests at once, further ones are answered 503
    writing       a client that takes nothing for `Limits.write` seconds is cut off
    leaving       a client that goes away is one line in the log
    WebSockets    the app finds the connection in its environ (`werkzeug.socket`) and answers itself

`serve` runs until `stop`, which may be called from any thread.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from colibri import __version__
from colibri.api import errors
from colibri.api.body import MAX_BODY_BYTES
from colibri.api.connection import UpgradedSocket
from colibri.api.front import After, Connection, Front, Limits
from colibri.api.ids import new_request_id
from colibri.api.wire import Head
from colibri.errors import ColibriError, PortInUseError, ProtocolError, UsageError
from colibri.logs import request_id

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

_BACKLOG = 1024
# Descriptors that are not for connections: files of the model, pipes, the log.
_SPARE_DESCRIPTORS = 128
_SELECT_LIMIT = 400  # of sockets, where the system has nothing better than select
# Answers without a body, besides those to HEAD.
_BODILESS = frozenset({204, 304})
_WEBSOCKET_VERSION = "13"


def descriptor_limit() -> int:
    """How many connections the system lets this process have; raises the soft limit if it may."""
    if os.name != "posix":
        return _SELECT_LIMIT
    import resource  # noqa: PLC0415 - not everywhere

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Limits().connections + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
            soft = goal
        except (OSError, ValueError):
            log.info("the limit of open files stays at %d", soft)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(16, soft - min(_SPARE_DESCRIPTORS, soft // 2))


class _Answer:
    """One response on the wire; WSGI's start_response and write."""

    def __init__(self, sock: socket.socket, head: Head, keep: Callable[[], bool]) -> None:
        self._socket = sock
        self._head = head
        self._keep = keep
        self._status = 0
        self._reason = ""
        self._headers: list[tuple[str, str]] = []
        self._chunked = False
        self._bodiless = False
        self._left: int | None = None  # announced bytes that have not been written
        self.started = False
        self.kept = False

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
        out = b"" if self.started else self._open()
        if data and not self._bodiless:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            out += b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if out:
            self._socket.sendall(out)

    def finish(self) -> None:
        if not self.started:
            self.write(b"")
        if self._chunked:
            self._socket.sendall(b"0\r\n\r\n")
        if self._left and not self._bodiless:
            # The client waits for the rest and must not take the next answer for it.
            self.kept = False

    def give_up(self) -> None:
        """The connection ends with this answer."""
        self._keep = lambda: False
        self.kept = False

    def _open(self) -> bytes:
        self.started = True
        self.kept = self._keep()
        names = {name.lower(): value for name, value in self._headers}
        self._bodiless = self._head.method == "HEAD" or self._status in _BODILESS
        lines = [f"HTTP/1.1 {self._status} {self._reason}"]
        lines += [f"{name}: {value}" for name, value in self._headers]
        lines.append(f"Server: colibri/{__version__}")
        if "date" not in names:
            lines.append(f"Date: {formatdate(usegmt=True)}")
        if "content-length" in names:
            self._left = int(names["content-length"])
        elif not self._bodiless:
            self._chunked = self._head.version == "HTTP/1.1"
            if self._chunked:
                lines.append("Transfer-Encoding: chunked")
            self.kept &= self._chunked
        lines.append(f"Connection: {'keep-alive' if self.kept else 'close'}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class _Input(io.RawIOBase):
    """The body as WSGI's input; what has been read is no longer kept."""

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        # A slice of nothing would keep all of it.
        self._data = self._data[count:] if count < len(self._data) else memoryview(b"")
        return count


class HttpServer:
    """See the module's text. Takes over a listening socket of `listen` and closes it at the end.

    `refuses` judges a request by its head (environ without a body): the body of one that the app
    will refuse is not waited for. It runs in the front's thread, so it must be quick.
    """

    def __init__(
        self,
        app: WSGIApplication,
        listener: socket.socket,
        *,
        refuses: Callable[[WSGIEnvironment], bool] = lambda environ: False,
        limits: Limits | None = None,
    ) -> None:
        self.app = app
        self.server_address: tuple[Any, ...] = listener.getsockname()
        self._judge = refuses
        limits = limits or Limits()
        room = descriptor_limit()
        if room < limits.connections:
            limits = replace(limits, connections=room)
        self._front = Front(listener, limits, self._begin, self._refuses)
        self._open = 0
        self._sockets: set[UpgradedSocket] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._serving = False
        self._ended = threading.Event()

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
        self._serving = True
        try:
            self._front.run()
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Ends `serve`, closes the listening socket, what is idle, and WebSockets.

        Answers that are being given go on.
        """
        self._stopping = True
        self._front.stop()
        if self._serving:
            self._ended.wait()
        else:
            self._front.close()
        with self._changed:
            upgraded = list(self._sockets)
        for sock in upgraded:
            sock.hang_up()

    def wait_idle(self, timeout: float) -> bool:
        """Waits until no answer is being given any more; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    # ---- the front's thread ----

    def _refuses(self, connection: Connection) -> bool:
        try:
            return self._judge(self._environ(connection))
        except Exception:
            log.exception("a request could not be judged by its head")
            return False

    def _begin(self, connection: Connection) -> None:
        with self._changed:
            self._open += 1
        try:
            threading.Thread(
                target=self._answer, args=(connection,), name="request", daemon=True
            ).start()
        except RuntimeError:
            self._done()
            raise

    # ---- a request's thread ----

    def _done(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _answer(self, connection: Connection) -> None:
        after = After.CLOSE
        try:
            after = self._serve_one(connection)
        except Exception:
            log.exception("a connection ended on an internal error")
        finally:
            # First: whoever waits for idleness must find the answer sent.
            self._front.give_back(connection, after)
            self._done()

    def _serve_one(self, connection: Connection) -> After:
        """Answers the request of a connection and says what becomes of it."""
        head, body = connection.head, connection.body
        assert head is not None and body is not None  # noqa: S101 - handed over with both
        started = time.monotonic()
        # Without the query, which may hold what is nobody's business.
        path = head.path[:200]
        answer = _Answer(
            connection.socket,
            head,
            lambda: head.keep and not body.refused and not self._stopping,
        )
        upgraded = UpgradedSocket(connection.socket) if head.upgrades else None
        try:
            if upgraded is not None:
                with self._changed:
                    self._sockets.add(upgraded)
            self._call_app(connection, answer, upgraded)
        except (ConnectionError, TimeoutError) as error:
            log.info("%s %s: the client left (%s)", head.method, path, type(error).__name__)
            return After.CLOSE
        finally:
            if upgraded is not None:
                with self._changed:
                    self._sockets.discard(upgraded)
        milliseconds = (time.monotonic() - started) * 1000
        status = 101 if upgraded and upgraded.taken else answer.status
        log.info("%s %s %d in %.0f ms", head.method, path, status, milliseconds)
        return After.KEEP if answer.kept else After.DRAIN

    def _call_app(
        self, connection: Connection, answer: _Answer, upgraded: UpgradedSocket | None
    ) -> None:
        pieces: Iterable[bytes] = ()
        try:
            if upgraded is not None and not (connection.body and connection.body.refused):
                _check_websocket(connection)
            environ = self._environ(connection)
            environ["werkzeug.socket"] = upgraded or connection.socket
            pieces = self.app(environ, answer.start)
            if upgraded is not None and upgraded.taken:
                return
            for data in pieces:
                answer.write(data)
            answer.finish()
        except (ConnectionError, TimeoutError):
            raise
        except ProtocolError as error:
            _refuse(connection, answer, error)
        except Exception:
            log.exception("a request failed outside the app")
            answer.give_up()
            if not answer.started:
                _refuse(connection, answer, ColibriError("The server met an internal error."))
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()

    def _environ(self, connection: Connection) -> WSGIEnvironment:
        """The request as WSGI has it. Its body always has a known length."""
        head, body = connection.head, connection.body
        assert head is not None and body is not None  # noqa: S101 - only with a request
        data, body.data = body.data, bytearray()
        environ: dict[str, Any] = {
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BufferedReader(_Input(data)),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "SERVER_SOFTWARE": f"colibri/{__version__}",
            "REQUEST_METHOD": head.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": head.path,
            "QUERY_STRING": head.query,
            "REQUEST_URI": head.target,
            "RAW_URI": head.target,
            "REMOTE_ADDR": connection.address[0],
            "REMOTE_PORT": connection.address[1],
            "SERVER_NAME": str(self.server_address[0]),
            "SERVER_PORT": str(self.server_address[1]),
            "SERVER_PROTOCOL": head.version,
        }
        for name, value in head.headers:
            # An underscore would make one header look like another.
            if "_" in name or name in ("content-length", "transfer-encoding"):
                continue
            key = name.upper().replace("-", "_")
            if key != "CONTENT_TYPE":
                key = f"HTTP_{key}"
            between = "; " if name == "cookie" else ", "
            environ[key] = environ[key] + between + value if key in environ else value
        if body.too_large:
            environ["CONTENT_LENGTH"] = str(max(head.length or 0, MAX_BODY_BYTES + 1))
        elif body.refused and head.length:
            environ["CONTENT_LENGTH"] = str(head.length)
        elif head.length != 0:
            environ["CONTENT_LENGTH"] = str(len(data))
        return environ


def _check_websocket(connection: Connection) -> None:
    """Raises ProtocolError for an upgrade that no WebSocket library would take."""
    head = connection.head
    assert head is not None  # noqa: S101 - handed over with it
    if head.method != "GET" or connection.buffer:
        raise ProtocolError("A WebSocket begins with GET, and sends nothing before the answer.")
    if not head.get("sec-websocket-key"):
        raise ProtocolError("The header Sec-WebSocket-Key is missing.")
    if head.get("sec-websocket-version") != _WEBSOCKET_VERSION:
        raise ProtocolError("Only WebSockets of version 13 are spoken here.", status=426)


def _refuse(connection: Connection, answer: _Answer, error: ColibriError) -> None:
    """Answers in place of the app."""
    head = connection.head
    assert head is not None  # noqa: S101 - handed over with it
    request_id.set(new_request_id(head.get("x-request-id")))
    status, headers, data = errors.render(error, head.path)
    answer.give_up()
    answer.start(status, [*headers, ("x-request-id", request_id.get())])
    answer.write(data)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortInUseError or UsageError naming address and remedy."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error.strerror or error}.", where="--host"
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
