"""Arithmetic of the rows about the engine's clock."""

from __future__ import annotations

import pytest

from tests.perf.timers import row_of


def test_the_cost_stands_beside_what_two_equal_engines_differ_by() -> None:
    row = row_of(
        "timers_x",
        {
            "cost": [(1.01, 1.0), (2.06, 2.0), (1.02, 1.0)],
            "noise": [(0.99, 1.0), (1.04, 1.0), (1, 1)],
        },
    )
    assert row.ours == pytest.approx(2)
    assert row.limit == pytest.approx(1)
    assert row.share_of_limit == pytest.approx(2)
    assert row.detail["cost"] == [1, 3, 2]
