"""Whatever is put, matched, held, evicted and reopened, in any order: the rules hold.

A model of the store in a few lines is compared with it after every step.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colibri.kv import index_file
from colibri.kv.chains import Block, Chains
from colibri.kv.store import PrefixStore
from tests.kv.make import (
    BYTES,
    STRIDE,
    ids_of,
    open_store,
    payload_of,
    put_all,
    size_on_disk,
    tokens_of,
)

# Few numbers, so that prefixes are shared often.
CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


class StoreMachine(RuleBasedStateMachine):
    """Puts and reads in one folder; `known` is what was put at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="colibri-kv-"))
        self.store: PrefixStore | None = None
        self.known: set[bytes] = set()
        self.held: list[bytes] = []
        self.pinned: set[bytes] = set()
        self.budget = 0

    @initialize(places=st.sampled_from([8, 20, 40, 80]))
    def open(self, places: int) -> None:
        self.budget = places * STRIDE
        self.store = open_store(self.folder, self.budget)

    @rule(numbers=CHAINS)
    def put(self, numbers: list[int]) -> None:
        assert self.store
        tokens = tokens_of(*numbers)
        before = self.store.missing(tokens)
        stored = put_all(self.store, tokens)
        self.known |= set(stored)
        assert stored == ids_of(self.store, tokens)[len(tokens) // 4 - len(before) :][: len(stored)]
        if not self.held and not self.pinned:
            assert len(stored) == len(before), "with nothing kept there is always room"

    @rule(numbers=CHAINS)
    def match_and_read(self, numbers: list[int]) -> None:
        assert self.store
        tokens = tokens_of(*numbers)
        refs = self.store.match(tokens)
        ids = ids_of(self.store, tokens)
        assert [ref.id for ref in refs] == ids[: len(refs)]
        assert {ref.id for ref in refs} <= self.known
        if len(refs) < len(ids):
            assert not self.store.holds(ids[len(refs)]), "the match is the longest"
        missing = {part.index for part in self.store.missing(tokens)}
        assert missing == {i for i, own in enumerate(ids) if not self.store.holds(own)}
        into = memoryview(bytearray(BYTES))
        for ref in refs:
            assert self.store.read(ref, into)
            assert into == payload_of(ref.id)

    @rule(numbers=CHAINS)
    def hold(self, numbers: list[int]) -> None:
        assert self.store
        refs = self.store.match(tokens_of(*numbers))
        if refs and len(self.held) < 2:
            self.store.hold(refs[-1].id)
            self.held.append(refs[-1].id)

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        assert self.store
        self.store.release(self.held.pop())

    @rule(numbers=CHAINS)
    def pin(self, numbers: list[int]) -> None:
        assert self.store
        refs = self.store.match(tokens_of(*numbers))
        if refs and not self.pinned:
            assert self.store.pin(refs[-1].id)
            self.pinned.add(refs[-1].id)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        assert self.store
        assert self.store.unpin(self.pinned.pop())

    @rule()
    def clear(self) -> None:
        assert self.store
        assert self.store.clear()
        assert self.store.stats().blocks == self.store.stats().kept_blocks

    @rule(lose_index=st.booleans())
    def reopen(self, lose_index: bool) -> None:
        assert self.store
        before = self.store.stats().blocks
        self.store.close()
        if lose_index:
            (self.folder / index_file.NAME).unlink()
        self.store = open_store(self.folder, self.budget)
        self.held.clear()
        # Without the index, blocks that were given up but not yet deleted come back.
        after = self.store.stats().blocks
        assert after >= before if lose_index else after == before

    @invariant()
    def what_is_kept_is_there_with_all_before_it(self) -> None:
        if self.store is None:
            return
        chains = self.store._contents.chains
        for own in (*self.held, *self.pinned):
            block = chains.blocks[own]
            assert len(chains.chain(block)) == block.depth + 1

    @invariant()
    def no_block_lost_its_parent(self) -> None:
        if self.store is not None:
            chains = self.store._contents.chains
            for block in chains.blocks.values():
                assert block.parent == chains.root or block.parent in chains.blocks

    @invariant()
    def the_budget_and_the_counts_are_true(self) -> None:
        if self.store is None:
            return
        stats = self.store.stats()
        assert stats.bytes == size_on_disk(self.folder) <= self.budget
        assert stats.live_bytes == stats.blocks * STRIDE
        for segment in self.store._contents.segments.values():
            places = [
                block.index
                for block in self.store._contents.chains.blocks.values()
                if block.segment == segment.number
            ]
            assert len(set(places)) == len(places) == segment.live <= segment.records

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestStore = StoreMachine.TestCase


def make_chains(parents: list[int], used: list[int]) -> Chains:
    """Block n follows block parents[n] - 1, or the root."""
    chains = Chains(b"root")
    for number, (parent, tick) in enumerate(zip(parents, used, strict=True)):
        before = b"root" if parent == 0 else b"%d" % (parent - 1)
        chains.add(Block(b"%d" % number, before, number, 0, 1, number, used=tick))
    return chains


def test_eviction_takes_leaves_only_coldest_first() -> None:
    #        0 - 1 - 2
    #             `- 3         4 - 5
    chains = make_chains([0, 1, 2, 2, 0, 5], [9, 9, 3, 9, 5, 4])
    assert [block.id for block in chains.evict()] == [b"2", b"5", b"4", b"3", b"1", b"0"]
    assert len(chains) == 0


def test_a_parent_counts_as_used_when_its_last_child_was() -> None:
    chains = make_chains([0, 1, 0], [1, 8, 5])
    assert [block.id for block in chains.evict()] == [b"2", b"1", b"0"]


def test_kept_blocks_and_those_before_them_are_never_evicted() -> None:
    chains = make_chains([0, 1, 2, 2, 0, 5], [1, 1, 1, 1, 1, 1])
    chains.pins = frozenset((b"1", b"no such block"))
    chains.hold(b"5")
    chains.hold(b"5")
    chains.release(b"5")
    assert {block.id for block in chains.evict()} == {b"2", b"3"}
    assert chains.kept() == {b"0", b"1", b"4", b"5"}
    chains.release(b"5")
    chains.release(b"5")
    assert [block.id for block in chains.evict()] == [b"5", b"4"]
