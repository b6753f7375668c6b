"""An engine whose process says something of every kind while it opens: for tests of its log."""

from __future__ import annotations

import logging
import sys
from typing import Any

from colibri.engine import fake
from colibri.engine.backend import Tell
from colibri.engine.fake import FakeBackend


def open_backend(options: dict[str, Any], tell: Tell) -> FakeBackend:
    """The scripted engine, after a few lines on stderr."""
    log = logging.getLogger("talkative")
    log.debug("a detail")
    log.warning("a doubt")
    log.error("a trouble")
    print("INFORMAL words of a library", file=sys.stderr, flush=True)
    return fake.open_backend(options, tell)
