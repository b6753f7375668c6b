"""What slots hold, on disk and back: the engine loop's side of the prefix store.

For: `worker`. Not for: files (`colibri.kv`), sessions in memory (`slots`).

    prompt -> plan    blocks that the store has beyond what memory has
           -> step    some of them are read into a session of their own, a slice at a time
           -> finish  that session becomes the slot's if it holds more than the slot does
    grown  -> note    what a slot holds now; its new whole blocks are to be written, and at the end
                      of a turn the tail behind them
           -> save    some of them are copied out, for the writer's thread
                      all written: the slot's index file

Blocks are copied out between steps while prompts are read, and when nothing else is to be done;
while tokens are being generated only so many that it takes under a hundredth of the time. A block
that cannot be read or written is computed again. Threads: the engine loop's; the writer has its
own.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from colibri.engine.backend import EngineBackend
from colibri.engine.parking import Filling, Parking
from colibri.engine.protocol import StoreState
from colibri.engine.slots import Holding, Slot, Slots, common_prefix
from colibri.engine.status import EngineError
from colibri.kv.disk import Disk
from colibri.kv.slots import SlotState
from colibri.kv.store import BlockRef, MissingBlock
from colibri.kv.writer import Job

log = logging.getLogger(__name__)

# How long stopping may wait for the disk, and a job for which another conversation gives up its KV
# while the disk takes nothing of that.
_STOP_SECONDS: Final = 15.0
_RESCUE_SECONDS: Final = 5.0


class Restore:
    """Blocks of a prompt on their way from the store into a session: of each the tokens that are
    used, fewer than it has only of the last one.
    """

    def __init__(
        self,
        slot: Slot,
        prompt: Sequence[int],
        have: int,
        refs: Sequence[tuple[BlockRef, int]],
        filling: Filling | None = None,
    ) -> None:
        """`filling`: an unfinished chunk that comes behind the blocks."""
        self.slot = slot
        self.prompt = prompt
        self.have = have
        self.left = deque(refs)
        self.filling = filling
        self.holding: Holding | None = None

    @property
    def done(self) -> bool:
        return not self.left and self.filling is None


class _Save:
    """Blocks of a slot's tokens on their way to the store: `whole` ones, and with `tail` what is
    behind them.

    `next` is the first whole block that has not been given to the writer; `lost`: the tokens are no
    longer there, or a block was refused, and with it those behind it.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.holding = slot.holding
        self.tokens: list[int] = []
        self.whole = 0
        self.tail = False
        self.missing: deque[MissingBlock] | None = None  # None: to be looked up
        self.next = 0
        self.given = 0
        self.stored = 0
        self.lost = False

    @property
    def written(self) -> bool:
        return self.stored == self.given


