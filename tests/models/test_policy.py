"""The cache policy is never more than a point below the best of LRU, LFU and decayed LFU tuned on
the very trace, whatever the routing and the size of the cache; traces come and go as files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri.engine.experts import Policy, replay
from colibri.errors import ModelError, UsageError
from colibri.models import policy, routing, trace
from colibri.models.routing import RoutingShape

FLOOR = -0.01
FAULT_POLICY = 20  # native/src/fault.h
FAULT_GUESSES = 21
# Few experts and many, wide requests and narrow ones, short traces and longer ones.
SHAPES = [
    RoutingShape(),
    RoutingShape(steps=250, layers=4, experts=256, top_k=8),
    RoutingShape(steps=1500, layers=6, experts=16, top_k=2),
]


def worst_margin(kind: str, shape: RoutingShape, seed: int, fault: int = 0) -> policy.HitRates:
    made = routing.trace(kind, shape, seed)
    rates = [
        policy.hit_rates(made, policy.slots_of(made, share), fault=fault) for share in policy.SHARES
    ]
    return min(rates, key=lambda row: row.margin)


@pytest.mark.parametrize("kind", routing.KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.experts}-experts")
def test_the_policy_keeps_its_floor(kind: str, shape: RoutingShape) -> None:
    worst = worst_margin(kind, shape, seed=1)
    assert worst.margin >= FLOOR, worst
    assert worst.ours <= worst.belady + 1e-9


def test_a_bad_policy_falls_through_the_floor() -> None:
    for kind in ("zipf:1.2", "drifting", "sticky"):
        assert worst_margin(kind, SHAPES[0], seed=1, fault=FAULT_POLICY).margin < FLOOR


def test_a_long_prompt_costs_decoding_next_to_nothing() -> None:
    plain = routing.trace("zipf:1.2", SHAPES[0])
    passed = routing.with_prompt(plain, 300)
    for share in policy.SHARES:
        slots = policy.slots_of(plain, share)
        before, after = policy.hit_rates(plain, slots), policy.hit_rates(passed, slots)
        assert before.ours - after.ours <= 0.002
        assert after.margin >= FLOOR


def test_a_trace_with_a_huge_gap_is_replayed_as_one_without() -> None:
    """Made by hand: 2,147,483,000 steps in which nothing is asked for pass at once."""
    made = routing.trace("zipf:1.2", SHAPES[0])
    records = made.records.copy()
    starts = list(made.starts())
    for at in starts[len(starts) // 2 :]:
        records[at] += 2_147_483_000
    gapped = trace.Trace("gapped", made.layers, made.experts, records)
    slots = policy.slots_of(made, 0.25)
    before, after = policy.hit_rates(made, slots), policy.hit_rates(gapped, slots)
    assert after.lru == before.lru
    assert abs(after.ours - before.ours) < 0.05


@pytest.mark.parametrize("kind", ["uniform", "zipf:0.8", "sticky"])
def test_guesses_push_out_nothing_that_was_asked_for(kind: str) -> None:
    """R156."""
    made = routing.trace(kind, SHAPES[0])

    def run(guess_share: float, fault: int = 0) -> tuple[int, int]:
        found = replay(
            made.records,
            layers=made.layers,
            experts=made.experts,
            slots=policy.slots_of(made, 0.25),
            guess_share=guess_share,
            fault=fault,
        )
        return found.hits, found.demand_evictions

    hits = run(0.0)[0]
    for share in (0.1, 0.5, 0.75, 1.0):
        guessed, evictions = run(share)
        assert evictions == 0
        assert share < 0.5 or guessed > hits
    assert run(0.5, FAULT_GUESSES)[1] > 0


def test_a_trace_is_the_same_for_the_same_seed_only() -> None:
    one, same, other = (routing.trace("sticky", SHAPES[0], seed) for seed in (1, 1, 2))
    assert np.array_equal(one.records, same.records)
    assert not np.array_equal(one.records, other.records)


def test_kinds_of_routing_differ_as_they_should() -> None:
    def repeats(kind: str) -> float:
        made = routing.trace(kind, SHAPES[0])
        experts = made.records.reshape(SHAPES[0].steps, SHAPES[0].layers, -1)[:, :, trace.HEAD :]
        kept = [
            len(set(now) & set(before))
            for now, before in zip(
                experts[1:].reshape(-1, SHAPES[0].top_k),
                experts[:-1].reshape(-1, SHAPES[0].top_k),
                strict=True,
            )
        ]
        return float(np.mean(kept)) / SHAPES[0].top_k

    assert repeats("uniform") == pytest.approx(SHAPES[0].top_k / SHAPES[0].experts, abs=0.02)
    assert repeats("uniform") < repeats("zipf:0.8") < repeats("zipf:1.2") < repeats("sticky")
    assert repeats("sticky") == pytest.approx(0.7, abs=0.05)
    assert repeats("sticky:0.9") == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("kind", ["", "zipf:9", "zipf:x", "sticky:2", "round robin", "uniform:1"])
def test_an_unknown_kind_of_routing_is_refused(kind: str) -> None:
    with pytest.raises(UsageError):
        routing.trace(kind)


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    made = routing.with_prompt(routing.trace("drifting", RoutingShape(steps=20)), 10)
    trace.save(tmp_path / "made.trace", made)
    read = trace.load(tmp_path / "made.trace")
    assert (read.layers, read.experts) == (made.layers, made.experts)
    assert np.array_equal(read.records, made.records)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense\n",
        "colibri-trace 2 4 4\n",
        "colibri-trace 1 0 4\n",
        "colibri-trace 1 4\n",
        "colibri-trace 1 4 99999999\n",
        f"colibri-trace 1 4 {'9' * 5000}\n",
        "colibri-trace 1 4 4\n0 0\n",
        "colibri-trace 1 4 4\n0 4 1 0\n",
        "colibri-trace 1 4 4\n0 0 1 0 1 2 3 0\n",
        "colibri-trace 1 4 4\n0 0 1 x\n",
        "colibri-trace 1 4 4\n0 -1 1 0\n",
        "colibri-trace 1 4 4\n0 0 1 99999999999\n",
    ],
)
def test_a_damaged_trace_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.trace"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        trace.load(path)
    assert str(path) in str(caught.value.where)


@pytest.mark.parametrize("line", ["1 0 1 5\n", "1 0 1 2 2\n", "1 0 0 2\n", "1 0 1 1\n0 0 1 1\n"])
def test_a_trace_that_contradicts_itself_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.trace"
    path.write_text("colibri-trace 1 4 4\n" + line)
    with pytest.raises(ModelError):
        policy.hit_rates(trace.load(path), 2)


def test_every_policy_is_told_apart() -> None:
    made = routing.trace("phases", SHAPES[0])
    rates = {
        kind: replay(made.records, layers=8, experts=64, slots=128, policy=kind, half_life=32).rate
        for kind in Policy
    }
    assert len(set(rates.values())) == len(Policy)
    assert max(rates, key=lambda kind: rates[kind]) == Policy.BELADY
