"""Bodies of the OpenAI routes: fields, and the rules about fields we cannot honour.

For: the handlers of this dialect. An unknown field is ignored, since clients add some every
month; a field that would change the answer and is not supported is refused by its name. Not for:
tokens or limits of the model.
"""

from __future__ import annotations

from typing import Any

import msgspec

from colibri.errors import RequestError

MAX_STOPS = 4
MAX_TEMPERATURE = 2.0
_SEED_BITS = 64

ROLES = {
    "system": "system",
    # The newer name of the same role; templates know only the old one.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    """Fields that chat and legacy completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    cache_slot: int | None = None
    x_colibri_ignore_leading_stop: bool | None = None


class FunctionCall(msgspec.Struct):
    """Name and argument text of a replayed tool call."""

    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct):
    """A tool call in a replayed assistant turn."""

    id: str | None = None
    function: FunctionCall | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None


class ChatRequest(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    enable_thinking: bool | None = None


class CompletionRequest(_Common, kw_only=True):
    """POST /v1/completions."""

    prompt: Any = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


def refuse(param: str, sentence: str) -> RequestError:
    """The error for a field that has a meaning we do not offer."""
    return RequestError(sentence, param=param, code="unsupported_parameter")


def _range(param: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise RequestError(
            f"'{param}' must be between {low:g} and {high:g}, not {value:g}.", param=param
        )


def check_common(request: _Common, kv_slots: int) -> None:
    """Raises RequestError naming the first common field that is out of range or unsupported."""
    _range("temperature", request.temperature, 0, MAX_TEMPERATURE)
    _range("top_p", request.top_p, 0, 1)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError("'max_tokens' must be at least 1.", param="max_tokens")
    if request.seed is not None and not -(1 << _SEED_BITS - 1) <= request.seed < 1 << _SEED_BITS:
        raise RequestError("'seed' must be an integer of 64 bits.", param="seed")
    if request.n not in (None, 1):
        raise refuse("n", "'n' must be 1: this server makes one answer per request.")
    for param in ("frequency_penalty", "presence_penalty"):
        if getattr(request, param):
            raise refuse(param, f"'{param}' is not supported; leave it out or send 0.")
    if request.logit_bias:
        raise refuse("logit_bias", "'logit_bias' is not supported; leave it out.")
    if request.cache_slot is not None and not 0 <= request.cache_slot < kv_slots:
        raise RequestError(
            f"'cache_slot' must be 0 to {kv_slots - 1}, not {request.cache_slot}: this server has "
            f"{kv_slots} KV slot{'s' if kv_slots > 1 else ''} (--kv-slots).",
            param="cache_slot",
        )
    stop_list(request)


def stop_list(request: _Common) -> tuple[str, ...]:
    """The stop strings of a request. Raises RequestError for too many or empty ones."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise RequestError(
            f"'stop' may hold at most {MAX_STOPS} strings, not {len(stops)}.", param="stop"
        )
    if "" in stops:
        raise RequestError("'stop' must not hold an empty string.", param="stop")
    return tuple(stops)


def check_chat(request: ChatRequest, kv_slots: int) -> None:
    """Raises RequestError naming the first field of a chat request that we cannot honour."""
    check_common(request, kv_slots)
    if request.max_completion_tokens is not None and request.max_completion_tokens < 1:
        raise RequestError(
            "'max_completion_tokens' must be at least 1.", param="max_completion_tokens"
        )
    if request.logprobs:
        raise refuse("logprobs", "'logprobs' is not supported; leave it out or send false.")
    if request.top_logprobs:
        raise refuse("top_logprobs", "'top_logprobs' is not supported; leave it out.")
    if request.tools and request.tool_choice != "none":
        raise refuse("tools", "'tools' is not supported by this server; leave it out.")
    if request.functions:
        raise refuse("functions", "'functions' is not supported by this server; leave it out.")
    if request.audio or set(request.modalities or ()) - {"text"}:
        param = "audio" if request.audio else "modalities"
        raise refuse(param, f"'{param}': this server answers with text only.")
    if request.enable_thinking:
        raise refuse("enable_thinking", "'enable_thinking' is not supported by this server.")
    kind = (request.response_format or {}).get("type", "text")
    if kind != "text":
        raise refuse(
            "response_format", f"'response_format' of type {kind!r} is not supported, only 'text'."
        )


def check_completion(request: CompletionRequest, kv_slots: int) -> None:
    """Raises RequestError naming the first field of a completion that we cannot honour."""
    check_common(request, kv_slots)
    if request.suffix:
        raise refuse("suffix", "'suffix' is not supported: the model has no infill tokens.")
    if request.echo:
        raise refuse("echo", "'echo' is not supported; leave it out or send false.")
    if request.best_of not in (None, 1):
        raise refuse("best_of", "'best_of' must be 1: this server makes one answer per request.")
    if request.logprobs is not None:
        raise refuse("logprobs", "'logprobs' is not supported; leave it out.")


def chat_messages(request: ChatRequest) -> list[dict[str, str]]:
    """Role and text of every message. Raises RequestError naming the message at fault."""
    if not request.messages:
        raise RequestError("'messages' must not be empty.", param="messages")
    return [
        {"role": _role(message, f"messages[{i}]"), "content": _text(message, f"messages[{i}]")}
        for i, message in enumerate(request.messages)
    ]


def _role(message: Message, place: str) -> str:
    if message.role in ("tool", "function"):
        raise refuse(f"{place}.role", f"'{place}': tool results are not supported by this server.")
    if message.tool_calls:
        raise refuse(
            f"{place}.tool_calls[0]", f"'{place}': tool calls are not supported by this server."
        )
    role = ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"'{place}.role' must be one of {', '.join(ROLES)}, not {message.role[:40]!r}.",
            param=f"{place}.role",
        )
    return role


def _text(message: Message, place: str) -> str:
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise RequestError(f"'{place}.content' is missing.", param=f"{place}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for j, part in enumerate(message.content):
        where = f"{place}.content[{j}]"
        kind, text = part.get("type"), part.get("text")
        if kind not in ("text", "input_text", "output_text"):
            raise refuse(where, f"'{where}' is of type {str(kind)[:40]!r}; only text is supported.")
        if not isinstance(text, str):
            raise RequestError(f"'{where}.text' must be a string.", param=f"{where}.text")
        texts.append(text)
    return "\n".join(texts)
