"""Drafts of the MTP layer in the engine loop: how many for which job, what they brought.

For: `worker`, for every decode step: `begin` -> guesses -> step -> drawing -> `end`. Not for: when
drafting pays (`draft_policy`), drawing or text (`worker`), the MTP layer (`native/src/draft.c`).

A policy is kept for each width of a step (1, 2-3, 4-7, ... jobs), because what drafts cost depends
on it; a new one begins with what the nearest has found. `state` is an immutable value, so that any
thread may read it; everything else belongs to the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from colibri.engine.backend import Counters
from colibri.engine.draft_policy import DraftPolicy, Rate, StepCost
from colibri.engine.protocol import DraftState

log = logging.getLogger(__name__)

# Deepest draft of the engine (`CLB_MAX_DRAFTS`), and positions that its MTP layer can lag behind
# before it misses some for good (`CLB_MAX_HIDDEN`).
MOST_DRAFTS: Final = 3
_LAG: Final = 64
# Share of a session that may be missing: drafts would be worse than the layer's own.
_MISSING: Final = 0.1
# A job beside others drafts at a place only if so many of its drafts there are kept, and looks
# again after so many steps.
_WORTH: Final = 0.2
_FORGET: Final = 0.15
_LOOK_AGAIN: Final = 24


class Lag:
    """What the MTP layer of one session has not seen, in tokens."""

    def __init__(self) -> None:
        self._length = 0
        self._behind = 0  # tokens at the end that the next draft still lets it see, if not too many
        self._missing = 0
        self._first_missing = 0

    def cut(self, length: int) -> None:
        """The session keeps `length` tokens and a prompt follows; the layer goes on behind them."""
        first = self._length - min(self._behind, _LAG)
        # The prompt lets it see the last one of those that it is behind.
        self._miss(first, min(length, self._length - 1) - first)
        self._missing = max(0, min(self._missing, length - self._first_missing))
        self._length, self._behind = length, 0

    def lose(self, length: int, missing: int) -> None:
        """The session has been put together from blocks; so many of its tokens were never seen."""
        self._length, self._behind, self._missing, self._first_missing = length, 0, missing, 0

    def fork(self, length: int) -> Lag:
        """That of a session which shares the first `length` tokens."""
        other = Lag()
        other._length, other._behind = self._length, self._behind
        other._missing, other._first_missing = self._missing, self._first_missing
        other.cut(length)
        return other

    def step(self, length: int, tokens: int, *, drafted: bool) -> None:
        """A step of so many tokens has brought the session to `length`; drafting before it has let
        the layer see all before them.
        """
        self._length = length
        self._behind = tokens if drafted else self._behind + tokens
        if self._behind > _LAG:
            self._miss(length - _LAG - tokens, tokens)

    def ready(self, length: int) -> bool:
        return self._missing <= _MISSING * length

    def _miss(self, first: int, tokens: int) -> None:
        if tokens > 0:
            if self._missing == 0:
                self._first_missing = first
            self._missing += tokens


class JobDrafts:
    """One job's drafts: proposed, kept, and how often each place is."""

    def __init__(self) -> None:
        self.proposed = 0
        self.accepted = 0
        self._kept = [1.0] * MOST_DRAFTS
        self._steps = 0

    def depth(self, most: int) -> int:
        """Of `most` places those that are worth a row; all of them now and then."""
        self._steps += 1
        if self._steps % _LOOK_AGAIN == 0:
            return most
        worth = 0
        while worth < most and self._kept[worth] >= _WORTH:
            worth += 1
        return worth

    def note(self, proposed: int, accepted: int) -> None:
        self.proposed += proposed
        self.accepted += accepted
        for place in range(proposed):
            self._kept[place] += _FORGET * ((place < accepted) - self._kept[place])


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step under way: most drafts per job, and whether a job may ask for fewer."""

    depth: int
    free: bool
    ready: bool
    policy: DraftPolicy | None
    started: float
    before: Counters


class Drafting:
    """See the module's text. `most` 0 means that there are none, for the `reason` given; `clock`
    tells seconds.
    """

    def __init__(
        self,
        most: int,
        reason: str,
        counters: Callable[[], Counters],
        policy: Callable[[int], DraftPolicy] = DraftPolicy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most = most
        self._clock = clock
        self._make = policy
        self._counters = counters
        self._policies: dict[int, DraftPolicy] = {}
        self._proposed = self._accepted = 0
        self._tokens = self._forwards = 0
        self.state = DraftState(
            on=most > 0,
            depth=min(1, most),
            most=most,
            reason=_said(most > 0, "being measured" if most else reason),
        )

    def begin(self, ready: Sequence[bool]) -> Step:
        """Before the guesses of a step; `ready` tells of each job whether it may be drafted for."""
        policy = self._policy(len(ready)) if self._most else None
        return Step(
            depth=policy.wanted if policy else 0,
            free=policy is not None and policy.wanted == policy.depth and len(ready) > 1,
            ready=2 * sum(ready) >= len(ready),
            policy=policy,
            started=self._clock(),
            before=self._counters(),
        )

    def end(self, step: Step, results: Sequence[tuple[int, int]], *, whole: bool) -> None:
        """After the drawing, with (drafts proposed, drafts kept) of every job. `whole` is False if
        the step failed and was repeated in parts.
        """
        if step.policy is None:
            return
        after = self._counters()
        for proposed, accepted in results:
            if proposed:
                self._proposed += proposed
                self._accepted += accepted
                self._tokens += 1 + accepted
                self._forwards += 1
        cost = StepCost(
            tokens=sum(1 + accepted for _, accepted in results),
            ms=(self._clock() - step.started) * 1000,
            bytes=after.expert_bytes_read - step.before.expert_bytes_read,
            wait_ms=(after.disk_wait_ns - step.before.disk_wait_ns) / 1e6,
            ready=step.ready,
        )
        # Close to the end of every answer there may be no room for a draft.
        typical = not step.depth or not step.ready or any(proposed for proposed, _ in results)
        before = step.policy.depth
        step.policy.note(cost if whole and typical else None)
        self._publish(step.policy, before)

    def fail(self, step: Step, message: str) -> None:
        """Guessing failed. The text does not need it, so it is left out for a while."""
        if step.policy is not None:
            before = step.policy.depth
            step.policy.fail(f"drafting failed: {message}")
            self._publish(step.policy, before)

    def _policy(self, width: int) -> DraftPolicy:
        key = width.bit_length()
        if key not in self._policies:
            made = self._make(self._most)
            if self._policies:
                # What holds for nearly as many jobs will do until it has been looked at.
                made.follow(self._policies[min(self._policies, key=lambda other: abs(other - key))])
            self._policies[key] = made
        return self._policies[key]

    def _publish(self, policy: DraftPolicy, before: int) -> None:
        on = policy.depth > 0
        self.state = DraftState(
            on=on,
            depth=policy.depth,
            most=self._most,
            proposed=self._proposed,
            accepted=self._accepted,
            acceptance=_ratio(self._accepted, self._proposed),
            tokens_per_forward=_ratio(self._tokens, self._forwards),
            ms_per_token_with=_ms(policy.drafted),
            ms_per_token_without=_ms(policy.plain),
            bytes_per_token_with=_bytes(policy.drafted),
            bytes_per_token_without=_bytes(policy.plain),
            reason=_said(on, policy.reason),
        )
        if policy.depth != before:
            log.info("drafts: depth %d -> %d, %s", before, policy.depth, self.state.reason)


def _said(on: bool, reason: str) -> str:
    return f"{'on' if on else 'off'}: {reason}"


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _ms(rate: Rate | None) -> float | None:
    return None if rate is None else round(rate.ms, 3)


def _bytes(rate: Rate | None) -> int | None:
    return None if rate is None else round(rate.bytes)
