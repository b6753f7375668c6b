"""Streams of POST /v1/messages from their first sign of life to whatever ends them.

Covers R034, R045, R050, R093.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from colibri.api import follow
from colibri.api.anthropic import encode
from colibri.engine.fake import Script
from tests.support.fakeserver import FakeServer
from tests.support.messages import messages_body, parse_events, request_bytes

Start = Callable[..., FakeServer]
PATH = "/v1/messages"


def test_R034_R050_a_long_prefill_begins_at_once_and_pings(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R089: message_start comes at once, pings follow, and nothing visible."""
    monkeypatch.setattr(follow.follow, "__defaults__", (0.05,))
    server = start(Script(prefill_ms=600_000))
    seen = b""
    with server.raw(request_bytes(messages_body(stream=True))) as connection:
        while seen.count(b"event: ping") < 4:
            piece = connection.recv(1 << 16)
            assert piece, seen
            seen += piece
    body = seen.split(b"\r\n\r\n", 1)[1]
    names = re.findall(rb"event: (\w+)", body)
    assert names[:2] == [b"message_start", b"ping"]
    assert set(names[1:]) == {b"ping"}
    server.wait_for(active=0, cancelled=1)


def test_the_promised_sign_of_life_comes_within_five_seconds() -> None:
    assert follow.HEARTBEAT_SECONDS + follow.POLL_SECONDS < 5


@pytest.mark.parametrize("stream", [False, True])
def test_R093_a_client_that_leaves_ends_its_request(start: Start, stream: bool) -> None:
    server = start(Script(pieces=("x",), repeat=True, token_ms=20))
    with server.raw(request_bytes(messages_body(stream=stream, max_tokens=4000))):
        server.wait_for(active=1)
    left = time.monotonic()
    server.wait_for(active=0, cancelled=1)
    assert time.monotonic() - left < 10


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/v1/completions"])
def test_a_line_of_a_stream_is_one_to_clients_that_know_more_ends_of_lines(
    server: FakeServer, path: str
) -> None:
    """Some split a stream at whatever Unicode calls the end of a line."""
    text = "a\u2028b\u2029c\u0085d\u2027e\r\n\x0b\x0c\x1c\x1d\x1ef"
    server.backend.enqueue(Script(pieces=(text,)))
    body = {"prompt": "hi"} if path == "/v1/completions" else messages_body()
    answer = server.post(path, {**body, "stream": True}).text
    data = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    assert text in str.join("", map(_text_of_event, map(json.loads, data)))
    assert len(data) == answer.count("data: {")


def _text_of_event(event: dict[str, Any]) -> str:
    if "choices" not in event:
        return str(event.get("delta", {}).get("text", ""))
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for choice in event["choices"]
    )


def test_R045_an_engine_that_fails_in_mid_stream_is_an_error_event(server: FakeServer) -> None:
    server.backend.enqueue(
        Script(pieces=("a",) * 9, fail_at=3), Script(pieces=("a",) * 9, fail_at=3)
    )
    response = server.post(PATH, messages_body(stream=True))
    events = parse_events(response.text)
    assert events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "api_error"
    assert "not finite" in events[-1][1]["error"]["message"]
    assert events[-1][1]["request_id"] == response.headers["x-request-id"]
    assert [name for name, _ in events].count("content_block_delta") == 3
    whole = server.post(PATH, messages_body())
    assert whole.status_code == 500
    assert whole.json()["error"]["type"] == "api_error"
    assert server.post(PATH, messages_body()).json()["content"] == [{"type": "text", "text": "ok"}]


def test_R045_a_fault_of_ours_in_mid_stream_is_an_error_event_too(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(encode.Encoder, "parts", broken)
    events = parse_events(server.post(PATH, messages_body(stream=True)).text)
    assert [name for name, _ in events] == ["message_start", "ping", "error"]
    assert "internal error" in events[-1][1]["error"]["message"]
    server.wait_for(active=0)
