"""What the scheduler measures of requests: how long they wait, and what they take.

For: `admission`, which tells it, and `api.metrics`, which shows it. Counts since the start of the
server, whatever becomes of the engine in between. Threads: any.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Sequence

import msgspec

from colibri.engine.protocol import Done

# Seconds. From an idle server with a small model to one that streams a huge one from disk.
WAIT_BUCKETS = (0.005, 0.05, 0.25, 1, 5, 15, 60, 300, 1200)
FIRST_TOKEN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1200, 3600)
TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Distribution(msgspec.Struct, frozen=True):
    """A histogram: how many values are at most each bound (the last one is infinity), and sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values by size. Not safe without the lock of its owner."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._total += value

    def now(self) -> Distribution:
        counts = tuple(itertools.accumulate(self._counts))
        return Distribution((*self._bounds, float("inf")), counts, self._total)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; times in seconds. `cached` of the `prompt` tokens were held."""

    queue_wait: Distribution
    first_token: Distribution
    output_token: Distribution
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class Measures:
    """See the module's text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue_wait = Histogram(WAIT_BUCKETS)
        self._first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self._output_token = Histogram(TOKEN_BUCKETS)
        self._prompt = self._cached = self._generated = 0

    def waited(self, seconds: float) -> None:
        """A request got its turn."""
        with self._lock:
            self._queue_wait.add(seconds)

    def first_token(self, seconds: float) -> None:
        """An answer began, so long after its request had asked."""
        with self._lock:
            self._first_token.add(seconds)

    def done(self, event: Done) -> None:
        """A job ended as it should, or because its client left."""
        usage = event.usage
        with self._lock:
            self._prompt += usage.prompt
            self._cached += usage.cached
            self._generated += usage.completion
            if usage.completion > 1:  # the first one belongs to the reading of the prompt
                self._output_token.add(event.decode_ms / 1000 / (usage.completion - 1))

    def now(self) -> Measured:
        with self._lock:
            return Measured(
                queue_wait=self._queue_wait.now(),
                first_token=self._first_token.now(),
                output_token=self._output_token.now(),
                prompt_tokens=self._prompt,
                cached_tokens=self._cached,
                generated_tokens=self._generated,
            )
