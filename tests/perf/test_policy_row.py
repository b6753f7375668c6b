"""The `policy_margin` row shows the worst trace and the optimum beside it."""

from __future__ import annotations

import pytest

from colibri.models.policy import HitRates
from tests.perf.policy import margin_row


def rates(trace: str, ours: float) -> HitRates:
    return HitRates(
        trace=trace,
        slots=10,
        share=0.25,
        ours=ours,
        lru=0.4,
        lfu=0.5,
        decayed_lfu=0.45,
        half_life=8.0,
        belady=0.8,
    )


def test_the_row_is_that_of_the_worst_trace_and_size() -> None:
    row = margin_row([rates("a", 0.6), rates("b", 0.52), rates("b", 0.495), rates("b", 0.5)])
    assert row.ours == pytest.approx(-0.005)
    assert row.detail["worst"]["trace"] == "b"
    assert row.detail["worst"]["belady"] == 0.8
    assert row.detail["traces"]["a"]["margin"] == pytest.approx(0.1)
    assert row.detail["traces"]["b"]["margin"] == pytest.approx(-0.005)
