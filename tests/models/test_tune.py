"""Tuning: a no-op never wins, a real gain does, and no answer may change.

Covers R172.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from colibri.engine.client import EngineClient
from colibri.errors import EngineFailure, ResourceError, UsageError
from colibri.hardware import memory, processes
from colibri.models import tune_run, tune_stats
from colibri.models.tune import (
    AnswerChangedError,
    Candidate,
    Measurement,
    MemoryTakenError,
    Plan,
    candidates,
    plan,
    tune,
)
from colibri.models.tune_stats import judge, t_quantile
from colibri.settings import Settings

SIX = tuple(Candidate({"threads": number}) for number in range(1, 7))
Noise = Callable[[random.Random, int], float]


# ---- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    [
        (0.025, 10, 2.2281),
        (0.005, 4, 4.6041),
        (0.0005, 7, 5.4079),
        (0.05, 1, 6.3138),
        (0.025, 120, 1.9799),
        (0.01, 30, 2.4573),
    ],
)
def test_quantiles_are_those_of_printed_tables(tail: float, freedom: int, value: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(value, abs=1e-4)


def test_the_bound_holds_as_often_as_it_promises() -> None:
    source = random.Random(5)  # noqa: S311
    true, wrong, trials = 1.03, 0, 2000
    for _ in range(trials):
        pairs = [
            (true * math.exp(source.gauss(0, 0.05)), math.exp(source.gauss(0, 0.05)))
            for _ in range(8)
        ]
        wrong += judge(pairs, error=0.05).low > true
    assert wrong / trials == pytest.approx(0.05, abs=0.015)


def test_more_candidates_need_more_certainty() -> None:
    pairs = [(1.08 + 0.01 * (n % 3), 1.0) for n in range(8)]
    assert judge(pairs, candidates=1).low > judge(pairs, candidates=20).low


def test_few_pairs_never_win_however_good_they_look() -> None:
    for count in range(tune_stats.LEAST_PAIRS):
        assert not judge([(2.0, 1.0)] * count).wins
    assert judge([(2.0, 1.0)] * tune_stats.LEAST_PAIRS).wins


def test_a_gain_inside_the_margin_does_not_win() -> None:
    assert not judge([(1.019, 1.0)] * 20).wins
    assert judge([(1.021, 1.0)] * 20).wins


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_times_that_are_none_are_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no times"):
        judge([pair])


# ---- simulated machines --------------------------------------------------------------------------


def steady(source: random.Random, _run: int) -> float:
    return math.exp(source.gauss(0, 0.01))


def noisy(source: random.Random, _run: int) -> float:
    return math.exp(source.gauss(0, 0.10))


def stalling(source: random.Random, _run: int) -> float:
    """Every tenth run meets something that makes it up to three times as long."""
    return math.exp(source.gauss(0, 0.02)) * (source.uniform(1, 3) if source.random() < 0.1 else 1)


def drifting(source: random.Random, run: int) -> float:
    """A machine that warms up and slows down, and then recovers."""
    return (1.3 - 0.3 * math.cos(run / 40)) * math.exp(source.gauss(0, 0.02))


MACHINES: list[Noise] = [steady, noisy, stalling, drifting]


def machine(seed: int, noise: Noise, gains: Mapping[int, float] | None = None) -> Any:
    """A run whose time is noise, times the gain of the thread count that is tried."""
    source = random.Random(seed)  # noqa: S311
    turn = iter(range(10**9))

    def run(changes: Mapping[str, Any]) -> Measurement:
        gain = (gains or {}).get(changes.get("threads", 0), 1.0)
        return Measurement(10.0 / gain * noise(source, next(turn)), "same")

    return run


@pytest.mark.parametrize("noise", MACHINES)
def test_a_no_op_never_wins_in_a_thousand_runs(noise: Noise) -> None:
    """Four kinds of noise, a thousand times six settings that do nothing, each."""
    winners = [
        seed
        for seed in range(1000)
        if tune(machine(seed, noise), Plan(SIX, rounds=6 + seed % 7)).chosen
    ]
    assert winners == []


def test_the_test_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bounds the best of six no-ops wins nearly always: that is what they are for."""
    monkeypatch.setattr(tune_stats, "t_quantile", lambda *_: 0.0)
    runs = [tune(machine(seed, noisy), Plan(SIX, rounds=8)).chosen for seed in range(50)]
    assert sum(bool(chosen) for chosen in runs) > 10


