"""The `policy_margin` row: how far our cache policy is above, or below, the best policy that was
tuned on the very trace, on the worst trace and cache size of the set.

For: `run`. Not for: the floor itself, which `tests/models/test_policy.py` holds in CI. Nothing is
timed; the row is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from colibri.models import policy, routing, trace
from colibri.models.policy import HitRates
from colibri.models.routing import RoutingShape
from tests.perf.rows import Row

NAME = "policy_margin"
TARGET = ">= -0.01"
SHAPES = (
    RoutingShape(steps=1500),
    RoutingShape(steps=400, layers=4, experts=256, top_k=8),
)
SEEDS = (1, 2)
# Traces recorded from real models, once there are some.
RECORDED = Path(__file__).with_name("traces")


def rates(quick: bool) -> list[HitRates]:
    """Every trace of the set with every cache size."""
    shapes, seeds = (SHAPES[:1], SEEDS[:1]) if quick else (SHAPES, SEEDS)
    traces = [
        routing.trace(kind, shape, seed)
        for kind in routing.KINDS
        for shape in shapes
        for seed in seeds
    ]
    traces += [trace.load(path) for path in sorted(RECORDED.glob("*.trace"))]
    return [
        policy.hit_rates(one, policy.slots_of(one, share))
        for one in traces
        for share in policy.SHARES
    ]


def margin_row(found: list[HitRates]) -> Row:
    """The worst margin; `detail` has each trace's worst one, with Belady's optimum beside."""
    worst = min(found, key=lambda row: row.margin)
    by_trace: dict[str, HitRates] = {}
    for row in found:
        if row.trace not in by_trace or row.margin < by_trace[row.trace].margin:
            by_trace[row.trace] = row
    return Row(
        NAME,
        "hit rate",
        ours=worst.margin,
        runs=len(found),
        target=TARGET,
        detail={
            "worst": _figures(worst),
            "traces": {name: _figures(row) for name, row in by_trace.items()},
        },
    )


def _figures(row: HitRates) -> dict[str, float | str]:
    return {
        "trace": row.trace,
        "share": round(row.share, 3),
        "margin": round(row.margin, 5),
        "ours": round(row.ours, 5),
        "lru": round(row.lru, 5),
        "lfu": round(row.lfu, 5),
        "decayed_lfu": round(row.decayed_lfu, 5),
        "half_life": row.half_life,
        "belady": round(row.belady, 5),
    }


def policy_rows(wanted: bool, quick: bool) -> Iterator[Row]:
    if wanted:
        yield margin_row(rates(quick))