class Persist:
    """See the module's text. Without a disk every method does nothing."""

    def __init__(self, backend: EngineBackend, slots: Slots, wake: Callable[[], None]) -> None:
        """`wake` is called from the writer's thread when `save` may go on."""
        self._backend = backend
        self._slots = slots
        self._wake = wake
        self._disk = disk = backend.disk
        self._tokens = backend.block_tokens
        self._parking = None if disk is None else Parking(disk)
        self._saves: dict[int, _Save] = {}
        # Of conversations that have left their slots before all of them was written.
        self._left: list[_Save] = []
        self._held: dict[int, bytes] = {}
        self._decoding = False
        # Since when the writer has had no room for what has to be saved, and when that was seen.
        self._full_since = self._full_at = 0.0
        self.read_blocks = 0  # by the loop, whether they were of use or not
        self.rescued_blocks = 0  # copied out because their session had to go
        if disk is not None:
            self._hold_saved(disk)
            slots.may_drop, slots.is_saved = self._rescue, self._is_saved

    def _hold_saved(self, disk: Disk) -> None:
        """What slots held before a restart is in use: it does not make room for others."""
        for slot in self._slots.slots:
            state = disk.files.load(slot.index)
            if state is None:
                continue
            found = disk.store.find(state.tokens)
            log.info(
                "slot %d: %d of %d tokens are on disk",
                slot.index,
                sum(used for _, used in found),
                len(state.tokens),
            )
            self._hold(disk, slot.index, found)

    def _hold(self, disk: Disk, slot: int, found: Sequence[tuple[BlockRef, int]]) -> None:
        """Of what a slot holds the whole blocks stay in the store; a tail is soon replaced."""
        before = self._held.pop(slot, None)
        whole = [ref.id for ref, used in found if used == self._tokens]
        if whole:
            disk.store.hold(whole[-1])
            self._held[slot] = whole[-1]
        if before is not None:
            disk.store.release(before)

    def state(self) -> StoreState | None:
        """Store and writer now; None without a disk. Any thread; never waits for the disk."""
        disk = self._disk
        if disk is None:
            return None
        store, writer = disk.store.stats(), disk.writer.stats()
        return StoreState(
            state=store.state,
            note=store.note,
            blocks=store.blocks,
            bytes=store.bytes,
            budget_bytes=store.budget_bytes,
            put_blocks=store.put_blocks,
            read_blocks=store.read_blocks,
            evicted_blocks=store.evicted_blocks,
            damaged_blocks=store.damaged_blocks,
            waiting_blocks=writer.waiting_blocks,
            refused_blocks=writer.refused_blocks,
            failed_blocks=writer.failed_blocks,
        )

    # ---- from disk ----

    def plan(self, slot: Slot, prompt: Sequence[int], have: int) -> Restore | None:
        """What the store has of a prompt beyond the `have` tokens that the slot holds."""
        if self._disk is None:
            return None
        # The last token is computed in any case, for its logits.
        found = self._disk.store.find(prompt[:-1])
        stored, begin = sum(used for _, used in found), have // self._tokens
        if self._parking is not None:
            filling = self._parking.find(prompt, have, stored, slot.session)
            blocks = 0 if filling is None else filling.parked.chunk.start // self._tokens
            if filling is not None and len(found) >= blocks:
                return Restore(slot, prompt, have, found[begin:blocks], filling)
        if stored < have + self._disk.store.least_tail:
            return None
        return Restore(slot, prompt, have, found[begin:])

    def step(self, restore: Restore, max_ms: int) -> bool:
        """Reads blocks for about so long; True when there is nothing left to read. Reads none while
        room for them is still being made.
        """
        if self._disk is None:
            return True
        end = time.monotonic() + max_ms / 1000
        try:
            if restore.holding is None:
                restore.holding = self._begin(restore)
            while not restore.done:
                if not self._slots.make_room(self._needs(restore, restore.holding)):
                    return False
                if not self._bring(self._disk, restore.holding, restore):
                    break
                if time.monotonic() >= end:
                    return restore.done
        except EngineError as error:
            log.warning("stored KV cannot be used: %s", error.message)
        return True

    def _begin(self, restore: Restore) -> Holding:
        """A session of its own: only what turns out better replaces what the slot has."""
        holding = Holding(self._backend.session())
        whole = restore.have // self._tokens * self._tokens
        # Where windows have passed on, less of it can be shared, and all must come from disk.
        if restore.slot.session.reusable(whole) == whole:
            restore.slot.session.fork(whole, holding.session)
            holding.history = list(restore.prompt[:whole])
        else:
            restore.left.clear()
            restore.filling = None
        return holding

    def _needs(self, restore: Restore, holding: Holding) -> int:
        """KV blocks that the next piece takes at most."""
        if restore.left or restore.filling is None:
            return 1
        return 2 + (restore.filling.parked.chunk.end - len(holding.history)) // self._tokens

    def _bring(self, disk: Disk, holding: Holding, restore: Restore) -> bool:
        """One block more, or one piece of a chunk; False when nothing more can be used."""
        if restore.left:
            return self._read(disk, holding, restore)
        if restore.filling is not None and self._parking is not None:
            self.read_blocks += 1
            if not self._parking.fill(restore.filling, holding):
                restore.filling = None
        return not restore.done

    def _read(self, disk: Disk, holding: Holding, restore: Restore) -> bool:
        (ref, used), at = restore.left.popleft(), len(holding.history)
        tokens = restore.prompt[at : at + used]
        self.read_blocks += 1
        if not disk.store.read(ref, disk.buffer):
            restore.left.clear()
            restore.filling = None
            return False
        holding.session.import_block(tokens, disk.buffer)
        holding.history += tokens
        return True

    def finish(self, restore: Restore) -> int:
        """Tokens that the slot holds now, at least as many as before. Raises EngineError."""
        holding = restore.holding
        if holding is None:
            return restore.have
        usable = holding.session.reusable(len(holding.history))
        if usable < restore.have or (usable == restore.have and not holding.session.parked):
            holding.session.close()
            return restore.have
        holding.lag.lose(len(holding.history), holding.session.draftless())
        self._slots.replace(restore.slot, holding)
        self._slots.cut(restore.slot, usable)
        return usable

    def give_up(self, restore: Restore) -> None:
        """The job has ended before the blocks were read."""
        if restore.holding is not None:
            restore.holding.session.close()
            restore.holding = None

    # ---- to disk ----

    def slice(self, slot: Slot, prompt: Sequence[int]) -> None:
        """A slice of a prompt has been read: of its unfinished chunk something may be saved."""
        if self._parking is not None:
            self._parking.watch(slot, prompt)

    def note(self, slot: Slot, *, ended: bool) -> None:
        """The slot holds more or other tokens now: what is new is to be saved, whole blocks only
        while more tokens are on their way.
        """
        disk, whole = self._disk, len(slot.history) // self._tokens
        if disk is None:
            return
        tail = ended and len(slot.history) % self._tokens >= disk.store.least_tail
        if whole == 0 and not tail:
            return
        save = self._saves.get(slot.index)
        if save is not None and save.holding is not slot.holding:
            self._left.append(self._saves.pop(slot.index))
            save = None
        if save is None:
            save = next((left for left in self._left if left.holding is slot.holding), None)
            if save is not None:
                self._left.remove(save)
                save.slot, self._saves[slot.index] = slot, save
        if (
            save is None
            or save.lost
            or common_prefix(save.tokens, slot.history) < save.next * self._tokens
        ):
            save = self._saves[slot.index] = _Save(slot)
        save.tokens, save.whole, save.tail, save.missing = list(slot.history), whole, tail, None

    def between_steps(self, *, decoding: bool) -> None:
        """Copies out what little may be copied now. While tokens are being generated: a block when
        the writer has nothing left, which then takes it fifty times the time that this took.
        """
        disk = self._disk
        if disk is None:
            return
        if decoding != self._decoding:
            self._decoding = decoding
            (disk.writer.decode_started if decoding else disk.writer.decode_ended)()
        if self._pending() and not (decoding and disk.writer.busy):
            self._save_one(disk)

    def save(self, max_ms: int) -> bool:
        """Copies blocks out for about so long; False when there is nothing to do before the next
        `note`, or before the writer calls `wake`.
        """
        end = time.monotonic() + max_ms / 1000
        while self._disk is not None and self._save_one(self._disk):
            if time.monotonic() >= end:
                return True
        return False

    def _pending(self) -> tuple[_Save, ...]:
        return (*self._left, *self._saves.values())

    def _save_one(self, disk: Disk) -> bool:
        """Gives one block to the writer, or saves one slot's file; False if neither can be done."""
        for save in self._pending():
            self._look_up(disk, save)
            if save.missing and not save.lost:
                if disk.writer.room() < len(disk.buffer):
                    continue
                self._give(disk, save, save.missing.popleft())
                return True
            if save.written:
                self._saved(disk, save)
                return True
        return False

    def _give(self, disk: Disk, save: _Save, block: MissingBlock) -> None:
        end = block.index * self._tokens + len(block.tokens)
        payload = memoryview(bytearray(len(disk.buffer)))
        # The session may have gone on with other tokens, or it is closed by now.
        if common_prefix(save.holding.history, save.tokens) < end:
            save.lost = True
            return
        try:
            save.holding.session.export_block(block.index, payload)
        except EngineError:
            save.lost = True
            return

        def done(stored: bytes | None) -> None:
            save.stored += 1
            save.lost |= stored is None and len(block.tokens) == self._tokens
            if save.written or disk.writer.room() >= len(disk.buffer):
                self._wake()

        save.given += 1
        if disk.writer.submit(Job(block.parent, block.tokens, payload, done)):
            save.next = end // self._tokens
        else:
            save.given -= 1
            save.lost = True

    def _is_saved(self, holding: Holding) -> bool:
        return all(save.holding is not holding or save.lost for save in self._pending())

    def _rescue(self, holding: Holding) -> bool:
        """Memory is to give up a session: what of it is not on disk yet is copied out first. False
        while the writer has no room for all of that, which takes seconds, and computing it again
        takes minutes; the loop goes on meanwhile. A disk that takes nothing is not waited for.
        """
        disk = self._disk
        save = next((one for one in self._pending() if one.holding is holding), None)
        while disk is not None and save is not None and not save.lost:
            self._look_up(disk, save)
            if not save.missing:
                break
            if disk.writer.room() < len(disk.buffer):
                return self._is_stuck(disk)
            self._give(disk, save, save.missing.popleft())
            self.rescued_blocks += 1
            self._full_at = 0.0
        return True

    def _is_stuck(self, disk: Disk) -> bool:
        """Whether the writer, which is told to hurry, has had no room for too long."""
        disk.writer.hurry()
        now = time.monotonic()
        if now - self._full_at > _RESCUE_SECONDS:
            self._full_since = now
        self._full_at = now
        return now - self._full_since >= _RESCUE_SECONDS

    def _look_up(self, disk: Disk, save: _Save) -> None:
        if save.missing is None:
            found = disk.store.missing(save.tokens[: save.whole * self._tokens], save.next)
            tail = disk.store.tail(save.tokens) if save.tail else None
            save.missing = deque(found if tail is None else (*found, tail))

    def _saved(self, disk: Disk, save: _Save) -> None:
        """Everything given has been written: the file of a slot that holds it still says so."""
        if save in self._left:
            self._left.remove(save)
            return
        if self._saves.get(save.slot.index) is save:
            del self._saves[save.slot.index]
        tokens = save.tokens
        found = disk.store.find(tokens)
        if not found:
            return
        # With blocks missing the file names what is there: the rest is computed again.
        whole = [ref.id for ref, used in found if used == self._tokens]
        kept = tokens if len(whole) == save.whole else tokens[: len(whole) * self._tokens]
        if self._parking is not None and len(whole) == save.whole:
            self._parking.stored(tokens)
        disk.files.save(save.slot.index, SlotState(tokens=tuple(kept), blocks=tuple(whole)))
        self._hold(disk, save.slot.index, found)

    def close(self) -> None:
        """Saves what can be saved in time, and closes the store."""
        disk = self._disk
        if disk is None:
            return
        end = time.monotonic() + _STOP_SECONDS
        if self._decoding:
            disk.writer.decode_ended()
        while self._pending() and time.monotonic() < end:
            if not self.save(100):
                disk.writer.flush(0.1)
        disk.writer.stop(max(0.1, end - time.monotonic()))
        disk.store.close()
        self._disk = self._parking = None
