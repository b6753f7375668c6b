"""Whether drafting pays, and how deep: decided from measured steps alone.

For: `drafting`, which asks for the depth of every step and tells what the step cost. Not for:
making or checking drafts; clocks; the engine. Pure: the same costs give the same decisions.

Depths are compared in pairs of blocks, the one in use and its rival in turns, so that drift
(a longer context, a warmer cache, a busier machine) meets both alike:

    use . . . . | rival . . . . | use . . . . | rival . . . . | use ...
                '--- one pair: log(cost of the deeper / cost of the shallower)

    duel    pairs until the confidence bound of time per token, and of bytes per token where the
            disk matters, lies on one side of the threshold; at most MOST_PAIRS
    rest    the winner alone; every rest is twice as long as the one before, then one pair looks
            whether the rival would do better now, and only that opens another duel

A deeper draft has to win by 5 % to be taken and is dropped when it wins less than 1 %: between the
two lies the hysteresis that keeps noise from switching. A cost that moves away from what it was
when the depth was chosen (the acceptance fell, the experts left the cache) ends the rest early.
Threads: one at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

# Steps of a block that count; one before them lets drafts and cache catch up.
BLOCK: Final = 4
MOST_PAIRS: Final = 12
_FEWEST_PAIRS: Final = 3
# What a pair scatters by before anything is known, and how many pairs that knowledge is worth.
_PRIOR_DEVIATION: Final = 0.15
_PRIOR_PAIRS: Final = 3
# Standard errors of the bound: one decision in two hundred may be noise.
_BOUND: Final = 2.6
_TAKE: Final = math.log(0.95)
_KEEP: Final = math.log(0.99)
# Share of a plain step spent waiting for the disk from which on bytes count beside time.
DISK_SHARE: Final = 0.1
# A probe costs 5 steps of the rival: with one 40 % slower, 3 % of the first rest, less of the next.
FIRST_REST: Final = 64
LONGEST_REST: Final = 2048
# The cost that ends a rest early: mean of this many steps, moved by this factor.
_WATCHED: Final = 32
_WATCH_EVERY: Final = 8
_MOVED: Final = math.log(1.35)

T = TypeVar("T")


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step: tokens it gave, time, bytes read, time spent waiting for the disk.

    `ready` tells whether its jobs could be drafted for: not when their MTP layer has fallen behind.
    """

    tokens: int
    ms: float
    bytes: int = 0
    wait_ms: float = 0.0
    ready: bool = True


class Rate(msgspec.Struct, frozen=True):
    """Cost per token over some steps, and the share of the time that the disk took."""

    ms: float
    bytes: float
    wait: float


class _Pair(msgspec.Struct, frozen=True):
    """Logarithms of deeper / shallower; `wait` is the disk's share at the shallower depth."""

    ms: float
    bytes: float
    wait: float


# What the plan yields is the depth of the next step; None comes back for a step that tells nothing.
_Plan: TypeAlias = Generator[int, StepCost | None, T]


def rate(steps: Sequence[StepCost]) -> Rate:
    """Cost per token of some steps."""
    tokens = max(sum(step.tokens for step in steps), 1)
    ms = max(sum(step.ms for step in steps), 1e-6)
    read = sum(step.bytes for step in steps)
    return Rate(ms / tokens, read / tokens, sum(step.wait_ms for step in steps) / ms)


class _Bounds(msgspec.Struct, frozen=True):
    """Mean of some logarithms with its confidence bounds."""

    mean: float
    low: float
    high: float
    error: float


def _bounds(values: Sequence[float]) -> _Bounds:
    n = len(values)
    mean = sum(values) / n
    squares = sum((value - mean) ** 2 for value in values) + _PRIOR_PAIRS * _PRIOR_DEVIATION**2
    error = math.sqrt(squares / (n - 1 + _PRIOR_PAIRS) / n)
    return _Bounds(mean, mean - _BOUND * error, mean + _BOUND * error, error)


