"""Is the client still there?

For: everything that waits while nothing is written. A write would notice, but a long prompt
writes nothing, and a generation without a reader must not go on. Not for: servers that hide their
socket; there the answer is always "still there". Threads: the function belongs to the thread that
serves the request.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

# poll where there is one: select fails on descriptors from 1024 up.
_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)


def client_gone(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether the client of this request has closed its connection."""
    connection = environ.get("werkzeug.socket")
    if not isinstance(connection, socket.socket):
        return lambda: False

    def gone() -> bool:
        try:
            with _Selector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                readable = bool(selector.select(0))
            # Readable and empty is a closed connection. Data would be a next request, which is
            # never served: one connection carries one.
            return readable and connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    return gone
