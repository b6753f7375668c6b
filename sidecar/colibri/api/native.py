"""What the dialects have in common: from a checked chat request to one for the scheduler.

    OpenAI chat, Anthropic messages --their schemas--> ChatInput --prepare--> GenerationRequest

For: the dialects' handlers, for generations and for counting tokens. Not for: reading bodies or
writing answers. All errors are RequestErrors, whose `param` is OpenAI's name of the field; a
dialect with other names translates.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from colibri.api.services import Services
from colibri.engine.answer import AnswerForm, Grammar
from colibri.engine.protocol import JobEvent
from colibri.errors import ContextLengthError, RequestError
from colibri.models.served import Conversation, Prompt, ServedModel
from colibri.scheduler import GenerationRequest
from colibri.settings import Settings
from colibri.text import grammar
from colibri.text.arguments import Tools
from colibri.text.history import usable_tools
from colibri.text.replay import Recorder
from colibri.text.tokenizer import TooManyTokensError

log = logging.getLogger(__name__)

# Without a word from request, launch or model: sample from the model's own distribution.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
# 0 is a legal top_p for clients and means the most probable token; the engine's range starts
# above 0.
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = (1 << 64) - 1
_MAX_BUDGET = (1 << 31) - 1
_LEAST_ON_WIRE, _MOST_ON_WIRE = -(1 << 63), (1 << 64) - 1


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn and when the answer ends, as far as the request says; lengths in tokens.

    `max_tokens` is cut to the room there is.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stops: tuple[str, ...] = ()
    ignore_leading_stop: bool = False
    cache_slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which calls an answer may hold: with `none` no tool is shown; `required` demands a call, of
    the tool `name` if there is one. Without `parallel` the answer ends behind its first call.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """The visible answer is JSON, of `schema` unless that is None (then any object)."""

    schema: Any = None


ToolSpecs: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A chat request of any dialect.

    `messages` as in `Conversation`; `tools` as the client sent them, OpenAI's or Anthropic's form.
    With `goes_on` the last message is the beginning of the answer, which is generated from there.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: ToolSpecs = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    format: JsonFormat | None = None
    thinking: bool = False
    effort: str | None = None
    thinking_budget: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    goes_on: bool = False


def is_begun(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation ends with text of the assistant that can be gone on with."""
    last = messages[-1]
    return len(messages) > 1 and last["role"] == "assistant" and set(last) == {"role", "content"}