class _Duel:
    """Evidence between two depths. `decided` is True for the deeper, False for the shallower."""

    def __init__(self, *, deeper_in_use: bool, proven: bool) -> None:
        self._pairs: list[_Pair] = []
        self._proven = proven
        self._in_use = deeper_in_use
        self._threshold = _KEEP if deeper_in_use and proven else _TAKE

    @property
    def disk(self) -> bool:
        """Whether bytes count."""
        return sum(pair.wait for pair in self._pairs) >= DISK_SHARE * len(self._pairs)

    def add(self, pair: _Pair) -> bool | None:
        self._pairs.append(pair)
        if len(self._pairs) < _FEWEST_PAIRS:
            return None
        judged = [self.ms, self.bytes] if self.disk else [self.ms]
        if any(bounds.low > self._threshold for bounds in judged):
            return False
        if all(bounds.high < self._threshold for bounds in judged):
            return True
        if len(self._pairs) < MOST_PAIRS:
            return None
        if self._proven:
            return self._in_use
        # Nothing is known yet: what likely pays is taken, what might is not.
        return all(bounds.mean + bounds.error < self._threshold for bounds in judged)

    @property
    def ms(self) -> _Bounds:
        return _bounds([pair.ms for pair in self._pairs])

    @property
    def bytes(self) -> _Bounds:
        return _bounds([pair.bytes for pair in self._pairs])

    def off_reason(self) -> str:
        """Why the shallower won, in words: whichever measure speaks against drafts the most."""
        name, bounds = "time per token", self.ms
        if self.disk and self.bytes.mean > bounds.mean:
            name, bounds = "bytes per accepted token", self.bytes
        verb = "rose" if bounds.mean > -_KEEP else "stayed at"
        return f"{name} {verb} {math.exp(bounds.mean):.2f}x"

    def on_reason(self) -> str:
        text = f"time per token fell to {math.exp(self.ms.mean):.2f}x"
        if self.disk:
            text += f", bytes per accepted token to {math.exp(self.bytes.mean):.2f}x"
        return text


