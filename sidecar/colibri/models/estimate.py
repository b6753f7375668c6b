"""What a plan means for speed: bytes read per token, and tokens per second between two bounds.

For: `coli plan`. Not for: measuring (`hardware`, `coli tune`). The bounds are what disk and memory
allow; what a machine really does lies between them, because reading and computing overlap in part.
Thread rule: pure functions.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.ffi_plan import Plan
from colibri.engine.table import Geometry
from colibri.findings import size_text
from colibri.models.budget import rounded_up, ways_out

# Shares of measured disk and memory speed that decoding reaches: at best, and on a bad day.
_DISK: Final = (0.95, 0.6)
_MEMORY: Final = (0.85, 0.4)
# Slower than this nobody waits for an answer.
_SLOW: Final = 0.5
_GB: Final = 1e9


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per decoded token. `read_learnt` is None without learnt usage."""

    cold: int
    computed: int
    read_uniform: int
    read_learnt: int | None


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second: with everything overlapped, and with nothing."""

    low: float
    high: float


def traffic(
    geometry: Geometry, plan: Plan, embedding: int, counts: NDArray[np.int64] | None = None
) -> Traffic:
    """Bytes per token of a plan without drafts. `embedding` is read by the row only; `counts`
    [layers, experts] is what was learnt.
    """
    experts = max(geometry.n_experts, 1)
    total = sum(kind.slot_bytes * kind.experts for kind in plan.classes)
    cold = total * geometry.experts_per_token // experts if geometry.n_experts else 0
    computed = max(plan.dense_bytes - embedding, 0) + cold
    held = sum(kind.slots for kind in plan.classes)
    owned = sum(kind.experts for kind in plan.classes)
    if not plan.streaming or not owned:
        return Traffic(cold=cold, computed=computed, read_uniform=0, read_learnt=None)
    learnt = None
    if counts is not None and counts.sum() > 0:
        ranked = np.sort(counts.reshape(-1))[::-1]
        learnt = int(cold * (1 - float(ranked[:held].sum()) / float(ranked.sum())))
    return Traffic(
        cold=cold,
        computed=computed,
        read_uniform=int(cold * (1 - min(held / owned, 1))),
        read_learnt=learnt,
    )


def speed(found: Traffic, disk: float, memory: float) -> Range:
    """`disk` and `memory` in bytes per second."""
    reads = found.read_uniform, found.read_uniform
    if found.read_learnt is not None:
        reads = min(reads[0], found.read_learnt), max(reads[1], found.read_learnt)
    best = max(reads[0] / (disk * _DISK[0]), found.computed / (memory * _MEMORY[0]))
    worst = reads[1] / (disk * _DISK[1]) + found.computed / (memory * _MEMORY[1])
    return Range(low=1 / max(worst, 1e-9), high=1 / max(best, 1e-9))


def no_fit(plan: Plan) -> str:
    """What a person is told about a plan that does not fit."""
    return (
        f"This does not fit: at least {rounded_up(plan.least_budget)} GB are needed, the "
        f"budget is {size_text(plan.budget)}. {ways_out(plan)}."
    )


def warnings(plan: Plan, found: Traffic, rate: Range) -> list[str]:
    """What a person should know before downloading or waiting."""
    said: list[str] = []
    if not plan.fits:
        said.append(no_fit(plan))
    if rate.high < _SLOW:
        said.append(
            f"Too slow on this machine for talking to it: a token takes {1 / rate.high:.1f} to "
            f"{1 / rate.low:.1f} s and reads {found.read_uniform / _GB:.2f} GB from disk. "
            f"{_smaller(plan)}"
        )
    return said


def _smaller(plan: Plan) -> str:
    beside = plan.total_bytes - plan.dense_bytes - plan.cache_bytes - plan.staging_bytes
    room = max(plan.budget - max(beside, 0), 0)
    return (
        f"A model whose files take up to about {room / _GB:.1f} GB would run from memory; "
        "`coli models` lists what is installed."
    )


def as_json(value: Any) -> Any:
    """A struct as plain data."""
    return msgspec.to_builtins(value)
