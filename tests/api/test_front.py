"""The front of the server on real sockets: silent, slow and hostile clients, and kept connections.

Covers R077, R078, R094, R132.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import psutil
import pytest

from colibri.api.connection import UpgradedSocket
from colibri.api.front import Limits
from colibri.api.server import HttpServer, listen
from colibri.engine.fake import Script
from tests.support.fakeserver import TIMEOUT, FakeServer, chat_body, chat_request

Start = Callable[..., FakeServer]
ENDLESS = Script(pieces=("x",), repeat=True, token_ms=1)
LONG_PREFILL = Script(prefill_ms=600_000)


def one_answer(stream: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer on a kept connection."""
    status = int(stream.readline().split(b" ")[1])
    headers: dict[str, str] = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
        return status, headers, body
    return status, headers, stream.read(int(headers.get("content-length", 0)))


def kept(request: bytes) -> bytes:
    return request.replace(b"Connection: close\r\n", b"")


GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHAT = kept(chat_request(chat_body()))


@contextmanager
def talk(server: FakeServer, request: bytes = b"") -> Iterator[tuple[socket.socket, Any]]:
    with server.raw(request) as connection, connection.makefile("rb") as stream:
        yield connection, stream


# ---- kept connections --------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_another(server: FakeServer) -> None:
    """Whole, streamed, refused by the route: each leaves the connection where it was."""
    with talk(server) as (connection, stream):
        for _ in range(3):
            connection.sendall(GET)
            assert one_answer(stream)[:1] == (200,)
            connection.sendall(CHAT)
            status, headers, body = one_answer(stream)
            assert (status, headers["connection"]) == (200, "keep-alive")
            assert json.loads(body)["choices"][0]["message"]["content"] == "ok"
            connection.sendall(kept(chat_request(chat_body(stream=True))))
            assert one_answer(stream)[2].endswith(b"data: [DONE]\n\n")
            connection.sendall(kept(chat_request(chat_body(n=2))))
            assert one_answer(stream)[0] == 400


def test_requests_that_are_sent_ahead_are_answered_in_order(server: FakeServer) -> None:
    """R077, R078: bodies of both kinds between them; nothing of a body becomes a request."""
    inner = b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = json.dumps(chat_body(inner.decode())).encode()
    chunked = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )
    plain = kept(chat_request(chat_body(inner.decode())))
    with talk(server, (chunked + GET + plain) * 3 + GET) as (_, stream):
        statuses = [one_answer(stream) for _ in range(10)]
    assert [status for status, _, _ in statuses] == [200] * 10
    kinds = [json.loads(body)["object"] for _, _, body in statuses]
    assert kinds == ["chat.completion", "list", "chat.completion"] * 3 + ["list"]


def test_an_early_refusal_ends_the_connection(start: Start) -> None:
    """R077: its body was not read, so what follows cannot be told from it."""
    server = start(api_key="secret")
    second = kept(chat_request(chat_body(), "x-api-key: secret\r\n"))
    with talk(server, kept(chat_request(chat_body("x" * 70_000))) + second) as (_, stream):
        status, headers, _ = one_answer(stream)
        assert (status, headers["connection"]) == (401, "close")
        assert stream.read() == b""


def test_a_refusal_without_a_body_to_wait_for_arrives_while_the_body_is_being_sent(
    start: Start,
) -> None:
    """The key is wrong, so nobody waits for the megabytes that were announced."""
    server = start(api_key="secret")
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        b"\r\nContent-Length: 30000000\r\n\r\n{"
    )
    with talk(server, head) as (_, stream):
        assert one_answer(stream)[0] == 401


def test_a_client_that_asks_first_is_told_to_go_on_or_refused(start: Start) -> None:
    server = start(api_key="secret")
    asks = "Expect: 100-continue\r\n"
    good = chat_request(chat_body(), f"x-api-key: secret\r\n{asks}")
    head, _, body = good.partition(b"\r\n\r\n")
    with talk(server, head + b"\r\n\r\n") as (connection, stream):
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        connection.sendall(body)
        assert one_answer(stream)[0] == 200
    bad = chat_request(chat_body(), asks).partition(b"\r\n\r\n")[0]
    with talk(server, bad + b"\r\n\r\n") as (_, stream):
        assert one_answer(stream)[0] == 401


