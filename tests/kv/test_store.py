"""The prefix store: what is put is found and read back, within the budget, over restarts.

Covers R105, R106, R112, R116, R117.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from colibri.kv import index_file, lock, pins
from tests.kv.make import (
    BYTES,
    STRIDE,
    TOKENS,
    fill,
    ids_of,
    open_store,
    payload_of,
    put_all,
    read_all,
    size_on_disk,
    tokens_of,
)


def test_what_is_put_is_matched_and_read_back_after_a_restart(tmp_path: Path) -> None:
    """R117."""
    store = open_store(tmp_path)
    tokens = [*tokens_of(1, 2, 3), 7]
    assert put_all(store, tokens) == ids_of(store, tokens)
    assert store.missing(tokens) == []
    store.close()
    again = open_store(tmp_path)
    refs = again.match(tokens)
    assert [(ref.id, ref.depth) for ref in refs] == list(
        zip(ids_of(again, tokens), range(3), strict=True)
    )
    assert read_all(again, tokens) == 3
    again.close()


def test_the_longest_common_beginning_is_found_and_only_the_rest_is_missing(tmp_path: Path) -> None:
    """R105, R106: everything before the changed token is there."""
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2, 3, 4))
    other = tokens_of(1, 2, 9, 4)
    assert len(store.match(other)) == 2
    assert [part.index for part in store.missing(other)] == [2, 3]
    assert [part.index for part in store.missing(other, 3)] == [3]
    assert store.missing(other)[0].parent == store.match(other)[-1].id
    assert store.match(tokens_of(9, 1)) == ()
    assert store.match(tokens_of(1)[:3]) == ()
    store.close()


def test_a_prefix_that_two_conversations_share_is_stored_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2, 3))
    before = size_on_disk(tmp_path)
    assert len(put_all(store, tokens_of(1, 2, 4))) == 1
    assert size_on_disk(tmp_path) == before + STRIDE
    # The same block again is a wish that is already fulfilled.
    own = ids_of(store, tokens_of(1))[0]
    assert store.put(store.root, tokens_of(1), payload_of(own)) == own
    assert size_on_disk(tmp_path) == before + STRIDE
    store.close()


def test_a_block_whose_parent_is_not_stored_is_not_taken(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    orphan = store.missing(tokens_of(1, 2))[1]
    assert store.put(orphan.parent, orphan.tokens, memoryview(bytes(BYTES))) is None
    assert store.stats().refused_blocks == 1
    store.close()


def test_the_size_of_the_context_is_no_part_of_a_block(tmp_path: Path) -> None:
    """R112: a restart with another context finds what was computed before."""
    store = open_store(tmp_path)
    put_all(store, tokens_of(*range(20)))
    store.close()
    again = open_store(tmp_path)
    assert len(again.match(tokens_of(*range(6)))) == 6
    again.close()


@pytest.mark.parametrize(
    "other",
    [{"fingerprint": "weights 2"}, {"block_tokens": 8}, {"block_bytes": BYTES + 1}],
    ids=str,
)
def test_blocks_of_another_model_or_layout_are_never_matched_and_go_first(
    tmp_path: Path, other: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(*range(40)))
    store.close()
    foreign = open_store(tmp_path, **other)
    assert foreign.match(tokens_of(*range(40))) == ()
    assert foreign.stats().other_bytes > 40 * STRIDE
    assert "another model's" in caplog.text
    foreign.close()
    # Back with the first model everything is there; filling the budget drops the other one's.
    store = open_store(tmp_path, budget=50 * STRIDE)
    assert read_all(store, tokens_of(*range(40))) == 40
    store.close()
    foreign = open_store(tmp_path, budget=50 * STRIDE, **other)
    size = foreign.geometry.block_bytes
    step = foreign.geometry.block_tokens
    assert foreign.put(foreign.root, range(step), memoryview(bytes(size))) is not None
    parent = foreign.match(range(step))[0].id
    for number in range(30):
        tokens = range(100 * number, 100 * number + step)
        own = foreign.put(parent, tokens, memoryview(bytes(size)))
        assert own is not None
        parent = own
    assert foreign.stats().other_bytes < 40 * STRIDE
    assert foreign.stats().evicted_blocks == 0
    foreign.close()


def test_the_budget_holds_and_the_coldest_conversation_goes_first(tmp_path: Path) -> None:
    """R116."""
    budget = 60 * STRIDE
    store = open_store(tmp_path, budget)
    fill(store, 0, 20)
    hot = tokens_of(1000, 2000)
    for number in range(20, 200):
        assert len(store.match(hot)) == 2
        fill(store, number, 1)
        assert size_on_disk(tmp_path) <= budget
    stats = store.stats()
    assert stats.bytes == size_on_disk(tmp_path)
    assert stats.evicted_blocks > 200
    assert stats.blocks > 35, "most of the budget is used"
    assert read_all(store, hot) == 2
    assert store.match(tokens_of(1001, 2001)) == ()
    assert read_all(store, tokens_of(1199, 2199)) == 2
    store.close()
    again = open_store(tmp_path, budget)
    assert read_all(again, hot) == 2
    again.close()


def test_a_smaller_budget_takes_effect_with_the_next_block(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 0, 40)
    store.close()
    store = open_store(tmp_path, 20 * STRIDE)
    fill(store, 40, 1)
    assert size_on_disk(tmp_path) <= 20 * STRIDE
    assert read_all(store, tokens_of(1040, 2040)) == 2
    store.close()


def test_use_before_a_restart_counts_after_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 0, 20)
    store.match(tokens_of(1000, 2000))
    store.close()
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 20, 15)
    assert len(store.match(tokens_of(1000, 2000))) == 2
    assert store.match(tokens_of(1001, 2001)) == ()
    store.close()


def test_what_is_held_stays_and_what_is_pinned_stays_over_restarts(tmp_path: Path) -> None:
    """R110."""
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 0, 3)
    held, pinned, cold = (ids_of(store, tokens_of(1000 + n, 2000 + n))[-1] for n in range(3))
    store.hold(held)
    assert store.pin(pinned)
    fill(store, 3, 100)
    assert store.holds(held)
    assert store.holds(pinned)
    assert not store.holds(cold)
    assert store.stats().kept_blocks == 4
    store.release(held)
    store.close()
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 103, 100)
    assert read_all(store, tokens_of(1001, 2001)) == 2
    assert not store.holds(held)
    assert store.unpin(pinned)
    fill(store, 203, 100)
    assert not store.holds(pinned)
    store.close()


def test_R116_what_was_read_lately_is_remembered_over_a_kill(tmp_path: Path) -> None:
    """Nothing is written when prompts are served from disk; the index is, now and then."""
    store = open_store(tmp_path, 60 * STRIDE)
    first, second = tokens_of(1, 2), tokens_of(3, 4)
    put_all(store, first)
    put_all(store, second)
    store.sync()
    assert len(store.match(first)) == 2
    store.remember()
    index = (tmp_path / index_file.NAME).stat()
    store.remember()
    assert (tmp_path / index_file.NAME).stat().st_mtime_ns == index.st_mtime_ns
    # Killed: nothing is closed. Another process sees what was used last.
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy", "lock"))
    again = open_store(copy, 60 * STRIDE)
    assert [chain.id for chain in again.list()] == [
        ids_of(store, first)[-1],
        ids_of(store, second)[-1],
    ]
    again.close()
    store.close()


def test_a_pin_set_by_another_process_is_respected_by_the_running_store(tmp_path: Path) -> None:
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 0, 1)
    pins.change(tmp_path, add=frozenset((ids_of(store, tokens_of(1000, 2000))[-1],)))
    fill(store, 1, 100)
    assert read_all(store, tokens_of(1000, 2000)) == 2
    assert store.list()[0].kept_tokens == 2 * TOKENS
    store.close()


def test_with_everything_pinned_nothing_more_is_stored_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, 20 * STRIDE)
    long = tokens_of(*range(30))
    stored = put_all(store, tokens_of(*range(10)))
    store.hold(stored[-1])
    more = put_all(store, long)
    for own in more:
        store.hold(own)
    assert put_all(store, tokens_of(77, 78)) == []
    assert put_all(store, tokens_of(79, 80)) == []
    assert caplog.text.count("pinned or in use") == 1
    assert read_all(store, long) == 10 + len(more)
    store.close()


@pytest.mark.parametrize("budget", [0, -1])
def test_without_a_budget_there_is_no_store_and_no_folder(tmp_path: Path, budget: int) -> None:
    store = open_store(tmp_path / "kv", budget)
    assert store.state == "off"
    assert put_all(store, tokens_of(1)) == []
    assert store.match(tokens_of(1)) == ()
    assert not store.clear()
    assert not store.sync()
    assert not (tmp_path / "kv").exists()
    store.close()


def test_a_budget_for_less_than_a_few_blocks_is_said_to_be_too_small(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kv", 3 * STRIDE)
    assert store.state == "off"
    assert "fewer than 4 blocks" in store.note


@pytest.mark.parametrize("sizes", [(0, 1), (769, 1), (1, 0), (1, (1 << 30) + 1)])
def test_impossible_sizes_are_a_mistake_of_the_program(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match="block_"):
        open_store(tmp_path, block_tokens=sizes[0], block_bytes=sizes[1])


def test_a_second_store_only_reads_and_says_who_writes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2))
    second = open_store(tmp_path)
    assert second.state == "read-only"
    assert str(os.getpid()) in second.note
    assert read_all(second, tokens_of(1, 2)) == 2
    assert put_all(second, tokens_of(3)) == []
    assert not second.clear()
    # What the writer deletes under it is a miss at worst, never a wrong block.
    assert store.clear()
    assert read_all(second, tokens_of(1, 2)) in (0, 2)
    second.close()
    store.close()
    third = open_store(tmp_path)
    assert third.state == "ready"
    third.close()


def test_the_lock_of_a_process_that_died_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from tests.kv.make import *\n"
        "store = open_store(pathlib.Path(sys.argv[1]))\n"
        "put_all(store, tokens_of(1, 2))\n"
        "print(store.state, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdout == "ready\n", child.stderr
    assert (tmp_path / lock.OWNER_NAME).exists()
    assert lock.owner(tmp_path) is None
    store = open_store(tmp_path)
    assert store.state == "ready"
    assert read_all(store, tokens_of(1, 2)) == 2
    store.close()


def test_the_index_may_be_lost_stale_or_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 0, 10)
    store.close()
    old = (tmp_path / index_file.NAME).read_bytes()
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 10, 100)
    store.close()
    new = (tmp_path / index_file.NAME).read_bytes()
    for content in (b"", b"x" * 100, old, new[:-1], new, None):
        if content is None:
            (tmp_path / index_file.NAME).unlink()
        else:
            (tmp_path / index_file.NAME).write_bytes(content)
        store = open_store(tmp_path, 60 * STRIDE)
        assert read_all(store, tokens_of(1109, 2109)) == 2
        assert store.stats().blocks > 35
        store.close()


def test_an_index_never_speaks_for_a_new_segment_of_an_old_number(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 0, 10)
    store.close()
    old = (tmp_path / index_file.NAME).read_bytes()
    for path in tmp_path.glob("*.seg"):
        path.unlink()
    (tmp_path / index_file.NAME).write_bytes(old)
    store = open_store(tmp_path)
    assert store.stats().blocks == 0
    fill(store, 50, 5)
    (tmp_path / "copy").mkdir()
    for path in tmp_path.glob("*.seg"):
        shutil.copy(path, tmp_path / "copy")
    store.close()
    (tmp_path / "copy" / index_file.NAME).write_bytes(old)
    store = open_store(tmp_path / "copy")
    assert read_all(store, tokens_of(1050, 2050)) == 2
    store.close()


def test_clearing_leaves_what_is_pinned_or_held(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 0, 20)
    store.pin(ids_of(store, tokens_of(1003, 2003))[-1])
    store.hold(ids_of(store, tokens_of(1007, 2007))[0])
    assert store.clear()
    assert store.stats().blocks == 3
    assert size_on_disk(tmp_path) <= 3 * STRIDE + 4096
    assert read_all(store, tokens_of(1003, 2003)) == 2
    store.close()
    store = open_store(tmp_path)
    assert store.stats().blocks == 3
    store.close()


def test_the_list_names_every_conversation_once_the_last_used_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2, 3))
    put_all(store, tokens_of(1, 2, 4, 5))
    store.match(tokens_of(1, 2, 3))
    first, second = store.list()
    assert first.id == ids_of(store, tokens_of(1, 2, 3))[-1]
    assert (first.blocks, first.own_blocks, first.tokens) == (3, 3, 3 * TOKENS)
    assert (second.blocks, second.own_blocks, second.tokens) == (4, 2, 4 * TOKENS)
    store.close()


def test_reading_goes_on_while_blocks_are_written_and_segments_rewritten(tmp_path: Path) -> None:
    store = open_store(tmp_path, 60 * STRIDE)
    hot = tokens_of(1, 2, 3)
    put_all(store, hot)
    store.hold(ids_of(store, hot)[-1])
    ended = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not ended.is_set():
                assert read_all(store, hot) == 3
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    fill(store, 0, 150)
    ended.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert store.stats().moved_blocks > 0
    store.close()
