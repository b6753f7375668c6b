"""Who may talk to the server: Host, Origin, key, content type, framing, size.

Covers R077, R078, R120, R121, R122, R124, R125, R126, R128.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import httpx
import pytest

from colibri.api.body import MAX_BODY_BYTES
from colibri.api.guard import Guard
from colibri.api.server import HttpServer, listen
from colibri.errors import ForbiddenError
from colibri.settings import Settings
from tests.support.fakeserver import FakeServer, chat_body, chat_request

Start = Callable[..., FakeServer]
VITE = "http://localhost:5173"
EVIL = "https://evil.example"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST",
        "127.0.0.1:8000",
        "[::1]",
        "[::1]:8000",
        "10.0.0.5",
        "box.local",
        "app.localhost:3000",
        "localhost.",
    ],
)
def test_names_that_no_public_dns_can_give_away_are_trusted(host: str) -> None:
    """R120."""
    Guard(Settings()).check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "r.attacker.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "127.1",
        "2130706433",
        "local",
        "localhost:8000@evil.example",
        "a b",
        "localhost,evil.example",
        "[::1].evil.example",
        "[localhost]",
    ],
)
def test_every_other_name_is_refused_and_told_the_flag(host: str) -> None:
    """R120."""
    with pytest.raises(ForbiddenError, match="--allowed-host"):
        Guard(Settings()).check_host(host)


def test_an_allowed_host_is_trusted_exactly() -> None:
    guard = Guard(Settings(allowed_hosts=("llm.example.com",), host="box.lan"))
    guard.check_host("llm.example.com")
    guard.check_host("LLM.example.com:8000")
    guard.check_host("box.lan:8000")
    for host in ("www.llm.example.com", "llm.example.org"):
        with pytest.raises(ForbiddenError):
            guard.check_host(host)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/nope", "/v1/chat/completions"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE"])
def test_a_rebound_name_is_refused_on_every_route_and_method(
    server: FakeServer, method: str, path: str
) -> None:
    """R121: also without any Origin."""
    response = httpx.request(method, server.url + path, headers={"Host": "evil.example"})
    assert response.status_code == 403


def test_a_rebound_name_does_not_vouch_for_itself(server: FakeServer) -> None:
    """R120: Origin equal to Host is no proof."""
    headers = {"Host": "r.attacker.example:8000", "Origin": "http://r.attacker.example:8000"}
    assert server.get("/v1/models", headers=headers).status_code == 403


def test_a_request_without_host_is_refused(server: FakeServer) -> None:
    assert b" 400 " in server.exchange(b"GET /v1/models HTTP/1.1\r\n\r\n").split(b"\r\n")[0]


def test_a_foreign_page_gets_no_grant_and_cannot_post(server: FakeServer) -> None:
    """R122."""
    reading = server.get("/v1/models", headers={"Origin": EVIL})
    assert "access-control-allow-origin" not in reading.headers
    posting = server.post("/v1/chat/completions", chat_body(), headers={"Origin": EVIL})
    assert posting.status_code == 403
    assert posting.json()["error"]["code"] == "origin_not_allowed"
    assert "--cors-origin" in posting.json()["error"]["message"]
    assert server.backend.samplings == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_simple_request_of_a_page_is_refused(server: FakeServer, kind: str | None) -> None:
    """R122: without Origin it must at least be declared as JSON, or carry a key header."""
    content = json.dumps(chat_body()).encode()
    headers = {"Content-Type": kind} if kind else {}
    refused = server.post("/v1/chat/completions", content=content, headers=headers)
    assert refused.status_code == 415
    headers["Authorization"] = "Bearer local"
    assert server.post("/v1/chat/completions", content=content, headers=headers).status_code == 200


def test_content_type_parameters_are_fine(server: FakeServer) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    content = json.dumps(chat_body()).encode()
    assert server.post("/v1/chat/completions", content=content, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_compressed_body_is_refused_as_what_it_is(server: FakeServer, path: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    content = json.dumps(chat_body()).encode()
    refused = server.post(path, content=gzip.compress(content), headers=headers)
    assert refused.status_code == 415
    assert "content encoding 'gzip'" in refused.json()["error"]["message"]
    headers["Content-Encoding"] = "identity"
    assert server.post(path, content=content, headers=headers).status_code == 200


@pytest.mark.parametrize("origin", [VITE, "tauri://localhost", "http://tauri.localhost"])
def test_local_front_ends_may_call_by_default(server: FakeServer, origin: str) -> None:
    response = server.post("/v1/chat/completions", chat_body(), headers={"Origin": origin})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == origin
    assert "x-colibri-queue-wait-ms" in response.headers["access-control-expose-headers"]
    assert "Origin" in response.headers["vary"]


def test_the_servers_own_pages_may_call(server: FakeServer) -> None:
    response = server.post("/v1/chat/completions", chat_body(), headers={"Origin": server.url})
    assert response.status_code == 200


def test_a_configured_origin_may_call_and_star_allows_all(start: Start) -> None:
    configured = start(cors_origins=("https://ui.example",))
    for origin, status in (("https://ui.example", 200), (EVIL, 403), ("null", 403)):
        headers = {"Origin": origin}
        answer = configured.post("/v1/chat/completions", chat_body(), headers=headers)
        assert answer.status_code == status
    any_origin = start(cors_origins=("*",))
    headers = {"Origin": EVIL}
    answer = any_origin.post("/v1/chat/completions", chat_body(), headers=headers)
    assert answer.headers["access-control-allow-origin"] == EVIL


def preflight(server: FakeServer, origin: str, names: str = "authorization") -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": names,
    }
    return httpx.options(server.url + "/v1/chat/completions", headers=headers)


def test_a_preflight_needs_no_key_but_the_request_does(start: Start) -> None:
    """R126."""
    server = start(api_key="secret")
    asked = preflight(server, VITE)
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == VITE
    assert asked.content == b""
    posted = server.post("/v1/chat/completions", chat_body(), headers={"Origin": VITE})
    assert posted.status_code == 401
    assert posted.headers["access-control-allow-origin"] == VITE


def test_a_preflight_grants_the_names_it_asks_for(server: FakeServer) -> None:
    """R128."""
    names = "authorization,x-stainless-os,dangerously-allow-browser"
    assert preflight(server, VITE, names).headers["access-control-allow-headers"] == names


def test_a_foreign_preflight_is_refused(server: FakeServer) -> None:
    asked = preflight(server, EVIL)
    assert asked.status_code == 403
    assert "access-control-allow-origin" not in asked.headers


GOOD_KEYS = [
    {"Authorization": "Bearer s\u00e9cret"},
    {"Authorization": "bearer  s\u00e9cret"},
    {"x-api-key": "s\u00e9cret"},
]
BAD_KEYS = [
    {},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer"},
    {"Authorization": ""},
    {"Authorization": "Basic s\u00e9cret"},
    {"Authorization": "Bearer s\u00e9cre"},
    {"Authorization": "Bearer s\u00e9crets"},
    {"Authorization": "Bearer secret"},
    {"x-api-key": ""},
    {"x-api-key": "\u00ff\u00fe"},
]


def with_utf8(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize("headers", GOOD_KEYS)
def test_the_right_key_opens_in_either_header(start: Start, headers: dict[str, str]) -> None:
    """R125: a key outside ASCII works too."""
    server = start(api_key="s\u00e9cret")
    assert server.get("/v1/models", headers=with_utf8(headers)).status_code == 200


@pytest.mark.parametrize("headers", BAD_KEYS)
def test_a_wrong_key_is_a_401_whatever_it_holds(start: Start, headers: dict[str, str]) -> None:
    """R125."""
    server = start(api_key="s\u00e9cret")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    for path in ("/v1/models", "/nope"):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"
        answer = server.exchange(request.encode())
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b'"code":"invalid_api_key"' in answer
        assert b"\r\nWWW-Authenticate: Bearer\r\n" in answer


def test_without_a_key_any_key_is_accepted(server: FakeServer) -> None:
    headers = {"Authorization": "Bearer anything"}
    assert server.get("/v1/models", headers=headers).status_code == 200


def test_health_without_the_key_tells_the_status_only(start: Start) -> None:
    """R124."""
    server = start(api_key="secret")
    assert server.get("/health").json() == {"status": "ok"}
    full = server.get("/health", headers={"x-api-key": "secret"}).json()
    assert full["model"]["id"]


def test_an_early_answer_arrives_although_the_body_was_not_read(start: Start) -> None:
    """R077: the 401 comes, the connection closes, and the body is never taken for a request."""
    server = start(api_key="secret")
    body = chat_body("x" * 70_000)
    second = chat_request(chat_body(), "x-api-key: secret\r\n")
    answer = server.exchange(chat_request(body) + second)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1


def chunked(pieces: list[bytes]) -> bytes:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def test_a_chunked_body_is_decoded_and_served(server: FakeServer) -> None:
    """R078."""
    data = json.dumps(chat_body()).encode()
    answer = server.exchange(chunked([data[:5], data[5:40], data[40:]]))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"content":"ok"' in answer


def test_the_size_limit_holds_for_chunked_bodies(server: FakeServer) -> None:
    """R078."""
    piece = b" " * (1 << 20)
    answer = server.exchange(chunked([piece] * (MAX_BODY_BYTES // len(piece) + 1)))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert server.chat().status_code == 200


def test_the_size_limit_holds_for_announced_bodies(server: FakeServer) -> None:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    )
    answer = server.exchange(head.encode() + b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: five",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity",
    ],
)
def test_a_body_of_doubtful_length_is_refused(server: FakeServer, framing: str) -> None:
    """R077: where one side might see another request than the other."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n0\r\n\r\n"
    answer = server.exchange(head.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"bad_framing" in answer


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"G E T / x y z HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n",
    ],
)
def test_nonsense_on_the_wire_harms_nobody(server: FakeServer, garbage: bytes) -> None:
    answer = server.exchange(garbage)
    assert answer == b"" or answer.split(b" ", 2)[1][:1] in (b"2", b"4", b"5")
    assert server.chat().status_code == 200


def test_a_connection_that_says_nothing_harms_nobody(server: FakeServer) -> None:
    with server.raw(b""), server.raw(b"POST /v1/chat/comp"):
        assert server.chat().status_code == 200


def test_an_ipv6_server_tells_its_address_in_brackets() -> None:
    server = HttpServer(lambda _environ, _start: [], listen("::1", 0))
    port = server.server_address[1]
    server.stop()
    assert server.url == f"http://[::1]:{port}"
