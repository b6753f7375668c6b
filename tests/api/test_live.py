"""The WebSocket of the dashboard and the snapshots beside it.

Covers R006, R088, R188.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from simple_websocket import Client, ConnectionClosed

from colibri.engine.fake import Script
from colibri.engine.work import Found, Phases, Times, Work
from tests.api.test_login import log_in
from tests.support.fakeexperts import ask, with_experts
from tests.support.fakeserver import TIMEOUT, FakeServer
from tests.telemetry.test_maps import decode

Start = Callable[..., FakeServer]
SECTIONS = {
    "server", "model", "engine", "scheduler", "requests", "speed", "turn", "tiers", "lookups",
    "disk", "hardware", "bottleneck", "experts", "chats",
}  # fmt: skip


class BrowserLike(Client):
    """A client whose Host names the port, as browsers' do."""

    def handshake(self) -> None:
        self.host = f"{self.host}:{self.port}"
        super().handshake()


class Page:
    """A page that watches; `state` is what it would show."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.hello = self.next("hello")
        self.state: dict[str, Any] = dict(self.hello["state"])
        self.seq = self.hello["seq"]

    def next(self, kind: str) -> Any:
        """The next message of a kind ("map" for binary ones); updates are taken in on the way."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            data = self.client.receive(timeout=1)
            if isinstance(data, bytes):
                if kind == "map":
                    return data
            elif data is not None:
                message = json.loads(data)
                if message["type"] == "update":
                    assert message["seq"] > self.seq
                    self.seq = message["seq"]
                    self.state |= message["state"]
                if message["type"] == kind:
                    return message
        raise AssertionError(f"no {kind} came")

    def until(self, check: Callable[[dict[str, Any]], Any]) -> Any:
        """Watches until the state is so."""
        while not (found := check(self.state)):
            self.next("update")
        return found

    def say(self, **message: Any) -> None:
        self.client.send(json.dumps(message))


@contextmanager
def watching(server: FakeServer, query: str = "", **headers: str) -> Iterator[Page]:
    client = BrowserLike(f"ws://127.0.0.1:{server.port}/api/live{query}", headers=headers)
    try:
        yield Page(client)
    finally:
        with suppress(ConnectionClosed):
            client.close()
        client.thread.join(TIMEOUT)


def refused(server: FakeServer, **headers: str) -> int:
    """The status with which an upgrade is refused."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = (
        f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n{lines}\r\n"
    )
    with server.raw(request.encode()) as connection:
        answer = connection.recv(1 << 16)
    return int(answer.split(b" ")[1])


def test_a_page_is_greeted_with_everything(server: FakeServer) -> None:
    """R006: the greatest answer is told by the server."""
    with watching(server) as page:
        assert page.hello["version"] == 1
        assert set(page.state) == SECTIONS
        assert page.hello["trend"] == []
        assert page.hello["instance"] == server.services.instance
        assert page.state["model"]["max_output_tokens"] == 4096
        assert page.state["engine"]["state"] == "ready"
        assert page.state["tiers"]["experts"] == 0
        assert page.state["bottleneck"]["code"] == "idle"


def test_a_page_watches_a_turn_from_prompt_to_end(start: Start) -> None:
    """R088: how far the prompt is, and what is left of it."""
    server = start(Script(prefill_ms=1500, pieces=("a",) * 40, token_ms=30))
    with watching(server) as page:
        talk = threading.Thread(target=server.chat)
        talk.start()
        one = page.until(
            lambda s: s["requests"] and s["requests"][0]["prompt_fraction"] and s["requests"][0]
        )
        assert 0 < one["prompt_fraction"] <= 1
        assert one["prompt_tokens"] > one["prompt_tokens_done"] or one["phase"] == "decode"
        assert {"eta_seconds", "layer", "layers", "bytes_left", "time", "max_tokens"} <= set(one)
        rate = page.until(lambda s: s["speed"]["decode_tokens_per_second"])
        assert rate > 0
        turn = page.until(lambda s: s["turn"])
        talk.join()
        assert (turn["outcome"], turn["completion_tokens"]) == ("stop", 40)
        assert turn["request"].startswith("req")
        assert page.until(lambda s: s["scheduler"]["completed"]) == 1
        page.until(lambda s: s["requests"] == [])
    again = json.loads(server.get("/api/state").text)
    assert again["turn"] == turn
    with watching(server) as page:
        assert len(page.hello["trend"]) >= 1
        assert set(page.hello["trend"][0]) == {
            "at_ms",
            "decode_tokens_per_second",
            "prefill_tokens_per_second",
            "disk_bytes_per_second",
        }


def test_only_what_has_changed_is_sent(server: FakeServer) -> None:
    with watching(server) as page:
        page.next("update")
        server.request("POST", "/api/chats", json={})
        while True:
            update = page.next("update")
            if "chats" in update["state"]:
                break
        assert update["state"]["chats"] == {"seq": 1}
        assert "model" not in update["state"]
        assert "server" not in update["state"]


def test_maps_come_whole_first_and_then_by_what_has_changed(server: FakeServer) -> None:
    with_experts(server)
    with watching(server, "?maps=1") as page:
        assert page.state["experts"] == {
            "rows": 2, "cols": 3, "layers": [3, 4], "seq": 0, "turn": 0
        }  # fmt: skip
        head, arrays = decode(page.next("map"))
        assert (head["kind"], head["rows"], head["cols"]) == (1, 2, 3)
        assert arrays[0].tolist() == [0, 1, 2, 0, 1, 2]
        assert arrays[1].max() == 255
        ask(server, [1])
        changed, arrays = decode(page.next("map"), arrays)
        assert changed["seq"] > head["seq"]
        assert arrays[2].tolist()[1] == 2
        page.say(type="subscribe", maps=True, map_hz=20)
        assert decode(page.next("map"))[0]["kind"] == 1, "asking again brings a whole map"
        page.say(type="subscribe", maps=False)
        page.say(type="ping")
        page.next("pong")
        ask(server, [2])
        page.say(type="ping")
        page.next("pong")


def hits_of_turn(server: FakeServer, turn: int, hits: list[int]) -> None:
    """Waits until a snapshot shows these; one is at most a sample (50 ms) behind."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = server.get("/experts").json()
        if (found["turn"], found["hits"]) == (turn, hits):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_a_new_turn_begins_with_no_hits(server: FakeServer) -> None:
    with_experts(server)
    hits_of_turn(server, 0, [0, 1, 2, 3, 4, 5])
    server.chat()
    hits_of_turn(server, 1, [0] * 6)
    ask(server, [4])
    hits_of_turn(server, 1, [0, 0, 0, 0, 1, 0])