def test_http_1_0_gets_its_answer_and_a_close(server: FakeServer) -> None:
    with talk(server, b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n") as (_, stream):
        answer = stream.read()
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b"}")


def test_head_has_the_headers_and_no_body(server: FakeServer) -> None:
    with talk(server, GET.replace(b"GET", b"HEAD") + GET) as (_, stream):
        head = stream.readline()
        while stream.readline() != b"\r\n":
            pass
        assert head.startswith(b"HTTP/1.1 200 ")
        assert one_answer(stream)[0] == 200


def test_clients_reuse_their_connections(server: FakeServer) -> None:
    with httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.get("/v1/models").status_code == 200
            assert client.post("/v1/chat/completions", json=chat_body()).status_code == 200
        ports = {
            connection.raddr.port
            for connection in psutil.Process().net_connections("tcp4")
            if connection.laddr.port == server.port and connection.raddr
        }
    assert len(ports) == 1


def test_a_client_that_leaves_behind_a_request_sent_ahead_is_noticed(start: Start) -> None:
    """R093 in its hardest form: what is readable hides the end."""
    server = start(ENDLESS)
    with server.raw(kept(chat_request(chat_body(stream=True)))) as connection:
        server.wait_for(active=1)
        connection.sendall(GET)
    server.wait_for(active=0, cancelled=1)


# ---- silent and slow clients -------------------------------------------------------------------


def test_half_a_request_is_told_408_and_closed(start: Start) -> None:
    server = start(limits=Limits(head=0.3, pause=0.3, idle=0.3))
    assert server.exchange(b"") == b""
    head = server.exchange(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in head
    body = server.exchange(chat_request(chat_body())[:-5])
    assert body.startswith(b"HTTP/1.1 408 ")
    assert server.chat().status_code == 200


def test_a_head_that_dribbles_is_cut_off_all_the_same(start: Start) -> None:
    server = start(limits=Limits(head=0.5))
    stop = threading.Event()
    with server.raw(b"GET / HTTP/1.1\r\n") as connection:

        def dribble() -> None:
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"X: y\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
        finally:
            stop.set()
            thread.join(TIMEOUT)


def test_the_cap_of_connections_costs_who_is_silent_longest(start: Start) -> None:
    server = start(limits=Limits(connections=5))
    with ExitStack() as stack:
        silent = [stack.enter_context(server.raw(b"")) for _ in range(5)]
        for _ in range(10):
            assert server.get("/health").status_code == 200
        assert silent[0].recv(1) == b""


def test_who_works_is_never_cut_off_for_others(start: Start) -> None:
    server = start(LONG_PREFILL, limits=Limits(connections=2))
    with server.raw(chat_request(chat_body(stream=True))) as working:
        assert b'"role":"assistant"' in working.recv(1 << 16)
        for _ in range(5):
            with server.raw(b"GET /"):
                assert server.get("/health").status_code == 200
        server.wait_for(active=1)


def test_half_sent_bodies_have_a_budget_of_memory(start: Start) -> None:
    """The one that is silent longest gives way; a request that goes on gets through."""
    server = start(limits=Limits(held_bytes=3 << 20))
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        b"\r\nContent-Length: 2000000\r\n\r\n"
    )
    with ExitStack() as stack:
        half_sent = []
        for _ in range(5):
            connection = stack.enter_context(server.raw(head + b" " * 1_000_000))
            half_sent.append(connection)
            # Taken in before the next one comes: an answer on a later connection says so.
            assert server.get("/health").status_code == 200
        assert half_sent[0].recv(100).startswith(b"HTTP/1.1 503 ")
        assert server.chat("x" * 1000).status_code == 200


