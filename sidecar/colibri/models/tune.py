"""Finding settings that make a model faster on this machine, by measuring them side by side.

For: `coli tune`. Not for: the statistics (`tune_stats`) or running an engine (`tune_run`). Only
settings that can never change a token are tried, and every run's answer is compared with the first
one all the same. Thread rule: one call at a time; everything here runs in the caller's thread.

    search    baseline and candidate in turn, order changing every round, all candidates per round
    confirm   the winners together (then the best alone) against the baseline, with new pairs

Nothing is chosen that has not won twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from colibri.errors import EngineFailure, ResourceError, UsageError
from colibri.models import tune_stats
from colibri.models.tune_stats import Verdict
from colibri.settings import Settings

# Rounds: with fewer, only enormous gains could win; more than the other bound is patience wasted.
LEAST_ROUNDS: Final = 6
MOST_ROUNDS: Final = 24
_ATTEMPTS: Final = 2


class AnswerChangedError(EngineFailure):
    """A setting that must not change the answer did; nothing is chosen then."""

    default_code = "answer_changed"


class MemoryTakenError(ResourceError):
    """Another program took memory while runs were being compared; they can no longer be."""

    default_code = "memory_taken"


Changes = Mapping[str, Any]
# What is told while it runs: runs done, runs in all, what runs now.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try, by field name of `Settings`. `what` names them for people."""

    changes: Changes

    @property
    def what(self) -> str:
        """`threads = 4, prefetch = off`."""
        return ", ".join(f"{name} = {value}" for name, value in self.changes.items())


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the workload: seconds of work (loading excluded), and what was answered."""

    seconds: float
    answer: str


Run = Callable[[Changes], Measurement]


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each candidate is measured, and which had no time."""

    candidates: tuple[Candidate, ...]
    rounds: int
    left_out: tuple[Candidate, ...] = ()

    @property
    def runs(self) -> int:
        """Engine starts at most."""
        count = len(self.candidates)
        return 1 + count + self.rounds * (2 * count + 2 * _ATTEMPTS)


@dataclass(slots=True)
class Tried:
    """One candidate's search. `problem` is why it could not be measured, or empty."""

    candidate: Candidate
    pairs: list[tuple[float, float]] = field(default_factory=list)
    problem: str = ""
    verdict: Verdict | None = None


@dataclass(slots=True)
class Outcome:
    """What tuning found. `chosen` is empty unless something won the search and its confirmation."""

    tried: list[Tried]
    noise: float
    baseline: float
    confirmations: list[tuple[Candidate, Verdict]] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)


