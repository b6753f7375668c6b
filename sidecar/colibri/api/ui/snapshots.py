"""What the dashboard shows, as plain JSON for scripts: state, experts, profile, requests, logs.

For: scripts, and pages that cannot open a WebSocket. Not for: watching; the WebSocket costs less.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from flask import Blueprint, Response, request

from colibri.api.describe import POSITIVE, describe
from colibri.api.replies import json_response
from colibri.api.ui.chats import number_argument
from colibri.api.ui.inspector import Inspector
from colibri.engine.client import EngineClient
from colibri.engine.work import Work
from colibri.errors import RequestError, WorkerUnavailableError
from colibri.telemetry import Hub, LogRing
from colibri.telemetry.logring import LEVELS
from colibri.telemetry.turns import breakdown, lookups, turn_json

_MOST_TURNS: Final = 32
_MOST_REQUESTS: Final = 200
_MOST_LINES: Final = 2000
_FRESH_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 0.5


def blueprint(hub: Hub, engine: EngineClient, inspector: Inspector, ring: LogRing) -> Blueprint:
    """The routes."""
    routes = Blueprint("snapshots", __name__)

    @routes.get("/api/state")
    @describe("What the dashboard shows.", answer=dict)
    def whole_state() -> Response:
        return json_response(hub.look_now())

    @routes.get("/experts")
    @describe("Tier, heat and hits of every expert, row by row.", answer=dict)
    def experts() -> Response:
        rows, cols, layers = hub.shape()
        head = {"rows": rows, "cols": cols, "layers": layers}
        if rows == 0 and engine.status().info is not None:
            return json_response({**head, "tiers": [], "heat": [], "hits": [], "seq": 0, "turn": 0})
        seq, found = hub.map(_FRESH_SECONDS)
        if found is None:
            raise WorkerUnavailableError("The engine does not answer.", hint="Try again.")
        return json_response(
            {
                **head,
                "tiers": list(found.tiers),
                "heat": list(found.heat),
                "hits": struct.unpack(f"<{len(found.hits) // 2}H", found.hits),
                "seq": seq,
                "turn": found.turn,
            }
        )

    @routes.get("/profile")
    @describe("Where the time of the last turns went.", answer=dict)
    def profile() -> Response:
        snapshot = engine.snapshot(_ANSWER_SECONDS)
        work = snapshot.work if snapshot else Work()
        turns = [turn_json(turn) for turn in hub.turns.last(_MOST_TURNS)]
        decode, prefill = hub.turns.averages()
        return json_response(
            {
                "turn": turns[0] if turns else None,
                "turns": turns,
                "total": {
                    "prefill": breakdown(work.prefill.time),
                    "decode": breakdown(work.decode.time),
                },
                "lookups": lookups(work),
                "speed": {"decode_average": decode, "prefill_average": prefill},
            }
        )

    @routes.get("/api/requests")
    @describe("The last requests, without their text.", answer=dict, query={"limit": POSITIVE})
    def requests() -> Response:
        limit = number_argument("limit", 100, _MOST_REQUESTS)
        return json_response({"requests": inspector.latest(limit), "prompts": False})

    @routes.get("/api/logs")
    @describe(
        "The last lines of the log.",
        answer=dict,
        query={
            "after": {"type": "integer", "minimum": 0},
            "level": {"enum": list(LEVELS)},
            "limit": POSITIVE,
        },
    )
    def logs() -> Response:
        level = request.args.get("level", "debug")
        if level not in LEVELS:
            raise RequestError(f"'level' must be one of {', '.join(LEVELS)}.", param="level")
        after: Any = request.args.get("after", "0")
        if not after.isascii() or not after.isdecimal():
            raise RequestError("'after' must be a number from 0.", param="after")
        entries, following = ring.after(
            int(after[:18]), LEVELS[level], number_argument("limit", 200, _MOST_LINES)
        )
        return json_response({"entries": entries, "next": following})

    return routes
