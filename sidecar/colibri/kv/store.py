"""The prefix store: blocks of KV on disk, found by the tokens they stand for.

For: the engine process: what a conversation computed is there after a restart, and for every other
conversation that begins alike. `coli cache` looks through `inventory` instead. Not for: KV in
memory, and what a block's bytes mean.

    tokens -> ids (blocks.chain_ids) -> match -> read -> checked payload
    computed block -> put -> appended to the newest segment, known once its head is written
    budget reached -> the coldest leaves go until a quarter of some segment is dead
                   -> what is alive in it moves to the newest segment, and the file is deleted

The budget counts bytes of files, those of other models and damaged ones included; these go first.
A sixteenth of it is kept free for moving.

Nothing here raises for what disks do. A folder that cannot be used, a full disk, a second process:
`state` is "ready", "read-only" or "off", `note` says why, the log has one line, and the caller
computes what it does not get. A wrong payload is never given out: `read` checks record head,
id and checksum first.

Threads: any. Puts, clearing and closing wait for each other; `match` and `read` never for them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from colibri.kv import blocks, files, lock, pins, segments
from colibri.kv.blocks import Geometry
from colibri.kv.chains import Block, Chains
from colibri.kv.contents import Contents
from colibri.kv.segments import Pace, no_pace

log = logging.getLogger(__name__)

State = Literal["ready", "read-only", "off"]

# What a store leaves free for everyone else on the disk.
SPARE_DISK: Final = 1 << 30
# Fewer tokens are computed sooner than a block is written or read.
_LEAST_TAIL: Final = 8
# A budget is cut into this many segments, within the limits below.
_SEGMENTS: Final = 16
_LARGEST_SEGMENT: Final = 1 << 30
_MOST_SEGMENTS: Final = 256
_FEWEST_BLOCKS: Final = 4
_LARGEST_DEFAULT: Final = 32_000_000_000
# A segment is rewritten when one in so many of its records is dead: at most three records are
# moved for one that is freed. With little left that may go, sixteen.
_DEAD_SHARE: Final = 4
_LEAST_DEAD_SHARE: Final = 16
# Blocks behind one parent whose tokens are compared; each may cost a small read.
_MOST_LOOKED_AT: Final = 8
# After a failed write the disk gets some time.
_PAUSE_SECONDS: Final = 60.0
# An index older than this is written again by a sync.
_INDEX_SECONDS: Final = 60.0


class BlockRef(msgspec.Struct, frozen=True):
    """A stored block: number `depth` of its prefix, counted from 0."""

    id: bytes
    parent: bytes
    depth: int


class MissingBlock(msgspec.Struct, frozen=True):
    """A block of a prefix that is not stored: number `index`. Only the last may be a tail."""

    index: int
    parent: bytes
    tokens: tuple[int, ...]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the store was opened; sizes in bytes, now."""

    state: State
    note: str
    blocks: int
    bytes: int
    live_bytes: int
    other_bytes: int
    budget_bytes: int
    kept_blocks: int
    segments: int
    put_blocks: int
    read_blocks: int
    evicted_blocks: int
    moved_blocks: int
    refused_blocks: int
    damaged_blocks: int


class ChainInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stored prefix, named by its last block.

    `own_blocks` belong to no prefix that was used later; `kept_tokens` of it are pinned or held.
    """

    id: bytes
    blocks: int
    own_blocks: int
    tokens: int
    used: int
    written: int
    kept_tokens: int


class PrefixStore:
    """See the module's text."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        block_tokens: int,
        block_bytes: int,
        budget_bytes: int,
        *,
        spare_disk: int = SPARE_DISK,
    ) -> None:
        """Opens or creates the store. Raises ValueError for sizes that no store can have."""
        if not 0 < block_tokens <= blocks.MOST_TOKENS:
            raise ValueError(f"block_tokens {block_tokens} is not in 1..{blocks.MOST_TOKENS}")
        if not 0 < block_bytes <= blocks.MOST_BLOCK_BYTES:
            raise ValueError(f"block_bytes {block_bytes} is not in 1..{blocks.MOST_BLOCK_BYTES}")
        self.folder = folder
        self.geometry = Geometry(blocks.root_id(fingerprint), block_tokens, block_bytes)
        self.budget = budget_bytes
        self._spare = spare_disk
        size = max(min(budget_bytes // _SEGMENTS, _LARGEST_SEGMENT), budget_bytes // _MOST_SEGMENTS)
        capacity = max(1, (size - blocks.PAGE) // self.geometry.stride)
        # Room for moving what is alive in a segment; those of one record never need it.
        self._reserve = self.geometry.offset(capacity) if capacity > 1 else 0
        self._contents = Contents(folder, self.geometry, capacity)
        # Bytes that unfinished chunks take beside the segments, within the budget.
        self.beside = 0
        self._paused_until = 0.0
        self._pin_stamp: pins.Stamp | None = None
        self._counts = dict.fromkeys(("put", "read", "evicted", "moved", "refused", "bad"), 0)
        # Taken before the contents' guard. Held as long as the disk takes; the guard never is.
        self._writing = threading.Lock()
        self._lock = lock.WriterLock(folder)
        self.state: State = "off"
        self.note = ""
        self._open()

    @property
    def root(self) -> bytes:
        """Parent of a prefix's first block."""
        return self.geometry.root

    @property
    def least_tail(self) -> int:
        """Fewest tokens of a block that are worth storing or reading it."""
        return min(_LEAST_TAIL, max(1, self.geometry.block_tokens // 2))

    def _open(self) -> None:
        if self.budget <= 0:
            self.note = "it is switched off"
            return
        if self.budget < self._reserve + _FEWEST_BLOCKS * self.geometry.offset(1):
            self._switch_off(f"a budget of {self.budget} bytes holds fewer than 4 blocks")
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            writes = self._take_lock()
            self._contents.load(write=writes)
        except OSError as error:
            self._switch_off(_words(error))
            return
        self.state = "ready" if writes else "read-only"
        self._load_pins()
        stats = self.stats()
        log.info(
            "prefix store %s: %d blocks, %.2f of %.2f GB%s",
            self.folder,
            stats.blocks,
            stats.bytes / 1e9,
            stats.budget_bytes / 1e9,
            "" if writes else f"; read-only: {self.note}",
        )

    def _take_lock(self) -> bool:
        try:
            if self._lock.take():
                return True
        except OSError as error:
            self.note = f"the folder cannot be written: {_words(error)}"
            return False
        other = lock.owner(self.folder)
        self.note = f"process {other} writes to it" if other else "another process writes to it"
        return False

    def _count(self, what: str, number: int = 1) -> None:
        with self._contents.guard:
            self._counts[what] += number

    # ---- finding and reading ----

    def match(self, tokens: Sequence[int]) -> tuple[BlockRef, ...]:
        """Blocks of the longest stored beginning of `tokens`, first to last; marks them as used."""
        ids = blocks.chain_ids(self.root, blocks.pack_tokens(tokens), self.geometry.block_tokens)
        with self._contents.guard:
            found = self._contents.chains.match(ids)
            self._contents.chains.touch(found)
        return tuple(BlockRef(block.id, block.parent, block.depth) for block in found)

    def missing(self, tokens: Sequence[int], have: int = 0) -> list[MissingBlock]:
        """Whole blocks of `tokens` that are not stored, from block `have` on."""
        packed, step = blocks.pack_tokens(tokens), self.geometry.block_tokens
        parent, found = self.root, []
        with self._contents.guard:
            for index, own in enumerate(blocks.chain_ids(self.root, packed, step)):
                if index >= have and own not in self._contents.chains.blocks:
                    part = tuple(tokens[index * step : (index + 1) * step])
                    found.append(MissingBlock(index, parent, part))
                parent = own
        return found

    def find(self, tokens: Sequence[int]) -> list[tuple[BlockRef, int]]:
        """Stored blocks that give the longest beginning of `tokens`, and how many tokens each
        gives: all it has, except the last one, of which it may be fewer.
        """
        refs, step = self.match(tokens), self.geometry.block_tokens
        found, rest = [(ref, step) for ref in refs], tokens[len(refs) * step :]
        near = self.nearest(refs[-1].id if refs else self.root, rest) if rest else None
        return [*found, near] if near is not None and near[1] >= self.least_tail else found

    def nearest(self, parent: bytes, tokens: Sequence[int]) -> tuple[BlockRef, int] | None:
        """Of the blocks behind `parent` the one that shares most of its beginning with `tokens`,
        and how many tokens that is: so many of it are as good as if it were stored for them.
        """
        wanted, best, most = tokens[: self.geometry.block_tokens], None, 0
        with self._contents.guard:
            found = self._contents.chains.behind(parent)[:_MOST_LOOKED_AT]
        for block in found:
            held = blocks.unpack_tokens(self._contents.tokens(block))
            same = (a == b for a, b in zip(wanted, held, strict=False))
            common = sum(itertools.takewhile(bool, same))
            if common > most:
                best, most = block, common
        if best is None:
            return None
        with self._contents.guard:
            self._contents.chains.touch((best,))
        return BlockRef(best.id, best.parent, best.depth), most

    def tail(self, tokens: Sequence[int]) -> MissingBlock | None:
        """What follows the last whole block of `tokens`, if it is worth it and nothing stored holds
        it.
        """
        step = self.geometry.block_tokens
        if len(tokens) % step < self.least_tail:
            return None
        index = len(tokens) // step
        rest, parent = tuple(tokens[index * step :]), self.root
        for own in blocks.chain_ids(self.root, blocks.pack_tokens(tokens), step):
            parent = own
        near = self.nearest(parent, rest)
        held = near is not None and near[1] == len(rest)
        return None if held else MissingBlock(index, parent, rest)

    def read(self, ref: BlockRef, into: memoryview) -> bool:
        """Fills `into` with the block's payload; True only if every byte was checked.

        False: the block is gone or damaged and the caller computes it; `into` is zeros then, so
        that not even a careless caller uses what was read.
        """
        if len(into) != self.geometry.block_bytes:
            raise ValueError(f"a block has {self.geometry.block_bytes} bytes, not {len(into)}")
        known = self.holds(ref.id)
        problem = self._contents.read(ref.id, into)
        if problem:
            into[:] = bytes(len(into))
            if known:
                self._count("bad")
            return False
        self._count("read")
        return True

    def holds(self, own: bytes) -> bool:
        """Whether a block is stored."""
        with self._contents.guard:
            return own in self._contents.chains.blocks

    # ---- holding and pinning ----

    def hold(self, own: bytes) -> None:
        """Keeps a block and those before it in the store until `release`; any id may be held."""
        with self._contents.guard:
            self._contents.chains.hold(own)

    def release(self, own: bytes) -> None:
        """Takes one `hold` back; one that a store switched off has forgotten is no error."""
        with self._contents.guard:
            self._contents.chains.release(own)

    def pin(self, own: bytes) -> bool:
        """Keeps a prefix until `unpin`, over restarts; False if that cannot be written."""
        return self._change_pins(add=frozenset((own,)))

    def unpin(self, own: bytes) -> bool:
        """The reverse of `pin`."""
        return self._change_pins(remove=frozenset((own,)))

    def _change_pins(self, **change: frozenset[bytes]) -> bool:
        if self.state == "off":
            return False
        try:
            pins.change(self.folder, **change)
        except OSError as error:
            log.warning("prefix store: pins cannot be changed: %s", _words(error))
            return False
        self._load_pins()
        return True

    def _load_pins(self) -> None:
        """Takes over what any process pinned since the last look."""
        stamp = pins.stamp(self.folder)
        if stamp != self._pin_stamp:
            found = pins.load(self.folder) if stamp else frozenset()
            with self._contents.guard:
                self._pin_stamp, self._contents.chains.pins = stamp, found

    # ---- writing ----

    def put(
        self, parent: bytes, tokens: Sequence[int], payload: memoryview, pace: Pace = no_pace
    ) -> bytes | None:
        """Stores the block of `tokens` after block `parent` and returns its id. With fewer tokens
        than others it is a tail: the next block behind `parent` that begins so takes its place.

        A block that is there already is not written again. None: it was not stored, because
        `parent` is not, or for a reason that the log has. `pace` is called between pieces.
        """
        full, size = self.geometry.block_tokens, self.geometry.block_bytes
        if not 0 < len(tokens) <= full or len(payload) != size:
            raise ValueError(f"a block of {len(tokens)} tokens, {len(payload)} bytes has no place")
        packed = blocks.pack_tokens(tokens)
        own = blocks.block_id(parent, packed)
        with self._writing:
            if self._touch(own):
                return own
            stored = False
            if self._may_write(parent):
                self.hold(parent)
                try:
                    stored = self._store(own, parent, packed, payload, pace)
                finally:
                    self.release(parent)
            self._count("put" if stored else "refused")
            return own if stored else None

    def _touch(self, own: bytes) -> bool:
        with self._contents.guard:
            block = self._contents.chains.blocks.get(own)
            if block is not None:
                self._contents.chains.touch((block,))
            return block is not None

    def _may_write(self, parent: bytes) -> bool:
        if self.state != "ready" or time.monotonic() < self._paused_until:
            return False
        return parent == self.root or self.holds(parent)

    def _store(
        self, own: bytes, parent: bytes, tokens: bytes, payload: memoryview, pace: Pace
    ) -> bool:
        try:
            self._contents.check_place()
            if parent != self.root and not self.holds(parent):
                return False
            if not self._make_room(pace):
                return False
            self._contents.put(own, parent, tokens, payload, pace)
        except OSError as error:
            self._pause(error)
            return False
        return True

    def _make_room(self, pace: Pace) -> bool:
        """Room for one more record, in the budget and on the disk; False if nothing may go."""
        self._load_pins()
        if not self._reclaim_to(self._contents.next_bytes(), pace):
            self._rest("all of its budget is pinned or in use")
            return False
        if files.free_bytes(self.folder) < self._contents.next_bytes() + self._spare:
            self._rest("the disk is nearly full")
            return False
        return True

    def _reclaim_to(self, size: int, pace: Pace) -> bool:
        """Makes files shorter until the budget has room for `size` bytes. Raises OSError."""
        room = self.budget - self._reserve - size
        while self._contents.size() + self.beside > room:
            if not self._reclaim(pace):
                return False
        return True

    def take_beside(self, size: int, pace: Pace) -> bool:
        """Sets bytes of the budget aside for what lies beside the segments; False if they are
        needed more there, or on the disk.
        """
        with self._writing:
            if self.state != "ready" or time.monotonic() < self._paused_until:
                return False
            try:
                self._load_pins()
                if files.free_bytes(self.folder) < size + self._spare:
                    return False
                if not self._reclaim_to(size, pace):
                    return False
            except OSError as error:
                self._pause(error)
                return False
            self.beside += size
            return True

    def _reclaim(self, pace: Pace) -> bool:
        """Makes files shorter; False if there is nothing to give up. Raises OSError."""
        if self._contents.drop_other():
            return True
        victim = self._contents.victim(_DEAD_SHARE)
        if victim is None:
            victim, count = self._contents.evict(_DEAD_SHARE)
            self._count("evicted", count)
        if victim is None:
            victim = self._contents.victim(_LEAST_DEAD_SHARE)
        if victim is None:
            return False
        self._count("moved", self._contents.rewrite(victim, pace))
        return True

    def _pause(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and not self.folder.is_dir():
            self._switch_off("its folder has gone")
        else:
            self._rest(_words(error))

    def _rest(self, why: str) -> None:
        """Stores nothing for a while; one line a while, not one a block."""
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
        seconds = f"{_PAUSE_SECONDS:g}"
        log.warning("prefix store %s: nothing is stored for %s s: %s", self.folder, seconds, why)

    def _switch_off(self, why: str) -> None:
        log.warning("prefix store %s is off: %s", self.folder, why)
        self._end(why)

    def _end(self, why: str) -> None:
        self.state, self.note = "off", why
        self._contents.abandon()
        self._lock.release()

    # ---- all of it ----

    def stats(self) -> Stats:
        """Counters and sizes, for /health and the log."""
        contents, counts = self._contents, self._counts
        with contents.guard:
            live = sum(segment.live for segment in contents.segments.values())
            return Stats(
                state=self.state,
                note=self.note,
                blocks=len(contents.chains),
                bytes=contents.size() + self.beside,
                live_bytes=live * self.geometry.stride,
                other_bytes=sum(contents.others.values()),
                budget_bytes=self.budget,
                kept_blocks=len(contents.chains.kept()),
                segments=len(contents.segments),
                put_blocks=counts["put"],
                read_blocks=counts["read"],
                evicted_blocks=counts["evicted"],
                moved_blocks=counts["moved"],
                refused_blocks=counts["refused"],
                damaged_blocks=counts["bad"],
            )

    def list(self) -> list[ChainInfo]:
        """Stored prefixes, the most recently used first."""
        if self.state != "off":
            self._load_pins()
        with self._contents.guard:
            return describe(self._contents.chains, self.geometry.block_tokens)

    def clear(self) -> bool:
        """Drops every block that is neither pinned nor held; False if the store cannot write."""
        with self._writing:
            if self.state != "ready":
                return False
            self._load_pins()
            try:
                while self._contents.drop_other():
                    pass
                self._contents.clear()
                self._contents.write_index()
            except OSError as error:
                self._pause(error)
                return False
            return True

    def remember(self) -> None:
        """Writes the index if something was used since it was written: after a kill too, what was
        read lately is not the first to go.
        """
        with self._writing:
            if self._contents.chains.clock != self._contents.index_clock:
                self._sync(index=True)

    def sync(self) -> bool:
        """Brings what was put onto the device; now and then the index too."""
        with self._writing:
            return self._sync(time.monotonic() - self._contents.index_time > _INDEX_SECONDS)

    def _sync(self, index: bool) -> bool:
        if self.state != "ready":
            return False
        try:
            self._contents.check_place()
            self._contents.sync()
            if index:
                self._contents.write_index()
        except OSError as error:
            self._pause(error)
            return False
        return True

    def close(self) -> None:
        """Syncs, writes the index, frees the folder; the store is off afterwards."""
        with self._writing:
            if self.state != "off":
                self._sync(index=True)
                self._end("it is closed")


def describe(chains: Chains, block_tokens: int) -> list[ChainInfo]:
    """Every prefix that nothing stored goes on from, the most recently used first."""

    def tokens(block: Block) -> int:
        return len(block.tail) // 4 or block_tokens

    kept = chains.kept()
    found, seen = [], set[bytes]()
    leaves = [block for block in chains.blocks.values() if chains.is_leaf(block)]
    for leaf in sorted(leaves, key=lambda block: (-block.used, block.id)):
        chain = chains.chain(leaf)
        own = [block for block in chain if block.id not in seen]
        seen.update(block.id for block in own)
        found.append(
            ChainInfo(
                id=leaf.id,
                blocks=len(chain),
                own_blocks=len(own),
                tokens=sum(map(tokens, chain)),
                used=leaf.used,
                written=max(block.written for block in chain),
                kept_tokens=sum(tokens(block) for block in chain if block.id in kept),
            )
        )
    return found


def budget_bytes(folder: Path, gigabytes: float | None) -> int:
    """Bytes that a store in `folder` may have: what a person says, else a tenth of the disk's room.

    The room is what is free and what the store holds already; at most 32 GB. A folder that cannot
    be looked at gives 0: no store.
    """
    if gigabytes is not None:
        return int(gigabytes * 1e9)
    try:
        place = next(path for path in (folder, *folder.parents) if path.is_dir())
        held = (
            sum(path.stat().st_size for _, path in segments.numbered(folder))
            if (place == folder)
            else 0
        )
        return min((files.free_bytes(place) + held) // 10, _LARGEST_DEFAULT)
    except OSError:
        return 0


def _words(error: OSError) -> str:
    return error.strerror or str(error)