def candidates(
    chosen: Settings, *, cores: int, usable: int, streams: bool, prompt: int, drafts: bool
) -> list[Candidate]:
    """What is worth trying beside the current settings, most promising first.

    `streams`: experts come from disk. `prompt`: tokens of the workload's prompt; a chunk that is
    longer changes nothing. `drafts`: the model has a layer that drafts.
    """
    current = chosen.threads or usable
    found = [
        Candidate({"threads": count})
        for count in dict.fromkeys((cores, usable, usable // 2, usable - 1))
        if 1 <= count <= usable and count != current
    ]
    if streams:
        modes = ("uring", "threads", "buffered")
        found += [Candidate({"io_mode": mode}) for mode in modes if mode != chosen.io_mode]
        other = "off" if chosen.prefetch == "on" else "on"
        found.append(Candidate({"prefetch": other}))
    if drafts:
        # Deeper than asked for is what auto tries by itself; fewer, or none, save memory.
        found += [
            Candidate({"drafts": value}) for value in ("0", "auto", "1") if value != chosen.drafts
        ]
    found += [
        Candidate({"prefill_chunk": size})
        for size in (256, 512, 1024, 2048)
        if size < prompt and size != chosen.prefill_chunk
    ]
    return found


def plan(wanted: Sequence[Candidate], seconds_per_run: float, seconds: float) -> Plan:
    """As many rounds and candidates as the time allows; UsageError when not even one fits."""
    possible = seconds / max(seconds_per_run, 1e-3)
    for count in range(len(wanted), 0, -1):
        rounds = int((possible - 1 - count) // (2 * count + 2 * _ATTEMPTS))
        if rounds >= LEAST_ROUNDS:
            kept, left_out = tuple(wanted[:count]), tuple(wanted[count:])
            return Plan(kept, min(rounds, MOST_ROUNDS), left_out)
    if not wanted:
        return Plan((), 0)
    needed = Plan(tuple(wanted[:1]), LEAST_ROUNDS).runs * seconds_per_run
    raise UsageError(
        f"a run takes {seconds_per_run:.0f} s, so {seconds / 60:g} minutes are too few to tell "
        "one setting from another.",
        where="--minutes",
        hint=f"Give --minutes {needed / 60 + 1:.0f} or more.",
    )


class _Measuring:
    """Runs with their count, and the answer that all must give."""

    def __init__(self, run: Run, total: int, progress: Progress | None) -> None:
        self._run, self._total, self._progress = run, total, progress
        self._done = 0
        self._answer: str | None = None
        self.baseline: list[float] = []

    def one(self, changes: Changes) -> float:
        """Seconds of one run. EngineFailure if the answer is not that of all other runs."""
        name = Candidate(changes).what if changes else "current settings"
        if self._progress is not None:
            self._progress(self._done, self._total, name)
        measured = self._run(changes)
        self._done += 1
        if self._answer is None:
            self._answer = measured.answer
        elif measured.answer != self._answer:
            raise AnswerChangedError(
                f"with {name} the model answered something else, which no setting may do.",
                hint="Please report this with the model's name; nothing was changed.",
            )
        return measured.seconds

    def pair(self, changes: Changes, *, swapped: bool) -> tuple[float, float]:
        """(baseline, candidate), measured next to each other in either order."""
        if swapped:
            other = self.one(changes)
            base = self.one({})
        else:
            base = self.one({})
            other = self.one(changes)
        self.baseline.append(base)
        return base, other

    def finish(self) -> None:
        """Tells that no more runs follow."""
        if self._progress is not None:
            self._progress(self._total, self._total, "done")


def tune(run: Run, work: Plan, progress: Progress | None = None) -> Outcome:
    """Measures a plan. What the baseline raises is raised; a candidate that fails is left out."""
    measuring = _Measuring(run, work.runs, progress)
    tried = [Tried(candidate) for candidate in work.candidates]
    measuring.one({})  # warms files and frequencies up; its time counts for nothing
    for item in tried:
        _attempt(item, partial(measuring.one, item.candidate.changes))
    for turn in range(work.rounds):
        for place, item in enumerate(tried):
            if not item.problem:
                _round(item, measuring, swapped=(turn + place) % 2 == 1)
    alive = [item for item in tried if not item.problem]
    for item in alive:
        item.verdict = tune_stats.judge(item.pairs, candidates=len(alive))
    times = measuring.baseline
    outcome = Outcome(
        tried,
        tune_stats.noise(times),
        sorted(times)[len(times) // 2] if times else 0.0,
    )
    attempts = _combinations([item for item in alive if item.verdict and item.verdict.wins])
    for candidate in attempts:
        pairs = [
            measuring.pair(candidate.changes, swapped=turn % 2 == 1) for turn in range(work.rounds)
        ]
        verdict = tune_stats.judge(pairs, candidates=len(attempts), error=tune_stats.CONFIRM_ERROR)
        outcome.confirmations.append((candidate, verdict))
        if verdict.wins:
            outcome.chosen = dict(candidate.changes)
            break
    measuring.finish()
    return outcome


def _attempt(item: Tried, measure: Callable[[], Any]) -> None:
    """Runs a candidate; what it cannot do here is its problem, not the end of tuning."""
    try:
        measure()
    except (AnswerChangedError, MemoryTakenError):
        raise
    except (EngineFailure, ResourceError) as failure:
        item.problem = failure.message


def _round(item: Tried, measuring: _Measuring, *, swapped: bool) -> None:
    def measure() -> None:
        item.pairs.append(measuring.pair(item.candidate.changes, swapped=swapped))

    _attempt(item, measure)


def _combinations(winners: Sequence[Tried]) -> list[Candidate]:
    """All winners together, one value per setting, and then the best alone."""
    best = sorted(winners, key=lambda item: -item.verdict.low if item.verdict else 0.0)
    merged: dict[str, Any] = {}
    for item in best:
        for name, value in item.candidate.changes.items():
            merged.setdefault(name, value)
    if not merged:
        return []
    together = Candidate(merged)
    alone = best[0].candidate
    return [together] if together.changes == alone.changes else [together, alone]
