"""Answers of the OpenAI routes, as JSON objects and as server-sent events.

For: the handlers. Two shapes share everything but the choice: chat (`message`/`delta`) and legacy
(`text`). Every chunk has exactly one choice, except the usage chunk that a client asked for,
whose list is empty by the protocol. Id, time and model are the same in all chunks of an answer.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from colibri.api import errors
from colibri.engine.protocol import Done, FinishReason, Usage
from colibri.errors import ColibriError

DONE = b"data: [DONE]\n\n"


def sse(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def error_event(error: ColibriError) -> bytes:
    """The in-band end of a stream that fails after its headers."""
    return sse(errors.body(error))


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as clients read them."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


class ChatEncoder:
    """Chat completions of one request."""

    prefix = "chatcmpl-"
    kind = "chat.completion"

    def __init__(self, job: str, model: str) -> None:
        self.id = self.prefix + job
        self._base = {"id": self.id, "created": int(time.time()), "model": model}

    def opening(self) -> dict[str, Any]:
        """First chunk, sent the moment the request is admitted."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def heartbeat(self) -> dict[str, Any]:
        """A chunk without content: some clients do not count comments as signs of life."""
        return self._chunk({}, None)

    def text(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text}, None)

    def closing(self, reason: FinishReason) -> dict[str, Any]:
        return self._chunk({}, reason)

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": done.finish_reason,
        }
        return self._object(self.kind, [choice], done.usage)

    def usage(self, usage: Usage) -> dict[str, Any]:
        return self._object(f"{self.kind}.chunk", [], usage)

    def _chunk(self, delta: dict[str, Any], reason: FinishReason | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object(f"{self.kind}.chunk", [choice], None)

    def _object(
        self, kind: str, choices: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        result: dict[str, Any] = {**self._base, "object": kind, "choices": choices}
        if usage is not None:
            result["usage"] = usage_object(usage)
        return result


class TextEncoder(ChatEncoder):
    """Legacy completions of one request; chunks and whole answers have the same object name."""

    prefix = "cmpl-"
    kind = "text_completion"

    def opening(self) -> dict[str, Any]:
        return self._choice("", None, None)

    def heartbeat(self) -> dict[str, Any]:
        return self._choice("", None, None)

    def text(self, text: str) -> dict[str, Any]:
        return self._choice(text, None, None)

    def closing(self, reason: FinishReason) -> dict[str, Any]:
        return self._choice("", reason, None)

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        return self._choice(text, done.finish_reason, done.usage)

    def usage(self, usage: Usage) -> dict[str, Any]:
        return self._object(self.kind, [], usage)

    def _choice(
        self, text: str, reason: FinishReason | None, usage: Usage | None
    ) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return self._object(self.kind, [choice], usage)


def model_object(
    model_id: str, created: int, context: int | None, max_output: int | None
) -> dict[str, Any]:
    """A model, with its limits under each of the names that clients look for.

    Limits are null while the model is being loaded for the first time.
    """
    return {
        "id": model_id,
        "object": "model",
        "created": created,
        "owned_by": "colibri",
        "context_length": context,
        "context_window": context,
        "max_model_len": context,
        "max_context_length": context,
        "max_output_tokens": max_output,
    }
