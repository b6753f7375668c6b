"""Bodies of the Anthropic routes, requests and answers, and the fields we cannot honour.

For: the handlers of this dialect and the description of the API. An unknown field is ignored, since
clients add some every month; one that would change the answer and is not supported is refused by
its name. Not for: what a conversation means (`convert`) or limits of the model.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from colibri.api import body
from colibri.api.describe import says
from colibri.errors import RequestError

MAX_TEMPERATURE = 2.0

# ---- requests ------------------------------------------------------------------------------------


class TextBlock(msgspec.Struct, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """Reasoning of an earlier answer, as the client got it."""

    thinking: str = ""
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking"):
    """Reasoning that another server has encrypted; nothing here can read it."""

    data: str | None = None


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A call of a tool in an earlier answer."""

    id: str
    name: str
    input: Any = None


class ToolReferenceBlock(msgspec.Struct, tag="tool_reference"):
    """The name of a tool that a search among tools has found."""

    tool_name: str


class ToolResultBlock(msgspec.Struct, tag="tool_result"):
    """What a tool has returned."""

    tool_use_id: str
    content: str | list[TextBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None


Block: TypeAlias = (
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
)


class InputMessage(msgspec.Struct):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None


class Tool(msgspec.Struct, omit_defaults=True):
    """A tool. Those without `input_schema` that Anthropic's own servers run are left out."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """Which calls the answer may or must hold."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model may reason, and for how many tokens."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    """What the text of the answer has to look like: JSON of a schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """Form and effort of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    model: str | None = None
    messages: Annotated[list[InputMessage], says(minItems=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # The older place of `output_config.format`.
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[int | None, says(minimum=1)] = None
    stream: bool | None = None
    temperature: Annotated[float | None, says(minimum=0, maximum=2)] = None
    top_p: Annotated[float | None, says(minimum=0, maximum=1)] = None
    top_k: Annotated[int | None, says(enum=[None])] = None
    stop_sequences: Annotated[list[str] | None, says(maxItems=0)] = None
    thread: Annotated[Any, says(enum=[None])] = None
    cache_slot: Annotated[int | None, says(minimum=0, maximum=15)] = None


# ---- answers -------------------------------------------------------------------------------------


class TextContent(msgspec.Struct, tag="text"):
    """Text of the answer."""

    text: str


class ThinkingContent(msgspec.Struct, tag="thinking"):
    """Reasoning. To be sent back as it is; `thinking` is empty if the request wants it omitted."""

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, tag="tool_use"):
    """A call: the client runs the tool and sends a tool_result with the same id."""

    id: str
    name: str
    input: Annotated[Any, msgspec.Meta(extra_json_schema={"type": "object"})]


Content: TypeAlias = TextContent | ThinkingContent | ToolUseContent
StopReason: TypeAlias = Literal["end_turn", "max_tokens", "tool_use"]


class OutputDetails(msgspec.Struct):
    """Of the generated tokens."""

    thinking_tokens: int


class UsageObject(msgspec.Struct, kw_only=True):
    """Tokens. The prompt has `input_tokens` that were computed and `cache_read_input_tokens` that
    were held already.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class NoticeObject(msgspec.Struct):
    """What is worth knowing about an answer that ended well."""

    code: str
    message: str


class MessageObject(msgspec.Struct, kw_only=True, tag="message", omit_defaults=True):
    """An answer."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: UsageObject
    x_colibri_notice: NoticeObject | None = None


class StreamEvent(msgspec.Struct):
    """What every event of a stream has; the rest depends on `type`, which is also its name."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


class CountObject(msgspec.Struct):
    """How many tokens a request's prompt has."""

    input_tokens: int


# ---- rules ---------------------------------------------------------------------------------------


# What clients look for: they then send the whole conversation, without a thread.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
# Where a block of a kind that is not known stands.
_BLOCK = re.compile(r"^((?:messages\[\d+\]\.content|system)\[\d+\](\.content\[\d+\])?)\.type$")


def decode(data: bytes, kind: type[body.T]) -> body.T:
    """The body as `kind`. Raises RequestError naming the field."""
    try:
        return body.decode(data, kind)
    except RequestError as error:
        found = _BLOCK.match(error.param or "")
        if found is None or error.code == "missing_field":
            raise
        raise refuse(
            str(error.param),
            f"'{found[1]}' cannot be read: this server takes text, "
            + ("tool references" if found[2] else "thinking, tool uses and tool results")
            + f", no images or documents. ({error.message})",
        ) from None


def refuse(param: str, sentence: str) -> RequestError:
    """The error for a field that has a meaning we do not offer."""
    return RequestError(sentence, param=param, code="unsupported_parameter")


def _range(param: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise RequestError(
            f"'{param}' must be between {low:g} and {high:g}, not {value:g}.", param=param
        )


def check(request: MessagesRequest) -> None:
    """Raises RequestError naming the first field that is out of range or not supported."""
    if request.thread is not None:
        raise RequestError(
            "'thread' is not supported: this server keeps no threads. Send all messages and tools.",
            param="thread",
            code="unsupported_parameter",
            details={**_NO_THREADS},
        )
    if request.stop_sequences:
        raise refuse("stop_sequences", "'stop_sequences' is not supported; leave it out.")
    if request.top_k is not None:
        raise refuse("top_k", "'top_k' is not supported; leave it out and use 'top_p'.")
    _range("temperature", request.temperature, 0, MAX_TEMPERATURE)
    _range("top_p", request.top_p, 0, 1)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError("'max_tokens' must be at least 1.", param="max_tokens")
