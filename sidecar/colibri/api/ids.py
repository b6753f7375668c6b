"""Ids of requests.

For: the guard, and the server for what never gets to the app. Threads: pure.
"""

from __future__ import annotations

import re
import secrets

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def new_request_id(wish: str | None = None) -> str:
    """The id of a request: the client's own wish if it can be a name in a log, else a new one."""
    if wish is not None and _SANE.fullmatch(wish):
        return wish
    return f"req_{secrets.token_hex(12)}"
