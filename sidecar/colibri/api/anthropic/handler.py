"""From an Anthropic request to a running generation and back, and the counting of tokens.

    body --schemas--> checked request --convert--> ChatInput --native--> GenerationRequest
    --admit--> Generation --follow--> events --encode--> one message, or named events

For: the routes of this dialect, and `coli cache warm`. Whatever is wrong with a request is told
before the first byte of an answer; only what happens to the engine later comes in band. Threads: as
the request that is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from colibri.api import native
from colibri.api.anthropic import convert, encode, schemas
from colibri.api.anthropic.encode import Encoder
from colibri.api.anthropic.schemas import CountObject, CountRequest, MessageObject, MessagesRequest
from colibri.api.follow import HEARTBEAT_SECONDS, follow
from colibri.api.services import Services
from colibri.engine.answer import Notice, Part
from colibri.engine.protocol import Done, Tokens
from colibri.errors import ClientGoneError, ContextLengthError
from colibri.scheduler import Generation, GenerationRequest

# How long the beginning of a stream waits to learn how much of the prompt is cached. The engine
# tells it between two steps, and those of a large model take longer.
ACCEPT_SECONDS = 0.5


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be admitted, and how its answer is to be written."""

    generation: GenerationRequest
    encoder: Encoder
    stream: bool


def prepare(data: bytes, services: Services) -> Prepared:
    """Checks and tokenises a request. Raises RequestError."""
    request = schemas.decode(data, MessagesRequest)
    schemas.check(request)
    native.check_cache_slot(request.cache_slot, services)
    services.check_model(request.model)
    try:
        generation = native.prepare(convert.chat_input(request), services)
    except ContextLengthError as error:
        raise _too_long(error) from None
    thinking = request.thinking
    return Prepared(
        generation=generation,
        encoder=Encoder(
            generation.id,
            services.model.id,
            len(generation.prompt),
            omit=thinking is not None and thinking.display == "omitted",
        ),
        stream=bool(request.stream),
    )


def count(data: bytes, services: Services) -> CountObject:
    """Tokens of the prompt that the same body makes: it is rendered, and nothing else.

    Raises RequestError.
    """
    request = schemas.decode(data, CountRequest)
    services.check_model(request.model)
    prompt, _ = native.render(convert.chat_input(request), services)
    return CountObject(len(prompt.tokens))


def _too_long(error: ContextLengthError) -> ContextLengthError:
    """In the words, without a full stop, from which this dialect's clients read both numbers."""
    # A prompt that fills the context leaves no room for an answer: it is one token too long.
    most = error.limit if error.tokens > error.limit else error.limit - 1
    tokens = f"{error.tokens}" if error.counted else f"more than {error.tokens}"
    said = f"prompt is too long: {tokens} tokens > {most} maximum"
    return ContextLengthError(
        said,
        param=error.param,
        tokens=error.tokens,
        limit=error.limit,
        counted=error.counted,
    )


def whole(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> MessageObject:
    """The answer in one piece. Raises what ends the generation early."""
    parts: list[Part] = []
    for event in follow(generation, gone):
        if isinstance(event, Tokens):
            parts += event.parts
        elif isinstance(event, Done):
            if event.finish_reason == "cancelled":
                raise ClientGoneError("the generation was cancelled.")
            return prepared.encoder.whole(parts, event)
    raise AssertionError("a followed generation ends with Done or an exception")


def stream(prepared: Prepared, generation: Generation, gone: Callable[[], bool]) -> Iterator[bytes]:
    """The answer as server-sent events; the first one is ready at once."""
    encoder = prepared.encoder
    yield encoder.start(generation.accepted(ACCEPT_SECONDS)) + encode.PING
    spoken = time.monotonic()
    for event in follow(generation, gone):
        if event is None:
            data = encode.PING
        elif isinstance(event, Notice):
            data = encode.warning(event)
        elif isinstance(event, Tokens):
            data = encoder.parts(event.parts)
            # Reasoning that is not shown must not look like silence.
            if not data and time.monotonic() - spoken >= HEARTBEAT_SECONDS:
                data = encode.PING
        elif event.finish_reason == "cancelled":
            raise ClientGoneError("the generation was cancelled.")
        else:
            data = encoder.finish(event)
        if data:
            spoken = time.monotonic()
            yield data
