"""The benchmark's arithmetic: rates, limits, ratios, and the file that later issues extend."""

from __future__ import annotations

import json

import pytest

from tests.perf.rows import (
    LOWER,
    Timing,
    Work,
    cpu_rate,
    decode_limit,
    json_lines,
    kernel_row,
    paired_ratio,
    prefill_limit,
    rate_row,
    table,
    time_row,
    to_json,
    wall_rate,
)

WORK = Work(weight_bytes=50_000_000, layer_params=100, head_params=50, attention_width=8)


def test_cpu_rate_does_not_fall_when_the_wall_clock_is_stretched_by_others() -> None:
    quiet = Timing(tokens=100, wall=1.0, cpu=2.0)
    busy = Timing(tokens=100, wall=5.0, cpu=2.0)
    assert cpu_rate(quiet, 2) == cpu_rate(busy, 2) == 100.0
    assert wall_rate(busy) == 20.0


def test_a_run_too_short_for_the_clock_is_an_error_not_an_infinite_rate() -> None:
    with pytest.raises(ValueError, match="CPU time"):
        cpu_rate(Timing(1, 0.1, 0.0), 1)
    with pytest.raises(ValueError, match="wall time"):
        wall_rate(Timing(1, 0.0, 0.1))


def test_the_ratio_is_the_median_over_pairs_so_drift_cancels() -> None:
    assert paired_ratio([10, 20, 40], [5, 10, 20]) == 2.0
    assert paired_ratio([10, 10, 90], [5, 5, 5]) == 2.0
    assert paired_ratio([], []) is None


def test_for_times_a_better_ratio_means_the_peer_takes_longer() -> None:
    assert paired_ratio([1.0], [3.0], LOWER) == 3.0


def test_the_decode_limit_is_bandwidth_over_weight_bytes() -> None:
    assert decode_limit(WORK, 30e9) == 600.0


def test_the_prefill_limit_adds_linear_and_attention_time_and_counts_the_head_once() -> None:
    # linear: 2 * (100 * 4 + 50) = 900; attention: 4 * 8 * 4 * 5 / 2 = 320
    assert prefill_limit(WORK, 4, 900.0, 320.0) == pytest.approx(4 / 2.0)
    assert prefill_limit(WORK, 4, 900.0, 1e30) == pytest.approx(4.0)


def test_a_rate_row_carries_median_ratio_limit_share_and_the_samples() -> None:
    ours = [Timing(10, 1.0, 1.0), Timing(10, 1.0, 0.5), Timing(10, 1.0, 1.0)]
    peer = [Timing(10, 2.0, 2.0)] * 3
    row = rate_row("decode_x", 1, {"ours": ours, "peer": peer}, [40.0, 20.0, 30.0], ">= 1.5x")
    assert (row.ours, row.peer, row.ratio) == (10.0, 5.0, 2.0)
    assert row.limit == 30.0
    assert row.share_of_limit == pytest.approx(1 / 3)
    assert row.runs == 3
    assert row.wall == {"ours": 10.0, "peer": 5.0, "ratio": 2.0}


def test_the_better_of_two_ways_to_run_the_peer_counts() -> None:
    timings = {
        "ours": [Timing(10, 1.0, 1.0)],
        "peer": [Timing(10, 1.0, 5.0)],
        "peer_passive": [Timing(10, 1.0, 2.0)],
    }
    row = rate_row("decode_x_t2", 2, timings, [30.0, 50.0, 40.0], "")
    assert (row.ours, row.peer, row.ratio) == (20.0, 10.0, 2.0)
    assert row.detail["peer_side"] == "peer_passive"


def test_without_a_peer_a_row_still_shows_our_share_of_the_limit() -> None:
    row = rate_row("decode_x", 1, {"ours": [Timing(10, 1.0, 1.0)]}, [20.0], "")
    assert row.peer is None
    assert row.ratio is None
    assert row.share_of_limit == 0.5


def test_a_time_row_says_how_much_of_the_allowed_time_is_used() -> None:
    row = time_row("ready_x", [3.0, 1.0, 1.2], 2.0, "")
    assert row.ours == 1.2
    assert row.share_of_limit == pytest.approx(0.6)
    assert row.better == LOWER


def test_kernel_lines_become_rows_with_a_share_where_there_is_a_limit() -> None:
    row = kernel_row({"name": "gemv", "value": 15.0, "unit": "GB/s", "limit": 30.0})
    assert (row.name, row.ours, row.share_of_limit, row.better) == (
        "kernel_gemv",
        15.0,
        0.5,
        "higher",
    )
    row = kernel_row({"name": "prepare", "value": 0.3, "unit": "ns/value", "limit": 0})
    assert (row.limit, row.share_of_limit, row.better) == (None, None, LOWER)


def test_output_of_a_bench_program_that_is_not_json_lines_is_refused_by_line() -> None:
    assert json_lines('{"a": 1}\n\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]
    with pytest.raises(ValueError, match="line 2"):
        json_lines('{"a": 1}\noops\n')
    with pytest.raises(ValueError, match="line 1"):
        json_lines("[1]\n")


def test_the_file_is_a_list_of_rows_with_the_promised_fields_and_the_cpu() -> None:
    rows = [rate_row("decode_x", 1, {"ours": [Timing(10, 1.0, 1.0)]}, [20.0], "")]
    (row,) = json.loads(to_json(rows, {"model": "m", "flags": ["avx2"]}))
    promised = {"name", "ours", "peer", "ratio", "limit", "share_of_limit", "unit", "runs"}
    assert promised <= row.keys()
    assert row["cpu"] == {"model": "m", "flags": ["avx2"]}


def test_the_table_aligns_columns_and_shows_missing_figures_as_a_dash() -> None:
    text = table([rate_row("decode_x", 1, {"ours": [Timing(10, 1.0, 1.0)]}, [20.0], "aim 85 %")])
    head, line = text.splitlines()
    assert head.startswith("row")
    assert "-" in line
    assert "50 %" in line
    assert head.index("unit") == line.index("tok/s")
