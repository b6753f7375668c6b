"""Routes of the OpenAI dialect, at `/v1/...` and at the places where misconfigured clients look
for them.

For: the app factory. Not for: logic; a route reads the body, calls the handler and picks a
response type.
"""

from __future__ import annotations

import functools

from flask import Blueprint, Response, request

from colibri.api.body import read
from colibri.api.describe import GENERATION, describe
from colibri.api.openai import encode, handler, models
from colibri.api.openai.answers import (
    AnthropicModel,
    AnthropicModelList,
    ChatChunk,
    ChatCompletion,
    ModelBody,
    ModelList,
    TextCompletion,
)
from colibri.api.openai.handler import Prepared
from colibri.api.openai.schemas import ChatRequest, CompletionRequest
from colibri.api.replies import PREFIXES, generated, json_response
from colibri.api.services import Services


def _generate(prepared: Prepared, services: Services) -> Response:
    return generated(
        prepared.generation,
        services,
        whole=functools.partial(handler.whole, prepared),
        events=functools.partial(handler.stream, prepared) if prepared.stream else None,
        failed=encode.error_event,
    )


def blueprint(services: Services) -> Blueprint:
    """The dialect's routes over these services."""
    routes = Blueprint("openai", __name__)

    def anthropic() -> bool:
        return "anthropic-version" in request.headers

    @describe(
        "The one model that is loaded; in Anthropic's shape with the header anthropic-version.",
        answer=(ModelList, AnthropicModelList),
        query={
            "limit": {"type": "integer", "minimum": 1},
            "after_id": {"type": "string"},
            "before_id": {"type": "string"},
        },
    )
    def list_models() -> Response:
        return json_response(models.listed(services, request.args, anthropic=anthropic()))

    @describe(
        "The one model, by whatever name; with --strict-model by its id only.",
        answer=(ModelBody, AnthropicModel),
    )
    def one_model(model_id: str) -> Response:
        return json_response(models.one(model_id, services, anthropic=anthropic()))

    @describe(
        "A chat answer, whole or as a stream.",
        request=ChatRequest,
        answer=ChatCompletion,
        stream=ChatChunk,
        end=encode.END,
        errors=GENERATION,
    )
    def chat_completions() -> Response:
        return _generate(handler.prepare_chat(read(request), services), services)

    @describe(
        "The continuation of a prompt, whole or as a stream.",
        request=CompletionRequest,
        answer=TextCompletion,
        stream=TextCompletion,
        end=encode.END,
        errors=GENERATION,
    )
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
