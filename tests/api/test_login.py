"""Login of the dashboard: once with the key, then by a cookie that only its own pages can use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie

import httpx
import pytest

from colibri.api.login import LIFETIME_SECONDS, Logins, cookie_name
from colibri.errors import BusyError
from tests.support.fakeserver import TIMEOUT, FakeServer, chat_body

Start = Callable[..., FakeServer]
KEY = "s\u00e9cret \u2713"
EVIL = "https://evil.example"


def log_in(server: FakeServer, key: str = KEY) -> dict[str, str]:
    """Headers of a page that has logged in."""
    answer = server.post("/api/session", {"key": key}, headers={"Origin": server.url})
    assert answer.status_code == 200, answer.text
    assert answer.json()["logged_in"] is True
    name, value = next(iter(answer.cookies.items()))
    return {"Cookie": f"{name}={value}"}


def test_without_a_key_nobody_has_to_log_in(server: FakeServer) -> None:
    told = server.get("/api/session").json()
    assert (told["login_required"], told["logged_in"]) == (False, True)
    answer = server.post("/api/session", {"key": "whatever"})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert server.request("DELETE", "/api/session").json()["logged_in"] is True


def test_a_login_opens_every_route_and_a_logout_closes_them(start: Start) -> None:
    server = start(api_key=KEY)
    before = server.get("/api/session").json()
    assert (before["login_required"], before["logged_in"]) == (True, False)
    assert server.get("/v1/models").status_code == 401
    page = log_in(server)
    assert server.get("/api/session", headers=page).json()["logged_in"] is True
    assert server.get("/v1/models", headers=page).status_code == 200
    assert "model" in server.get("/health", headers=page).json()
    chat = server.post("/v1/chat/completions", chat_body(), headers={**page, "Origin": server.url})
    assert chat.status_code == 200
    out = server.request("DELETE", "/api/session", headers=page)
    assert out.json()["logged_in"] is False
    assert "colibri_login" in out.headers["set-cookie"]
    assert server.get("/v1/models", headers=page).status_code == 401, "a copy of the cookie is void"


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(start: Start) -> None:
    server = start(api_key=KEY)
    header = server.post("/api/session", {"key": KEY}).headers["set-cookie"]
    cookie = SimpleCookie(header)
    name = cookie_name(f"127.0.0.1:{server.port}")
    assert str(server.port) in name
    morsel = cookie[name]
    assert morsel["httponly"] is True
    assert morsel["samesite"] == "Strict"
    assert morsel["path"] == "/"
    assert int(morsel["max-age"]) == LIFETIME_SECONDS
    assert KEY not in header


def test_a_cookie_counts_from_the_servers_own_pages_only(start: Start) -> None:
    """What else runs on this machine is the same site to a browser; so the Origin is looked at."""
    server = start(api_key=KEY, cors_origins=("*",))
    page = log_in(server)
    for origin in (EVIL, "http://localhost:5173", "http://127.0.0.1:9", "null"):
        answer = server.get("/v1/models", headers={**page, "Origin": origin})
        assert answer.status_code == 401, origin
    own = server.get("/v1/models", headers={**page, "Origin": server.url})
    assert own.status_code == 200


@pytest.mark.parametrize("key", ["", "secret", KEY + " ", "x" * 100_000])
def test_a_wrong_key_is_a_401(start: Start, key: str) -> None:
    server = start(api_key=KEY)
    answer = server.post("/api/session", {"key": key})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"key": 1}', b'{"key": null}', b"{", b'{"key": "\\ud800"}']
)
def test_a_login_that_is_none_is_refused(start: Start, body: bytes) -> None:
    server = start(api_key=KEY)
    answer = server.post("/api/session", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_a_foreign_page_cannot_log_in_or_out(start: Start) -> None:
    server = start(api_key=KEY)
    page = log_in(server)
    for method in ("POST", "DELETE"):
        answer = server.request(
            method, "/api/session", json={"key": KEY}, headers={**page, "Origin": EVIL}
        )
        assert answer.status_code == 403
    plain = server.post(
        "/api/session", content=b'{"key": "x"}', headers={"Content-Type": "text/plain"}
    )
    assert plain.status_code == 415
    assert server.get("/v1/models", headers=page).status_code == 200


def test_keys_cannot_be_tried_out_quickly(start: Start) -> None:
    server = start(api_key=KEY)
    codes = [server.post("/api/session", {"key": f"no{i}"}).status_code for i in range(12)]
    assert codes == [401] * 10 + [429] * 2
    refused = server.post("/api/session", {"key": KEY})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert server.get("/v1/models", headers={"x-api-key": KEY.encode()}).status_code == 200


def test_keys_cannot_be_tried_out_quickly_by_many_connections_at_once(start: Start) -> None:
    """Every connection at the same moment, with the right key among the guesses: ten are looked at
    in a minute, whoever comes first.
    """
    server = start(api_key=KEY)
    gate = threading.Barrier(40)

    def guess(number: int) -> int:
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
            client.get("/api/session")  # connected before the race begins
            gate.wait(TIMEOUT)
            tries = [client.post("/api/session", json={"key": f"{number}-{n}"}) for n in range(5)]
            return sum(answer.status_code == 401 for answer in tries)

    with ThreadPoolExecutor(40) as pool:
        looked_at = sum(pool.map(guess, range(40)))
    assert looked_at == 10
    assert server.post("/api/session", {"key": KEY}).status_code == 429
    assert server.get("/v1/models", headers={"x-api-key": KEY.encode()}).status_code == 200


def test_guesses_at_the_same_moment_are_counted_one_by_one() -> None:
    """A lock that were let go between the look and the count would let them all through."""

    class Slow(str):
        def encode(self, *_: object) -> bytes:
            time.sleep(0.02)
            return b"wrong"

    logins, gate = Logins("right"), threading.Barrier(30)

    def guess(_: int) -> bool:
        gate.wait(TIMEOUT)
        try:
            return logins.check_key(Slow("x"), "1.2.3.4")
        except BusyError:
            return True

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(guess, range(30))).count(False) == 10


def test_many_addresses_do_not_wipe_out_what_is_known_of_one() -> None:
    clock = Clock()
    logins = Logins("right", clock)
    for _ in range(10):
        logins.check_key("wrong", "1.2.3.4")
    for number in range(900):
        logins.check_key("wrong", f"10.0.{number // 256}.{number % 256}")
    with pytest.raises(BusyError):
        logins.check_key("right", "1.2.3.4")
    for number in range(5000):
        logins.check_key("wrong", f"host{number}")
    assert len(logins._tries) == 1000


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_the_tries_are_forgotten_after_a_minute_and_counted_for_each_address() -> None:
    clock = Clock()
    logins = Logins("right", clock)
    for _ in range(10):
        assert not logins.check_key("wrong", "1.2.3.4")
    with pytest.raises(BusyError):
        logins.check_key("right", "1.2.3.4")
    assert logins.check_key("right", "5.6.7.8")
    clock.now += 61
    assert logins.check_key("right", "1.2.3.4")


def test_a_cookie_ends_with_its_time_and_with_its_key() -> None:
    clock = Clock()
    logins = Logins("one", clock)
    token = logins.token()
    assert logins.holds(token)
    assert Logins("one", clock).holds(token), "a restart keeps it"
    assert not Logins("two", clock).holds(token)
    assert not Logins(None, clock).holds(token)
    clock.now += LIFETIME_SECONDS + 1
    assert not logins.holds(token)


def test_a_changed_cookie_is_worth_nothing() -> None:
    logins = Logins("key")
    token = logins.token()
    expiry, nonce, mac = token.split(".")
    forged = [
        f"{int(expiry) + 1}.{nonce}.{mac}",
        f"{expiry}.{nonce[:-1]}0.{mac}" if nonce[-1] != "0" else f"{expiry}.{nonce[:-1]}1.{mac}",
        f"{expiry}.{nonce}.{mac[:-1]}",
        f"{expiry}.{nonce}.",
        f"{expiry}.{nonce}",
        "",
        ".",
        "..",
        "\u00ff" * 40,
        token + "0",
        "9" * 10_000,
    ]
    assert [text for text in forged if logins.holds(text)] == []


def test_logouts_are_remembered_only_as_long_as_they_matter() -> None:
    clock = Clock()
    logins = Logins("key", clock)
    for _ in range(5):
        logins.void(logins.token())
    assert len(logins._void) == 5
    clock.now += LIFETIME_SECONDS + 1
    logins.void(logins.token())
    assert len(logins._void) == 1
