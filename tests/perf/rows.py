"""Arithmetic of the benchmark: what a row is, how rates and limits are computed, how it is printed.

For: `run.py` and the unit test; pure functions, no clock, no process, no file.
Not for: measuring anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

HIGHER = "higher"
LOWER = "lower"

Samples = list[float]


@dataclass(frozen=True)
class Timing:
    """One timed run: `tokens` computed in `wall` seconds and `cpu` seconds of all threads."""

    tokens: int
    wall: float
    cpu: float


@dataclass
class Row:
    """One line of the table and one object of `bench.json`.

    `ours`, `peer` and `limit` share `unit`; `ratio` says how many times better than the peer we
    are and `share_of_limit` how much of the limit is reached (for times: used up), so for rows
    where `better` is "lower" the ratio is peer / ours and a share under 1 is within the limit.
    `wall` repeats ours, peer and ratio by wall clock where the main figures are by CPU time.
    None = not measured or meaningless. `target` is the ratio or the figure that we promise.
    """

    name: str
    unit: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    limit: float | None = None
    share_of_limit: float | None = None
    runs: int = 0
    better: str = HIGHER
    threads: int | None = None
    target: str = ""
    wall: dict[str, float | None] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What one token costs on a dense model; from the weights file, so equal for both sides.

    `weight_bytes`: every matrix that a decode step reads, scales included, the output head counted
    once. `layer_params`: parameters of the matrices inside the layers. `head_params`: those of the
    output head. `attention_width`: query heads times head dimension, summed over layers.
    """

    weight_bytes: int
    layer_params: int
    head_params: int
    attention_width: int


def cpu_rate(timing: Timing, threads: int) -> float:
    """Tokens per second of CPU time of one of `threads` busy threads.

    Equals the wall rate on an idle machine when all threads are busy all the time, and does not
    fall when somebody else uses the cores.
    """
    if timing.cpu <= 0:
        raise ValueError("CPU time of a run must be positive; was the run too short for the clock?")
    return timing.tokens * threads / timing.cpu


def wall_rate(timing: Timing) -> float:
    """Tokens per second of wall time."""
    if timing.wall <= 0:
        raise ValueError(
            "wall time of a run must be positive; was the run too short for the clock?"
        )
    return timing.tokens / timing.wall


def paired_ratio(
    ours: Sequence[float], peer: Sequence[float], better: str = HIGHER
) -> float | None:
    """Median over the interleaved pairs of how many times better ours is; None without pairs.

    The two runs of a pair are neighbours in time, so slow drift of the machine cancels.
    """
    pairs = list(zip(ours, peer, strict=False))
    if not pairs:
        return None
    if better == LOWER:
        return median(p / o for o, p in pairs)
    return median(o / p for o, p in pairs)


def decode_limit(work: Work, read_bytes_per_s: float) -> float:
    """Tokens per second if a step only had to read its weights once: bandwidth / weight bytes.

    The KV cache is left out, so the limit is a little stricter than the truth.
    """
    return read_bytes_per_s / work.weight_bytes


def prefill_limit(work: Work, tokens: int, int8_ops_per_s: float, bf16_flops_per_s: float) -> float:
    """Tokens per second if the arithmetic of a prompt ran at the measured peaks.

    Linear work (two operations per parameter and token; the head for the last token only) at the
    int8 peak, then causal attention (scores and values, two operations each, over T(T+1)/2 pairs)
    at the bf16 peak, one after the other.
    """
    linear = 2.0 * (work.layer_params * tokens + work.head_params)
    attention = 4.0 * work.attention_width * tokens * (tokens + 1) / 2
    return tokens / (linear / int8_ops_per_s + attention / bf16_flops_per_s)


def rate_row(
    name: str,
    threads: int,
    timings: Mapping[str, Sequence[Timing]],
    limits: Sequence[float],
    target: str,
) -> Row:
    """A tokens-per-second row from interleaved timings and the limit measured around each.

    `timings` has the side "ours"; every other side is a way to run the peer, and the one that is
    best for it counts.
    """
    ours = timings["ours"]
    ours_cpu = [cpu_rate(t, threads) for t in ours]
    peers = {side: runs for side, runs in timings.items() if side != "ours" and runs}
    rates = {side: [cpu_rate(t, threads) for t in runs] for side, runs in peers.items()}
    best = max(rates, key=lambda side: median(rates[side])) if rates else ""
    peer_cpu = rates.get(best, [])
    ours_wall = [wall_rate(t) for t in ours]
    peer_wall = [wall_rate(t) for t in peers.get(best, [])]
    value, limit = median(ours_cpu), median(limits) if limits else None
    return Row(
        name=name,
        unit="tok/s of CPU time",
        ours=value,
        peer=median(peer_cpu) if peer_cpu else None,
        ratio=paired_ratio(ours_cpu, peer_cpu),
        limit=limit,
        share_of_limit=value / limit if limit else None,
        runs=len(ours),
        threads=threads,
        target=target,
        wall={
            "ours": median(ours_wall),
            "peer": median(peer_wall) if peer_wall else None,
            "ratio": paired_ratio(ours_wall, peer_wall),
        },
        detail={
            "ours_samples": ours_cpu,
            "peer_samples": peer_cpu,
            "peer_side": best,
            "limit_samples": list(limits),
        },
    )


def time_row(name: str, seconds: Sequence[float], limit: float, target: str) -> Row:
    """A row for something that must be over within `limit` seconds; median of the samples."""
    value = median(seconds)
    return Row(
        name=name,
        unit="s",
        ours=value,
        limit=limit,
        share_of_limit=value / limit,
        runs=len(seconds),
        better=LOWER,
        target=target,
        detail={"ours_samples": list(seconds)},
    )


def kernel_row(line: Mapping[str, Any]) -> Row:
    """A row from one JSON line of a native bench program: name, value, unit, limit (0 = none).

    Times ("ns/value") have no limit and are the only ones of which less is better.
    """
    value, limit, unit = float(line["value"]), float(line.get("limit", 0)), str(line["unit"])
    return Row(
        name=f"kernel_{line['name']}",
        unit=unit,
        ours=value,
        limit=limit or None,
        share_of_limit=value / limit if limit else None,
        runs=1,
        threads=1,
        better=LOWER if unit.startswith("ns") else HIGHER,
    )


def json_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a program's output, one a line; other lines are refused by number."""
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {line[:80]!r}") from error
        if not isinstance(value, dict):
            raise ValueError(f"line {number} is not a JSON object: {line[:80]!r}")
        lines.append(value)
    return lines


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2e}"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text for a terminal."""
    head = ["row", "thr", "ours", "peer", "ratio", "limit", "share", "runs", "unit", "target"]
    lines = [head]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        share = "-" if row.share_of_limit is None else f"{100 * row.share_of_limit:.0f} %"
        lines.append(
            [
                row.name,
                "-" if row.threads is None else str(row.threads),
                _figure(row.ours),
                _figure(row.peer),
                ratio,
                _figure(row.limit),
                share,
                str(row.runs),
                row.unit,
                row.target,
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    figures = range(1, 8)
    padded = [
        cell.rjust(width) if i in figures else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def to_json(rows: Sequence[Row], cpu: Mapping[str, Any]) -> str:
    """`bench.json`: a list of rows, each with the processor it was measured on."""
    return json.dumps([{**asdict(row), "cpu": dict(cpu)} for row in rows], indent=1) + "\n"
