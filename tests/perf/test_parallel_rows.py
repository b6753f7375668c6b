"""Arithmetic of the rows about several sequences in one step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.perf.parallel import bound_row, step_bytes
from tests.perf.stream_driver import distinct

MB = 1_000_000


def answer(n: int, wall: float, union: float, missed: int) -> dict[str, Any]:
    """Ten steps of n sequences; `missed` of 100 lookups."""
    return {
        "tokens": 10 * n,
        "steps": 10,
        "wall": wall,
        "cpu": wall,
        "union": union,
        "expert_lookups": 100,
        "expert_misses": missed,
        "expert_bytes_read": 0,
        "disk_wait_ns": 0,
    }


def test_a_trace_counts_the_experts_of_every_record() -> None:
    assert distinct([7, 3, 2, 3, 10, 11, 12, 7, 4, 2, 1, 5]) == 4
    assert distinct([]) == 0


def test_from_disk_only_what_is_not_at_hand_counts() -> None:
    assert step_bytes(answer(1, 1, 8, 75), 0, 2 * MB) == 8 * 2 * MB * 0.75
    assert step_bytes(answer(1, 1, 8, 75), 100 * MB, 2 * MB) == 116 * MB


def test_the_bound_is_the_rate_of_one_times_what_sharing_saves() -> None:
    """4 sequences that read twice the experts of one can be twice as fast together."""
    one, four = answer(1, 10.0, 8, 50), answer(4, 25.0, 16, 50)
    row = bound_row("x", [one], [four], 0, MB, {"trace": "made up"})
    assert row.limit == pytest.approx(2.0)
    assert row.ours == pytest.approx(1.6)
    assert row.share_of_limit == pytest.approx(0.8)
    assert row.detail["trace"] == "made up"
    warmer = bound_row("x", [one], [answer(4, 25.0, 16, 25)], 0, MB, {})
    assert warmer.limit == pytest.approx(4.0), "hits are taken off"


def test_in_memory_the_dense_part_is_shared_too() -> None:
    row = bound_row("x", [answer(1, 10, 8, 0)], [answer(4, 20, 16, 0)], 8 * MB, MB, {})
    assert row.limit == pytest.approx(row.threads * 4 * 16 / 24)
    assert row.share_of_limit == pytest.approx(2 / (4 * 16 / 24))
    assert row.unit == "tok/s of CPU time"
