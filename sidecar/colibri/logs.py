"""Logging, configured in one place.

For: every process of ours calls `configure` once. Text goes to stderr where there is one, JSON
lines to a rotating file where one is asked for, or where there is no stderr (a windowed bundle
has none). Every record carries the id of the HTTP request it belongs to. Not for: what users
write or read: prompts and answers are never logged, only their sizes. Thread rule: `request_id`
is a context variable, so it belongs to the thread that serves the request.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from colibri import paths

FILE_BYTES = 10_000_000
FILE_COUNT = 5

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class _RequestIdFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": getattr(record, "request_id", "-"),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


H = TypeVar("H", bound=logging.Handler)


def add(handler: H) -> H:
    """Adds a handler beside those of `configure`, until that is called again; returns it."""
    handler.addFilter(_RequestIdFilter())
    logging.getLogger().addHandler(handler)
    return handler


def configure(level: str = "info", file: Path | None = None) -> None:
    """Replaces the root logger's handlers. `file` is created with its folder when needed.

    Raises OSError when the file cannot be opened.
    """
    handlers: list[logging.Handler] = []
    if sys.stderr is not None:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)-7s %(name)s [%(request_id)s] %(message)s")
        )
        handlers.append(terminal)
    elif file is None:
        file = paths.log_dir() / "sidecar.log"
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        rotating = logging.handlers.RotatingFileHandler(
            file, maxBytes=FILE_BYTES, backupCount=FILE_COUNT, encoding="utf-8"
        )
        rotating.setFormatter(_JsonFormatter())
        handlers.append(rotating)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.addFilter(_RequestIdFilter())
        root.addHandler(handler)
    root.setLevel(level.upper())
    # Libraries that narrate every call would drown our own lines.
    for name in ("urllib3", "httpx", "httpcore", "werkzeug"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
