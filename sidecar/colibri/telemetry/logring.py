"""The last lines of the log, for people who look at the dashboard.

For: the log view. Installed once beside the other handlers (`logs.configure` comes first). As
everywhere, no prompt and no answer is ever logged. Not for: keeping; that is the log file's work.
Thread rule: any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

_KEPT: Final = 2000
_LONGEST: Final = 4000
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class LogRing(logging.Handler):
    """A handler that keeps the last entries. `changed` is called after each."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.changed = changed
        self._entries: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._seq = 0
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                message = f"{message}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        except Exception:
            self.handleError(record)
            return
        request = getattr(record, "request_id", "-")
        with self._guard:
            self._seq += 1
            self._entries.append(
                {
                    "seq": self._seq,
                    "at_ms": int(record.created * 1000),
                    "level": record.levelname.lower(),
                    "logger": record.name,
                    "message": message[:_LONGEST],
                    "request_id": None if request == "-" else request,
                    "_level": record.levelno,
                }
            )
        self.changed()

    def after(self, seq: int, level: int = 0, limit: int = 200) -> tuple[list[dict[str, Any]], int]:
        """Entries after `seq` of at least this level, oldest first, the last `limit` of them; and
        the number to ask with next.
        """
        with self._guard:
            found = [e for e in self._entries if e["seq"] > seq and e["_level"] >= level]
            last = self._seq
        shown = [{k: v for k, v in e.items() if k != "_level"} for e in found[-limit:]]
        return shown, last

    @property
    def seq(self) -> int:
        """Number of the last entry."""
        return self._seq
