"""Which blocks are stored, how they hang together, and which goes next. No files.

For: the store. Not for: threads: the store's lock guards it.

Blocks form trees: each names its parent, and prefixes that part share what is before. Only leaves
may go, coldest first, so a stored block never loses its parent to the budget:

    root - a1 - a2 - a3          a3 and b3 are leaves; once both have gone a2 is one, and counts as
                  \\- b3          used when the later of the two was used

A tail, a block of fewer tokens, is a leaf too. What is added behind the same parent and begins with
a tail's tokens replaces it: a conversation that goes on leaves no old ends behind.

"Used" is a counter, not a time: clocks jump. What is pinned (by a person, kept on disk) or held
(by a slot, as long as the process lives) stays, and with it everything before it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Block:
    """One stored block and its place: record `index` of segment `segment`. `tail`: its packed
    tokens if it has fewer than others; else nothing, and they are on disk.
    """

    id: bytes
    parent: bytes
    serial: int
    depth: int
    segment: int
    index: int
    used: int = 0
    written: int = 0
    tail: bytes = b""


class Chains:
    """See the module's text."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.blocks: dict[bytes, Block] = {}
        self.pins: frozenset[bytes] = frozenset()
        self.clock = 0
        # By parent, present or not: blocks may be found in any order.
        self._children: dict[bytes, set[bytes]] = {}
        self._holds: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self.blocks)

    def add(self, block: Block) -> None:
        """Takes a block that is not there yet."""
        self.blocks[block.id] = block
        self._children.setdefault(block.parent, set()).add(block.id)
        self.clock = max(self.clock, block.used)

    def drop(self, block: Block) -> None:
        """Forgets a block, a leaf or not."""
        del self.blocks[block.id]
        siblings = self._children[block.parent]
        siblings.remove(block.id)
        if not siblings:
            del self._children[block.parent]

    def match(self, ids: Iterable[bytes]) -> list[Block]:
        """The blocks of the longest stored beginning of a chain."""
        found = []
        for own in ids:
            block = self.blocks.get(own)
            if block is None:
                break
            found.append(block)
        return found

    def behind(self, parent: bytes) -> list[Block]:
        """The blocks that follow `parent`, the most recently used first."""
        found = [self.blocks[own] for own in self._children.get(parent, ())]
        return sorted(found, key=lambda block: (-block.used, block.id))

    def replaced(self, parent: bytes, tokens: bytes) -> list[Block]:
        """Tails behind `parent` that are no longer needed with a block of these packed tokens."""
        siblings = (self.blocks[own] for own in self._children.get(parent, ()))
        return [
            block
            for block in siblings
            if block.tail
            and len(block.tail) < len(tokens)
            and tokens.startswith(block.tail)
            and self.may_go(block)
        ]

    def touch(self, blocks: Iterable[Block]) -> None:
        """Marks blocks as used now, all at once."""
        now = self.tick()
        for block in blocks:
            block.used = now

    def tick(self) -> int:
        """The next value of the counter that stands for time."""
        self.clock += 1
        return self.clock

    def hold(self, own: bytes) -> None:
        """Keeps a block, and what is before it, until as many calls of `release`."""
        self._holds[own] += 1

    def release(self, own: bytes) -> None:
        """Takes one hold back; does nothing if there is none."""
        self._holds -= Counter((own,))

    def is_leaf(self, block: Block) -> bool:
        """Whether nothing stored follows the block."""
        return block.id not in self._children

    def may_go(self, block: Block) -> bool:
        """Whether the budget may take the block now."""
        return self.is_leaf(block) and block.id not in self.pins and block.id not in self._holds

    def evict(self) -> Iterator[Block]:
        """Drops blocks coldest first and yields each; stop asking when there is room.

        The chains must not change in between by other means.
        """
        heap = [(b.used, b.serial, b.id) for b in self.blocks.values() if self.may_go(b)]
        heapq.heapify(heap)
        while heap:
            used, _, own = heapq.heappop(heap)
            block = self.blocks[own]
            self.drop(block)
            before = self.blocks.get(block.parent)
            if before is not None and self.may_go(before):
                before.used = max(before.used, used)
                heapq.heappush(heap, (before.used, before.serial, before.id))
            yield block

    def chain(self, leaf: Block) -> list[Block]:
        """The block and those before it that are stored, last first."""
        found, block = [leaf], self.blocks.get(leaf.parent)
        # No honest chain is longer; a forged one could go round in circles.
        while block is not None and len(found) < len(self.blocks):
            found.append(block)
            block = self.blocks.get(block.parent)
        return found

    def kept(self) -> set[bytes]:
        """Ids that pins and holds keep, those before them included."""
        found: set[bytes] = set()
        for own in (*self.pins, *self._holds):
            block = self.blocks.get(own)
            while block is not None and block.id not in found:
                found.add(block.id)
                block = self.blocks.get(block.parent)
        return found