@pytest.mark.parametrize(("noise", "rounds"), [(steady, 10), (drifting, 24)])
def test_a_real_gain_of_five_percent_is_found_with_enough_rounds(noise: Noise, rounds: int) -> None:
    found = [
        tune(machine(seed, noise, {4: 1.05}), Plan(SIX, rounds=rounds)).chosen
        for seed in range(100)
    ]
    assert sum(chosen == {"threads": 4} for chosen in found) >= 90
    assert all(chosen in ({}, {"threads": 4}) for chosen in found)


def test_a_loss_never_wins() -> None:
    gains = dict.fromkeys(range(1, 7), 0.9)
    assert not any(
        tune(machine(seed, noisy, gains), Plan(SIX, rounds=8)).chosen for seed in range(200)
    )


def test_the_luck_of_the_search_does_not_survive_the_confirmation() -> None:
    """A setting that was fast only while it was searched for is not chosen."""
    searching = 1 + 1 + 2 * 8
    turns = iter(range(10**9))

    def run(changes: Mapping[str, Any]) -> Measurement:
        turn = next(turns)
        return Measurement(9.0 if changes and turn < searching else 10.0 + turn % 2 * 0.01, "a")

    outcome = tune(run, Plan(SIX[:1], rounds=8))
    assert outcome.tried[0].verdict is not None
    assert outcome.tried[0].verdict.wins
    assert [verdict.wins for _, verdict in outcome.confirmations] == [False]
    assert outcome.chosen == {}


def test_gains_of_different_settings_are_confirmed_together() -> None:
    source = random.Random(1)  # noqa: S311

    def run(changes: Mapping[str, Any]) -> Measurement:
        gain = (1.2 if changes.get("threads") == 2 else 1) * (
            1.1 if changes.get("prefetch") == "off" else 1
        )
        return Measurement(source.uniform(9.9, 10.1) / gain, "a")

    wanted = [Candidate({"threads": 2}), Candidate({"threads": 3}), Candidate({"prefetch": "off"})]
    assert tune(run, Plan(tuple(wanted), 8)).chosen == {"threads": 2, "prefetch": "off"}


def test_gains_that_exclude_each_other_leave_the_best_alone() -> None:
    source = random.Random(1)  # noqa: S311

    def run(changes: Mapping[str, Any]) -> Measurement:
        gain = {0: 1.0, 1: 1.2, 2: 0.8}[len(changes)]
        return Measurement(source.uniform(9.9, 10.1) / gain, "a")

    wanted = (Candidate({"threads": 2}), Candidate({"prefetch": "off"}))
    outcome = tune(run, Plan(wanted, 8))
    assert len(outcome.chosen) == 1
    assert [verdict.wins for _, verdict in outcome.confirmations] == [False, True]


def test_runs_are_interleaved_and_their_order_changes() -> None:
    seen: list[int] = []

    def run(changes: Mapping[str, Any]) -> Measurement:
        seen.append(changes.get("threads", 0))
        return Measurement(1.0, "a")

    tune(run, Plan(SIX[:1], rounds=6))
    assert seen == [0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]


def test_an_answer_that_changes_ends_it_and_nothing_is_chosen() -> None:
    def run(changes: Mapping[str, Any]) -> Measurement:
        return Measurement(1.0, "other" if changes.get("threads") == 3 else "a")

    with pytest.raises(AnswerChangedError, match="threads = 3"):
        tune(run, Plan(SIX, rounds=6))


def test_a_setting_that_cannot_run_here_is_left_out_with_its_reason() -> None:
    def run(changes: Mapping[str, Any]) -> Measurement:
        if changes.get("threads") == 2:
            raise EngineFailure("io_uring is not available")
        if changes.get("threads") == 3:
            raise ResourceError("does not fit")
        return Measurement(1.0, "a")

    outcome = tune(run, Plan(SIX, rounds=6))
    assert [item.problem for item in outcome.tried if item.problem] == [
        "io_uring is not available",
        "does not fit",
    ]
    assert outcome.chosen == {}


