"""Hit rates of our cache policy on a trace, beside those that are easy to name.

For: `coli bench policy`, the benchmark's `policy_margin` row and the test that holds the policy to
its floor. Not for: the policy itself, which is C (`native/src/policy.h`); the simulator runs the
same functions as the engine. Threads: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from colibri.engine.experts import Policy, replay
from colibri.engine.status import EngineError
from colibri.errors import ModelError
from colibri.models.trace import Trace

# Half-lives, in steps, from which decayed LFU gets the best one of each trace.
HALF_LIVES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
SHARES: Final = (0.10, 0.25, 0.50, 0.75)


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    """Hit rates (fractions) of one trace with one cache size."""

    trace: str
    slots: int
    share: float
    ours: float
    lru: float
    lfu: float
    decayed_lfu: float
    half_life: float
    belady: float

    @property
    def best(self) -> float:
        """Of the policies that do not know the future, each at its best on this trace."""
        return max(self.lru, self.lfu, self.decayed_lfu)

    @property
    def margin(self) -> float:
        return self.ours - self.best


def hit_rates(trace: Trace, slots: int, *, fault: int = 0) -> HitRates:
    """Replays a trace through every policy. Raises ModelError for a trace that is damaged."""

    def rate(policy: Policy, half_life: float = 0.0, fault: int = 0) -> float:
        try:
            return replay(
                trace.records,
                layers=trace.layers,
                experts=trace.experts,
                slots=slots,
                policy=policy,
                half_life=half_life,
                fault=fault,
            ).rate
        except EngineError as error:
            raise ModelError(error.message, where=trace.name) from error

    decayed = {half_life: rate(Policy.DECAYED_LFU, half_life) for half_life in HALF_LIVES}
    best = max(decayed, key=lambda half_life: decayed[half_life])
    return HitRates(
        trace=trace.name,
        slots=slots,
        share=slots / max(trace.pairs(), 1),
        ours=rate(Policy.OURS, fault=fault),
        lru=rate(Policy.LRU),
        lfu=rate(Policy.LFU),
        decayed_lfu=decayed[best],
        half_life=best,
        belady=rate(Policy.BELADY),
    )


def slots_of(trace: Trace, share: float) -> int:
    """Slots of a cache that holds this share of the trace's experts, at least one."""
    return max(1, round(share * trace.pairs()))


def table(rates: Sequence[HitRates]) -> str:
    """For people."""
    lines = [
        f"{'trace':<16} {'cache':>6} {'ours':>7} {'lru':>7} {'lfu':>7} {'decayed':>7} "
        f"{'half-life':>9} {'margin':>7} {'optimum':>7}"
    ]
    lines += [
        f"{row.trace:<16} {row.share:>6.0%} {row.ours:>7.4f} {row.lru:>7.4f} {row.lfu:>7.4f} "
        f"{row.decayed_lfu:>7.4f} {row.half_life:>9g} {row.margin:>+7.4f} {row.belady:>7.4f}"
        for row in rates
    ]
    return "\n".join(lines)
