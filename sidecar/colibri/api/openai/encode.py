"""Answers of the OpenAI routes, as JSON objects and as server-sent events.

For: the handlers. Chat and legacy completions share everything but the choice. Every chunk has
exactly one choice, except the usage chunk that a client asked for, whose list is empty by the
protocol. Id, time and model are the same in all chunks of an answer. A chunk holds content or a
piece of a call, never both: some clients lose the call. Thread rule: one owner at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import UNSET

from colibri.api import errors
from colibri.api.openai.answers import (
    AnswerCall,
    AnswerMessage,
    CachedTokens,
    CallDelta,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    Delta,
    FunctionDelta,
    Reason,
    ReasoningTokens,
    TextChoice,
    TextCompletion,
    TimingsBody,
    UsageBody,
)
from colibri.api.replies import one_line
from colibri.engine.answer import (
    CallArguments,
    CallEnd,
    CallStart,
    Notice,
    Part,
    Reasoning,
    Text,
)
from colibri.engine.protocol import Done, Usage
from colibri.errors import ClientGoneError, ColibriError

END: Final = "[DONE]"
DONE: Final = f"data: {END}\n\n".encode()


def sse(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + one_line(data) + b"\n\n"


def error_event(error: ColibriError) -> bytes:
    """The in-band end of a stream that fails after its headers."""
    return sse(errors.body(error))


def usage_body(usage: Usage) -> UsageBody:
    """Token counts as clients read them."""
    return UsageBody(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        total_tokens=usage.prompt + usage.completion,
        prompt_tokens_details=CachedTokens(usage.cached),
        completion_tokens_details=ReasoningTokens(usage.reasoning),
    )


def timings_body(done: Done) -> TimingsBody:
    """Times and rates as clients read them."""
    return TimingsBody(
        cache_n=done.usage.cached,
        prompt_n=done.usage.prompt - done.usage.cached,
        prompt_ms=round(done.prefill_ms, 2),
        prompt_per_second=done.prefill_per_second,
        predicted_n=done.usage.completion,
        predicted_ms=round(done.decode_ms, 2),
        predicted_per_second=done.decode_per_second,
    )


def reason_of(done: Done) -> Reason:
    """Why an answer ended. Raises ClientGoneError for one that nobody waits for."""
    if done.finish_reason == "cancelled":
        raise ClientGoneError("the generation was cancelled.")
    return done.finish_reason


class ChatEncoder:
    """Chat completions of one request."""

    prefix = "chatcmpl-"

    def __init__(self, job: str, model: str) -> None:
        self.id = self.prefix + job
        self._created = int(time.time())
        self._model = model
        self._silent: set[int] = set()  # calls that have no arguments yet

    def opening(self) -> Any:
        """First chunk, sent the moment the request is admitted."""
        return self._chunk(Delta(role="assistant", content=""))

    def heartbeat(self) -> Any:
        """A chunk without content: some clients do not count comments as signs of life."""
        return self._chunk(Delta())

    def notice(self, notice: Notice) -> Any:
        """A sign of life that says what there is to know before the answer comes."""
        choice = ChunkChoice(Delta(), x_colibri_notice=notice)
        return ChatChunk(self.id, self._created, self._model, [choice])

    def chunks(self, parts: Iterable[Part]) -> Iterator[Any]:
        """The chunks that tell these parts."""
        for part in parts:
            delta = self._delta(part)
            if delta is not None:
                yield self._chunk(delta)

    def _delta(self, part: Part) -> Delta | None:
        if isinstance(part, Text):
            return Delta(content=part.text)
        if isinstance(part, Reasoning):
            return Delta(reasoning_content=part.text)
        if isinstance(part, CallStart):
            self._silent.add(part.index)
            function = FunctionDelta("", name=part.name)
            call = CallDelta(part.index, function, id=part.id, type="function")
            return Delta(tool_calls=[call])
        if isinstance(part, CallArguments):
            self._silent.discard(part.index)
            return Delta(tool_calls=[CallDelta(part.index, FunctionDelta(part.text))])
        return self._call_end(part)

    def _call_end(self, part: CallEnd) -> Delta | None:
        """Arguments are never empty: clients wait for valid JSON before they run a call."""
        if part.index not in self._silent:
            return None
        self._silent.discard(part.index)
        return Delta(tool_calls=[CallDelta(part.index, FunctionDelta("{}"))])

    def closing(self, done: Done) -> Any:
        """The last chunk with a choice: why the answer ended, and what there is to know of it."""
        choice = ChunkChoice(Delta(), reason_of(done), x_colibri_notice=done.notice or UNSET)
        return ChatChunk(self.id, self._created, self._model, [choice])

    def usage(self, done: Done) -> Any:
        """The chunk with counts and times, for those who have asked for it."""
        usage, timings = usage_body(done.usage), timings_body(done)
        return ChatChunk(self.id, self._created, self._model, [], usage=usage, timings=timings)

    def whole(self, parts: Iterable[Part], done: Done) -> Any:
        """The answer of a request that is not streamed."""
        choice = ChatChoice(_message(parts), reason_of(done), x_colibri_notice=done.notice or UNSET)
        usage, timings = usage_body(done.usage), timings_body(done)
        return ChatCompletion(self.id, self._created, self._model, [choice], usage, timings)

    def _chunk(self, delta: Delta) -> ChatChunk:
        return ChatChunk(self.id, self._created, self._model, [ChunkChoice(delta)])


def _message(parts: Iterable[Part]) -> AnswerMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, AnswerCall] = {}
    pieces: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Reasoning):
            thoughts.append(part.text)
        elif isinstance(part, CallStart):
            calls[part.index] = AnswerCall(part.id, CalledFunction(part.name, ""))
            pieces[part.index] = []
        elif isinstance(part, CallArguments):
            pieces[part.index].append(part.text)
    for index, call in calls.items():
        call.function.arguments = "".join(pieces[index]) or "{}"
    content = "".join(texts)
    return AnswerMessage(
        None if calls and not content else content,
        reasoning_content="".join(thoughts) if thoughts else UNSET,
        tool_calls=list(calls.values()) or UNSET,
    )


class TextEncoder(ChatEncoder):
    """Legacy completions of one request; chunks and whole answers have the same object name."""

    prefix = "cmpl-"

    def opening(self) -> Any:
        return self._completion([TextChoice("")])

    def heartbeat(self) -> Any:
        return self._completion([TextChoice("")])

    def notice(self, notice: Notice) -> Any:
        return self.heartbeat()

    def chunks(self, parts: Iterable[Part]) -> Iterator[Any]:
        text = _plain(parts)
        if text:
            yield self._completion([TextChoice(text)])

    def closing(self, done: Done) -> Any:
        return self._completion([TextChoice("", reason_of(done))])

    def whole(self, parts: Iterable[Part], done: Done) -> Any:
        return self._completion([TextChoice(_plain(parts), reason_of(done))], done)

    def usage(self, done: Done) -> Any:
        return self._completion([], done)

    def _completion(self, choices: list[TextChoice], done: Done | None = None) -> TextCompletion:
        return TextCompletion(
            self.id,
            self._created,
            self._model,
            choices,
            usage=UNSET if done is None else usage_body(done.usage),
            timings=UNSET if done is None else timings_body(done),
        )


def _plain(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))
