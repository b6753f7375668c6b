"""Routes of the Anthropic dialect, at `/v1/...` and at the places where misconfigured clients look
for them. Query strings (`?beta=true`) mean nothing here.

For: the app factory. Not for: logic; a route reads the body, calls the handler and picks a
response type.
"""

from __future__ import annotations

import functools

from flask import Blueprint, Response, request

from colibri.api import errors
from colibri.api.anthropic import encode, handler
from colibri.api.anthropic.schemas import (
    CountObject,
    CountRequest,
    MessageObject,
    MessagesRequest,
    StreamEvent,
)
from colibri.api.body import read
from colibri.api.describe import GENERATION, describe
from colibri.api.replies import PREFIXES, generated, json_response
from colibri.api.services import Services
from colibri.logs import request_id


def blueprint(services: Services) -> Blueprint:
    """The dialect's routes over these services."""
    routes = Blueprint("anthropic", __name__)

    @describe(
        "An answer, whole or as a stream of named events.",
        request=MessagesRequest,
        answer=MessageObject,
        stream=StreamEvent,
        errors=GENERATION,
    )
    def messages() -> Response:
        prepared = handler.prepare(read(request), services)
        return generated(
            prepared.generation,
            services,
            whole=functools.partial(handler.whole, prepared),
            events=functools.partial(handler.stream, prepared) if prepared.stream else None,
            failed=encode.error_event,
        )

    @describe(
        "How many tokens the prompt of a request has, outside the queue.",
        request=CountRequest,
        answer=CountObject,
        errors=GENERATION,
    )
    def count_tokens() -> Response:
        return json_response(handler.count(read(request), services))

    @routes.after_request
    def finish(response: Response) -> Response:
        response.headers[errors.ANTHROPIC_ID_HEADER] = request_id.get()
        return response

    for prefix in PREFIXES:
        routes.add_url_rule(f"{prefix}/messages", view_func=messages, methods=["POST"])
        routes.add_url_rule(
            f"{prefix}/messages/count_tokens", view_func=count_tokens, methods=["POST"]
        )
    return routes
