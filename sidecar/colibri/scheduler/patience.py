"""Prompts that will take absurdly long to read: found out early, and said once.

For: `admission`, which asks when a prompt's reading begins and with each of its progress events.
Not for: refusing such a prompt; whoever sees the words may close the connection, and what has been
read until then is kept. Threads: any.
"""

from __future__ import annotations

import threading
from typing import Final

from colibri.engine.answer import Notice
from colibri.engine.protocol import Done

# Nobody who knew it would wait so long for the first word.
ABSURD_SECONDS: Final = 1800.0
# A short prompt says nothing about a long one, which reads each expert once for thousands of
# tokens: only prompts that computed so many are measured.
LEAST_TOKENS: Final = 1024


class Patience:
    """What the latest long prompt took, as a measure for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_per_token: float | None = None

    def learn(self, done: Done) -> None:
        """A job has ended: if it read a long prompt to its end, that counts from now on."""
        tokens = done.usage.prompt - done.usage.cached
        if tokens >= LEAST_TOKENS and done.usage.completion > 0 and done.prefill_ms > 0:
            with self._lock:
                self._seconds_per_token = done.prefill_ms / 1000 / tokens

    def estimate(self, tokens: int) -> float | None:
        """Seconds that computing so many tokens of a prompt will take; None while nothing has been
        measured.
        """
        with self._lock:
            each = self._seconds_per_token
        return None if each is None else each * tokens


def warning(prompt: int, seconds: float | None) -> Notice | None:
    """What to say about a prompt of so many tokens that takes so long; None if it is bearable."""
    if seconds is None or seconds < ABSURD_SECONDS:
        return None
    return Notice(
        code="slow_prompt",
        message=f"Reading this prompt of {prompt:,} tokens will take about {_duration(seconds)} on "
        "this machine. A shorter prompt, fewer tools or a smaller model answers sooner; who closes "
        "the connection ends it, and what was read until then is kept.",
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60):,} hours"  # noqa: PLR2004