def test_what_stops_the_current_settings_stops_tuning() -> None:
    def run(_changes: Mapping[str, Any]) -> Measurement:
        raise ResourceError("the weights do not fit")

    with pytest.raises(ResourceError, match="do not fit"):
        tune(run, Plan(SIX, rounds=6))


def test_progress_counts_every_run_up_to_the_end() -> None:
    seen: list[tuple[int, int, str]] = []
    work = Plan(SIX[:2], rounds=6)
    tune(
        machine(1, steady, {1: 1.5, 2: 1.2}),
        work,
        lambda done, total, what: seen.append((done, total, what)),
    )
    assert [done for done, _, _ in seen[:-1]] == list(range(len(seen) - 1))
    assert all(done <= total == work.runs for done, total, _ in seen)
    assert seen[-1][:2] == (work.runs, work.runs)


# ---- what is tried, and how often ----------------------------------------------------------------


def test_the_plan_stays_inside_its_time_and_drops_the_least_promising() -> None:
    for seconds in (100, 300, 900, 3600):
        made = plan(SIX, 1.0, seconds)
        assert made.runs <= seconds
        assert made.rounds >= 6
        assert made.candidates + made.left_out == SIX
    assert plan(SIX, 1.0, 3600).left_out == ()
    assert plan(SIX, 1.0, 100).left_out != ()


def test_too_little_time_is_refused_with_the_time_that_would_do() -> None:
    with pytest.raises(UsageError) as refused:
        plan(SIX, 60.0, 600)
    minutes = int(str(refused.value.hint).split("--minutes ")[1].split()[0])
    assert plan(SIX, 60.0, 60 * minutes).rounds >= 6


def test_only_settings_that_change_speed_are_tried() -> None:
    found = candidates(Settings(), cores=8, usable=16, streams=True, prompt=4096, drafts=True)
    names = {name for item in found for name in item.changes}
    assert names <= {"threads", "io_mode", "prefetch", "prefill_chunk", "drafts"}
    assert {"threads", "io_mode", "prefetch", "prefill_chunk"} <= names
    assert {"drafts": "0"} in [item.changes for item in found]
    assert {"threads": 8} in [item.changes for item in found]
    assert {"threads": 16} not in [item.changes for item in found], "that is what runs now"


def test_what_cannot_matter_is_not_tried() -> None:
    found = candidates(Settings(), cores=1, usable=1, streams=False, prompt=16, drafts=False)
    assert found == []


# ---- memory --------------------------------------------------------------------------------------


def test_R172_runs_stay_inside_the_free_memory_and_stop_with_one_message_when_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program takes 60 % of the memory in the middle of the measurement."""
    total = 100 * 10**9
    monkeypatch.setattr(memory, "budget", lambda: total)
    budget = tune_run.memory_budget()
    assert 0 < budget < total
    started: list[int] = []

    class Never(EngineClient):
        def start(self) -> None:
            started.append(1)
            raise EngineFailure("not to be started")

        def stop(self) -> None: ...

        def _send(self, command: object) -> None: ...

    runner = tune_run.Runner(lambda _changes: Never(), None, budget)  # type: ignore[arg-type]
    with pytest.raises(EngineFailure):
        runner({})
    assert started == [1]
    holder = processes.Holder(pid=9, name="other", bytes=60 * 10**9, ours=False)
    monkeypatch.setattr(processes, "memory_holders", lambda: [holder])
    monkeypatch.setattr(memory, "budget", lambda: 40 * 10**9)
    with pytest.raises(MemoryTakenError) as stopped:
        tune(runner, Plan(SIX, rounds=6))
    assert started == [1], "no engine was started into memory that is not there"
    assert "other (process 9) 60.0 GB" in stopped.value.message
    assert "Close" in str(stopped.value.hint)
    assert stopped.value.exit_code == 5


def test_an_unknown_amount_of_free_memory_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "budget", lambda: 0)
    assert tune_run.memory_budget() == 0
    tune_run.check_memory(0)
