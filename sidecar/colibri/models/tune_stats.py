"""Is a setting really faster, or was the machine just quieter? The arithmetic of `coli tune`.

For: `models.tune`. Not for: measuring. Pure functions; any thread.

Runs come in pairs, baseline and candidate next to each other in time and in alternating order, so
that what slows a machine down for minutes slows both. The logarithm of a pair's ratio is one
number; several of them give a mean and, by Student's t, a bound that the true mean exceeds with a
chosen certainty. A candidate wins only if that lower bound is above a margin. Looking at several
candidates makes luck more likely, so the allowed error is divided among them (Bonferroni); and who
wins must win again with pairs measured afresh (`models.tune`), because the best of many is always
partly lucky.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# Faster by less than this is not worth a line in a config file.
MARGIN: Final = 0.02
# Probability that luck alone makes some candidate win the first look, and the second one.
SEARCH_ERROR: Final = 0.01
CONFIRM_ERROR: Final = 0.005
# Fewer pairs say nothing about how much a machine varies.
LEAST_PAIRS: Final = 4
_BISECTIONS: Final = 200
_FRACTIONS: Final = 300


@dataclass(frozen=True, slots=True)
class Verdict:
    """What pairs say: speed of the candidate over the baseline's (1.05 = 5 % faster), with bounds.

    `spread` is the standard deviation of one pair's ratio. With too few pairs the bounds are 0 and
    infinity.
    """

    ratio: float
    low: float
    high: float
    spread: float
    pairs: int
    wins: bool


def judge(
    pairs: Sequence[tuple[float, float]],
    *,
    candidates: int = 1,
    error: float = SEARCH_ERROR,
    margin: float = MARGIN,
) -> Verdict:
    """Verdict over (seconds of the baseline, seconds of the candidate) for the same work.

    `error` is the allowed probability of a false win among all `candidates` together. Raises
    ValueError for seconds that are not positive and finite.
    """
    logs = []
    for base, other in pairs:
        if not (math.isfinite(base) and math.isfinite(other) and base > 0 and other > 0):
            raise ValueError(f"no times of runs: {base}, {other}")
        logs.append(math.log(base / other))
    count = len(logs)
    mean = math.fsum(logs) / count if count else 0.0
    if count < LEAST_PAIRS:
        return Verdict(math.exp(mean), 0.0, math.inf, 0.0, count, wins=False)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (count - 1))
    reach = t_quantile(error / max(candidates, 1), count - 1) * spread / math.sqrt(count)
    low, high = math.exp(mean - reach), math.exp(min(mean + reach, 700.0))
    return Verdict(math.exp(mean), low, high, spread, count, wins=low > 1 + margin)


def noise(times: Sequence[float]) -> float:
    """How much neighbouring runs of the same work differ: relative standard deviation of one."""
    steps = [math.log(b / a) for a, b in itertools.pairwise(times) if a > 0 and b > 0]
    if not steps:
        return 0.0
    return math.sqrt(math.fsum(value * value for value in steps) / (2 * len(steps)))


@lru_cache(maxsize=256)
def t_quantile(tail: float, freedom: int) -> float:
    """The t that Student's distribution exceeds with probability `tail` (below one half)."""
    if not 0 < tail < 0.5 or freedom < 1:  # noqa: PLR2004 - the text above says it
        raise ValueError(f"no quantile for {tail} with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail:
        low, high = high, high * 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_tail(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return high


def t_tail(t: float, freedom: int) -> float:
    """Probability that a variable of Student's distribution exceeds `t` >= 0."""
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation of the fraction; the numerators are those of the beta function."""
    tiny = 1e-300

    def guarded(value: float) -> float:
        return value if abs(value) > tiny else tiny

    c = 1.0
    d = 1.0 / guarded(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, _FRACTIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 / guarded(1.0 + numerator * d)
            c = guarded(1.0 + numerator / c)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:  # noqa: PLR2004 - as exact as a double
            break
    return result
