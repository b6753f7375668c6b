"""How fast this machine reads its memory.

For: estimates of `coli plan`. Not for: benchmarks (`make bench`). Takes a fraction of a second and
128 MB per thread. Thread rule: one call at a time.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

_BYTES: Final = 128 << 20
_ROUNDS: Final = 3
_MOST_THREADS: Final = 4


def measure(threads: int) -> float:
    """Bytes per second that so many threads (at most four) read together, best of three."""
    count = max(1, min(threads, _MOST_THREADS))
    blocks = [np.ones(_BYTES // 8, dtype=np.int64) for _ in range(count)]
    best = 0.0
    with ThreadPoolExecutor(count) as pool:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            # numpy lets go of the interpreter lock while it works.
            list(pool.map(np.max, blocks))
            best = max(best, count * _BYTES / (time.perf_counter() - start))
    return best
