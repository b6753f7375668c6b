"""Arithmetic of the rows about a model larger than memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.perf.stream import Disk, decode_rows, prefill_rows

GB = 1_000_000_000
ANSWER: dict[str, Any] = {
    "tokens": 10,
    "wall": 5.0,
    "cpu": 2.0,
    "expert_bytes_read": 4 * GB,
    "expert_lookups": 200,
    "expert_misses": 50,
    "guessed_bytes": GB,
    "useful_bytes": GB,
    "wasted_bytes": 0,
    "disk_wait_ns": 2_500_000_000,
    "VmHWM": GB,
}


def test_the_share_is_what_was_read_against_fio_before_and_after() -> None:
    share, rate = decode_rows("stream25_x", ANSWER, Disk(0.8 * GB, 1.2 * GB), {})
    assert share.ours == pytest.approx(0.8)
    assert share.limit == pytest.approx(1.0)
    assert share.share_of_limit == pytest.approx(0.8)
    assert share.detail["gb_per_token"] == pytest.approx(0.4)
    assert share.detail["hit_rate"] == pytest.approx(0.75)
    assert share.detail["wait_share"] == pytest.approx(0.5)
    assert rate.ours == pytest.approx(2.0)
    assert rate.limit == pytest.approx(2.5)


def test_a_model_that_is_fully_cached_has_no_disk_limit() -> None:
    _, rate = decode_rows("x", {**ANSWER, "expert_bytes_read": 0}, Disk(GB, GB), {})
    assert rate.limit is None


def test_a_prompt_is_held_against_the_experts_it_touches_and_the_nearer_limit() -> None:
    # 200 lookups, but there are only 100 experts of 20 MB: 2 GB touched, 4 GB read.
    amount, rate = prefill_rows(ANSWER, 20_000_000, 100, Disk(GB, GB), 7.0, {})
    assert amount.ours == pytest.approx(2.0)
    assert rate.limit == pytest.approx(2.5)
    (_, faster) = prefill_rows(ANSWER, 20_000_000, 100, Disk(GB, GB), 1.0, {})
    assert faster.limit == pytest.approx(1.0)