def quickest(server: FakeServer, rounds: int = 15) -> float:
    """Seconds of a normal request: the lower quartile, which a busy machine moves least."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().status == 200
        connection.close()
        times.append(time.perf_counter() - started)
    return statistics.quantiles(times, n=4)[0]


def test_a_crowd_that_says_nothing_does_not_delay_a_request(start: Start) -> None:
    """1,000 idle connections, 200 half-sent requests, a slow reader: at most 100 ms more."""
    endless = Script(pieces=("x" * 4000,), repeat=True)
    server = start(endless)
    quiet = quickest(server)
    half_a_head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-A: "
    half_a_body = chat_request(chat_body("x" * 100_000))[:-50_000]
    with ExitStack() as stack:
        slow = stack.enter_context(server.raw(chat_request(chat_body(stream=True))))
        server.wait_for(active=1)
        for _ in range(1000):
            stack.enter_context(server.raw(b""))
        for _ in range(100):
            stack.enter_context(server.raw(half_a_head))
            stack.enter_context(server.raw(half_a_body))
        crowded = quickest(server)
        assert slow.recv(1)
        assert threading.active_count() < 50
    assert crowded < quiet + 0.1, f"{quiet * 1000:.1f} ms alone, {crowded * 1000:.1f} ms in a crowd"
    server.wait_for(active=0)


def test_without_descriptors_the_server_recovers(start: Start) -> None:
    import resource

    server = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        silent = [stack.enter_context(server.raw(b"")) for _ in range(20)]
        assert server.get("/health").status_code == 200
        # Room for the client's end of a connection and not for the server's.
        first, second = os.dup(0), os.dup(0)
        os.close(first)
        os.close(second)
        resource.setrlimit(resource.RLIMIT_NOFILE, (second, hard))
        try:
            with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as one:
                one.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                assert one.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert silent[0].recv(1) == b""
    assert server.chat().status_code == 200


# ---- stopping ----------------------------------------------------------------------------------


def test_stopping_closes_what_is_idle_and_lets_answers_end(start: Start) -> None:
    server = start(Script(pieces=("a",) * 50, token_ms=10))
    with talk(server, kept(chat_request(chat_body(stream=True)))) as (_, stream):
        server.wait_for(active=1)
        with talk(server, GET) as (_, idle), talk(server, b"GET /") as (_, half):
            assert one_answer(idle)[0] == 200
            server.http.stop()
            assert idle.read() == b""
            with suppress(ConnectionResetError):  # if its bytes had not been read
                assert half.read() == b""
        assert one_answer(stream)[2].endswith(b"data: [DONE]\n\n")
        assert stream.read() == b""
    assert server.http.wait_idle(TIMEOUT)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), 1).close()


# ---- connections that become WebSockets --------------------------------------------------------

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)


@contextmanager
def socket_server(handler: Callable[[UpgradedSocket], None]) -> Iterator[HttpServer]:
    """A server whose app takes the connection as flask-sock does: the answer comes from itself."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        connection = environ["werkzeug.socket"]
        if isinstance(connection, UpgradedSocket):
            handler(connection)
            connection.close()
        start_response("200 OK", [])
        return [b"must not be sent"]

    server = HttpServer(app, listen("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(TIMEOUT)
        assert server.wait_idle(TIMEOUT)


def test_the_app_has_an_upgraded_connection_to_itself() -> None:
    def echo(connection: UpgradedSocket) -> None:
        connection.send(b"open;")
        while (data := connection.recv(100)) not in (b"", b"end"):
            connection.send(data.upper())

    with (
        socket_server(echo) as server,
        socket.create_connection(server.server_address[:2], TIMEOUT) as connection,
    ):
        connection.sendall(UPGRADE)
        assert connection.recv(100) == b"open;"
        connection.sendall(b"abc")
        assert connection.recv(100) == b"ABC"
        connection.sendall(b"end")
        assert connection.recv(100) == b""


def test_messages_of_several_threads_are_never_mixed() -> None:
    """Megabytes through a full buffer, to a client that reads slowly."""
    messages = [bytes([letter]) * 2_000_000 for letter in b"abcd"]

    def shout(connection: UpgradedSocket) -> None:
        threads = [
            threading.Thread(target=connection.send, args=(message,)) for message in messages
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with (
        socket_server(shout) as server,
        socket.create_connection(server.server_address[:2], TIMEOUT) as connection,
    ):
        connection.sendall(UPGRADE)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    assert sorted(received[n : n + 2_000_000] for n in range(0, 8_000_000, 2_000_000)) == messages


def test_stopping_hangs_up_on_websockets() -> None:
    ended = threading.Event()

    def wait(connection: UpgradedSocket) -> None:
        connection.send(b"open;")
        assert connection.recv(100) == b""
        ended.set()

    with (
        socket_server(wait) as server,
        socket.create_connection(server.server_address[:2], TIMEOUT) as connection,
    ):
        connection.sendall(UPGRADE)
        assert connection.recv(100) == b"open;"
        server.stop()
        assert ended.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"", b"400"),
        (b"Version: 13", b"Version: 8", b"426"),
        (b"GET /ws", b"POST /ws", b"400"),
    ],
)
def test_an_upgrade_that_is_none_is_refused(old: bytes, new: bytes, status: bytes) -> None:
    with (
        socket_server(lambda connection: None) as server,
        socket.create_connection(server.server_address[:2], TIMEOUT) as connection,
    ):
        connection.sendall(UPGRADE.replace(old, new))
        assert connection.recv(100).split(b" ")[1] == status


