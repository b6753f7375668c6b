"""What the server owes to a recorded request: a status, and an answer that official types accept.

For: tests that send the requests of `bodies`, and `make test-clients`, which replays recordings.
Not for: which text an answer holds. Every function raises AssertionError with what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic.types
import openai.types
import openai.types.chat
from pydantic import TypeAdapter

from tests.clients.bodies import Recorded

# Requests that must be refused: what the error says about them. All others are answered.
_THREAD = "thread_unsupported_request"
REFUSED = {
    "anthropic-python/12": (400, _THREAD),
    "thread-details/01": (400, _THREAD),
    "thread-details/11": (400, _THREAD),
    # Log probabilities and an image.
    "openai-python/08": (400, "not supported"),
    "openai-python/12": (400, "suffix"),
}
# Routes that this server does not have.
MISSING = ("/responses", "/embeddings")
_EVENTS: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)


def expected(recorded: Recorded) -> tuple[int, str]:
    """(status, a piece of the error's text) that this request gets."""
    if recorded.path.endswith(MISSING):
        return 404, ""
    return REFUSED.get(recorded.name, (200, ""))


@dataclass
class Call:
    """A tool call of an answer; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Answer:
    """What a client gathers; `calls` by their number, `usage` as (prompt, generated) tokens."""

    text: str = ""
    reasoning: str = ""
    reason: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: tuple[int, int] | None = None


def read(recorded: Recorded, status: int, content_type: str, data: bytes) -> Answer | None:
    """Checks an answer from status to shape; None for what is no generation."""
    wanted, piece = expected(recorded)
    assert status == wanted, f"status {status} instead of {wanted}: {data[:500]!r}"
    if wanted != 200:
        error(recorded, data, piece)
        return None
    if recorded.method == "GET":
        models(recorded, json.loads(data))
        return None
    if recorded.path.endswith("/count_tokens"):
        count = anthropic.types.MessageTokensCount.model_validate_json(data)
        assert count.input_tokens > 0
        return None
    if recorded.body.get("stream"):
        assert content_type.startswith("text/event-stream"), content_type
        answer = stream(recorded, data)
    else:
        assert content_type.startswith("application/json"), content_type
        answer = whole(recorded, json.loads(data))
    declared = {_name(tool) for tool in recorded.body.get("tools") or ()}
    for call in answer.calls:
        assert call.id, "a call without an id"
        assert call.name in declared, f"a call of {call.name!r}, which was not declared"
        assert isinstance(json.loads(call.arguments), dict), call.arguments
    assert len({call.id for call in answer.calls}) == len(answer.calls), "an id twice"
    return answer


def _name(tool: Any) -> Any:
    return tool.get("function", tool).get("name")


def error(recorded: Recorded, data: bytes, piece: str) -> None:
    """The error has the dialect's shape."""
    body = json.loads(data)
    if recorded.dialect == "anthropic":
        assert body["type"] == "error", body
    inner = body["error"]
    assert isinstance(inner["message"], str), body
    assert inner["message"], body
    assert isinstance(inner["type"], str), body
    assert piece in json.dumps(inner), body


def models(recorded: Recorded, body: Any) -> None:
    """A list of models or one model, in the shape that the request's headers ask for."""
    found = body.get("data", [body])
    assert found, "no model"
    for model in found:
        if recorded.dialect == "anthropic":
            anthropic.types.ModelInfo.model_validate(model)
            assert model["type"] == "model", model
        else:
            openai.types.Model.model_validate(model)
            assert model["object"] == "model", model
    if "data" in body and recorded.dialect == "openai":
        assert body["object"] == "list", body


# ---- answers in one piece ------------------------------------------------------------------------


def whole(recorded: Recorded, body: Any) -> Answer:
    if recorded.dialect == "anthropic":
        return _whole_message(body)
    if recorded.path.endswith("/chat/completions"):
        return _whole_chat(body)
    completion = openai.types.Completion.model_validate(body)
    assert completion.object == "text_completion"
    (choice,) = completion.choices
    assert completion.usage
    usage = (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return Answer(text=choice.text, reason=str(choice.finish_reason), usage=usage)


def _whole_chat(body: Any) -> Answer:
    chat = openai.types.chat.ChatCompletion.model_validate(body)
    assert chat.object == "chat.completion"
    (choice,) = chat.choices
    assert choice.message.role == "assistant"
    calls = [
        Call(call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    assert not calls or choice.finish_reason in ("tool_calls", "length"), body
    assert calls or choice.finish_reason != "tool_calls", body
    assert chat.usage
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    return Answer(
        text=choice.message.content or "",
        reasoning=(choice.message.model_extra or {}).get("reasoning_content") or "",
        reason=choice.finish_reason,
        calls=calls,
        usage=(chat.usage.prompt_tokens, chat.usage.completion_tokens),
    )


def _whole_message(body: Any) -> Answer:
    message = anthropic.types.Message.model_validate(body)
    assert (message.type, message.role) == ("message", "assistant")
    answer = Answer(reason=str(message.stop_reason))
    for block in message.content:
        if block.type == "text":
            answer.text += block.text
        elif block.type == "thinking":
            answer.reasoning += block.thinking
            assert isinstance(block.signature, str)
        elif block.type == "tool_use":
            answer.calls.append(Call(block.id, block.name, json.dumps(block.input)))
    assert message.stop_reason in ("end_turn", "max_tokens", "tool_use"), body
    assert not answer.calls or message.stop_reason in ("tool_use", "max_tokens"), body
    assert answer.calls or message.stop_reason != "tool_use", body
    answer.usage = (_input_tokens(message.usage), message.usage.output_tokens)
    return answer


def _input_tokens(usage: Any) -> int:
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(usage.input_tokens or 0) + cached


# ---- streams -------------------------------------------------------------------------------------


def events(data: bytes) -> list[tuple[str, str]]:
    """(name, data) of server-sent events; a name that is not sent is empty."""
    found = []
    for block in data.decode().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
        if "data" in fields:
            found.append((fields.get("event", ""), fields["data"]))
    return found


def stream(recorded: Recorded, data: bytes) -> Answer:
    found = events(data)
    if recorded.dialect == "anthropic":
        return _streamed_message(found)
    assert found[-1][1] == "[DONE]", found[-1:]
    chunks = [json.loads(text) for _, text in found[:-1]]
    for chunk in chunks:
        assert "error" not in chunk, chunk
    asked = bool((recorded.body.get("stream_options") or {}).get("include_usage"))
    usages = [chunk for chunk in chunks if not chunk["choices"]]
    assert len(usages) == int(asked), f"{len(usages)} chunks without a choice"
    if recorded.path.endswith("/chat/completions"):
        answer = _streamed_chat([chunk for chunk in chunks if chunk["choices"]])
    else:
        answer = _streamed_text([chunk for chunk in chunks if chunk["choices"]])
    if asked:
        usage = usages[0]["usage"]
        answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        assert chunks[-1] is usages[0], "the usage is not the last chunk"
    return answer


def _streamed_text(chunks: Sequence[Any]) -> Answer:
    answer = Answer()
    for chunk in chunks:
        completion = openai.types.Completion.model_validate(
            # The type has no chunk without a reason, yet all but the last are such.
            {
                **chunk,
                "choices": [
                    {**c, "finish_reason": c.get("finish_reason") or "stop"}
                    for c in chunk["choices"]
                ],
            }
        )
        answer.text += completion.choices[0].text
    answer.reason = chunks[-1]["choices"][0]["finish_reason"]
    return answer


def _streamed_chat(chunks: Sequence[Any]) -> Answer:
    answer = Answer()
    assert len({chunk["id"] for chunk in chunks}) == 1, "the id changes"
    for raw in chunks:
        chunk = openai.types.chat.ChatCompletionChunk.model_validate(raw)
        assert chunk.object == "chat.completion.chunk"
        (choice,) = chunk.choices
        assert not answer.reason, "something comes after the finish reason"
        answer.reason = choice.finish_reason or ""
        delta = choice.delta
        assert not (delta.content and delta.tool_calls), "text and a call in one chunk"
        answer.text += delta.content or ""
        answer.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
        for call in delta.tool_calls or ():
            assert call.function
            if call.index == len(answer.calls):
                assert call.id, raw
                assert call.type == "function", raw
                assert call.function.name, raw
                answer.calls.append(Call(call.id, call.function.name))
            answer.calls[call.index].arguments += call.function.arguments or ""
    assert not answer.calls or answer.reason in ("tool_calls", "length"), answer
    assert answer.calls or answer.reason != "tool_calls", answer
    assert answer.reason in ("stop", "length", "tool_calls"), answer
    return answer


def _streamed_message(found: Sequence[tuple[str, str]]) -> Answer:
    answer, open_block, count = Answer(), "", 0
    kinds = []
    for name, text in found:
        raw = json.loads(text)
        assert raw["type"] == name, f"event {name} holds {raw['type']}"
        if name == "ping":
            continue
        assert name != "error", raw
        event = _EVENTS.validate_python(raw)
        kinds.append(name)
        if name == "message_start":
            assert event.message.content == []
            assert event.message.stop_reason is None
        elif name == "content_block_start":
            assert not open_block, "a block begins inside another"
            assert event.index == count
            count += 1
            open_block = event.content_block.type
            if open_block == "tool_use":
                assert event.content_block.input == {}
                answer.calls.append(Call(event.content_block.id, event.content_block.name))
        elif name == "content_block_delta":
            assert event.index == count - 1
            kind = event.delta.type
            allowed = {
                "text": ("text_delta",),
                "thinking": ("thinking_delta", "signature_delta"),
                "tool_use": ("input_json_delta",),
            }[open_block]
            assert kind in allowed, f"{kind} in a block of {open_block}"
            if kind == "text_delta":
                answer.text += event.delta.text
            elif kind == "thinking_delta":
                answer.reasoning += event.delta.thinking
            elif kind == "input_json_delta":
                answer.calls[-1].arguments += event.delta.partial_json
        elif name == "content_block_stop":
            assert open_block
            open_block = ""
        elif name == "message_delta":
            assert not open_block, "the message ends inside a block"
            answer.reason = event.delta.stop_reason or ""
            answer.usage = (_input_tokens(event.usage), event.usage.output_tokens)
    for call in answer.calls:
        call.arguments = call.arguments or "{}"
    assert kinds[0] == "message_start", kinds[:2]
    assert kinds[-2:] == ["message_delta", "message_stop"], kinds[-3:]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    assert answer.reason in ("end_turn", "max_tokens", "tool_use"), answer
    assert not answer.calls or answer.reason in ("tool_use", "max_tokens"), answer
    assert answer.calls or answer.reason != "tool_use", answer
    return answer
