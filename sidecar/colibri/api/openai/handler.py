"""From an OpenAI request to a running generation and back.

    body --schemas--> checked request --render--> tokens --fits?--> GenerationRequest --admit-->
    Generation Generation --follow--> events --encode--> one JSON object, or server-sent events

For: the routes of this dialect. Not for: other dialects, which share scheduler and `follow`, not
this file. Whatever is wrong with a request is told before the first byte of an answer; only what
happens to the engine later comes in band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from colibri.api import native
from colibri.api.body import decode
from colibri.api.follow import follow
from colibri.api.openai import checks, encode, turns
from colibri.api.openai.encode import ChatEncoder, TextEncoder
from colibri.api.openai.schemas import ChatRequest, CompletionRequest
from colibri.api.services import Services
from colibri.engine.answer import Notice, Part
from colibri.engine.protocol import Done, Tokens
from colibri.errors import RequestError
from colibri.scheduler import Generation, GenerationRequest


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be admitted, and how its answer is to be written."""

    generation: GenerationRequest
    encoder: ChatEncoder
    stream: bool
    include_usage: bool


def chat_input(body: bytes, services: Services) -> tuple[native.ChatInput, ChatRequest]:
    """The chat request that a body holds, checked. Raises RequestError."""
    request = decode(body, ChatRequest)
    checks.check_chat(request)
    native.check_cache_slot(request.cache_slot, services)
    services.check_model(request.model)
    tools, choice = checks.offered_tools(request)
    thinking, effort, budget = checks.thinking(request)
    messages = turns.chat_messages(request)
    goes_on = checks.goes_on(request, messages, can_begin=not native.writes_before_text(services))
    chat = native.ChatInput(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        format=checks.json_format(request),
        # Where the text has begun, there is nothing to think about before it.
        thinking=thinking and not goes_on,
        goes_on=goes_on,
        effort=effort,
        thinking_budget=budget,
        sampling=_sampling(request, request.max_completion_tokens or request.max_tokens),
    )
    return chat, request


def prepare_chat(body: bytes, services: Services) -> Prepared:
    """Checks and tokenises a chat request. Raises RequestError."""
    chat, request = chat_input(body, services)
    return _prepared(request, native.prepare(chat, services), services, ChatEncoder)


def prepare_completion(body: bytes, services: Services) -> Prepared:
    """Checks and tokenises a legacy completion request. Raises RequestError."""
    request = decode(body, CompletionRequest)
    checks.check_completion(request)
    native.check_cache_slot(request.cache_slot, services)
    services.check_model(request.model)
    prompt = _prompt_tokens(request.prompt, services)
    sampling = _sampling(request, request.max_tokens)
    generation = native.generation(prompt, sampling, services, subject="prompt")
    return _prepared(request, generation, services, TextEncoder)


def _prompt_tokens(prompt: Any, services: Services) -> list[int]:
    """Tokens of a prompt given as text, as token ids, or as a list of one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = native.encode(prompt, services, subject="prompt")
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        tokens = prompt
        vocab = services.model.vocab
        if any(not 0 <= token < vocab for token in tokens):
            raise RequestError(
                f"'prompt' holds a token id outside 0 to {vocab - 1}.", param="prompt"
            )
    elif isinstance(prompt, list) and len(prompt) > 1:
        raise checks.refuse("prompt", "'prompt' may hold one prompt, not several.")
    else:
        raise RequestError("'prompt' must be a string or an array of token ids.", param="prompt")
    if not tokens:
        raise RequestError("'prompt' must not be empty.", param="prompt")
    return tokens


def _sampling(request: ChatRequest | CompletionRequest, limit: int | None) -> native.Sampling:
    return native.Sampling(
        max_tokens=limit,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stops=checks.stop_list(request),
        ignore_leading_stop=bool(request.x_colibri_ignore_leading_stop),
        cache_slot=request.cache_slot,
    )


def _prepared(
    request: ChatRequest | CompletionRequest,
    generation: GenerationRequest,
    services: Services,
    encoder: type[ChatEncoder],
) -> Prepared:
    options = request.stream_options
    return Prepared(
        generation=generation,
        encoder=encoder(generation.id, services.model.id),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
    )


def whole(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> Any:
    """The answer in one piece. Raises what ends the generation early."""
    parts: list[Part] = []
    for event in follow(generation, gone):
        if isinstance(event, Tokens):
            parts += event.parts
        elif isinstance(event, Done):
            return prepared.encoder.whole(parts, event)
    raise AssertionError("a followed generation ends with Done or an exception")


def stream(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> Iterator[bytes]:
    """The answer as server-sent events; the first one is ready at once."""
    encoder = prepared.encoder
    yield encode.sse(encoder.opening())
    for event in follow(generation, gone):
        if event is None:
            yield encode.sse(encoder.heartbeat())
        elif isinstance(event, Notice):
            yield encode.sse(encoder.notice(event))
        elif isinstance(event, Tokens):
            for chunk in encoder.chunks(event.parts):
                yield encode.sse(chunk)
        else:
            yield encode.sse(encoder.closing(event))
            if prepared.include_usage:
                yield encode.sse(encoder.usage(event))
            yield encode.DONE
