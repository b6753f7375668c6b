"""One writer per folder: a lock of the system, and a line that says who has it.

For: the store, and `coli cache clear`. Not for: readers, who need none. The system frees the lock
when its process ends, however it ends, so a lock file left by a dead process hinders nobody.
Thread rule: take and release from any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import filelock
import psutil

LOCK_NAME: Final = "lock"
OWNER_NAME: Final = "writer.pid"
_OWNER_BYTES: Final = 32


class WriterLock:
    """See the module's text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = filelock.FileLock(folder / LOCK_NAME, thread_local=False)

    def take(self) -> bool:
        """False if another process (or another store of this one) writes. Raises OSError."""
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        with contextlib.suppress(OSError):
            (self._folder / OWNER_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")
        return True

    def release(self) -> None:
        """Does nothing if it is not held."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                (self._folder / OWNER_NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._lock.release()


def owner(folder: Path) -> int | None:
    """Process id that the present writer left; None if it left none, or has ended.

    For people: only taking the lock is proof.
    """
    try:
        pid = int((folder / OWNER_NAME).read_bytes()[:_OWNER_BYTES])
    except (OSError, ValueError):
        return None
    return pid if psutil.pid_exists(pid) else None