def test_a_dense_model_has_no_experts(server: FakeServer) -> None:
    assert server.get("/experts").json() == {
        "rows": 0, "cols": 0, "layers": [], "tiers": [], "heat": [], "hits": [], "seq": 0, "turn": 0
    }  # fmt: skip
    with watching(server, "?maps=1") as page:
        page.say(type="ping")
        page.next("pong")


def test_experts_of_an_engine_that_does_not_answer_are_a_503(server: FakeServer) -> None:
    with_experts(server)
    server.engine._set_state("restarting")
    answer = server.get("/experts")
    assert answer.status_code == 503
    server.engine._set_state("ready")


def test_the_profile_tells_times_and_places_by_phase(server: FakeServer) -> None:
    """R188."""
    assert server.get("/profile").json()["turn"] is None
    server.backend.work = Work(
        prefill=Phases(time=Times(disk_ms=5, other_ms=1), found=Found(disk=3)),
        decode=Phases(time=Times(head_ms=2), found=Found(warm=4, cache=1)),
        bytes_read=77,
    )
    server.chat()
    found = server.get("/profile").json()
    assert found["total"]["prefill"]["disk_ms"] == 5
    assert found["total"]["prefill"]["total_ms"] == 6
    assert found["lookups"]["decode"]["warm"] == 4
    assert found["lookups"]["prefill"]["disk"] == 3
    assert found["turn"]["completion_tokens"] == 1
    assert found["turns"] == [found["turn"]]
    health = server.get("/health").json()
    assert health["lookups"] == found["lookups"]
    assert [tier["name"] for tier in health["tiers"]["tiers"]] == ["vram", "ram", "disk"]


def test_the_tiers_add_up(server: FakeServer) -> None:
    with_experts(server)
    tiers = json.loads(server.get("/api/state").text)["tiers"]
    assert tiers["experts"] == sum(tier["experts"] for tier in tiers["tiers"]) == 6
    assert sum(tier["bytes"] for tier in tiers["tiers"]) == 600
    assert tiers["tiers"][0]["experts"] == 0
    assert "processor" in tiers["tiers"][0]["note"]


def test_a_foreign_page_cannot_watch(start: Start) -> None:
    """A WebSocket has no preflight; without a key its Origin is all there is."""
    server = start()
    assert refused(server, Origin="https://evil.example") == 403
    with watching(server, Origin=server.url) as page:
        assert page.state["engine"]["state"] == "ready"


def test_watching_needs_the_key_or_a_login(start: Start) -> None:
    server = start(api_key="s\u00e9cret \u2713")
    assert refused(server) == 401
    cookie = log_in(server)["Cookie"]
    assert refused(server, Cookie=cookie, Origin="http://localhost:5173") == 401
    with watching(server, Cookie=cookie, Origin=server.url) as page:
        assert page.state["scheduler"]["active"] == 0
    plain = start(api_key="secret")
    with watching(plain, Authorization="Bearer secret"):
        pass


