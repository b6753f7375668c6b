"""From a request in Anthropic's form to the chat request that all dialects share.

For: this dialect's handler. Blocks become messages in OpenAI's shape: the results of tools are
messages of their own, in the order of their calls, because templates show the order and not the
ids; reasoning that comes back is the reasoning of its turn. Not for: rendering, or limits of the
model. Thread rule: pure functions.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from colibri.api import native
from colibri.api.anthropic.schemas import (
    Block,
    CountRequest,
    InputMessage,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from colibri.errors import RequestError

_CHOICES: Final[Mapping[str, Literal["auto", "none", "required"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
# Signatures of ours: one carries the reasoning that was not shown, the other nothing.
_CARRIED: Final = "colibri-text:"
_SEALED: Final = "colibri-seal:"

Message: TypeAlias = dict[str, Any]


def chat_input(request: CountRequest) -> native.ChatInput:
    """The chat request that makes the same prompt. Raises RequestError naming the field."""
    messages = _messages(request)
    output_format = (request.output_config and request.output_config.format) or (
        request.output_format
    )
    thinking = request.thinking
    thinks = thinking is not None and thinking.type != "disabled"
    return native.ChatInput(
        messages=messages,
        tools=[msgspec.to_builtins(tool) for tool in request.tools or ()],
        tool_choice=_tool_choice(request),
        format=native.JsonFormat(schema=output_format.schema) if output_format else None,
        thinking=thinks,
        goes_on=native.is_begun(messages) and not thinks and not output_format,
        effort=request.output_config.effort if request.output_config else None,
        thinking_budget=_budget(request),
        sampling=_sampling(request) if isinstance(request, MessagesRequest) else native.Sampling(),
    )


def _sampling(request: MessagesRequest) -> native.Sampling:
    return native.Sampling(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        cache_slot=request.cache_slot,
    )


def _tool_choice(request: CountRequest) -> native.ToolChoice:
    choice = request.tool_choice
    if choice is None:
        return native.ToolChoice()
    if choice.type == "tool" and choice.name is None:
        raise RequestError(
            "'tool_choice.name' is missing.", param="tool_choice.name", code="missing_field"
        )
    return native.ToolChoice(
        mode=_CHOICES[choice.type],
        name=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
    )


def _budget(request: CountRequest) -> int | None:
    thinking = request.thinking
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    if thinking.budget_tokens < 1:
        raise RequestError(
            "'thinking.budget_tokens' must be at least 1.", param="thinking.budget_tokens"
        )
    return thinking.budget_tokens


# ---- messages ------------------------------------------------------------------------------------


def _messages(request: CountRequest) -> list[Message]:
    if not request.messages:
        raise RequestError("'messages' must not be empty.", param="messages")
    messages: list[Message] = []
    system = _text(request.system or "")
    if system:
        messages.append({"role": "system", "content": system})
    for number, message in enumerate(request.messages):
        messages += _turn(message, f"messages[{number}]")
    return native.results_in_order(messages)


def _turn(message: InputMessage, place: str) -> list[Message]:
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise RequestError(
                f"'{place}.content' is missing.", param=f"{place}.content", code="missing_field"
            )
        content = ""
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    allowed = _ALLOWED[message.role]
    for number, block in enumerate(content):
        if not isinstance(block, allowed):
            where = f"{place}.content[{number}]"
            raise RequestError(
                f"'{where}': a block of this type cannot stand in a message of role "
                f"{message.role!r}.",
                param=f"{where}.type",
            )
    if message.role == "assistant":
        return [_answer(content)]
    return _asked(message.role, content)


_ALLOWED: Final[Mapping[str, tuple[type[Block], ...]]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


def _text(content: str | Iterable[Block | ToolReferenceBlock]) -> str:
    """The text of blocks, each on lines of its own."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _asked(role: str, blocks: Sequence[Block]) -> list[Message]:
    """A user's turn: the results of tools, and behind them the text."""
    results = [_result(block) for block in blocks if isinstance(block, ToolResultBlock)]
    has_text = any(isinstance(block, TextBlock) for block in blocks)
    if results and not has_text:
        return results
    return [*results, {"role": role, "content": _text(blocks)}]


def _result(block: ToolResultBlock) -> Message:
    content = block.content
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        text = "\n".join(
            part.text
            if isinstance(part, TextBlock)
            else f"The tool {part.tool_name} can be called now."
            for part in content
        )
    if block.is_error and "error" not in text[:40].lower():
        text = f"Error: {text or 'the tool failed and says nothing else.'}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _answer(blocks: Sequence[Block]) -> Message:
    """An earlier answer: its texts follow each other without anything between them."""
    message: Message = {
        "role": "assistant",
        "content": "".join(block.text for block in blocks if isinstance(block, TextBlock)),
    }
    thoughts = [
        block.thinking or (recover(block.signature) if block.signature else "")
        for block in blocks
        if isinstance(block, ThinkingBlock)
    ]
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.input},
            }
            for call in calls
        ]
    return message


# ---- signatures of reasoning ---------------------------------------------------------------------


def seal(thinking: str) -> str:
    """The signature of reasoning that was shown."""
    return _SEALED + hashlib.blake2b(thinking.encode(), digest_size=16).hexdigest()


def carry(thinking: str) -> str:
    """The signature of reasoning that is not shown: it brings it back with the next request."""
    return _CARRIED + base64.b64encode(thinking.encode()).decode()


def recover(signature: str) -> str:
    """The reasoning that a signature carries; empty for those of others."""
    if not signature.startswith(_CARRIED):
        return ""
    try:
        return base64.b64decode(signature[len(_CARRIED) :], validate=True).decode()
    except ValueError:
        return ""
