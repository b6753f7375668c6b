"""Bodies of requests to the OpenAI routes.

For: the handlers of this dialect, and the OpenAPI description. A field that is not here is ignored,
since clients add some every month. Not for: rules (`checks`), conversations (`turns`), or bodies of
answers (`answers`). What `says` adds to a type is told in the description and checked by `checks`,
whose sentences name field and remedy. Thread rule: values.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from colibri.api.describe import says


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    """Fields that chat and legacy completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int | None, says(minimum=1)] = None
    temperature: Annotated[float | None, says(minimum=0, maximum=2)] = None
    top_p: Annotated[float | None, says(minimum=0, maximum=1)] = None
    seed: Annotated[int | None, says(minimum=-(1 << 63), maximum=(1 << 64) - 1)] = None
    stop: Annotated[str | list[str] | None, says(minLength=1, maxItems=4)] = None
    n: Annotated[int | None, says(enum=[1, None])] = None
    frequency_penalty: Annotated[float | None, says(enum=[0, None])] = None
    presence_penalty: Annotated[float | None, says(enum=[0, None])] = None
    logit_bias: Annotated[dict[str, Any] | None, says(maxProperties=0)] = None
    cache_slot: Annotated[int | None, says(minimum=0, maximum=15)] = None
    x_colibri_ignore_leading_stop: bool | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """Name and arguments of a replayed call; arguments are a text of JSON, or what it says."""

    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call in a replayed assistant turn."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation. `function_call` and the role `function` are the old names of
    tool calls and their results; `reasoning` is another name of `reasoning_content`.
    """

    role: Annotated[
        str, says(enum=["system", "developer", "user", "assistant", "tool", "function"])
    ]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    """How much the model shall think; another way to say `reasoning_effort`."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: int | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Another way to say `enable_thinking`: `type` is `enabled` or `disabled`."""

    type: str | None = None
    budget_tokens: int | None = None


class TemplateOptions(msgspec.Struct, kw_only=True):
    """What clients of other servers send for the chat template; the rest of it is ignored."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: str | None = None


class ChatRequest(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], says(minItems=1)]
    max_completion_tokens: Annotated[int | None, says(minimum=1)] = None
    logprobs: Annotated[bool | None, says(enum=[False, None])] = None
    top_logprobs: Annotated[int | None, says(enum=[0, None])] = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any] | None, says(maxItems=0)] = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking: Thinking | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateOptions | None = None
    continue_final_message: bool | None = None


class CompletionRequest(_Common, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[str | list[Any], says(minLength=1, minItems=1)] | None = None
    suffix: Annotated[str | None, says(maxLength=0)] = None
    echo: Annotated[bool | None, says(enum=[False, None])] = None
    best_of: Annotated[int | None, says(enum=[1, None])] = None
    logprobs: Annotated[int | None, says(enum=[None])] = None
