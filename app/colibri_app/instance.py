"""One app a person: the first start has the lock, a second one asks it to come to the front.

For: `shell`. Not for: servers without a window, any number of which may run.

    lock file      locked by the system while the process lives, so nothing stale can hold it
    contact file   port and secret of a listener on this machine, readable by its owner only

The listener takes one JSON line, `{"secret", "do": "focus"}`, and answers `{"ok": true, "pid"}`.
Thread rule: `Instance.listen` runs its own thread, which calls `on_focus`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_REPLY_SECONDS: Final = 3.0
_MOST_BYTES: Final = 4096


class Instance:
    """The lock of the one app; `acquire` tells whether this is it."""

    def __init__(self, lock: Path, contact: Path) -> None:
        self._lock_path = lock
        self._contact = contact
        self._lock: int | None = None
        self._listener: socket.socket | None = None

    def acquire(self) -> bool:
        """Takes the lock; False when another app has it. Raises OSError without a place for it."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(handle):
            os.close(handle)
            return False
        self._lock = handle
        return True

    def listen(self, on_focus: Callable[[], None]) -> None:
        """Answers second starts from a thread of its own. Raises OSError."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listener = listener
        secret = secrets.token_urlsafe(16)
        port = listener.getsockname()[1]
        _write_private(
            self._contact, json.dumps({"port": port, "secret": secret, "pid": os.getpid()})
        )

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # closed by release
                with connection:
                    connection.settimeout(_REPLY_SECONDS)
                    with contextlib.suppress(OSError, ValueError):
                        _answer(connection, secret, on_focus)

        threading.Thread(target=serve, name="second-starts", daemon=True).start()

    def release(self) -> None:
        """Gives the lock back; the system does it too when the process ends."""
        if self._listener is not None:
            self._listener.close()
            self._contact.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def focus_running(contact: Path) -> int | None:
    """Asks the running app to come to the front; its process id, None when it does not answer."""
    try:
        known = json.loads(contact.read_text(encoding="utf-8"))
        port, secret = int(known["port"]), str(known["secret"])
        with socket.create_connection(("127.0.0.1", port), _REPLY_SECONDS) as connection:
            connection.settimeout(_REPLY_SECONDS)
            connection.sendall(json.dumps({"secret": secret, "do": "focus"}).encode() + b"\n")
            reply = json.loads(_line(connection))
            return int(reply["pid"]) if reply["ok"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answer(connection: socket.socket, secret: str, on_focus: Callable[[], None]) -> None:
    asked = json.loads(_line(connection))
    given = asked.get("secret") if isinstance(asked, dict) else None
    known = isinstance(given, str) and hmac.compare_digest(given.encode(), secret.encode())
    wanted = known and asked.get("do") == "focus"
    reply = {"ok": wanted, "pid": os.getpid() if wanted else None}
    connection.sendall(json.dumps(reply).encode() + b"\n")
    if wanted:
        on_focus()


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
        piece = connection.recv(_MOST_BYTES)
        if not piece:
            break
        data += piece
    return data


def _write_private(path: Path, text: str) -> None:
    """Replaces a file that nobody else may read."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
