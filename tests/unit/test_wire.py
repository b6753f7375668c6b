"""Heads and bodies as bytes: what is taken, what is refused, and that cutting changes nothing.

Covers R077, R078, R132.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.api.wire import MAX_HEAD_BYTES, MAX_HEADERS, Body, Head, take_head
from colibri.errors import ProtocolError

LIMIT = 1000


def head_of(text: str | bytes) -> Head:
    head = take_head(bytearray(text.encode("latin-1") if isinstance(text, str) else text))
    assert head is not None
    return head


def refusal(text: str | bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        head_of(text)
    return caught.value


def get(*lines: str, first: str = "GET / HTTP/1.1") -> str:
    return "\r\n".join([first, *lines]) + "\r\n\r\n"


def test_a_head_is_read() -> None:
    head = head_of(get("Host: x", "X-A:  b\t", first="POST /v1/x?y=%20 HTTP/1.1"))
    assert (head.method, head.path, head.query, head.version) == (
        "POST",
        "/v1/x",
        "y=%20",
        "HTTP/1.1",
    )
    assert head.headers == [("host", "x"), ("x-a", "b")]
    assert (head.length, head.keep, head.expects_continue, head.upgrades) == (0, True, False, False)


def test_what_follows_the_head_stays() -> None:
    buffer = bytearray(get("Host: x").encode() + b"rest")
    assert take_head(buffer)
    assert buffer == b"rest"


def test_empty_lines_before_a_request_are_ignored() -> None:
    assert head_of("\r\n\r\n" + get()).path == "/"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/a%2Fb%C3%A9", "/a/b\u00c3\u00a9"),
        ("//v1//models", "/v1/models"),
        ("http://box.local:1/v1?q", "/v1"),
        ("HTTP://box.local", "/"),
        ("http://box.local?q", "/"),
        ("/a#b", "/a"),
        ("/t\u00c3\u00a9", "/t\u00c3\u00a9"),
    ],
)
def test_the_path_is_what_the_client_means(target: str, path: str) -> None:
    """Doubled slashes come from base URLs that end with one."""
    head = head_of(get("Host: evil.example", first=f"GET {target} HTTP/1.1"))
    assert head.path == path
    if "box" in target:
        assert (head.get("host") or "")[:9] == "box.local"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET\r\n\r\n", 400),
        ("GET /\r\n\r\n", 400),
        ("GET / HTTP/1.1 x\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\n\r\n", 400),
        ("GET / http/1.1\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\n", 505),
        ("GET / HTTP/1.9\r\n\r\n", 505),
        ("G(T / HTTP/1.1\r\n\r\n", 400),
        ("GET x HTTP/1.1\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\n\r\n", 400),
        ("GET /\x00 HTTP/1.1\r\n\r\n", 400),
        ("GET /%00 HTTP/1.1\r\n\r\n", 400),
        ("GET ftp://x/ HTTP/1.1\r\n\r\n", 400),
        ("CONNECT x:1 HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: x\n\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\n\r\n", 400),
        ("\nGET / HTTP/1.1\r\n\r\n", 400),
        (get("Host"), 400),
        (get("Host : x"), 400),
        (get(" Host: x"), 400),
        (get("A: b", " folded"), 400),
        (get(": x"), 400),
        (get("A: b\x00"), 400),
        (get("A: b\rc"), 400),
        (get("A\x7f: b"), 400),
        (get("Host: a", "Host: a"), 400),
        (get("Expect: tea"), 417),
        (get(*["A: b"] * (MAX_HEADERS + 1)), 431),
        (get("A: " + "b" * MAX_HEAD_BYTES), 431),
        ("GET /" + "a" * MAX_HEAD_BYTES, 414),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_what_is_no_head_is_refused(head: str | bytes, status: int) -> None:
    error = refusal(head)
    assert error.http_status == status
    assert error.message.endswith(".")


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding:"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 5"],
        ["Content-Length: -1"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length: 5 5"],
        ["Content-Length: "],
        ["Content-Length: \u00b2"],
        ["Content-Length: " + "9" * 40],
    ],
)
def test_a_body_of_doubtful_length_is_refused(lines: list[str]) -> None:
    """R077: where one side might see another request than the other."""
    assert refusal(get(*lines)).code == "bad_framing"


def test_chunks_need_http_1_1() -> None:
    head = get("Transfer-Encoding: chunked", first="POST / HTTP/1.0")
    assert refusal(head).code == "bad_framing"


@pytest.mark.parametrize(
    ("first", "line", "keep"),
    [
        ("GET / HTTP/1.1", "A: b", True),
        ("GET / HTTP/1.1", "Connection: Close", False),
        ("GET / HTTP/1.1", "Connection: te, close", False),
        ("GET / HTTP/1.0", "Connection: keep-alive", False),
    ],
)
def test_a_connection_is_kept_if_the_client_wants_it(first: str, line: str, keep: bool) -> None:
    assert head_of(get(line, first=first)).keep is keep


def fed(raw: bytes, length: int | None, cuts: list[int]) -> tuple[bytes, bytes, bool, bool]:
    """(data, rest, done, too large) of a body that arrives cut at these places."""
    body, buffer, done = Body(length, LIMIT), bytearray(), False
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        buffer += raw[start:end]
        if not done:
            done = body.feed(buffer)
    return bytes(body.data), bytes(buffer), done, body.too_large


def chunked(pieces: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    out = b"".join(b"%X%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces)
    return out + b"0\r\n" + trailer + b"\r\n"


@given(st.data(), st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(max_size=20))
def test_how_a_chunked_body_is_cut_changes_nothing(
    data: st.DataObject, pieces: list[bytes], rest: bytes
) -> None:
    """R078: the next request is left as it came."""
    raw = chunked(pieces, b";a=b", b"X: y\r\n") + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    assert fed(raw, None, cuts) == (b"".join(pieces), rest, True, False)


@given(st.data(), st.binary(max_size=60), st.binary(max_size=20))
def test_how_a_body_is_cut_changes_nothing(data: st.DataObject, body: bytes, rest: bytes) -> None:
    raw = body + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    assert fed(raw, len(body), cuts) == (body, rest, True, False)


@given(st.data())
def test_how_a_head_is_cut_changes_nothing(data: st.DataObject) -> None:
    raw = get("Host: x", "A: b", first="GET /x HTTP/1.1").encode() + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    buffer, scanned, head = bytearray(), 0, None
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        buffer += raw[start:end]
        if head is None:
            head = take_head(buffer, scanned)
            scanned = len(buffer)
    assert head is not None
    assert (head.path, head.headers) == ("/x", [("host", "x"), ("a", "b")])
    assert buffer == b"rest"


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1" * 300,
        b"f" * 16 + b"\r\n",
        b"1;" + b"a" * 300,
        b"0\r\n" + b"X: y\r\n" * 2000,
        b"1;\x00\r\na\r\n",
    ],
)
def test_wrong_chunks_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        fed(raw, None, [])
    assert caught.value.code == "bad_framing"


def test_a_body_above_the_limit_is_not_kept() -> None:
    data, _, done, too_large = fed(chunked([b"a" * 600, b"b" * 600]), None, [])
    assert (done, too_large) == (True, True)
    assert len(data) <= LIMIT
    body = Body(LIMIT + 1, LIMIT)
    assert body.too_large
    assert body.feed(bytearray())


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_never_raise_anything_else(seed: int) -> None:
    """R132."""
    rng = random.Random(seed)  # noqa: S311
    words: list[Any] = [
        b"GET ",
        b"/ ",
        b"HTTP/1.1",
        b"\r\n",
        b"\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chunked",
        b":",
        b"\x00",
        b"5",
        b"\r\n\r\n",
        b"\xff",
        b"%",
    ]
    for _ in range(500):
        raw = bytearray(b"".join(rng.choices(words, k=rng.randrange(1, 20))))
        try:
            head = take_head(raw)
            if head is not None:
                Body(head.length, LIMIT).feed(raw)
                assert head.path.startswith(("/", "*"))
        except ProtocolError as error:
            assert 400 <= error.http_status < 600
