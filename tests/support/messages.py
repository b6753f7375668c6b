"""Anthropic's stream of named events, read as its clients read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from tests.support.fakeserver import MODEL_ID

Event = tuple[str, dict[str, Any]]
USER = {"role": "user", "content": "hi"}
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def messages_body(**fields: Any) -> dict[str, Any]:
    """A body for /v1/messages with one user message, unless `messages` are given."""
    return {"model": MODEL_ID, "max_tokens": 100, "messages": [USER], **fields}


def events_of(response: httpx.Response) -> list[Event]:
    """The events of a stream. Each must have a name, repeated by its data."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


def parse_events(text: str) -> list[Event]:
    """The events in the text of a stream."""
    events: list[Event] = []
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        read = json.loads(data.removeprefix("data: "))
        assert read["type"] == name.removeprefix("event: ")
        events.append((read["type"], read))
    return events


def gathered(events: Sequence[Event]) -> dict[str, Any]:
    """The message that a client gathers, with every rule of the order checked."""
    events = [event for event in events if event[0] != "ping"]
    assert events[0][0] == "message_start"
    message: dict[str, Any] = events[0][1]["message"]
    assert message["stop_reason"] is None
    assert message["content"] == []
    opened: dict[str, Any] | None = None
    pieces: list[str] = []
    for name, data in events[1:]:
        if name == "content_block_start":
            assert opened is None, "a block begins inside another one"
            assert data["index"] == len(message["content"])
            opened, pieces = dict(data["content_block"]), []
        elif name == "content_block_delta":
            assert opened is not None
            assert data["index"] == len(message["content"])
            _add(opened, data["delta"], pieces)
        elif name == "content_block_stop":
            assert opened is not None
            if opened["type"] == "tool_use":
                opened["input"] = json.loads("".join(pieces) or "{}")
            message["content"].append(opened)
            opened = None
        elif name == "message_delta":
            assert opened is None, "a block is left open"
            message.update(data["delta"])
            message["usage"] = data["usage"]
            if "x_colibri_notice" in data:
                message["x_colibri_notice"] = data["x_colibri_notice"]
        else:
            assert name == "message_stop", name
    assert events[-1][0] == "message_stop"
    return message


def _add(block: dict[str, Any], delta: dict[str, Any], pieces: list[str]) -> None:
    kinds = {
        "text_delta": ("text", "text"),
        "thinking_delta": ("thinking", "thinking"),
        "signature_delta": ("thinking", "signature"),
    }
    if delta["type"] == "input_json_delta":
        assert block["type"] == "tool_use"
        pieces.append(delta["partial_json"])
        return
    kind, key = kinds[delta["type"]]
    assert block["type"] == kind
    block[key] += delta[key]


def request_bytes(body: dict[str, Any]) -> bytes:
    """A request for a message as it goes over a connection."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/messages?beta=true HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
