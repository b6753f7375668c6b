"""Bodies of answers of the OpenAI routes.

For: the encoders, and the OpenAPI description. Fields of our own begin with `x_colibri_`. Not for:
errors (`api.errors`). Thread rule: values.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from colibri.engine.answer import Notice

Reason = Literal["stop", "length", "tool_calls"]


class CachedTokens(msgspec.Struct):
    """How many tokens of the prompt were held already."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    """How many tokens of the answer are reasoning."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TimingsBody(msgspec.Struct):
    """How long the answer took, under the names that llama.cpp's server has for it.

    `prompt_n` tokens of the prompt were computed and `cache_n` held already; `prompt_ms` is the
    time from the beginning of the work to the first token, without that in the queue;
    `predicted_ms` from the first token to the end. A rate is null where there is nothing to
    measure: the first token comes with the prompt, so `predicted_per_second` counts those after it.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None


class CalledFunction(msgspec.Struct):
    """`arguments` is always the text of one JSON object."""

    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct):
    """What the model says; `content` is null only if it calls tools and says nothing."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """The one answer of a request."""

    message: AnswerMessage
    finish_reason: Reason
    index: Literal[0] = 0
    logprobs: None = None
    x_colibri_notice: Notice | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The answer of POST /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: TimingsBody
    object: Literal["chat.completion"] = "chat.completion"


class FunctionDelta(msgspec.Struct):
    """The name once, then pieces of the arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct):
    """News of call `index`; its first one has id, type and name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What is new in a chunk; an empty one is a sign of life."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """The one answer, in pieces."""

    delta: Delta
    finish_reason: Reason | None = None
    index: Literal[0] = 0
    logprobs: None = None
    x_colibri_notice: Notice | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """An event of a streamed chat. `choices` is empty only in the chunk with the usage."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType = UNSET
    timings: TimingsBody | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class TextChoice(msgspec.Struct):
    """The one continuation of a request, whole or a piece of it."""

    text: str
    finish_reason: Reason | None = None
    index: Literal[0] = 0
    logprobs: None = None


class TextCompletion(msgspec.Struct):
    """The answer of POST /v1/completions, and each event of its stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody | UnsetType = UNSET
    timings: TimingsBody | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"


class AboutBody(msgspec.Struct):
    """What a model says about itself: a note for people, questions to begin with, whether it is the
    model that comes with the program, and whether that runs from its source tree, where
    `make run MODEL=...` gets one that chats.
    """

    note: str
    examples: list[str]
    starter: bool
    from_source: bool


class ModelBody(msgspec.Struct):
    """A model, with its limits under each of the names that clients look for.

    Limits are null while the model is being loaded for the first time. `trained_context_length` is
    the longest context that the model was made for; `warnings` are sentences for people. `about` is
    left out for a model that says nothing.
    """

    id: str
    created: int
    context_length: int | None
    context_window: int | None
    max_model_len: int | None
    max_context_length: int | None
    max_output_tokens: int | None
    trained_context_length: int | None
    warnings: list[str]
    about: AboutBody | UnsetType = UNSET
    object: Literal["model"] = "model"
    owned_by: str = "colibri"


class ModelList(msgspec.Struct):
    """The answer of GET /v1/models."""

    data: list[ModelBody]
    object: Literal["list"] = "list"


class AnthropicModel(msgspec.Struct):
    """A model as Anthropic's clients read it."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    type: Literal["model"] = "model"
    lifecycle: Literal["active"] = "active"


class AnthropicModelList(msgspec.Struct):
    """The answer of GET /v1/models to Anthropic's clients."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
