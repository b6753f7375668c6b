"""The map of experts: where each one is, how hot it is, how often the latest turn asked for it.

For: the worker, which answers TakeExperts with it. Not for: deciding anything, nor for drawing; the
page gets one byte of heat for each expert. Heat is the logarithm of how often an expert was asked
for of all time, learnt counts included: routing differs by orders of magnitude, and so few steps
show as well as many.

Threads: `begin_turn` is the loop's; `take` may run beside it in any thread.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.protocol import ExpertMap

_HOTTEST = 255
_MOST_HITS = 65_535


class ExpertCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of each expert [rows, cols]: its tier (`colibri_tier`), requests that asked for it since
    opening, and counts learnt by earlier runs.
    """

    tiers: NDArray[np.uint8]
    asked: NDArray[np.uint32]
    learnt: NDArray[np.int64]


class HasExperts(Protocol):
    """A backend that may have experts."""

    def expert_counts(self) -> ExpertCounts | None:
        """Counts now; None for a dense model. Any thread."""


def heat_of(counts: ExpertCounts) -> NDArray[np.uint8]:
    """0..255, 255 the hottest; all 0 while nothing was asked for."""
    total = np.log1p(counts.asked.astype(np.float32) + counts.learnt.astype(np.float32))
    most = float(total.max(initial=0.0))
    if most <= 0:
        return np.zeros(total.shape, np.uint8)
    # What was asked for at all is never as dark as what was not.
    return np.ceil(total * np.float32(_HOTTEST / most)).clip(0, _HOTTEST).astype(np.uint8)


class ExpertMaps:
    """See the module's text."""

    def __init__(self, backend: HasExperts) -> None:
        self._backend = backend
        # Number of the turn and what was asked for before it: one value, replaced at once.
        self._turn: tuple[int, NDArray[np.uint32] | None] = (0, None)

    def begin_turn(self) -> None:
        """What is asked for from now on counts for a new turn."""
        counts = self._backend.expert_counts()
        if counts is not None:
            self._turn = (self._turn[0] + 1, counts.asked)

    def take(self) -> ExpertMap | None:
        """The map now; None for a dense model."""
        number, before = self._turn
        counts = self._backend.expert_counts()
        if counts is None:
            return None
        asked = counts.asked if before is None else counts.asked - before
        return ExpertMap(
            turn=number,
            tiers=counts.tiers.tobytes(),
            heat=heat_of(counts).tobytes(),
            hits=np.minimum(asked, _MOST_HITS).astype("<u2").tobytes(),
        )
