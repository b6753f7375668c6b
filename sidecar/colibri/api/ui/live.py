"""`/api/live`: the WebSocket over which the dashboard watches the server.

    server   hello, then updates of what has changed; maps of experts as binary messages; log lines
    client   subscribe, ping

For: the dashboard; docs/dashboard.md describes the messages. Not for: chat, which is plain HTTP.
One thread a socket writes all of it (pings are the library's, under the connection's own lock). It
sends what is newest when the last message is through: a client that reads slowly misses looks,
never news, and delays nobody. Key, cookie and Origin have been checked before the upgrade.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import msgspec
from flask import Blueprint, Flask, Response, request

from colibri.engine.protocol import ExpertMap
from colibri.errors import WorkerUnavailableError
from colibri.telemetry import Hub, LogRing
from colibri.telemetry import maps as wire

log = logging.getLogger(__name__)

VERSION: Final = 1
_WRONG_VERSION: Final = 4400
_MOST_SOCKETS: Final = 32
_LONGEST_MESSAGE: Final = 4096
_PING_SECONDS: Final = 20
# How soon a message of the client is answered.
_ANSWER_SECONDS: Final = 0.1
_DEFAULT_HZ: Final = 10
_MOST_HZ: Final = 20
# Maps of an idle engine change when experts are loaded in advance, and slowly.
_IDLE_MAP_SECONDS: Final = 1.0
_encode = msgspec.json.Encoder().encode


class _Message(msgspec.Struct):
    """What a client may say."""

    type: Literal["subscribe", "ping"]
    maps: bool | None = None
    map_hz: float | None = None
    logs: bool | None = None


class Watcher:
    """One client: what it has asked for and what it has been sent."""

    def __init__(self, socket: Any, hub: Hub, ring: LogRing, maps: bool) -> None:
        self._socket, self._hub, self._ring = socket, hub, ring
        self._seen = 0
        self._points = 0
        self._maps = maps
        self._map_every = 1 / _DEFAULT_HZ
        self._map_due = 0.0
        self._map: tuple[int, ExpertMap] | None = None
        self._logs: int | None = None

    def run(self) -> None:
        """Until the client leaves or the server stops."""
        self._greet()
        while not self._hub.stopped:
            while (text := self._socket.receive(timeout=0)) is not None:
                if not self._hear(text):
                    return
            self._update()
            self._send_map()
            self._send_logs()
            pause = _ANSWER_SECONDS
            if self._maps:
                pause = min(pause, max(self._map_due - time.monotonic(), 0.001))
            self._hub.wait(self._seen, pause)

    def _send(self, kind: str, **fields: Any) -> None:
        self._socket.send(_encode({"type": kind, **fields}).decode())

    def _greet(self) -> None:
        self._hub.look_now()
        self._seen, sections = self._hub.since(0)
        self._points, trend = self._hub.trend()
        self._send(
            "hello",
            version=VERSION,
            seq=self._seen,
            **self._hub.greeting(),
            state=sections,
            trend=trend,
        )

    def _hear(self, text: str | bytes) -> bool:
        """Takes a message; False ends the connection."""
        try:
            message = msgspec.json.decode(text, type=_Message)
            if message.map_hz is not None and not 0 < message.map_hz <= _MOST_HZ:
                raise ValueError(f"'map_hz' must be above 0 and at most {_MOST_HZ}")
        except (ValueError, RecursionError) as error:
            self._send("error", code="invalid_message", message=f"{error}.")
            self._socket.close(1008, "invalid message")
            return False
        if message.type == "ping":
            self._send("pong")
            return True
        if message.maps is not None:
            # Asking again brings a whole map.
            self._maps, self._map, self._map_due = message.maps, None, 0.0
        if message.map_hz is not None:
            self._map_every = 1 / message.map_hz
        if message.logs is not None:
            self._logs = (0 if self._logs is None else self._logs) if message.logs else None
        return True

    def _update(self) -> None:
        looks, sections = self._hub.since(self._seen)
        self._points, points = self._hub.trend(self._points)
        if looks == self._seen:
            return
        self._seen = looks
        if not sections and not points:
            return
        fields: dict[str, Any] = {"seq": looks, "state": sections}
        if points:
            fields["point"] = points[-1]
        self._send("update", now_ms=time.time_ns() // 1_000_000, **fields)

    def _send_map(self) -> None:
        now = time.monotonic()
        if not self._maps or now < self._map_due:
            return
        every = self._map_every if self._hub.busy else max(self._map_every, _IDLE_MAP_SECONDS)
        self._map_due = now + every
        rows, cols, _ = self._hub.shape()
        # Those that watch at the same pace share one look.
        seq, found = self._hub.map(every * 0.9)
        if found is None or len(found.tiers) != rows * cols:
            return
        if self._map is not None and len(self._map[1].tiers) != rows * cols:
            self._map = None  # of another model
        if self._map is None:
            data = wire.full(found, rows, cols, seq)
        elif seq == self._map[0]:
            return
        else:
            base, before = self._map
            data = wire.delta(found, before, (rows, cols), (base, seq))
        if data:
            self._socket.send(data)
            self._map = seq, found

    def _send_logs(self) -> None:
        if self._logs is None or self._ring.seq == self._logs:
            return
        entries, self._logs = self._ring.after(self._logs)
        self._send("log", entries=entries)


def install(app: Flask, hub: Hub, ring: LogRing) -> None:
    """Adds the route."""
    app.config["SOCK_SERVER_OPTIONS"] = {
        "ping_interval": _PING_SECONDS,
        "max_message_size": _LONGEST_MESSAGE,
    }
    routes = Blueprint("live", __name__)
    free = threading.BoundedSemaphore(_MOST_SOCKETS)

    @routes.before_request
    def room() -> None:
        if not free.acquire(blocking=False):
            raise WorkerUnavailableError(
                f"{_MOST_SOCKETS} pages watch already.", code="too_many_connections"
            )
        free.release()

    def watch(socket: Any) -> None:
        if not free.acquire(blocking=False):
            socket.close(1013, "too many pages watch")
            return
        hub.watch()
        try:
            if request.args.get("version", str(VERSION)) != str(VERSION):
                text = f"This server speaks version {VERSION} of the messages."
                error = {"type": "error", "code": "wrong_version", "message": text}
                socket.send(_encode(error).decode())
                socket.close(_WRONG_VERSION, "wrong version")
                return
            Watcher(socket, hub, ring, request.args.get("maps") == "1").run()
        except OSError:
            log.debug("a page stopped watching")
        finally:
            hub.unwatch()
            free.release()

    view: list[Callable[[], Response]] = []

    @routes.route("/api/live", websocket=True)
    def live() -> Response:
        if not view:
            view.append(_socket_view(watch))
        return view[0]()

    app.register_blueprint(routes)


def _socket_view(watch: Callable[[Any], None]) -> Callable[[], Response]:
    """The view that hands a socket to `watch`, until either end closes it. Made for the first page
    that watches: what it imports would be a tenth of the server's start.
    """
    from flask_sock import Sock  # noqa: PLC0415 - see above

    # Only to take the view from it; the request belongs to the app that it came to.
    holder = Flask("live", static_folder=None)
    Sock(holder).route("/", endpoint="live")(watch)
    return cast(Callable[[], Response], holder.view_functions["live"])