def test_another_version_is_told_and_closed(server: FakeServer) -> None:
    client = Client(f"ws://127.0.0.1:{server.port}/api/live?version=2")
    message = json.loads(client.receive(timeout=TIMEOUT))
    assert (message["type"], message["code"]) == ("error", "wrong_version")
    with pytest.raises(ConnectionClosed) as closed:
        while client.receive(timeout=TIMEOUT) is not None:
            pass
    assert closed.value.reason == 4400
    client.thread.join(TIMEOUT)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"type": "dance"}', '{"type": "subscribe", "map_hz": 0}',
     '{"type": "subscribe", "map_hz": 1e9}', '{"type": "subscribe", "maps": 3}', "[" * 2000],
)  # fmt: skip
def test_nonsense_of_a_client_ends_its_own_socket_only(server: FakeServer, text: str) -> None:
    with watching(server) as page, watching(server) as other:
        page.client.send(text)
        assert page.next("error")["code"] == "invalid_message"
        other.say(type="ping")
        other.next("pong")


def test_a_message_too_long_ends_the_socket(server: FakeServer) -> None:
    with watching(server) as page:
        page.client.send("x" * 10_000)
        with pytest.raises(ConnectionClosed) as closed:
            page.next("never")
        assert closed.value.reason == 1009
    assert server.chat().status_code == 200


def test_a_page_that_reads_nothing_delays_nobody(start: Start) -> None:
    server = start(Script(pieces=("a",) * 30, token_ms=20))
    with_experts(server, 76, 256)
    request = (
        f"GET /api/live?maps=1 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    with server.raw(request.encode()) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with watching(server, "?maps=1") as page:
            assert server.chat().json()["choices"][0]["finish_reason"] == "stop"
            page.until(lambda s: s["turn"])
            ask(server, [3])
            page.next("map")


def test_pages_let_go_when_the_server_stops(server: FakeServer) -> None:
    with watching(server) as page:
        server.services.hub.stop()
        with pytest.raises(ConnectionClosed):
            while True:
                page.client.receive(timeout=TIMEOUT)


def test_there_is_an_end_of_watchers(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Client(f"ws://127.0.0.1:{server.port}/api/live") for _ in range(32)]
    for page in pages:
        assert json.loads(page.receive(timeout=TIMEOUT))["type"] == "hello"
    assert refused(server) == 503
    for page in pages:
        page.close()
        page.thread.join(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while server.services.hub._watchers and time.monotonic() < deadline:
        time.sleep(0.01)
    with watching(server):
        pass


def test_the_inspector_shows_requests_without_their_text(start: Start) -> None:
    server = start(Script(pieces=("secret words",)))
    answer = server.chat("hidden question", max_tokens=9, temperature=0.5)
    server.chunks("streamed")
    server.chat(max_tokens=-1)
    server.get("/v1/models")
    found = server.get("/api/requests").json()
    assert found["prompts"] is False
    bad, streamed, whole = found["requests"]
    assert whole["id"] == answer.headers["x-request-id"]
    assert (whole["outcome"], whole["status"], whole["stream"]) == ("stop", 200, False)
    assert (whole["max_tokens"], whole["temperature"]) == (9, 0.5)
    assert whole["completion_tokens"] == 1
    assert whole["total_ms"] > 0
    assert whole["route"] == "/v1/chat/completions"
    assert "httpx" in whole["user_agent"]
    assert streamed["stream"] is True
    assert (bad["status"], bad["outcome"]) == (400, "invalid_value")
    assert bad["prompt_tokens"] is None
    text = server.get("/api/requests").text
    assert "hidden" not in text
    assert "secret words" not in text
    assert len(server.get("/api/requests?limit=1").json()["requests"]) == 1


def test_the_log_is_shown_to_those_who_may(start: Start) -> None:
    server = start(api_key="secret")
    ring = server.services.ring
    import logging

    logging.getLogger("colibri").addHandler(ring)
    try:
        logging.getLogger("colibri.test").warning("something happened")
    finally:
        logging.getLogger("colibri").removeHandler(ring)
    assert server.get("/api/logs").status_code == 401
    key = {"x-api-key": "secret"}
    entries = server.get("/api/logs?level=warning", headers=key).json()
    assert entries["entries"][-1]["message"] == "something happened"
    assert server.get(f"/api/logs?after={entries['next']}", headers=key).json()["entries"] == []
    for bad in ("level=loud", "after=x", "limit=0", "after=-1"):
        assert server.get(f"/api/logs?{bad}", headers=key).status_code == 400
    with watching(server, Authorization="Bearer secret") as page:
        page.say(type="subscribe", logs=True)
        assert page.next("log")["entries"][-1]["message"] == "something happened"
