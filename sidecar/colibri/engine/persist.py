"""What slots hold, on disk and back: the engine loop's side of the prefix store.

For: `worker`. Not for: files (`colibri.kv`), sessions in memory (`slots`).

    prompt -> plan    blocks that the store has beyond what memory has
           -> step    some of them are read into a session of their own, a slice at a time
           -> finish  that session becomes the slot's if it holds more than the slot does
    grown  -> note    what a slot holds now; its new whole blocks are to be written
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
from colibri.engine.protocol import StoreState
from colibri.engine.slots import Holding, Slot, Slots, common_prefix
from colibri.engine.status import EngineError
from colibri.kv.disk import Disk
from colibri.kv.slots import SlotState
from colibri.kv.store import BlockRef, MissingBlock
from colibri.kv.writer import Job

log = logging.getLogger(__name__)

# How long stopping may wait for the disk, and a job for which another conversation gives up its KV.
_STOP_SECONDS: Final = 15.0
_RESCUE_SECONDS: Final = 5.0


class Restore:
    """Blocks of a prompt on their way from the store into a session."""

    def __init__(
        self, slot: Slot, prompt: Sequence[int], have: int, refs: Sequence[BlockRef]
    ) -> None:
        self.slot = slot
        self.prompt = prompt
        self.have = have
        self.left = deque(refs)
        self.holding: Holding | None = None


class _Save:
    """Whole blocks of a slot's tokens on their way to the store.

    `next` is the first block that has not been given to the writer; `lost`: the tokens are no
    longer there, or a block was refused, and with it those behind it.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.holding = slot.holding
        self.tokens: list[int] = []
        self.whole = 0
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
        self._saves: dict[int, _Save] = {}
        # Of conversations that have left their slots before all of them was written.
        self._left: list[_Save] = []
        self._held: dict[int, bytes] = {}
        self._decoding = False
        self.read_blocks = 0  # by the loop, whether they were of use or not
        if disk is not None:
            self._hold_saved(disk)
            slots.before_drop = self._rescue

    def _hold_saved(self, disk: Disk) -> None:
        """What slots held before a restart is in use: it does not make room for others."""
        for slot in self._slots.slots:
            state = disk.files.load(slot.index)
            if state is None:
                continue
            refs = disk.store.match(state.tokens)
            log.info(
                "slot %d: %d of %d tokens are on disk",
                slot.index,
                len(refs) * self._tokens,
                len(state.tokens),
            )
            if refs:
                self._hold(disk, slot.index, refs[-1].id)

    def _hold(self, disk: Disk, slot: int, block: bytes) -> None:
        disk.store.hold(block)
        before = self._held.pop(slot, None)
        self._held[slot] = block
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
        most = (len(prompt) - 1) // self._tokens
        refs = self._disk.store.match(prompt[: most * self._tokens])
        if len(refs) * self._tokens <= have:
            return None
        return Restore(slot, prompt, have, refs[have // self._tokens :])

    def step(self, restore: Restore, max_ms: int) -> bool:
        """Reads blocks for about so long; True when there is nothing left to read."""
        if self._disk is None:
            return True
        end = time.monotonic() + max_ms / 1000
        try:
            if restore.holding is None:
                restore.holding = self._begin(restore)
            while restore.left and self._read(self._disk, restore.holding, restore):
                if time.monotonic() >= end:
                    return not restore.left
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
        return holding

    def _read(self, disk: Disk, holding: Holding, restore: Restore) -> bool:
        ref, at = restore.left.popleft(), len(holding.history)
        tokens = restore.prompt[at : at + self._tokens]
        self._slots.make_room(1)
        self.read_blocks += 1
        if not disk.store.read(ref, disk.buffer):
            restore.left.clear()
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
        if usable <= restore.have:
            holding.session.close()
            return restore.have
        self._slots.replace(restore.slot, holding)
        self._slots.cut(restore.slot, usable)
        return usable

    def give_up(self, restore: Restore) -> None:
        """The job has ended before the blocks were read."""
        if restore.holding is not None:
            restore.holding.session.close()
            restore.holding = None

    # ---- to disk ----

    def note(self, slot: Slot) -> None:
        """The slot holds more or other tokens now: what is new is to be saved."""
        whole = len(slot.history) // self._tokens
        if self._disk is None or whole == 0:
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
        save.tokens, save.whole, save.missing = list(slot.history), whole, None

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
        end = (block.index + 1) * self._tokens
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
            save.lost |= stored is None
            if save.written or disk.writer.room() >= len(disk.buffer):
                self._wake()

        save.given += 1
        if disk.writer.submit(Job(block.parent, block.tokens, payload, done)):
            save.next = block.index + 1
        else:
            save.given -= 1
            save.lost = True

    def _rescue(self, holding: Holding) -> None:
        """Memory gives up a session: what of it is not on disk yet is copied out first. Waiting for
        the disk takes seconds at most, and computing it again takes minutes.
        """
        disk, end = self._disk, time.monotonic() + _RESCUE_SECONDS
        save = next((one for one in self._pending() if one.holding is holding), None)
        while disk is not None and save is not None and not save.lost and time.monotonic() < end:
            self._look_up(disk, save)
            if not save.missing:
                return
            if disk.writer.room() >= len(disk.buffer):
                self._give(disk, save, save.missing.popleft())
            elif not disk.writer.flush(end - time.monotonic()) or not disk.writer.room():
                return

    def _look_up(self, disk: Disk, save: _Save) -> None:
        if save.missing is None:
            found = disk.store.missing(save.tokens[: save.whole * self._tokens], save.next)
            save.missing = deque(found)

    def _saved(self, disk: Disk, save: _Save) -> None:
        """Everything given has been written: the file of a slot that holds it still says so."""
        if save in self._left:
            self._left.remove(save)
            return
        if self._saves.get(save.slot.index) is save:
            del self._saves[save.slot.index]
        tokens = save.tokens
        refs = disk.store.match(tokens)
        if not refs:
            return
        # With blocks missing the file names what is there: the rest is computed again.
        kept = tokens if len(refs) == save.whole else tokens[: len(refs) * self._tokens]
        disk.files.save(
            save.slot.index, SlotState(tokens=tuple(kept), blocks=tuple(ref.id for ref in refs))
        )
        self._hold(disk, save.slot.index, refs[-1].id)

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
        self._disk = None
