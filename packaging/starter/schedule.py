"""How the training goes, as pure functions of its progress from 0 to 1.

For: `train`. Not for: anything that depends on time; a run on a slow machine takes the same steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["plain", "thinking", "calling", "notes", "drill"]

LEARNING_RATE: Final = 2.5e-3
_FLOOR: Final = 0.02
# A few hundred words, stressed until the lookup has formed, then all of them: from scratch on all
# words nothing is learnt for a long time.
_BAND: Final = 300


@dataclass(frozen=True, slots=True)
class Schedule:
    """When things begin, as shares of the run. `peak` is the share of the full rate that it rises
    to in `rise` steps; `long` the share of steps with rows of 512 tokens (and a fifth of that with
    2,048) from `long_from` on. `drills_until` is how long half of the
    short rows are drills of repeating words and of recalling notes: without them, copying what
    stands further up, which calls and notes need, was not learnt at all. From `int4_from` on the
    experts are rounded as they are shipped, so that rounding costs no answers. `batch` is how many
    tokens a step has: twice as many cost less each, but the lookup formed in the smaller steps.
    """

    peak: float
    rise: int
    flat_until: float
    band_until: float
    mtp_from: float
    warm_from: float
    sparse_from: float
    long_from: float
    long: float
    drills_until: float
    int4_from: float
    batch: int


FULL: Final = Schedule(1.0, 60, 0.4, 0.05, 0.45, 0.84, 0.91, 0.84, 0.5, 0.3, 0.7, 2048)
# Goes on from a finished model with changed words, facts or wordings: drafts and selection are kept
# up from the first step, and most rows are short ones, which hold the most questions.
TUNE: Final = Schedule(0.4, 30, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.15, 0.0, 0.0, 4096)
# Goes on from a model that has not seen the later phases yet.
FINISH: Final = Schedule(0.7, 120, 0.35, 0.0, 0.5, 0.88, 0.93, 0.86, 0.4, 0.1, 0.6, 4096)
BY_NAME: Final = {"full": FULL, "tune": TUNE, "finish": FINISH}


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of one step: their length, what they hold, and from which words."""

    length: int
    kinds: tuple[tuple[Kind, float], ...]
    band: int | None = None

    def kind(self, rng: random.Random) -> Kind:
        """What the next row holds."""
        names = [name for name, _ in self.kinds]
        return rng.choices(names, [share for _, share in self.kinds])[0]


_SHORT: Final[tuple[tuple[Kind, float], ...]] = (
    ("plain", 0.68),
    ("thinking", 0.1),
    ("notes", 0.14),
    ("drill", 0.08),
)
_MIDDLE: Final[tuple[tuple[Kind, float], ...]] = (
    ("plain", 0.2),
    ("notes", 0.3),
    ("calling", 0.4),
    ("thinking", 0.05),
    ("drill", 0.05),
)
_DRILLS: Final[tuple[tuple[Kind, float], ...]] = (
    ("plain", 0.5),
    ("drill", 0.42),
    ("thinking", 0.08),
)
_LONG: Final[tuple[tuple[Kind, float], ...]] = (("plain", 0.5), ("notes", 0.4), ("calling", 0.1))


def learning_rate(plan: Schedule, step: int, progress: float) -> float:
    """Share of the full rate: a short rise, flat, then a straight fall."""
    rise = min(1.0, (step + 1) / plan.rise)
    if progress < plan.flat_until:
        return plan.peak * rise
    return rise * max(_FLOOR, plan.peak * (1 - progress) / (1 - plan.flat_until))


def mode(plan: Schedule, progress: float) -> Literal["dense", "warm", "sparse"]:
    """Dense attention first; then the indexer learns; at the end it decides."""
    if progress >= plan.sparse_from:
        return "sparse"
    return "warm" if progress >= plan.warm_from else "dense"


def with_mtp(plan: Schedule, progress: float) -> bool:
    """Whether the MTP layer is trained along."""
    return progress >= plan.mtp_from


def with_int4(plan: Schedule, progress: float) -> bool:
    """Whether the routed experts are rounded to int4."""
    return progress >= plan.int4_from


def shape(plan: Schedule, progress: float, rng: random.Random) -> Shape:
    """Rows of the next step."""
    if progress < plan.band_until:
        return Shape(128, (("plain", 1.0),), _BAND)
    middle = plan.long if progress >= plan.long_from else 0.28
    longest = middle / 5 if progress >= plan.long_from else 0.02
    share = rng.random()
    if share < longest:
        return Shape(2048, _LONG)
    if share < longest + middle:
        return Shape(512, _MIDDLE)
    return Shape(128, _DRILLS if progress < plan.drills_until else _SHORT)
