"""The one model that is loaded, as the clients of both dialects list it; without one there is none.

For: the routes `/v1/models`. Clients that send `anthropic-version` get Anthropic's shape; the key's
header says nothing about that, since both dialects use both. Not for: requests that name a model
(`Services.check_model`). Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import UNSET

from colibri.api.openai.answers import (
    AboutBody,
    AnthropicModel,
    AnthropicModelList,
    ModelBody,
    ModelList,
)
from colibri.api.services import Services
from colibri.errors import RequestError
from colibri.models.about import About
from colibri.models.served import ServedModel


def _most_output(services: Services) -> int | None:
    limits = (services.known_context(), services.settings.max_tokens)
    return min((limit for limit in limits if limit is not None), default=None)


def _about(about: About) -> AboutBody:
    return AboutBody(about.note, list(about.examples), about.starter, about.from_source)


def openai_model(model: ServedModel, services: Services) -> ModelBody:
    """The model as OpenAI's clients read it."""
    context, about = services.known_context(), model.about
    return ModelBody(
        id=model.id,
        created=model.created,
        context_length=context,
        context_window=context,
        max_model_len=context,
        max_context_length=context,
        max_output_tokens=_most_output(services),
        trained_context_length=services.trained_context(),
        warnings=services.warnings(),
        about=_about(about) if about else UNSET,
    )


def anthropic_model(model: ServedModel, services: Services) -> AnthropicModel:
    """The model as Anthropic's clients read it."""
    created = datetime.fromtimestamp(model.created, UTC)
    return AnthropicModel(
        id=model.id,
        display_name=model.id,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=services.known_context(),
        max_tokens=_most_output(services),
    )


def one(model_id: str, services: Services, *, anthropic: bool) -> ModelBody | AnthropicModel:
    """The model in the shape that fits the client, by any name that a request may use. Raises
    NotFoundError for another one, and when no model is loaded.
    """
    model = services.current_model()
    if model is None or (services.settings.strict_model and model_id != model.id):
        raise services.no_such_model(model_id)
    if anthropic:
        return anthropic_model(model, services)
    return openai_model(model, services)


def listed(
    services: Services, query: Mapping[str, str], *, anthropic: bool
) -> ModelList | AnthropicModelList:
    """All models, which is the one; the query may page through them. Raises RequestError."""
    limit = query.get("limit", "1")
    # Never made a number: it may have any length.
    if not (limit.isascii() and limit.isdecimal() and limit.strip("0")):
        raise RequestError("'limit' must be a number of models, at least 1.", param="limit")
    model = services.current_model()
    if not anthropic:
        return ModelList([] if model is None else [openai_model(model, services)])
    # Pages before or behind the only model are empty.
    beyond = model is None or model.id in (query.get("after_id"), query.get("before_id"))
    data = [] if model is None or beyond else [anthropic_model(model, services)]
    ends = data[0].id if data else None
    return AnthropicModelList(data, first_id=ends, last_id=ends)