# ---- hostile clients ---------------------------------------------------------------------------


def test_header_bombs_are_refused(server: FakeServer) -> None:
    for bomb, status in (
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(100_000)), b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 10_000_000, b"431"),
        (b"GET /" + b"a" * 10_000_000, b"414"),
    ):
        assert server.exchange(bomb).split(b" ")[1] == status
    assert server.chat().status_code == 200


def test_the_server_refuses_in_the_dialect_of_the_path(server: FakeServer) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = server.exchange(head + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
    assert chunks.startswith(b"HTTP/1.1 400 ")
    assert b'{"type":"error","error":{"type":"invalid_request_error"' in chunks
    sane = b"X-Request-Id: mine\r\n"
    assert b"\r\nx-request-id: mine\r\n" in server.exchange(
        head + sane + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    )


def test_random_bytes_never_harm_the_server(server: FakeServer) -> None:
    """R132: pieces of requests in every order, cut anywhere; no 5xx but for the version."""
    rng = random.Random(7)  # noqa: S311
    pieces = [
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"Host: localhost\r\n",
        b"Content-Type: application/json\r\n",
        b"Content-Length: 2\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"{}",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"\x00",
        b"\xff\xfe",
        b"HTTP/3.0",
    ]
    for _ in range(150):
        raw = b"".join(rng.choices(pieces, k=rng.randrange(1, 12)))
        with server.raw(raw[: rng.randrange(len(raw) + 1)]) as connection:
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        statuses = [line.split(b" ")[1] for line in answer.split(b"\r\n") if line[:5] == b"HTTP/"]
        assert all(status[:1] in b"1234" or status == b"505" for status in statuses), (raw, answer)
    assert server.chat().status_code == 200


def test_an_app_that_breaks_its_own_promise_ends_the_connection() -> None:
    """Less than announced, or an exception in the middle: no next answer is taken for the rest."""

    def broken() -> Iterator[bytes]:
        yield b"abc"
        raise RuntimeError("planted")

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/short":
            start_response("200 OK", [("Content-Length", "10")])
            return [b"abc"]
        if environ["PATH_INFO"] == "/long":
            start_response("200 OK", [("Content-Length", "3")])
            return [b"abcdef"]
        if environ["PATH_INFO"] == "/broken":
            start_response("200 OK", [])
            return broken()
        raise RuntimeError("planted")

    server = HttpServer(app, listen("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        for path, end in (("short", b"abc"), ("broken", b"3\r\nabc\r\n"), ("raise", b"}")):
            with socket.create_connection(server.server_address[:2], TIMEOUT) as connection:
                connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answer = b""
                while piece := connection.recv(1 << 16):
                    answer += piece
            assert answer.endswith(end)
        with socket.create_connection(server.server_address[:2], TIMEOUT) as connection:
            connection.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            with connection.makefile("rb") as stream:
                assert one_answer(stream)[2] == b"abc"
                assert stream.read() == b""
    finally:
        server.stop()
        thread.join(TIMEOUT)
