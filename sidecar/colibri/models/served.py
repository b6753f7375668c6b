"""The model that a server offers, as the HTTP side needs it: names, defaults, prompts.

For: the API, which gets one of these and never sees folders, tokenizers or families. Not for: the
engine's side of the same model (`models.backend`), which alone knows how long a context fits.
Thread rule: immutable; the functions may be called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colibri.models import about
from colibri.models.about import About
from colibri.models.model import ModelText
from colibri.text import thinking
from colibri.text.dialect import GLM, Dialect
from colibri.text.grammar import Syntax
from colibri.text.history import named, prepare
from colibri.text.replay import Answer, Rendering, merged
from colibri.text.tagged import THINK
from colibri.text.template import ChatTemplate, Rendered

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a prompt is made of.

    Messages have `role` (system, user, assistant or tool) and `content`, a text; those of the
    assistant may have `reasoning_content` and `tool_calls`, results of tools have `tool_call_id`,
    all as in OpenAI's format. `tools` are usable ones (`history.usable_tools`). `effort` is the
    word of the request, None where it gave none. `answers` are known answers by the number of the
    message that replays them. A prompt far beyond `limit` tokens need not be made.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    thinking: bool = False
    effort: str | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids of a conversation; `reasoning`: they end inside the reasoning."""

    tokens: list[int]
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One served model.

    `render` turns a conversation into a prompt, or is None for models without chat; `encode` does
    so for plain text, in which nothing becomes a control token. Both raise RequestError for what
    the model cannot take, and TooManyTokensError for what is far longer than a limit,
    in tokens. `syntax` is how the model writes, for grammars. `chat_stops` end a chat turn if the
    client names no stop of its own; leading ones are ignored. `temperature` and `top_p` are what
    the model's makers recommend, None where they say nothing. `about` is what it says of itself.
    `created` is a Unix time.
    """

    id: str
    family: str
    vocab: int
    render: Callable[[Conversation], Prompt] | None
    encode: Callable[[str, int | None], list[int]]
    syntax: Syntax
    chat_stops: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    about: About | None = None
    created: int = field(default_factory=lambda: int(time.time()))


def from_text(text: ModelText, model_id: str | None = None) -> ServedModel:
    """The served form of an opened model; `model_id` replaces its default name."""
    template, dialect = text.template, text.family.dialect

    def render(conversation: Conversation) -> Prompt:
        assert template is not None  # noqa: S101 - handed out only with a template
        return make_prompt(template, dialect, conversation)

    def encode(plain: str, limit: int | None) -> list[int]:
        text.tokenizer.check_length(plain, limit)
        return text.tokenizer.encode(plain)

    return ServedModel(
        id=model_id or text.model_id,
        family=text.family.name,
        vocab=text.tokenizer.vocab_size,
        render=None if template is None else render,
        encode=encode,
        syntax=Syntax(dialect.name, text.tokenizer.control_ids(dialect.markers)),
        chat_stops=text.family.chat_stops,
        temperature=text.sampling.temperature,
        top_p=text.sampling.top_p,
        about=about.read(text.folder),
    )


def make_prompt(template: ChatTemplate, dialect: Dialect, conversation: Conversation) -> Prompt:
    """The prompt, with the answers that are known token by token."""
    wish = conversation.thinking
    told = thinking.variables(template, thinking=wish, effort=conversation.effort)

    def rendered(
        messages: Sequence[Message], generation: bool, tools: Sequence[Message]
    ) -> tuple[Rendered, bool]:
        shaped, offered = prepare(messages, tools, template_takes_tools=template.takes_tools)
        text = template.render(
            shaped, tools=offered, add_generation_prompt=generation, variables=told
        )
        if not generation or THINK not in dialect.markers:
            return text, False
        return thinking.finished(template, text, thinking=wish, compact=dialect is GLM)

    messages, tools = named(conversation.messages), conversation.tools
    text, reasoning = rendered(messages, True, tools)
    template.check_length(text, conversation.limit)
    tokens = None
    if conversation.answers:
        rendering = Rendering(
            render=lambda messages, generation: rendered(messages, generation, tools)[0],
            bare=lambda messages, generation: rendered(messages, generation, ())[0],
            encode=template.encode,
            markers=template.marker_ids,
        )
        tokens = merged(rendering, messages, conversation.answers)
    return Prompt(tokens=template.encode(text) if tokens is None else tokens, reasoning=reasoning)
