"""Routes of the OpenAI dialect, at `/v1/...` and at the places where misconfigured clients look
for them.

For: the app factory. Not for: logic; a route reads the body, calls the handler and picks a
response type.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, request

from colibri.api.body import read
from colibri.api.connection import client_gone
from colibri.api.openai import encode, handler
from colibri.api.openai.handler import Prepared
from colibri.api.services import Services
from colibri.errors import NotFoundError

# A base URL with /v1 forgotten or given twice is the commonest set-up mistake; both work.
PREFIXES = ("", "/v1", "/v1/v1")
QUEUE_WAIT_HEADER = "x-colibri-queue-wait-ms"


def json_response(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, content_type="application/json")


def _generate(prepared: Prepared, services: Services) -> Response:
    """Waits for the turn, then answers. Until then the status is open and may become 429."""
    gone = client_gone(request.environ)
    generation = services.scheduler.admit(prepared.generation, gone)
    if prepared.stream:
        events = handler.stream(prepared, generation, gone)
        response = Response(events, content_type="text/event-stream; charset=utf-8")
        # A generator that never started would not run its own clean-up.
        response.call_on_close(generation.close)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
    else:
        response = json_response(handler.whole(prepared, generation, gone))
    response.headers[QUEUE_WAIT_HEADER] = str(generation.queue_wait_ms)
    return response


def blueprint(services: Services) -> Blueprint:
    """The dialect's routes over these services."""
    routes = Blueprint("openai", __name__)
    model = services.model

    def model_object() -> dict[str, Any]:
        context = services.known_context()
        limits = [limit for limit in (context, services.settings.max_tokens) if limit is not None]
        return encode.model_object(model.id, model.created, context, min(limits, default=None))

    def list_models() -> Response:
        return json_response({"object": "list", "data": [model_object()]})

    def one_model(model_id: str) -> Response:
        if model_id != model.id:
            raise NotFoundError(
                f"The model {model_id[:100]!r} does not exist; this server has {model.id!r}.",
                param="model",
                code="model_not_found",
            )
        return json_response(model_object())

    def chat_completions() -> Response:
        return _generate(handler.prepare_chat(read(request), services), services)

    def completions() -> Response:
        return _generate(handler.prepare_completion(read(request), services), services)

    for prefix in PREFIXES:
        routes.add_url_rule(f"{prefix}/models", view_func=list_models)
        routes.add_url_rule(f"{prefix}/models/<path:model_id>", view_func=one_model)
        routes.add_url_rule(
            f"{prefix}/chat/completions", view_func=chat_completions, methods=["POST"]
        )
        routes.add_url_rule(f"{prefix}/completions", view_func=completions, methods=["POST"])
    return routes
