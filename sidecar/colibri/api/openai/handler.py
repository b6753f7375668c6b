"""From an OpenAI request to a running generation and back.

    body --schemas--> checked request --render--> tokens --fits?--> GenerationRequest --admit-->
    Generation Generation --follow--> events --encode--> one JSON object, or server-sent events

For: the routes of this dialect. Not for: other dialects, which share scheduler and `follow`, not
this file. Whatever is wrong with a request is told before the first byte of an answer; only what
happens to the engine later comes in band.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from colibri.api.body import decode
from colibri.api.follow import follow
from colibri.api.openai import encode, schemas
from colibri.api.openai.encode import ChatEncoder, TextEncoder
from colibri.api.openai.schemas import ChatRequest, CompletionRequest
from colibri.api.services import Services
from colibri.engine.protocol import Done, Tokens
from colibri.errors import ClientGoneError, ColibriError, ContextLengthError, RequestError
from colibri.models.served import ServedModel
from colibri.scheduler import Generation, GenerationRequest
from colibri.settings import Settings

log = logging.getLogger(__name__)

# Without a word from request, launch or model: sample from the model's own distribution.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
# 0 is a legal top_p for clients and means the most probable token; the engine's range starts
# above 0.
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = (1 << 64) - 1


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be admitted, and how its answer is to be written."""

    generation: GenerationRequest
    encoder: ChatEncoder
    stream: bool
    include_usage: bool


def prepare_chat(body: bytes, services: Services) -> Prepared:
    """Checks and tokenises a chat request. Raises RequestError."""
    request = decode(body, ChatRequest)
    schemas.check_chat(request, services.settings.kv_slots)
    messages = schemas.chat_messages(request)
    if services.model.render is None:
        raise RequestError(
            "The model has no chat template; use /v1/completions.", code="chat_not_supported"
        )
    prompt = services.model.render(messages)
    limit = request.max_completion_tokens
    return _prepare(request, prompt, limit or request.max_tokens, services, ChatEncoder)


def prepare_completion(body: bytes, services: Services) -> Prepared:
    """Checks and tokenises a legacy completion request. Raises RequestError."""
    request = decode(body, CompletionRequest)
    schemas.check_completion(request, services.settings.kv_slots)
    prompt = _prompt_tokens(request.prompt, services.model)
    return _prepare(request, prompt, request.max_tokens, services, TextEncoder)


def _prompt_tokens(prompt: Any, model: ServedModel) -> list[int]:
    """Tokens of a prompt given as text, as token ids, or as a list of one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = model.encode(prompt)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        tokens = prompt
        if any(not 0 <= token < model.vocab for token in tokens):
            raise RequestError(
                f"'prompt' holds a token id outside 0 to {model.vocab - 1}.", param="prompt"
            )
    elif isinstance(prompt, list) and len(prompt) > 1:
        raise schemas.refuse("prompt", "'prompt' may hold one prompt, not several.")
    else:
        raise RequestError("'prompt' must be a string or an array of token ids.", param="prompt")
    if not tokens:
        raise RequestError("'prompt' must not be empty.", param="prompt")
    return tokens


def _prepare(
    request: ChatRequest | CompletionRequest,
    prompt: list[int],
    limit: int | None,
    services: Services,
    encoder: type[ChatEncoder],
) -> Prepared:
    model, settings = services.model, services.settings
    context = services.context()
    room = context - len(prompt)
    if room < 1:
        subject = "messages" if isinstance(request, ChatRequest) else "prompt"
        raise ContextLengthError(
            f"This model's maximum context length is {context} tokens. "
            f"However, your {subject} resulted in {len(prompt)} tokens. "
            f"Please reduce the length of the {subject}.",
            param=subject,
        )
    temperature, top_p = _sampling(request, model, settings)
    job = secrets.token_hex(12)
    options = request.stream_options
    return Prepared(
        generation=GenerationRequest(
            id=job,
            prompt=prompt,
            max_tokens=min(wish for wish in (limit, settings.max_tokens, room) if wish is not None),
            temperature=temperature,
            top_p=top_p,
            seed=secrets.randbits(64) if request.seed is None else request.seed & _SEED_MASK,
            stops=schemas.stop_list(request),
            ignore_leading_stop=bool(request.x_colibri_ignore_leading_stop),
            cache_slot=request.cache_slot,
        ),
        encoder=encoder(job, model.id),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
    )


def _sampling(
    request: ChatRequest | CompletionRequest, model: ServedModel, settings: Settings
) -> tuple[float, float]:
    """Temperature and top_p: request, else launch, else model, else built-in."""

    def first(*values: float | None) -> float:
        return next(value for value in values if value is not None)

    temperature = first(
        request.temperature, settings.temperature, model.temperature, DEFAULT_TEMPERATURE
    )
    top_p = first(request.top_p, settings.top_p, model.top_p, DEFAULT_TOP_P)
    return temperature, max(top_p, _SMALLEST_TOP_P)


def whole(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> dict[str, Any]:
    """The answer in one piece. Raises what ends the generation early."""
    texts: list[str] = []
    for event in follow(generation, gone):
        if isinstance(event, Tokens):
            texts += [part.text for part in event.parts]
        elif isinstance(event, Done):
            if event.finish_reason == "cancelled":
                raise ClientGoneError("the generation was cancelled.")
            return prepared.encoder.whole("".join(texts), event)
    raise AssertionError("a followed generation ends with Done or an exception")


def stream(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> Iterator[bytes]:
    """The answer as server-sent events; the first one is ready at once."""
    encoder = prepared.encoder
    try:
        yield encode.sse(encoder.opening())
        for event in follow(generation, gone):
            if event is None:
                yield encode.sse(encoder.heartbeat())
            elif isinstance(event, Tokens):
                yield encode.sse(encoder.text("".join(part.text for part in event.parts)))
            else:
                yield encode.sse(encoder.closing(event.finish_reason))
                if prepared.include_usage:
                    yield encode.sse(encoder.usage(event.usage))
                yield encode.DONE
    except ClientGoneError as error:
        log.info("%s", error)
    except ColibriError as error:
        log.error("a stream ended early: %s", error)
        yield encode.error_event(error)
    finally:
        # Also when nobody ever asked for the first event.
        generation.close()