class DraftPolicy:
    """See the module's text. `depth` is the one in use, `wanted` that of the next step.

    `most` is the deepest draft, at least 1. `reason` says why drafts are on or off; `settled` tells
    whether that has been decided.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.depth = 1
        self.reason = "being measured"
        self.plain: Rate | None = None
        self.drafted: Rate | None = None
        self.settled = False
        self._reference = 0.0  # ms per token at the depth in use when it was chosen
        self._life = self._live()
        self.wanted = next(self._life)

    def note(self, cost: StepCost | None) -> None:
        """Takes the cost of the step at `wanted`; None for one that tells nothing."""
        self.wanted = self._life.send(cost)

    def fail(self, reason: str) -> None:
        """Drafting itself failed: off, and looked at again after a rest."""
        self._settle(0, reason)

    def follow(self, other: DraftPolicy) -> None:
        """Begins where another one stands, with a rest, instead of trying for itself."""
        if other.settled:
            self._settle(other.depth, other.reason)

    def _settle(self, depth: int, reason: str) -> None:
        self.depth, self.reason, self.settled, self._reference = depth, reason, True, 0.0
        self._life = self._live()
        self.wanted = next(self._life)

    # ---- the plan ----

    def _live(self) -> _Plan[None]:
        if not self.settled:
            yield from self._duel(0, proven=False)
            self.settled = True
            yield from self._climb()
        pause, turn = FIRST_REST, 0
        while True:
            rivals = self._rivals()
            moved = yield from self._rest(pause, rivals[turn % len(rivals)])
            if moved:
                pause = FIRST_REST
            before, promising = self.depth, False
            for rival in rivals if moved else (rivals[turn % len(rivals)],):
                promising = yield from self._look(rival)
                if promising:
                    yield from self._duel(rival, proven=True)
                if self.depth != before:
                    break
            turn += 1
            if self.depth != before:
                if self.depth > before:
                    yield from self._climb()
                pause, turn = FIRST_REST, 0
            elif not moved:
                pause = min(2 * pause, LONGEST_REST)

    def _rivals(self) -> tuple[int, ...]:
        """Depths that may replace the one in use: no drafts, the neighbours, the deepest."""
        near = (0, self.depth + 1, self.depth - 1) if self.depth else (1, self._most)
        return tuple(dict.fromkeys(d for d in near if 0 <= d <= self._most and d != self.depth))

    def _climb(self) -> _Plan[None]:
        """Deeper as long as it pays."""
        while 0 < self.depth < self._most:
            before = self.depth
            yield from self._duel(before + 1, proven=True)
            if self.depth == before:
                return

    def _duel(self, rival: int, *, proven: bool) -> _Plan[None]:
        deeper, shallower = max(rival, self.depth), min(rival, self.depth)
        duel = _Duel(deeper_in_use=self.depth == deeper, proven=proven)
        before = yield from self._block(self.depth)
        costs: dict[int, list[float]] = {self.depth: [before.ms], rival: []}
        decided: bool | None = None
        while decided is None:
            tried = yield from self._block(rival)
            after = yield from self._block(self.depth)
            costs[rival].append(tried.ms)
            costs[self.depth].append(after.ms)
            decided = duel.add(self._pair(rival, before, tried, after))
            before = after
        self.depth = deeper if decided else shallower
        self._reference = sum(costs[self.depth]) / len(costs[self.depth])
        if self.depth == 0:
            self.reason = duel.off_reason()
        elif shallower == 0:
            self.reason = duel.on_reason()

    def _look(self, rival: int) -> _Plan[bool]:
        """Whether one pair speaks for the rival."""
        before = yield from self._block(self.depth)
        tried = yield from self._block(rival)
        after = yield from self._block(self.depth)
        pair = self._pair(rival, before, tried, after)
        judged = (pair.ms, pair.bytes) if pair.wait >= DISK_SHARE else (pair.ms,)
        return max(judged) < _TAKE if rival > self.depth else max(judged) > _KEEP

    def _block(self, depth: int) -> _Plan[Rate]:
        steps: list[StepCost] = []
        while len(steps) <= BLOCK:
            cost = yield depth
            if cost is not None and (cost.ready or not depth):
                steps.append(cost)
        del steps[0]
        found = rate(steps)
        self._remember(depth, found)
        return found

    def _rest(self, pause: int, rival: int) -> _Plan[bool]:
        """Steps of the depth in use; True when their cost has moved."""
        window: deque[StepCost] = deque(maxlen=_WATCHED)
        left = pause
        while True:
            cost = yield self.depth
            if cost is None:
                continue
            window.append(cost)
            left -= 1
            ready = cost.ready or rival < self.depth
            if len(window) == _WATCHED and left % _WATCH_EVERY == 0:
                now = _steady(window)
                self._remember(self.depth, now)
                self._reference = self._reference or now.ms
                if ready and abs(math.log(now.ms / self._reference)) > _MOVED:
                    self._reference = now.ms
                    return True
            if left <= 0 and ready:
                return False

    def _pair(self, rival: int, before: Rate, tried: Rate, after: Rate) -> _Pair:
        ms, read = (before.ms + after.ms) / 2, max((before.bytes + after.bytes) / 2, 1.0)
        sign = 1 if rival > self.depth else -1
        wait = (before.wait + after.wait) / 2 if sign > 0 else tried.wait
        return _Pair(
            sign * math.log(tried.ms / ms), sign * math.log(max(tried.bytes, 1.0) / read), wait
        )

    def _remember(self, depth: int, found: Rate) -> None:
        if depth:
            self.drafted = found
        else:
            self.plain = found


def _steady(window: Sequence[StepCost]) -> Rate:
    """Cost per token without the most expensive step, which may be anybody's fault."""
    worst = max(range(len(window)), key=lambda i: window[i].ms)
    return rate([step for i, step in enumerate(window) if i != worst])
