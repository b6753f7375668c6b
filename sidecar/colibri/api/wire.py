"""Requests as bytes on the wire: heads, and bodies that arrive in pieces.

For: the front (`front`), which reads sockets. Not for: sockets, or what a request means. Strict on
purpose: what two programs could read in two ways is refused, so no body is taken for a request.

    take_head(buffer)   a Head, or None until all of it is there
    Body.feed(buffer)   True when the body is complete

Both take what they understand out of the buffer and leave the rest, which is the next request.
Whatever is wrong raises ProtocolError, whatever the bytes are. Threads: plain values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from colibri.errors import ProtocolError

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
_MAX_CHUNK_LINE = 256
_MAX_TRAILER_BYTES = 8 << 10

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VERSION = re.compile(rb"HTTP/(\d)\.(\d)")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
# Control characters but the tab.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_DIGITS = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_SLASHES = re.compile(r"/{2,}")
_TLS_HANDSHAKE = 0x16


def _bad(sentence: str, *, status: int = 400, code: str = "bad_request") -> ProtocolError:
    return ProtocolError(sentence, status=status, code=code)


@dataclass(frozen=True, slots=True)
class Head:
    """Request line and headers. Names are lower case, values text of one byte a character.

    `length` is that of the body in bytes, None if it comes in chunks. `keep`: the client would send
    another request on this connection.
    """

    method: str
    target: str
    version: str
    headers: Sequence[tuple[str, str]]
    length: int | None
    keep: bool
    expects_continue: bool
    upgrades: bool

    @property
    def path(self) -> str:
        """The path as WSGI has it: percent signs decoded, doubled slashes made one.

        Base URLs with a slash at the end double them.
        """
        path = self.target.partition("?")[0]
        return _SLASHES.sub("/", unquote_to_bytes(path.encode("latin-1")).decode("latin-1"))

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def get(self, name: str) -> str | None:
        """The value of a header that may come once."""
        return next((value for key, value in self.headers if key == name), None)


def take_head(buffer: bytearray, scanned: int = 0) -> Head | None:
    """The head at the start of `buffer`, which then begins with what follows it.

    None while it is not complete. The first `scanned` bytes were there at the last call.
    """
    while buffer[:2] == b"\r\n":  # some clients end a body with a line of its own
        del buffer[:2]
        scanned = 0
    if buffer[:1] == bytes([_TLS_HANDSHAKE]):
        raise _bad("This port speaks HTTP, not HTTPS; use http:// in the address.")
    end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    if end > MAX_HEAD_BYTES or (end < 0 and len(buffer) > MAX_HEAD_BYTES):
        if b"\r\n" in buffer[:MAX_HEAD_BYTES]:
            raise _bad("The headers are too large.", status=431, code="headers_too_large")
        raise _bad("The request line is too long.", status=414, code="uri_too_long")
    seen = len(buffer) if end < 0 else end
    place = buffer.find(b"\n", max(0, scanned - 1), seen)
    while place >= 0:
        if place == 0 or buffer[place - 1] != 0x0D:  # noqa: PLR2004 - carriage return
            raise _bad("A line of the head ends without a carriage return.")
        place = buffer.find(b"\n", place + 1, seen)
    if end < 0:
        return None
    data = bytes(buffer[:end])
    del buffer[: end + 4]
    return _parse(data)


def _parse(data: bytes) -> Head:
    lines = data.split(b"\r\n")
    method, target, version = _request_line(lines[0])
    if len(lines) - 1 > MAX_HEADERS:
        raise _bad("There are too many headers.", status=431, code="headers_too_large")
    headers = [_header(line) for line in lines[1:]]
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute:
        # The address wins over the Host header.
        headers = [pair for pair in headers if pair[0] != "host"] + [("host", absolute[1])]
        target = absolute[2] if absolute[2].startswith("/") else "/" + absolute[2]
    elif not (target.startswith("/") or (target == "*" and method == "OPTIONS")):
        raise _bad("The address in the request line must begin with a slash.")
    target = target.partition("#")[0]
    if "%00" in target:
        raise _bad("The address holds a zero byte.")
    if len([name for name, _ in headers if name == "host"]) > 1:
        raise _bad("There is more than one Host header.")
    tokens = _tokens(headers, "connection")
    expected = [value.lower() for name, value in headers if name == "expect"]
    if any(value != "100-continue" for value in expected):
        raise _bad("That expectation cannot be met.", status=417, code="expectation_failed")
    return Head(
        method=method,
        target=target,
        version=version,
        headers=headers,
        length=_length(headers, version),
        keep=version == "HTTP/1.1" and "close" not in tokens,
        expects_continue=bool(expected) and version == "HTTP/1.1",
        upgrades="upgrade" in tokens and "websocket" in _tokens(headers, "upgrade"),
    )


def _request_line(line: bytes) -> tuple[str, str, str]:
    words = line.split(b" ")
    if len(words) != 3:  # noqa: PLR2004 - method, address, version
        raise _bad("The request line must be a method, an address and a version.")
    method, target, version = words
    known = _VERSION.fullmatch(version)
    if known and (known[1] != b"1" or known[2] not in b"01"):
        raise _bad("Only HTTP/1.0 and HTTP/1.1 are spoken here.", status=505, code="http_version")
    if not known or not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise _bad("The request line cannot be understood.")
    return method.decode("ascii"), target.decode("latin-1"), version.decode("ascii")


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value):
        raise _bad("A header cannot be understood.")
    return name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")


def _tokens(headers: Sequence[tuple[str, str]], wanted: str) -> set[str]:
    """The words of a header that is a list."""
    lists = [value for name, value in headers if name == wanted]
    return {word.strip().lower() for value in lists for word in value.split(",")}


def _length(headers: Sequence[tuple[str, str]], version: str) -> int | None:
    """Bytes of the body, None for chunks. Never a guess: it could make a body a request."""
    lengths = {value for name, value in headers if name == "content-length"}
    codings = [value for name, value in headers if name == "transfer-encoding"]
    if codings:
        if lengths or version != "HTTP/1.1" or [c.lower() for c in codings] != ["chunked"]:
            raise _bad(
                "Transfer-Encoding must be chunked alone, without Content-Length.",
                code="bad_framing",
            )
        return None
    if not lengths:
        return 0
    text = lengths.pop()
    if lengths or not _DIGITS.fullmatch(text):
        raise _bad("Content-Length must be one non-negative number.", code="bad_framing")
    return int(text)


class Body:
    """A body on its way: `length` bytes, or chunks (None). More than `limit` bytes are not kept.

    `data` holds what has arrived, without the chunks' own bytes.
    """

    def __init__(self, length: int | None, limit: int) -> None:
        self.data = bytearray()
        self.refused = False  # its request will be refused, so it is not read
        self.too_large = (length or 0) > limit
        self._limit = limit
        self._chunked = length is None
        self._left = length or 0  # of the body, or of the chunk at hand
        self._part = "size"  # of a chunked body: size, data, end (of the data), trailer
        self._trailer = 0

    def feed(self, buffer: bytearray) -> bool:
        """Takes what belongs to the body out of `buffer`; True when it is complete or too large."""
        if not self._chunked and not self.too_large:
            return self._take(buffer)
        while not self.too_large:
            if self._part == "data":
                if not self._take(buffer):
                    return self.too_large
                self._part = "end"
            line = self._line(buffer)
            if line is None:
                return False
            if self._part == "trailer" and not line:
                return True
            self._between(line)
        return True

    def _between(self, line: bytes) -> None:
        """A line that is no data: the end of a chunk, the length of the next, or a trailer."""
        if self._part == "end":
            if line:
                raise _bad("A chunk is longer than it says.", code="bad_framing")
            self._part = "size"
        elif self._part == "size":
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None or _CONTROL.search(line):
                raise _bad("The length of a chunk cannot be understood.", code="bad_framing")
            self._left = int(size[1], 16)
            self._part = "data" if self._left else "trailer"
        else:
            self._trailer += len(line) + 2
            if self._trailer > _MAX_TRAILER_BYTES:
                raise _bad("What follows the chunks is too long.", code="bad_framing")

    def _take(self, buffer: bytearray) -> bool:
        """Moves data of the body or chunk over; True when that is complete."""
        piece = buffer[: self._left]
        if len(self.data) + len(piece) > self._limit:
            self.too_large = True
            return False
        self.data += piece
        self._left -= len(piece)
        del buffer[: len(piece)]
        return self._left == 0

    def _line(self, buffer: bytearray) -> bytes | None:
        """The next line without its end; None until it is there."""
        end = buffer.find(b"\n", 0, _MAX_CHUNK_LINE)
        if end < 0:
            if len(buffer) >= _MAX_CHUNK_LINE:
                raise _bad("A line between chunks is too long.", code="bad_framing")
            return None
        line = bytes(buffer[: end + 1])
        if not line.endswith(b"\r\n"):
            raise _bad("A chunk ends in the wrong place.", code="bad_framing")
        del buffer[: end + 1]
        return line[:-2]
