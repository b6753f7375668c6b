"""Login of the dashboard: the key is sent once, a cookie stands for it from then on.

For: the guard, which takes a cookie for the key, and the login route. A page cannot put a header on
a WebSocket, and a key in a URL would end up in logs and histories. Not for: other clients, which
send the key with each request.

    cookie   expiry.nonce.mac   mac keyed by what is stretched from the API key
             HttpOnly (no script reads it), SameSite=Strict (no foreign page sends it), one per port

So nothing is stored, a login outlives a restart, and another API key ends them all. A logout is
remembered until the cookie would have expired. Thread rule: any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Final

from colibri.errors import BusyError

LIFETIME_SECONDS: Final = 30 * 86_400
# Wrong keys that one address may try in a minute.
_TRIES: Final = 10
_TRIES_SECONDS: Final = 60
# What is remembered about strangers has an end.
_MOST_ADDRESSES: Final = 1000
_STRETCH: Final = 100_000
_LONGEST_TOKEN: Final = 200


def cookie_name(host: str) -> str:
    """Cookies do not know ports: two servers on one machine must not overwrite each other's."""
    _, _, port = host.rpartition(":")
    return f"colibri_login_{port}" if port.isdecimal() else "colibri_login"


class Logins:
    """The cookies of one server; without a key nobody has to log in."""

    def __init__(
        self,
        key: str | None,
        clock: Callable[[], float] = time.time,
        *,
        token: str | None = None,
    ) -> None:
        """`token` is taken in place of the key, until this server ends."""
        self._key = key
        self._token = token
        self._clock = clock
        self._lock = threading.Lock()
        self._void: dict[str, float] = {}  # nonce -> when its cookie expires anyway
        self._tries: dict[str, deque[float]] = {}

    @property
    def required(self) -> bool:
        return self._key is not None

    @cached_property
    def _mac_key(self) -> bytes:
        # Stretched, so that a stolen cookie does not help to guess a short key.
        key = (self._key or "").encode()
        return hashlib.pbkdf2_hmac("sha256", key, b"colibri login cookie 1", _STRETCH)

    def _mac(self, text: str) -> str:
        return hmac.new(self._mac_key, text.encode(), hashlib.sha256).hexdigest()

    def check_key(self, key: str, address: str) -> bool:
        """Whether the key is right, in constant time. Raises BusyError after many wrong ones."""
        if self._key is None:
            return True
        # Looked at and counted under one lock: tries at the same moment are tries too.
        with self._lock:
            now = self._clock()
            tries = self._tries.get(address, deque())
            while tries and now - tries[0] > _TRIES_SECONDS:
                tries.popleft()
            if len(tries) >= _TRIES:
                raise BusyError(
                    "Too many wrong keys were sent from this address. Try again later.",
                    retry_after=max(1, int(_TRIES_SECONDS - (now - tries[0])) + 1),
                    code="too_many_logins",
                )
            given = key.encode("utf-8", "surrogatepass")
            known = [text.encode() for text in (self._key, self._token) if text is not None]
            right = any([hmac.compare_digest(given, one) for one in known])
            if not right:
                # The latest to be wrong stays longest.
                self._tries.pop(address, None)
                if len(self._tries) >= _MOST_ADDRESSES:
                    del self._tries[next(iter(self._tries))]
                self._tries[address] = tries
                tries.append(now)
        return right

    def token(self) -> str:
        """The value of a new cookie."""
        text = f"{int(self._clock()) + LIFETIME_SECONDS}.{secrets.token_hex(16)}"
        return f"{text}.{self._mac(text)}"

    def holds(self, token: str) -> bool:
        """Whether this is a cookie of ours that is neither old nor logged out. Never raises."""
        text, _, mac = token.rpartition(".")
        expiry, _, nonce = text.partition(".")
        if self._key is None or len(token) > _LONGEST_TOKEN or not token.isascii():
            return False
        if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):
            return False
        with self._lock:
            return int(expiry) > self._clock() and nonce not in self._void

    def void(self, token: str) -> None:
        """Logs a cookie out, wherever copies of it may be."""
        if not self.holds(token):
            return
        expiry, _, rest = token.partition(".")
        with self._lock:
            now = self._clock()
            self._void = {nonce: end for nonce, end in self._void.items() if end > now}
            self._void[rest.partition(".")[0]] = float(expiry)
