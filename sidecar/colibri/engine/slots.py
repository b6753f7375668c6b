"""Slots, and what they held before: the token histories whose KV is in memory.

For: `worker`, which asks for a slot and has it prepared for a prompt. Not for: the queue, stepping,
KV on disk (`persist`).

    prompt --choose--> slot --prepare--> the slot holds the longest prefix of the prompt that any
                                         slot or kept session holds; the rest is computed

A slot is a session with a number that requests may ask for. When another conversation takes a
slot, the session that was there is kept as it is, unfinished prefill included, and comes back when
its conversation does; equal prefixes share their KV (`colibri_session_fork`). When KV is needed,
kept sessions go first, then what idle slots hold, longest unused first. Threads: the engine
loop's, unless it says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from colibri.engine.backend import BackendSession, EngineBackend
from colibri.engine.drafting import Lag
from colibri.engine.protocol import KvSlotState
from colibri.engine.status import EngineError

log = logging.getLogger(__name__)

# Matching against more of them would take longer than it saves.
MOST_KEPT: Final = 64
# A shorter history is not worth keeping: reading it again takes no longer than a few steps.
LEAST_KEPT: Final = 32


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix of two lists that agree up to `start`.

    Compares slices, which runs at the speed of C: 25,000 tokens in a loop would take milliseconds.
    """
    limit, step = min(len(a), len(b)), 64
    while start < limit and a[start : start + step] == b[start : start + step]:
        start = min(start + step, limit)
        step = min(2 * step, 4096)
    low, high = start, min(start + step, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Holding:
    """A session and the tokens it holds; `lag` is what its MTP layer has not seen."""

    def __init__(self, session: BackendSession) -> None:
        self.session = session
        self.history: list[int] = []
        self.begun: list[int] = []  # behind the history: tokens whose reading was broken off
        self.lag = Lag()

    def promise(self, prompt: Sequence[int]) -> int:
        """`match`, and what of the prompt has been begun behind it: for choosing only.

        The engine may have dropped what was begun, so it counts as held nowhere.
        """
        held = len(self.history)
        match = self.match(prompt)
        return match + (common_prefix(self.begun, prompt[held:]) if match == held else 0)

    def match(self, prompt: Sequence[int]) -> int:
        """Tokens of `prompt` that need no computing; the last one always does, for its logits.

        Where windows have passed on, those to which the session can still go back.
        """
        common = min(common_prefix(self.history, prompt), max(len(prompt) - 1, 0))
        return self.session.reusable(common)


class Slot:
    """A numbered place for one job at a time."""

    def __init__(self, index: int, holding: Holding) -> None:
        self.index = index
        self.busy = False
        self.used = 0  # the greater, the later
        self.holding = holding

    @property
    def session(self) -> BackendSession:
        return self.holding.session

    @property
    def history(self) -> list[int]:
        return self.holding.history

    @history.setter
    def history(self, tokens: list[int]) -> None:
        self.holding.history = tokens

    @property
    def lag(self) -> Lag:
        return self.holding.lag


class Slots:
    """All slots and kept sessions of an engine; `parallel` jobs run at once."""

    def __init__(self, backend: EngineBackend, count: int, parallel: int) -> None:
        self._backend = backend
        self._parallel = parallel
        self.slots = [Slot(i, Holding(backend.session())) for i in range(count)]
        self._kept: list[Holding] = []  # longest unused first
        # Whether all of a session is on disk: such sessions go first.
        self.is_saved: Callable[[Holding], bool] = lambda holding: True
        # Asked about a session before its KV is gone; False while what it holds is being saved.
        self.may_drop: Callable[[Holding], bool] = lambda holding: True
        # Room was asked for and is still being made; for the loop, which takes it back.
        self.stalled = False
        self._uses = 0
        self.dropped = 0  # conversations that had to go

    @property
    def kept(self) -> int:
        """Sessions kept beside the slots. Any thread."""
        return len(self._kept)

    def states(self) -> tuple[KvSlotState, ...]:
        """What each slot holds now. Any thread."""
        return tuple(
            KvSlotState(index=slot.index, busy=slot.busy, tokens=len(slot.history))
            for slot in self.slots
        )

    # ---- choosing ----

    def choose(
        self, prompt: Sequence[int], pinned: int | None, wanted: Collection[int] = ()
    ) -> Slot | None:
        """The slot for a prompt, or None while it has to wait.

        A pinned job waits for its slot. Another one takes slot 0 when jobs run one after the other,
        so that one client alone always meets its own history; else the free slot that holds most of
        the prompt or has begun to read it, the lowest on a tie, and one of the `wanted`, for which
        pinned jobs wait, only if no other is free: what it holds of the prompt is shared anyway.
        """
        free = [slot for slot in self.slots if not slot.busy]
        if len(self.slots) - len(free) >= self._parallel:
            return None
        if pinned is not None:
            slot = self.slots[pinned]
            return None if slot.busy else slot
        if self._parallel == 1:
            return self.slots[0]
        return max(free, key=lambda slot: (slot.index not in wanted, slot.holding.promise(prompt)))

    # ---- preparing ----

    def prepare(self, slot: Slot, prompt: Sequence[int]) -> int:
        """Lets the slot hold as much of `prompt` as any session does; returns how many tokens.

        What the slot held before is kept. Raises EngineError.
        """
        self._uses += 1
        slot.used = self._uses
        own = slot.holding.match(prompt)
        best, length = slot.holding, own
        for holding in (*self._kept, *(other.holding for other in self.slots)):
            match = holding.match(prompt)
            if match > length:
                best, length = holding, match
        if best is not slot.holding:
            self._take(slot, best, length)
        elif len(slot.history) - own >= LEAST_KEPT and own < len(slot.history):
            self._branch(slot, own)
        self.cut(slot, length)
        return length

    def cut(self, slot: Slot, length: int) -> None:
        """Leaves the first `length` tokens in the slot, and an unfinished prefill behind them."""
        slot.session.truncate(length)
        if length < len(slot.history):
            slot.holding.begun = []
        slot.history = slot.history[:length]
        slot.lag.cut(length)

    def _take(self, slot: Slot, best: Holding, length: int) -> None:
        if best in self._kept and length == len(best.history):
            # Nothing of it is in the way: the session itself comes back, with what it had begun.
            self._kept.remove(best)
            self._retire(slot)
            slot.holding = best
            return
        if best in self._kept:  # in use: must not be the one that goes for the slot's session
            self._kept.remove(best)
            self._kept.append(best)
        self._retire(slot)
        self._fork(slot, best, length)

    def _branch(self, slot: Slot, length: int) -> None:
        """The slot's conversation takes another turn at `length`: both stay."""
        before = slot.holding
        self._retire(slot)
        self._fork(slot, before, length)

    def _fork(self, slot: Slot, source: Holding, length: int) -> None:
        slot.holding = Holding(self._backend.session())
        source.session.fork(length, slot.session)
        slot.history = source.history[:length]
        slot.holding.lag = source.lag.fork(length)

    def _retire(self, slot: Slot) -> None:
        """Keeps the slot's session if it is worth it; the slot must then get another one."""
        holding = slot.holding
        if len(holding.history) < LEAST_KEPT:
            holding.session.close()
            return
        self._kept.append(holding)
        # One that is still being saved goes the next time.
        while len(self._kept) > MOST_KEPT and self._drop_oldest():
            pass

    def replace(self, slot: Slot, holding: Holding) -> None:
        """Another session for the slot; the one before it is kept if it is worth it."""
        self._retire(slot)
        slot.holding = holding

    # ---- room ----

    def make_room(self, blocks: int) -> bool:
        """Drops what no job uses until so many KV blocks may be taken, or nothing is left to drop:
        the jobs that run then have all the KV there is, which is what the budget was made for.

        False while a session that has to go is still being saved: to be asked again soon.
        """
        while (room := self._backend.kv_room()) is not None and room < blocks:
            idle = [slot for slot in self.slots if not slot.busy and slot.history]
            if self._kept:
                if not self._drop_oldest():
                    self.stalled = True
                    return False
            elif idle:
                slot = min(idle, key=lambda slot: (not self.is_saved(slot.holding), slot.used))
                if not self.may_drop(slot.holding):
                    self.stalled = True
                    return False
                self.renew(slot)
                self.dropped += 1
            else:
                break
        return True

    def _drop_oldest(self) -> bool:
        """Drops the kept session that is longest unused, of those that are on disk if there are;
        False if it may not go yet.
        """
        holding = next((one for one in self._kept if self.is_saved(one)), self._kept[0])
        if not self.may_drop(holding):
            return False
        self._kept.remove(holding)
        holding.session.close()
        self.dropped += 1
        return True

    def renew(self, slot: Slot) -> None:
        """A fresh session: what the slot holds is gone, whatever state it was in."""
        slot.session.close()
        slot.holding = Holding(self._backend.session())

    def close(self) -> None:
        """Gives all KV back; no slot can be used after this."""
        for holding in (*self._kept, *(slot.holding for slot in self.slots)):
            holding.session.close()
        self._kept.clear()

    def empty(self, slot: Slot) -> None:
        """Drops what the slot holds."""
        try:
            self.cut(slot, 0)
        except EngineError as error:
            log.warning("a failed session could not be emptied: %s", error.message)
            self.renew(slot)