def results_in_order(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with results of tools that follow each other in the order of the calls before
    them: templates show the order and not the ids. Those of no known call come last.
    """
    ordered: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    order: dict[str | None, int] = {}
    for message in [*messages, {"role": ""}]:
        if message["role"] == "tool":
            run.append(message)
            continue
        ordered += sorted(run, key=lambda one: order.get(one["tool_call_id"], len(order)))
        run = []
        calls = message.get("tool_calls")
        if calls:
            order = {call["id"]: number for number, call in enumerate(calls)}
        ordered.append(message)
    return ordered[:-1]


def writes_before_text(services: Services) -> bool:
    """Whether the model writes marks before an answer's text, so that no text can be begun."""
    return services.model.syntax.dialect == "inkling"


def check_cache_slot(slot: int | None, services: Services) -> None:
    """Raises RequestError for a KV slot that there is not."""
    if slot is None:
        return
    slots = services.loaded.settings.kv_slots
    if not 0 <= slot < slots:
        raise RequestError(
            f"'cache_slot' must be 0 to {slots - 1}, not {slot}: this server has {slots} KV "
            f"slot{'s' if slots > 1 else ''} (--kv-slots).",
            param="cache_slot",
        )


def render(
    chat: ChatInput, services: Services, limit: int | None = None
) -> tuple[Prompt, list[dict[str, Any]]]:
    """(prompt, usable tools) of a chat request: what both a generation and a count begin with.

    Raises RequestError, TooManyTokensError for a prompt that is far longer than `limit`.
    """
    if services.model.render is None:
        raise RequestError(
            "The model has no chat template; use /v1/completions.", code="chat_not_supported"
        )
    tools: list[dict[str, Any]] = []
    if chat.tool_choice.mode != "none":
        tools, left_out = usable_tools(chat.tools)
        for sentence in left_out:
            log.info("a tool is left out: %s", sentence)
    messages, begun = chat.messages, ""
    if chat.goes_on and not writes_before_text(services):
        messages, begun = messages[:-1], str(messages[-1]["content"])
    found = {i: services.loaded.answers.find(message) for i, message in enumerate(messages)}
    conversation = Conversation(
        messages=messages,
        tools=tools,
        thinking=chat.thinking,
        effort=chat.effort,
        answers={i: answer for i, answer in found.items() if answer is not None},
        limit=limit,
    )
    prompt = services.model.render(conversation)
    if not begun:
        return prompt, tools
    tokens = [*prompt.tokens, *services.model.encode(begun, limit)]
    return Prompt(tokens=tokens, reasoning=prompt.reasoning), tools


def encode(text: str, services: Services, *, subject: str) -> list[int]:
    """Tokens of plain text, the field `subject`. Raises RequestError, ContextLengthError for one
    that is far too long.
    """
    context = services.known_context()
    try:
        return services.model.encode(text, context)
    except TooManyTokensError as error:
        raise _too_long(error.tokens, context or 0, subject, counted=False) from None


def prepare(chat: ChatInput, services: Services) -> GenerationRequest:
    """The request that may be admitted. Raises RequestError, ContextLengthError for a prompt that
    leaves no room.
    """
    context = services.known_context()
    try:
        prompt, tools = render(chat, services, context)
    except TooManyTokensError as error:
        raise _too_long(error.tokens, context or 0, "messages", counted=False) from None
    model = services.model
    sampling = chat.sampling
    if not sampling.stops and model.chat_stops:
        sampling = msgspec.structs.replace(
            sampling, stops=model.chat_stops, ignore_leading_stop=True
        )
    demanded = _grammar(chat, tools, model, prompt)
    for note in demanded.notes:
        log.warning("the answer's form is enforced in part: %s", note)
    return generation(
        prompt.tokens,
        sampling,
        services,
        subject="messages",
        watch=Recorder(prompt.tokens, services.loaded.answers) if tools else None,
        answer=AnswerForm(
            parse=True,
            tools=_sendable(tools),
            reasoning=prompt.reasoning,
            reasoning_budget=_budget(chat.thinking_budget),
            grammar=demanded,
            one_call=not chat.tool_choice.parallel,
        ),
    )


def _sendable(tools: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The tools with whole numbers that the wire takes: JSON has them of any size, as bounds of
    big integers do. The worker reads types in them, and a number's type does not change.
    """
    return tuple(json.loads(json.dumps(tools), parse_int=_within_the_wire))


def _within_the_wire(digits: str) -> int:
    return max(_LEAST_ON_WIRE, min(int(digits), _MOST_ON_WIRE))


def _budget(wanted: int | None) -> int | None:
    """A budget beyond any context, which JSON may have in any size, as one that the wire takes."""
    return None if wanted is None else min(wanted, _MAX_BUDGET)


def _grammar(
    chat: ChatInput, tools: list[dict[str, Any]], model: ServedModel, prompt: Prompt
) -> Grammar:
    """What the answer has to look like; an empty grammar where anything goes."""
    syntax = msgspec.structs.replace(model.syntax, reasoning=prompt.reasoning)
    choice = chat.tool_choice
    if choice.mode == "required":
        declared = Tools(tools)
        if choice.name is not None and choice.name not in declared:
            raise RequestError(
                f"'tool_choice' names the tool {choice.name[:100]!r}, which 'tools' does not have.",
                param="tool_choice",
            )
        if not tools:
            raise RequestError(
                "'tool_choice' demands a call, but 'tools' holds no usable tool.",
                param="tool_choice",
            )
        # Who names one tool wants one call of it; small models would repeat it without end.
        many = choice.parallel and choice.name is None
        return grammar.tool_calls(declared, syntax, name=choice.name, many=many)
    if chat.format is None:
        return Grammar()
    # A model that may call tools does so before it gives the answer that must be JSON.
    offered = Tools(tools) if tools else None
    if chat.format.schema is None:
        return grammar.json_object(syntax, tools=offered, many=choice.parallel)
    return grammar.json_schema(chat.format.schema, syntax, tools=offered, many=choice.parallel)


def generation(
    prompt: list[int],
    sampling: Sampling,
    services: Services,
    *,
    subject: str,
    answer: AnswerForm | None = None,
    watch: Callable[[JobEvent], None] | None = None,
) -> GenerationRequest:
    """A generation after these tokens; `subject` is the field they came from, `watch` is shown its
    events.
    """
    model, settings = services.model, services.loaded.settings
    context = services.context()
    room = context - len(prompt)
    if room < 1:
        raise _too_long(len(prompt), context, subject)
    limits = (sampling.max_tokens, settings.max_tokens, room)
    temperature, top_p = _drawing(sampling, model, settings)
    return GenerationRequest(
        id=secrets.token_hex(12),
        prompt=prompt,
        max_tokens=min(limit for limit in limits if limit is not None),
        temperature=temperature,
        top_p=top_p,
        seed=secrets.randbits(64) if sampling.seed is None else sampling.seed & _SEED_MASK,
        stops=sampling.stops,
        ignore_leading_stop=sampling.ignore_leading_stop,
        cache_slot=sampling.cache_slot,
        answer=answer or AnswerForm(),
        watch=watch,
        load=services.loaded.number,
        waited_seconds=services.waited_seconds(),
    )


def _too_long(
    tokens: int, context: int, subject: str, *, counted: bool = True
) -> ContextLengthError:
    """In the words by which this dialect's clients know it. A prompt far beyond the context is not
    read to its end: more than a context's tokens take seconds, which others would wait.
    """
    words = f"{tokens}" if counted else f"more than {tokens}"
    return ContextLengthError(
        f"This model's maximum context length is {context} tokens. "
        f"However, your {subject} resulted in {words} tokens. "
        f"Please reduce the length of the {subject}.",
        param=subject,
        tokens=tokens,
        limit=context,
        counted=counted,
    )


def _drawing(sampling: Sampling, model: ServedModel, settings: Settings) -> tuple[float, float]:
    """Temperature and top_p: request, else launch, else model, else built-in."""

    def first(*values: float | None) -> float:
        return next(value for value in values if value is not None)

    temperature = first(
        sampling.temperature, settings.temperature, model.temperature, DEFAULT_TEMPERATURE
    )
    top_p = first(sampling.top_p, settings.top_p, model.top_p, DEFAULT_TOP_P)
    return temperature, max(top_p, _SMALLEST_TOP_P)
