"""What lies in a store's folder: its segments, and the blocks that they hold.

For: the store, which decides what comes and goes, and the inventory, which only looks. Not for:
budgets and failures: errors of the system pass through as OSError.

Threads: `guard` protects the chains and the counts of segments and is never held while a disk
works, except for the small index. What changes files belongs to the one thread that writes.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from colibri.kv import blocks, files, index_file, segments
from colibri.kv.blocks import Geometry, RecordHead
from colibri.kv.chains import Block, Chains
from colibri.kv.segments import Pace, Segment

log = logging.getLogger(__name__)


class Contents:
    """See the module's text. `capacity` is the number of records of a full segment.

    `quiet`: who only looks says nothing about files that are not his.
    """

    def __init__(
        self, folder: Path, geometry: Geometry, capacity: int, *, quiet: bool = False
    ) -> None:
        self.folder = folder
        self.geometry = geometry
        self.capacity = capacity
        self.guard = threading.RLock()
        self.chains = Chains(geometry.root)
        self.segments: dict[int, Segment] = {}
        # Segments of other models and damaged ones, with their sizes, oldest first.
        self.others: dict[Path, int] = {}
        self.index_time = time.monotonic()
        self.index_clock = 0  # of the chains, when the index was written
        self._active: Segment | None = None
        self._next_number = 1
        self._level = logging.DEBUG if quiet else logging.WARNING

    # ---- opening ----

    def load(self, *, write: bool) -> None:
        """Learns what the folder holds; with `write`, also tidies up what a kill left."""
        index = self._read_index()
        numbered = segments.numbered(self.folder)
        for number, path in numbered:
            segment = self._open(number, path, write)
            if segment is not None:
                self._scan(segment, index.segments.get(number, 0), write)
        # Above those of the index too: an old index must not speak for a new segment.
        self._next_number = 1 + max((*dict(numbered), *index.segments), default=0)
        for block in index.blocks:
            owner = self.segments.get(block.segment)
            if owner is not None and block.index < owner.records:
                self._learn(block, block.tail)
        for segment in tuple(self.segments.values()):
            if not segment.records:
                self._delete(segment, write)
        last = max(self.segments, default=None)
        if write and last is not None and self.segments[last].records < self.capacity:
            self._active = self.segments[last]
        for path in self.folder.glob("*.tmp") if write else ():
            files.remove(path)

    def _read_index(self) -> index_file.Index:
        nothing = index_file.Index({}, [])
        try:
            data = files.read(self.folder / index_file.NAME, index_file.MOST_BYTES)
        except (OSError, ValueError):
            return nothing
        return index_file.decode(data, self.geometry) or nothing

    def _open(self, number: int, path: Path, write: bool) -> Segment | None:
        """None if the segment is not ours, is empty, cannot be read or has gone."""
        try:
            file = files.DataFile(path, write=write)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.log(self._level, "%s is ignored: %s", path, error.strerror)
            return None
        try:
            head = segments.read_head(file)
            if head is not None and (head.geometry, head.number) == (self.geometry, number):
                segment = self.segments[number] = Segment(path, file, head)
                return segment
            size = file.size()
            if size <= blocks.PAGE and write:
                file.close()
                files.remove(path)
                log.info("%s held nothing yet and is deleted", path)
                return None
            self.others[path] = size
            what = "it is damaged" if head is None else "its blocks are another model's"
            log.log(self._level, "%s is ignored: %s", path, what)
        except OSError as error:
            log.log(self._level, "%s is ignored: %s", path, error.strerror)
        file.close()
        return None

    def _scan(self, segment: Segment, known: int, write: bool) -> None:
        """Learns the records that the index does not speak for."""
        places = max(0, segment.file.size() - blocks.PAGE) // self.geometry.stride
        for index, head in segment.scan(known if known <= places else 0):
            place = (segment.number, index)
            self._learn(
                Block(
                    head.id,
                    head.parent,
                    head.serial,
                    head.depth,
                    *place,
                    written=head.written,
                    tail=self._tail(head.tokens),
                ),
                head.tokens,
            )
        if write and segment.cut():
            log.info("%s: an unfinished record was cut off", segment.path)

    def _tail(self, tokens: bytes) -> bytes:
        return tokens if len(tokens) < 4 * self.geometry.block_tokens else b""

    def _learn(self, block: Block, tokens: bytes) -> None:
        """Takes a block found on disk; of two copies the later one counts."""
        block.used = max(block.used, block.serial)
        old = self.chains.blocks.get(block.id)
        if old is not None:
            if (old.segment, old.index) >= (block.segment, block.index):
                old.used = max(old.used, block.used)
                return
            block.used = max(old.used, block.used)
            self.forget(old)
        self._add(block, tokens)

    def _add(self, block: Block, tokens: bytes) -> None:
        for old in self.chains.replaced(block.parent, tokens):
            self.forget(old)
        self.chains.add(block)
        self.segments[block.segment].live += 1

    def forget(self, block: Block) -> None:
        """Takes a block out of the chains; its record is dead then. Under `guard`."""
        self.chains.drop(block)
        self.segments[block.segment].live -= 1

    # ---- reading ----

    def read(self, own: bytes, into: memoryview) -> str:
        """Reads and checks a block; returns what is wrong, or nothing if `into` holds it.

        A damaged block is forgotten.
        """
        with self.guard:
            block = self.chains.blocks.get(own)
            if block is None:
                return "it is not stored"
            segment, index = self.segments[block.segment], block.index
            segment.users += 1
        problem = ""
        try:
            head = segment.read(index, into)
            if head is None or not _stands_for(head, own):
                problem = "its checksum is wrong"
        except OSError as error:
            problem = error.strerror or str(error)
        with self.guard:
            segment.leave()
            if problem:
                self._disown(own, segment, index, problem)
        return problem

    def tokens(self, block: Block) -> bytes:
        """Packed tokens of a block; nothing if they cannot be read."""
        if block.tail:
            return block.tail
        with self.guard:
            segment = self.segments.get(block.segment)
            if segment is None:
                return b""
            segment.users += 1
        try:
            head = segment.head(block.index)
        except OSError:
            head = None
        with self.guard:
            segment.leave()
        return head.tokens if head is not None and head.id == block.id else b""

    def _disown(self, own: bytes, segment: Segment, index: int, problem: str) -> None:
        block = self.chains.blocks.get(own)
        # A rewrite may have moved it to a good place in the meantime.
        if block is not None and (block.segment, block.index) == (segment.number, index):
            self.forget(block)
            log.warning("%s: record %d is ignored: %s", segment.path, index, problem)

    # ---- writing ----

    def size(self) -> int:
        """Bytes of all segment files, others' included."""
        with self.guard:
            own = sum(segment.bytes for segment in self.segments.values())
            return own + sum(self.others.values())

    def next_bytes(self) -> int:
        """Bytes that one more record takes."""
        full = self._active is None or self._active.records >= self.capacity
        return self.geometry.stride + (blocks.PAGE if full else 0)

    def put(
        self, own: bytes, parent: bytes, tokens: bytes, payload: memoryview, pace: Pace
    ) -> None:
        """Writes a new block and knows it. Raises OSError; nothing has changed then."""
        with self.guard:
            before = self.chains.blocks.get(parent)
            serial = self.chains.tick()
        depth = before.depth + 1 if before else 0
        crc, now = blocks.payload_crc(payload), max(0, int(time.time()))
        head = RecordHead(own, parent, serial, now, depth, crc, tokens)
        place = self._append(head, payload, pace)
        block = Block(own, parent, serial, depth, *place, used=serial, written=now)
        block.tail = self._tail(tokens)
        with self.guard:
            self._add(block, tokens)

    def _append(self, head: RecordHead, payload: memoryview, pace: Pace) -> tuple[int, int]:
        """Writes to the newest segment, or a new one; returns segment and place."""
        active = self._active
        if active is None or active.records >= self.capacity:
            if active is not None:
                active.file.sync()
            active = Segment.create(self.folder, self._next_number, self.geometry)
            self._next_number += 1
            with self.guard:
                self.segments[active.number] = active
            self._active = active
        return active.number, active.append(head, payload, pace)

    def check_place(self) -> None:
        """Notices files that somebody took away. Raises FileNotFoundError if the folder has gone.

        A newest segment that has gone takes its blocks along.
        """
        if not self.folder.is_dir():
            raise FileNotFoundError(2, "the folder has gone", str(self.folder))
        gone = self._active
        if gone is None or gone.file.is_at(gone.path):
            return
        log.warning("%s has gone, and its blocks with it", gone.path)
        with self.guard:
            for block in tuple(self.chains.blocks.values()):
                if block.segment == gone.number:
                    self.forget(block)
        self._delete(gone, False)

    def sync(self) -> None:
        """Brings the newest segment onto the device."""
        if self._active is not None:
            self._active.file.sync()
            self._active.file.forget(0, 0)

    def write_index(self) -> None:
        """Replaces the accelerator; it needs no sync, because nobody relies on it."""
        with self.guard:
            places = {number: segment.records for number, segment in self.segments.items()}
            index = index_file.Index(places, list(self.chains.blocks.values()))
            data, clock = index_file.encode(self.geometry, index), self.chains.clock
        files.replace(self.folder / index_file.NAME, data, sync=False)
        self.index_time, self.index_clock = time.monotonic(), clock

    # ---- giving up ----

    def drop_other(self) -> bool:
        """Deletes the oldest file that is not ours; False if there is none."""
        with self.guard:
            path = next(iter(self.others), None)
        if path is None:
            return False
        files.remove(path)
        with self.guard:
            del self.others[path]
        return True

    def victim(self, share: int) -> Segment | None:
        """The segment with the most dead records, if they are one in `share` at least."""
        with self.guard:
            found = [segment for segment in self.segments.values() if segment.dead]
            best = max(found, key=lambda segment: segment.dead / segment.records, default=None)
        return best if best is not None and best.dead * share >= best.records else None

    def evict(self, share: int) -> tuple[Segment | None, int]:
        """Forgets blocks, coldest first, until one record in `share` of a segment is dead.

        Returns that segment, None if nothing more may go; and the number of blocks.
        """
        count = 0
        with self.guard:
            for block in self.chains.evict():
                segment = self.segments[block.segment]
                segment.live -= 1
                count += 1
                if share and segment.dead * share >= segment.records:
                    return segment, count
        return None, count

    def rewrite(self, victim: Segment, pace: Pace) -> int:
        """Moves what is alive to the newest segment, deletes the file; returns records moved."""
        if victim is self._active:
            self._active = None
        with self.guard:
            living = [b for b in self.chains.blocks.values() if b.segment == victim.number]
        living.sort(key=lambda block: block.index)
        payload = memoryview(bytearray(self.geometry.block_bytes if living else 0))
        moved = 0
        for block in living:
            head = victim.read(block.index, payload)
            if head is None or not _stands_for(head, block.id):
                with self.guard:
                    self._disown(block.id, victim, block.index, "its checksum is wrong")
                continue
            number, index = self._append(head, payload, pace)
            with self.guard:
                # A reader may have found the old record damaged meanwhile; then the copy is dead.
                if block.id in self.chains.blocks:
                    block.segment, block.index = number, index
                    victim.live -= 1
                    self.segments[number].live += 1
            moved += 1
        if moved:
            self.sync()
        self._delete(victim, True)
        return moved

    def clear(self) -> None:
        """Deletes every block of ours that is neither pinned nor held. Raises OSError."""
        self.evict(0)
        while (victim := self.victim(len(self.chains) + 1)) is not None:
            self.rewrite(victim, segments.no_pace)

    def _delete(self, segment: Segment, write: bool) -> None:
        if segment is self._active:
            self._active = None
        with self.guard:
            del self.segments[segment.number]
            segment.give_up()
        if write:
            files.remove(segment.path)

    def abandon(self) -> None:
        """Closes every file and knows nothing any more."""
        with self.guard:
            for segment in self.segments.values():
                segment.give_up()
            self.segments.clear()
            self.others.clear()
            self.chains = Chains(self.geometry.root)
            self._active = None


def _stands_for(head: RecordHead, own: bytes) -> bool:
    return head.id == own == blocks.block_id(head.parent, head.tokens)
