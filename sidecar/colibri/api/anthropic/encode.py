"""Answers in Anthropic's form: one message, or the named events of a stream.

For: the handlers. A message consists of blocks; neighbouring parts of one kind share one. In a
stream, blocks follow each other with rising indexes, and each is closed before the next begins:

    message_start ping (content_block_start content_block_delta* content_block_stop)*
    message_delta message_stop                                    ping wherever it is quiet

Thread rule: an encoder belongs to one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from colibri.api import errors
from colibri.api.anthropic import convert
from colibri.api.anthropic.schemas import (
    Content,
    MessageObject,
    NoticeObject,
    OutputDetails,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolUseContent,
    UsageObject,
)
from colibri.api.replies import one_line
from colibri.engine.answer import CallArguments, CallStart, Notice, Part, Reasoning, Text
from colibri.engine.protocol import Accepted, Done, Usage
from colibri.errors import ColibriError
from colibri.text.parts import joined

STOP_REASONS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def event(name: str, **fields: Any) -> bytes:
    """One named server-sent event; its data repeats the name as `type`."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), one_line({"type": name, **fields}))


PING: Final = event("ping")


def warning(notice: Notice) -> bytes:
    """A ping that says what there is to know before the answer comes."""
    return event("ping", x_colibri_notice=_notice(notice))


def error_event(error: ColibriError) -> bytes:
    """The end of a stream that fails after its headers."""
    return b"event: error\ndata: %s\n\n" % one_line(errors.anthropic_body(error))


def usage_object(usage: Usage) -> UsageObject:
    """Token counts under Anthropic's names: the prompt is split in what was computed and not."""
    return UsageObject(
        input_tokens=usage.prompt - usage.cached,
        cache_read_input_tokens=usage.cached,
        output_tokens=usage.completion,
        output_tokens_details=OutputDetails(usage.reasoning),
    )


def _notice(notice: Notice | None) -> NoticeObject | None:
    return None if notice is None else NoticeObject(notice.code, notice.message)


class Encoder:
    """The answer to one request. `omit`: the reasoning is not shown, only signed."""

    def __init__(self, job: str, model: str, prompt_tokens: int, *, omit: bool = False) -> None:
        self._id = f"msg_{job}"
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._omit = omit
        self._index = -1
        self._open: type[Text | Reasoning | CallStart] | None = None
        self._thoughts: list[str] = []

    # ---- in one piece ----

    def whole(self, parts: Iterable[Part], done: Done) -> MessageObject:
        """The answer of a request that is not streamed."""
        return self._message(
            list(self._blocks(joined(parts))),
            usage_object(done.usage),
            STOP_REASONS[done.finish_reason],
            _notice(done.notice),
        )

    def _blocks(self, parts: Sequence[Part]) -> Iterable[Content]:
        calls: dict[int, list[str]] = {}
        for part in parts:
            if isinstance(part, CallArguments):
                calls.setdefault(part.index, []).append(part.text)
        for part in parts:
            if isinstance(part, Text):
                yield TextContent(part.text)
            elif isinstance(part, Reasoning):
                signature = self._sign(part.text)
                yield ThinkingContent("" if self._omit else part.text, signature)
            elif isinstance(part, CallStart):
                # As it is: numbers keep every digit that the model wrote.
                arguments = "".join(calls.get(part.index, ())) or "{}"
                yield ToolUseContent(part.id, part.name, msgspec.Raw(arguments.encode()))

    def _sign(self, thinking: str) -> str:
        return convert.carry(thinking) if self._omit else convert.seal(thinking)

    def _message(
        self,
        content: list[Content],
        usage: UsageObject,
        stop_reason: StopReason | None,
        notice: NoticeObject | None = None,
    ) -> MessageObject:
        return MessageObject(
            id=self._id,
            role="assistant",
            model=self._model,
            content=content,
            stop_reason=stop_reason,
            stop_sequence=None,
            usage=usage,
            x_colibri_notice=notice,
        )

    # ---- as a stream ----

    def start(self, accepted: Accepted | None) -> bytes:
        """The beginning. What is cached is not known before the job is `accepted`; the end of the
        stream tells it again.
        """
        cached = accepted.cached if accepted else 0
        usage = Usage(prompt=self._prompt_tokens, cached=cached, completion=0)
        message = self._message([], usage_object(usage), None)
        return event("message_start", message=message)

    def parts(self, parts: Iterable[Part]) -> bytes:
        """The events of new parts; empty if nothing of them is shown."""
        return b"".join(self._part(part) for part in parts)

    def finish(self, done: Done) -> bytes:
        """The end of an answer that ended well."""
        fields: dict[str, Any] = {
            "delta": {"stop_reason": STOP_REASONS[done.finish_reason], "stop_sequence": None},
            "usage": usage_object(done.usage),
        }
        if done.notice is not None:
            fields["x_colibri_notice"] = _notice(done.notice)
        return self._close() + event("message_delta", **fields) + event("message_stop")

    def _part(self, part: Part) -> bytes:
        if isinstance(part, Text | Reasoning):
            return self._words(part) if part.text else b""
        if isinstance(part, CallStart):
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            return self._close() + self._enter(CallStart, block)
        if isinstance(part, CallArguments):
            return self._delta({"type": "input_json_delta", "partial_json": part.text})
        return self._close()

    def _words(self, part: Text | Reasoning) -> bytes:
        if isinstance(part, Text):
            opened = self._enter(Text, {"type": "text", "text": ""})
            return opened + self._delta({"type": "text_delta", "text": part.text})
        opened = self._enter(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
        self._thoughts.append(part.text)
        if self._omit:
            return opened
        return opened + self._delta({"type": "thinking_delta", "thinking": part.text})

    def _enter(self, kind: type[Text | Reasoning | CallStart], block: dict[str, Any]) -> bytes:
        """Opens a block unless one of this kind is open."""
        if self._open is kind:
            return b""
        closed = self._close()
        self._open = kind
        self._index += 1
        return closed + event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open is Reasoning:
            signature = self._sign("".join(self._thoughts))
            self._thoughts = []
            signed = self._delta({"type": "signature_delta", "signature": signature})
        self._open = None
        return signed + event("content_block_stop", index=self._index)
