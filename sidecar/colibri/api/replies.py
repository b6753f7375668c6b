"""What the routes of all dialects answer with.

For: the dialects' routes and encoders. Not for: what stands in an answer; the dialects' handlers
write that. Threads: as the request that is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
from flask import Response, request

from colibri.api.connection import client_gone
from colibri.api.follow import ended
from colibri.api.services import Services
from colibri.errors import ColibriError
from colibri.scheduler import Generation, GenerationRequest

# A base URL with /v1 forgotten or given twice is the commonest set-up mistake; both work.
PREFIXES = ("", "/v1", "/v1/v1")
QUEUE_WAIT_HEADER = "x-colibri-queue-wait-ms"

# Ends of lines to some clients that read streams line by line, though not to the protocol: their
# line would end inside the JSON. In UTF-8 these bytes are nothing else.
_LINE_ENDS = (
    (b"\xc2\x85", rb"\u0085"),
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
)

Gone: TypeAlias = Callable[[], bool]


def json_response(data: Any, status: int = 200) -> Response:
    """The data as JSON."""
    return Response(msgspec.json.encode(data), status, content_type="application/json")


def one_line(data: Any) -> bytes:
    """The data as JSON that is one line to whoever reads it: for events of streams."""
    text = msgspec.json.encode(data)
    for letter, escaped in _LINE_ENDS:
        text = text.replace(letter, escaped)
    return text


def generated(
    asked: GenerationRequest,
    services: Services,
    *,
    whole: Callable[[Generation, Gone], Any],
    events: Callable[[Generation, Gone], Iterator[bytes]] | None,
    failed: Callable[[ColibriError], bytes],
) -> Response:
    """Waits for the turn, then answers: with `events` as a stream, without as `whole`. `failed` is
    the dialect's event for an error in a stream.

    Until the turn has come the status is open and may become 429.
    """
    gone = client_gone(request.environ)
    generation = services.scheduler.admit(asked, gone)
    if events is None:
        response = json_response(whole(generation, gone))
    else:
        response = Response(
            ended(events(generation, gone), generation, failed),
            content_type="text/event-stream; charset=utf-8",
        )
        # A generator that never started would not run its own clean-up.
        response.call_on_close(generation.close)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
    response.headers[QUEUE_WAIT_HEADER] = str(generation.queue_wait_ms)
    return response
