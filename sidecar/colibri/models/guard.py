"""Keeps the memory of server and engine process inside the budget while they run.

For: the model's backend, after every step. Not for: sizing at the start (`budget`): the plan
charges what is allocated, and this is for what no plan foresees. What is measured counts: when the
processes together hold more than they were given, the expert cache gives the difference back, for
good. Only speed changes. Threads: the engine's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

# Measuring reads a file of the system's; more often would tell nothing new.
EVERY_SECONDS: Final = 1.0
# What is given back beyond the excess, so that the next request does not need it again.
_MARGIN: Final = 0.01


class MemoryGuard:
    """`held` measures all processes; `cache` is the size of the expert cache, `shrink` sets it.

    A cache of 0 cannot shrink: then a person is told, once. A budget of 0 is no limit.
    """

    def __init__(
        self,
        budget: int,
        held: Callable[[], int],
        cache: Callable[[], int],
        shrink: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._held = held
        self._cache = cache
        self._shrink = shrink
        self._clock = clock
        self._next = 0.0
        self._told = False

    def after_step(self) -> None:
        """Measures now and then, and gives memory back if need be."""
        now = self._clock()
        if self._budget == 0 or now < self._next:
            return
        self._next = now + EVERY_SECONDS
        held = self._held()
        excess = held - self._budget
        if excess <= 0:
            return
        cache = self._cache()
        smaller = max(0, cache - excess - int(self._budget * _MARGIN))
        figures = f"{held / 1e9:.2f} GB are held, {self._budget / 1e9:.2f} GB are the budget"
        if cache > 0:
            log.warning("%s: the expert cache shrinks to %.2f GB", figures, smaller / 1e9)
            self._shrink(smaller)
        elif not self._told:
            self._told = True
            log.warning("%s: nothing can be given back; lower --ctx or raise --ram", figures)
