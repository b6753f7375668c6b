"""kill -9 at random moments of saving: never a wrong block, never an unreadable start.

Covers R114, R117. The exhaustive version without processes is in test_damage.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colibri.kv import blocks, files
from colibri.kv.slots import SlotFiles
from tests.kv.make import BYTES, FINGERPRINT, TOKENS, ids_of, open_store, payload_of, read_all
from tests.kv.victim import BUDGET

ROOT = Path(__file__).resolve().parents[2]
LONGEST_LIFE = 0.25


def live_and_die(folder: Path, rng: random.Random) -> int:
    """Starts a writer, kills it after a while, returns the last turn that it said was saved."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.kv.victim", str(folder), str(rng.random())],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * LONGEST_LIFE)
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split(b"\n")
    assert child.returncode == -signal.SIGKILL
    # The last piece is empty, or a number that was cut short.
    return max((int(line) for line in lines[:-1]), default=-1)


def check(folder: Path, last: int) -> int:
    """Everything that is found is right; what was said to be saved is found."""
    store = open_store(folder / "blocks", BUDGET)
    assert store.state == "ready"
    assert store.stats().bytes <= BUDGET
    for own in tuple(store._contents.chains.blocks):
        into = memoryview(bytearray(BYTES))
        assert store._contents.read(own, into) == "", "a record that looks whole is not"
        assert into == payload_of(own)
    slots = SlotFiles(folder, FINGERPRINT, TOKENS)
    saved = 0
    for slot in range(2):
        state = slots.load(slot)
        if state is None:
            continue
        saved = max(saved, int(state.draft))
        whole = state.tokens[: len(state.blocks) * TOKENS]
        assert list(state.blocks) == ids_of(store, whole)
        if last >= 0 and int(state.draft) == last:
            assert read_all(store, whole) == len(state.blocks), "a saved turn was lost"
    # A later turn may have been saved and not told.
    assert last < 0 or saved >= last
    assert [path.name for path in folder.glob(".coli_kv.*-*")] == []
    count = store.stats().blocks
    store.close()
    return count


def kill_often(folder: Path, rng: random.Random, times: int) -> None:
    turns = found = 0
    for _ in range(times):
        for slot in range(2):
            files.remove(SlotFiles(folder, FINGERPRINT, TOKENS).path(slot))
        last = live_and_die(folder, rng)
        turns += max(0, last)
        found += check(folder, last)
    # The kills met a store at work, not one that starts.
    assert turns > times // 3
    assert found > times


def test_a_process_killed_at_random_moments_leaves_a_readable_store(
    tmp_path: Path, seeded: random.Random
) -> None:
    kill_often(tmp_path, seeded, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_kills_leave_a_readable_store(
    tmp_path: Path, seeded: random.Random, scale: int
) -> None:
    kill_often(tmp_path, seeded, 500 * scale)


def test_ids_of_this_harness_are_the_ids_of_the_store() -> None:
    parent = blocks.root_id(FINGERPRINT)
    tokens = tuple(range(2 * TOKENS))
    first, second = blocks.chain_ids(parent, blocks.pack_tokens(tokens), TOKENS)
    assert first == blocks.block_id(parent, blocks.pack_tokens(tokens[:TOKENS]))
    assert second == blocks.block_id(first, blocks.pack_tokens(tokens[TOKENS:]))
