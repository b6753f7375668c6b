"""Conversations of the OpenAI dialect, brought into the one shape that prompts are made of.

For: the chat handler. What a client replays is accepted in every form that servers have ever sent,
and no message vanishes: null, missing and empty content are the same, tool calls stay in their
places, and their results follow in the order of the calls. Not for: rendering (`models.served`,
`text.history`). Thread rule: pure functions.
"""

from __future__ import annotations

from typing import Any

from colibri.api.native import results_in_order
from colibri.api.openai.checks import refuse
from colibri.api.openai.schemas import ChatRequest, FunctionCall, Message, ToolCall
from colibri.errors import RequestError

ROLES = {
    "system": "system",
    # The newer name of the same role; templates know only the old one.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    # The older name of the same role.
    "function": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def chat_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The messages as `models.served.Conversation` has them. Raises RequestError naming the one
    at fault.
    """
    if not request.messages:
        raise RequestError("'messages' must not be empty.", param="messages")
    turns = [_message(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    return results_in_order(turns)


def _message(message: Message, place: str) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"'{place}.role' must be one of {', '.join(ROLES)}, not {message.role[:40]!r}.",
            param=f"{place}.role",
        )
    turn: dict[str, Any] = {"role": role, "content": _text(message, role, place)}
    if role == "assistant":
        reasoning = message.reasoning_content
        if reasoning is None and isinstance(message.reasoning, str):
            reasoning = message.reasoning
        if reasoning:
            turn["reasoning_content"] = reasoning
        calls = _calls(message, place)
        if calls:
            turn["tool_calls"] = calls
    elif role == "tool":
        turn["tool_call_id"] = message.tool_call_id
        if message.name:
            turn["name"] = message.name
    return turn


def _calls(message: Message, place: str) -> list[dict[str, Any]]:
    calls = message.tool_calls or []
    if not calls and message.function_call is not None:
        calls = [ToolCall(function=message.function_call)]
    return [_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _call(call: ToolCall, place: str) -> dict[str, Any]:
    if call.type not in (None, "function"):
        raise refuse(
            place, f"'{place}' is of type {call.type[:40]!r}; only calls of functions are known."
        )
    function = call.function or FunctionCall()
    if not function.name:
        raise RequestError(
            f"'{place}.function.name' must name the tool that was called.",
            param=f"{place}.function.name",
        )
    described = {"name": function.name, "arguments": function.arguments}
    return {"id": call.id, "type": "function", "function": described}


def _text(message: Message, role: str, place: str) -> str:
    content = message.content
    if content is None:
        if role in ("assistant", "tool"):
            return ""
        raise RequestError(f"'{place}.content' is missing.", param=f"{place}.content")
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{place}.content[{j}]") for j, part in enumerate(content))


def _part(part: dict[str, Any], where: str) -> str:
    kind = part.get("type", "text")
    if kind not in _TEXT_PARTS:
        raise refuse(where, f"'{where}' is of type {str(kind)[:40]!r}; only text is supported.")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise RequestError(f"'{where}.text' must be a string.", param=f"{where}.text")
    return text
