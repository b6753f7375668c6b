"""Hostile connections: heads and bodies of several requests, cut anywhere, mean the same."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri.api.wire"]):
    from colibri.api.wire import Body, take_head

from colibri.errors import ProtocolError
from tests.fuzz import target

_LIMIT = 1000
Request = tuple[str, str, bytes]


def serve(pieces: list[bytes]) -> tuple[list[Request], str | None]:
    """(the requests of a connection, code of the refusal that ends it)."""
    buffer, scanned = bytearray(), 0
    head, body = None, None
    requests: list[Request] = []
    try:
        for piece in pieces:
            buffer += piece
            while True:
                if head is None or body is None:
                    head = take_head(buffer, scanned)
                    scanned = len(buffer)
                    if head is None:
                        break
                    body = Body(head.length, _LIMIT)
                if not body.feed(buffer):
                    break
                if body.too_large:
                    return requests, "too large"
                requests.append((head.method, head.path, bytes(body.data)))
                head = body = None
                scanned = 0
    except ProtocolError as error:
        return requests, error.code
    return requests, None


def read(data: bytes, folder: Path) -> None:
    del folder
    whole = serve([data])
    rng = random.Random(data)  # noqa: S311
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if serve(pieces) != whole:
        raise RuntimeError(f"cut into {pieces} it is {serve(pieces)}, whole {whole}")


if __name__ == "__main__":
    post = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
    target.run(
        read,
        {
            "get": b"GET /v1/models?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2,
            "length": post + b"Content-Length: 2\r\n\r\n{}" + post + b"Content-Length: 0\r\n\r\n",
            "chunks": post + b"Transfer-Encoding: chunked\r\n\r\n2;a\r\n{}\r\n0\r\nX: y\r\n\r\n",
            "absolute": b"GET http://box.local/a%20b HTTP/1.0\r\nConnection: close\r\n\r\n",
        },
    )
