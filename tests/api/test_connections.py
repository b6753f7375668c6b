"""What a client's connection sees: early bytes, signs of life, and how soon it is missed.

Both dialects, over sockets of our own with a client's time limits. Covers R016, R034, R037, R050,
R089, R090, R093, R096, R097.
"""

from __future__ import annotations

import functools
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from colibri.api import follow
from colibri.api.anthropic import handler as anthropic_handler
from colibri.api.openai import handler as openai_handler
from colibri.engine.fake import Script
from tests.support.fakeserver import TIMEOUT, FakeServer

Start = Callable[..., FakeServer]
ENDLESS = Script(pieces=("x",), repeat=True, token_ms=1)
LONG_PREFILL = Script(prefill_ms=600_000)
QUESTION = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Dialect:
    """A generation's route, what its stream begins with, and its sign of life."""

    name: str
    path: str
    opening: bytes
    sign: bytes

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": "any", "messages": QUESTION, "max_tokens": 1000, **fields}

    def request(self, **fields: Any) -> bytes:
        data = json.dumps(self.body(**fields)).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    def send(self, server: FakeServer, **fields: Any) -> httpx.Response:
        return server.post(self.path, self.body(**fields))

    def text(self, answer: Any) -> str:
        if self.name == "openai":
            return str(answer["choices"][0]["message"]["content"])
        return "".join(block["text"] for block in answer["content"] if block["type"] == "text")


DIALECTS = (
    Dialect(
        "openai", "/v1/chat/completions", b'"role":"assistant"', b'"delta":{}',
    ),
    Dialect(
        "anthropic", "/v1/messages?beta=true", b"event: message_start", b"event: ping",
    ),
)  # fmt: skip
BOTH = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
BOTH_MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def quick_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life every 0.3 seconds instead of 4.5: minutes become seconds."""
    quick = functools.partial(follow.follow, heartbeat_seconds=0.3)
    monkeypatch.setattr(openai_handler, "follow", quick)
    monkeypatch.setattr(anthropic_handler, "follow", quick)


def read_until(connection: socket.socket, piece: bytes, already: bytes = b"") -> bytes:
    """Everything up to this piece; a silence longer than the socket's limit raises."""
    data = already
    while piece not in data:
        more = connection.recv(1 << 16)
        assert more, f"closed before {piece!r}: {data!r}"
        data += more
    return data


@BOTH
def test_R089_the_first_byte_comes_while_the_prompt_is_still_being_read(
    start: Start, dialect: Dialect
) -> None:
    """R034: and the progress of reading is told meanwhile."""
    server = start(LONG_PREFILL)
    with server.raw(dialect.request(stream=True)) as connection:
        data = read_until(connection, dialect.opening)
        assert data.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream" in data.lower()
        (request,) = server.get("/health").json()["requests"]
        assert request["phase"] == "prefill"
        assert request["prompt_tokens"] > 0
        assert 0 <= request["prompt_fraction"] < 1
    server.wait_for(active=0, cancelled=1)


@BOTH
@pytest.mark.usefixtures("quick_signs")
def test_R050_a_client_with_a_short_patience_survives_a_long_prompt(
    start: Start, dialect: Dialect
) -> None:
    """R089, R090: five minutes of patience and six of reading, as five seconds and six."""
    server = start(Script(prefill_ms=6000, pieces=("the ", "end")))
    with server.raw(dialect.request(stream=True)) as connection:
        connection.settimeout(5)
        data = read_until(connection, b"end")
    assert data.count(dialect.sign) >= 5


@BOTH
@pytest.mark.usefixtures("quick_signs")
def test_signs_of_life_also_come_between_tokens_and_change_nothing(
    start: Start, dialect: Dialect
) -> None:
    scripts = [Script(pieces=("one ", "two"), token_ms=ms) for ms in (1500, 0)]
    server = start(*scripts)
    texts = []
    for _ in scripts:
        events = dialect.send(server, stream=True).text.split("\n\n")
        texts.append("".join(_visible(event) for event in events))
    assert texts == ["one two"] * 2


def _visible(event: str) -> str:
    data = event.rpartition("data: ")[2]
    if not data.startswith("{"):
        return ""
    value = json.loads(data)
    if "choices" in value:
        return "".join(c["delta"].get("content") or "" for c in value["choices"])
    return str(value.get("delta", {}).get("text", ""))


@BOTH
@BOTH_MODES
@pytest.mark.parametrize("script", [ENDLESS, LONG_PREFILL], ids=["decode", "prefill"])
def test_R093_a_client_that_leaves_frees_the_engine(
    start: Start, dialect: Dialect, script: Script, stream: bool
) -> None:
    """R096: also while nothing is being written."""
    server = start(script)
    with server.raw(dialect.request(stream=stream)):
        server.wait_for(active=1)
    server.wait_for(active=0, cancelled=1)
    assert dialect.text(dialect.send(server).json()) == "ok"


@BOTH
def test_R097_three_requests_dropped_at_once_leave_an_idle_engine(
    start: Start, dialect: Dialect
) -> None:
    """As when an agent is opened and closed again: warm-up, title, message."""
    server = start(ENDLESS, ENDLESS, ENDLESS)
    request = dialect.request(stream=True)
    with server.raw(request), server.raw(request), server.raw(request):
        server.wait_for(active=1, queued=2)
    server.wait_for(active=0, queued=0, cancelled=3)


@BOTH
def test_R037_a_second_turn_waits_for_the_first_and_is_answered(
    start: Start, dialect: Dialect
) -> None:
    """With a query string, which does not matter."""
    server = start(Script(pieces=("first",), prefill_ms=1000), Script(pieces=("second",)))
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(dialect.send(server)))
    first.start()
    server.wait_for(active=1)
    second = dialect.send(server)
    first.join(TIMEOUT)
    assert [dialect.text(a.json()) for a in (*answers, second)] == ["first", "second"]


@BOTH
@BOTH_MODES
def test_R037_a_full_queue_is_never_a_500(start: Start, dialect: Dialect, stream: bool) -> None:
    server = start(LONG_PREFILL, max_queue=0)
    with server.raw(dialect.request(stream=True)):
        server.wait_for(active=1)
        response = dialect.send(server, stream=stream)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_R016_a_stream_without_options_has_a_choice_in_every_chunk(start: Start) -> None:
    """And with them the usage comes once, at the end."""
    server = start(Script(pieces=("a", "b")), Script(pieces=("a", "b")))
    assert all(len(chunk["choices"]) == 1 for chunk in server.chunks())
    *rest, last = server.chunks(stream_options={"include_usage": True})
    assert all(len(chunk["choices"]) == 1 for chunk in rest)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
