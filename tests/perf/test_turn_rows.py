"""Arithmetic of the rows about second turns."""

from __future__ import annotations

import pytest

from tests.perf.turns import CASES, Turn, rows_of

COLD = Turn(seconds=30.0, prompt=12_000, cached=0, known=0)


def test_only_what_an_earlier_turn_had_counts_as_computed_again() -> None:
    assert Turn(1.0, 1000, 900, 950).recomputed == pytest.approx(0.05)
    assert Turn(1.0, 1000, 900, 900).recomputed == 0
    # A reused answer may reach beyond what the conversation itself had.
    assert Turn(1.0, 1000, 920, 900).recomputed == 0


def test_the_worst_case_decides_over_the_share_and_each_has_its_own_ratio() -> None:
    turns = {
        case: [Turn(s + n, 10_000, 9000, 9000 + 100 * n) for s in (0.5, 1.0, 9.0)]
        for n, case in enumerate(CASES)
    }
    *ratios, share = rows_of("turn2_x", COLD, turns)
    assert [row.name for row in ratios] == [f"turn2_x{case}" for case in CASES]
    assert [row.ours for row in ratios] == pytest.approx([30, 15, 10, 7.5])
    assert share.name == "turn2_x_recomputed"
    assert share.ours == pytest.approx(0.03)
    assert share.share_of_limit == pytest.approx(1.5)
