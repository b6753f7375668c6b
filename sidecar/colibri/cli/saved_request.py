"""A saved request body, changed so that it reads its prompt and does little else.

For: `coli cache warm`. A body may be of any dialect that the server speaks; which one is seen from
its fields. Not for: checking it; whoever serves the request does. Thread rule: pure functions over
one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from colibri.errors import UsageError

MAX_FILE_BYTES: Final = 32 << 20

# Fields and blocks that only Anthropic's dialect has.
_FIELDS: Final = frozenset(
    {"system", "thinking", "output_config", "stop_sequences", "context_management", "thread"}
)
_BLOCKS: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """A request that generates one token as a stream. `kind` says of which route it is."""

    kind: Literal["chat", "completion", "messages"]
    body: dict[str, Any]

    @property
    def route(self) -> str:
        """Where it is sent to."""
        return {
            "chat": "/v1/chat/completions",
            "completion": "/v1/completions",
            "messages": "/v1/messages",
        }[self.kind]

    def prompt_tokens(self, usage: Mapping[str, Any]) -> tuple[int, int]:
        """(tokens of the prompt, those of them that were cached) by the usage of an answer."""
        if self.kind != "messages":
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached


def load(file: str) -> SavedRequest:
    """Reads a file. Raises UsageError saying what is wrong with it."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"it is larger than {MAX_FILE_BYTES >> 20} MB.", where=file)
        body = json.loads(data)
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror or error}.", where=file) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"it is not JSON: {error}.", where=file) from error
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise UsageError(
            "it holds no request.",
            where=file,
            hint="Save the JSON body of a request to /v1/chat/completions, /v1/messages or "
            "/v1/completions.",
        )
    small = {**body, "max_tokens": 1, "temperature": 0, "stream": True}
    if "messages" in body and _is_anthropic(body):
        # What the server refuses is nothing that the prompt depends on.
        for field in ("thread", "stop_sequences", "top_k"):
            small.pop(field, None)
        return SavedRequest(kind="messages", body=small)
    small.pop("max_completion_tokens", None)
    small["stream_options"] = {"include_usage": True}
    return SavedRequest(kind="chat" if "messages" in body else "completion", body=small)


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    """Whether a body is one for /v1/messages; one that could be either makes the same prompt."""
    if _FIELDS & set(body):
        return True
    if any("input_schema" in tool for tool in _objects(body.get("tools"))):
        return True
    return any(
        block.get("type") in _BLOCKS
        for message in _objects(body.get("messages"))
        for block in _objects(message.get("content"))
    )


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))
