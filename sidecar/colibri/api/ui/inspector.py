"""The last requests to the generating routes: who asked, how it ended, how long it took.

For: the request inspector. Filled by hooks around every request and by the turns that ran for it.
No text of prompts or answers is kept. Not for: the access log, which has every request. Thread
rule: any thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from flask import Flask, Response, g, request

from colibri.logs import request_id
from colibri.scheduler import Activity
from colibri.telemetry import Turn, TurnLog

_KEPT: Final = 200
_LONGEST: Final = 200
# What generates; everything else would only drown it.
_ENDINGS: Final = ("/completions", "/messages")
_FROM_TURN: Final = (
    "outcome",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "max_tokens",
    "temperature",
    "slot",
    "queue_wait_ms",
    "ttft_ms",
    "prefill_ms",
    "decode_ms",
)
# The same of a request that runs.
_SO_FAR: Final = ("prompt_tokens", "cached_tokens", "max_tokens", "slot", "queue_wait_ms")
_REFUSED: Final = 400


class Inspector:
    """See the module's text. `model` is the id of the one that is there, if any; `running` tells
    how far requests are.
    """

    def __init__(
        self,
        turns: TurnLog,
        model: Callable[[], str | None],
        running: Callable[[], list[Activity]] = list,
    ) -> None:
        self._turns, self._model, self._running = turns, model, running
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def begin(self) -> None:
        """A request to a generating route has come."""
        entry: dict[str, Any] = {
            "id": request_id.get(),
            "route": request.path[:_LONGEST],
            "method": request.method,
            "at_ms": time.time_ns() // 1_000_000,
            "stream": False,
            "client": request.remote_addr or "",
            "user_agent": request.headers.get("User-Agent", "")[:_LONGEST],
            "model": self._model(),
            "status": None,
            "total_ms": None,
            "_begun": time.monotonic(),
            "_code": None,
        }
        with self._lock:
            self._entries[entry["id"]] = entry
            while len(self._entries) > _KEPT:
                self._entries.popitem(last=False)

    def answered(self, name: str, status: int, code: str | None, *, stream: bool) -> None:
        """The status is known; a stream goes on."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry["status"], entry["_code"], entry["stream"] = status, code, stream

    def ended(self, name: str) -> None:
        """The last byte was sent, or nobody takes it any more."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry["total_ms"] = round((time.monotonic() - entry["_begun"]) * 1000, 1)

    def latest(self, limit: int) -> list[dict[str, Any]]:
        """The last requests, latest first, with what their turns tell, or how far they are."""
        running = {activity.request: activity for activity in self._running()}
        turns = {turn.request: turn for turn in self._turns.last()}
        with self._lock:
            entries = [dict(entry) for entry in list(self._entries.values())[: -limit - 1 : -1]]
        return [
            _shown(entry, turns.get(entry["id"]), running.get(entry["id"])) for entry in entries
        ]


def _shown(entry: dict[str, Any], turn: Turn | None, activity: Activity | None) -> dict[str, Any]:
    code = entry.pop("_code")
    entry.pop("_begun")
    found = {name: getattr(turn, name) if turn else None for name in _FROM_TURN}
    if turn is None:
        ended = entry["total_ms"] is not None
        found["outcome"] = code or ("cancelled" if ended else "running")
    if turn is None and activity is not None:
        found |= {name: getattr(activity, name) for name in _SO_FAR}
        found["completion_tokens"] = activity.generated_tokens
    return {**entry, **found, "phase": activity.phase if activity and turn is None else None}


def install(app: Flask, inspector: Inspector) -> None:
    """Watches the generating routes of the app."""

    @app.before_request
    def begin() -> None:
        if request.method == "POST" and request.path.endswith(_ENDINGS):
            inspector.begin()
            g.inspected = request_id.get()

    @app.after_request
    def answered(response: Response) -> Response:
        name = g.get("inspected")
        if name is not None:
            code = None
            if response.status_code >= _REFUSED and not response.is_streamed:
                error = (response.get_json(silent=True) or {}).get("error")
                code = error.get("code") or error.get("type") if isinstance(error, dict) else None
            stream = response.mimetype == "text/event-stream"
            inspector.answered(name, response.status_code, code, stream=stream)
            response.call_on_close(lambda: inspector.ended(name))
        return response
