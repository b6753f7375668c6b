"""Files that are damaged, cut or swapped: a miss at worst, never a wrong payload.

Covers R114, R118.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri.kv import blocks, files, index_file, segments
from colibri.kv.segments import Segment
from tests.kv.make import (
    BYTES,
    STRIDE,
    open_store,
    put_all,
    put_tail,
    read_all,
    read_tail,
    tokens_of,
)

CHAIN = tokens_of(1, 2, 3)
BRANCH = tokens_of(1, 2, 4)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with two conversations in one segment."""
    folder = tmp_path_factory.mktemp("filled")
    store = open_store(folder)
    put_all(store, CHAIN)
    put_all(store, BRANCH)
    store.close()
    assert len(list(folder.glob("*.seg"))) == 1
    return folder


def check(folder: Path) -> tuple[int, int]:
    """Opens, reads and continues a store; returns how much of the two conversations was left."""
    store = open_store(folder)
    assert store.state == "ready"
    left = read_all(store, CHAIN), read_all(store, BRANCH)
    # A turn computes what it could not read; one damaged block is noticed a turn.
    for _ in range(3):
        for tokens in (CHAIN, BRANCH):
            put_all(store, tokens)
            read_all(store, tokens)
    # Computed again and stored, everything is as if nothing had happened, also after a restart.
    assert (read_all(store, CHAIN), read_all(store, BRANCH)) == (3, 3)
    store.close()
    store = open_store(folder)
    assert (read_all(store, CHAIN), read_all(store, BRANCH)) == (3, 3)
    store.close()
    return left


def flip(filled: Path, tmp_path: Path, places: list[int], rng: random.Random) -> int:
    """Flips a bit of each of these bytes in turn; returns how often something was lost."""
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = (filled / name).read_bytes()
    lost = 0
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(damaged)
        if number % 2:
            shutil.copy(filled / index_file.NAME, folder)
        store = open_store(folder)
        # `read_all` fails if a payload is wrong.
        left = read_all(store, CHAIN), read_all(store, BRANCH)
        store.close()
        shutil.rmtree(folder)
        lost += left != (3, 3)
        # Only the padding of payloads is nobody's business.
        if place < 4096 or (place - 4096) % STRIDE < 4096 + BYTES:
            assert left != (3, 3), f"a flip of byte {place} went unnoticed"
    return lost


def test_a_flipped_byte_is_a_miss_at_worst(
    filled: Path, tmp_path: Path, seeded: random.Random
) -> None:
    """R114."""
    fields = [start + at for start in (0, 4096, 4096 + STRIDE) for at in range(140)]
    everything = range(4096 + 4 * STRIDE)
    places = [*seeded.sample(fields, 60), *seeded.sample(everything, 40), 0, 4095, 8191]
    assert flip(filled, tmp_path, places, seeded) > 60


@pytest.mark.slow
def test_every_byte_of_the_heads_flipped_in_turn_is_a_miss_at_worst(
    filled: Path, tmp_path: Path, seeded: random.Random
) -> None:
    """R114."""
    places = [*range(8192), *seeded.sample(range(8192, 4096 + 4 * STRIDE), 500)]
    assert flip(filled, tmp_path, places, seeded) > 8192


def test_a_flipped_byte_of_a_tail_is_a_miss_at_worst(
    filled: Path, tmp_path: Path, seeded: random.Random
) -> None:
    """R114: its tokens and its number of tokens included."""
    shutil.copytree(filled, tmp_path / "saved")
    store = open_store(tmp_path / "saved")
    said = [*CHAIN, 91, 92, 93]
    assert put_tail(store, said)
    store.close()
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = (tmp_path / "saved" / name).read_bytes()
    start = len(data) - STRIDE
    heads = [start + at for at in range(160)]
    for number, place in enumerate([*heads, *seeded.sample(range(start, start + BYTES), 40)]):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "saved", folder)
        damaged = bytearray(data)
        damaged[place] ^= 1 << seeded.randrange(8)
        (folder / name).write_bytes(damaged)
        if number % 2:
            (folder / index_file.NAME).unlink()
        store = open_store(folder)
        assert read_tail(store, said) == 0, f"a flip of byte {place} went unnoticed"
        assert (read_all(store, CHAIN), read_all(store, BRANCH)) == (3, 3)
        assert put_tail(store, said), "what is computed again is stored again"
        assert read_tail(store, said) == 3
        store.close()
        shutil.rmtree(folder)


def test_after_a_flip_what_is_computed_again_is_stored_again(
    filled: Path, tmp_path: Path, seeded: random.Random
) -> None:
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = (filled / name).read_bytes()
    for number, place in enumerate([3, 4096 + 9, 8192 + 77, *seeded.sample(range(len(data)), 12)]):
        folder = tmp_path / str(number)
        shutil.copytree(filled, folder)
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        (folder / name).write_bytes(damaged)
        check(folder)


def test_a_segment_cut_anywhere_keeps_its_whole_records(
    filled: Path, tmp_path: Path, seeded: random.Random
) -> None:
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = (filled / name).read_bytes()
    ends = [0, 1, 4095, 4096, 4097, 8192, 4096 + STRIDE, len(data) - 1]
    for number, end in enumerate([*ends, *seeded.sample(range(len(data)), 12)]):
        folder = tmp_path / str(number)
        shutil.copytree(filled, folder)
        (folder / name).write_bytes(data[:end])
        whole = max(0, end - 4096) // STRIDE
        assert check(folder)[0] == min(whole, 3)


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_pages_that_a_power_failure_left_empty_are_noticed(
    filled: Path, tmp_path: Path, fill: bytes
) -> None:
    """Names and lengths may reach the disk before the bytes do."""
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = (filled / name).read_bytes()
    for page in range(len(data) // 4096):
        folder = tmp_path / str(page)
        shutil.copytree(filled, folder)
        damaged = bytearray(data)
        damaged[page * 4096 : (page + 1) * 4096] = fill * 4096
        (folder / name).write_bytes(damaged)
        check(folder)


def test_records_in_the_wrong_place_are_noticed(filled: Path, tmp_path: Path) -> None:
    """Two whole records have changed places; the index still says where they were."""
    (name,) = [path.name for path in filled.glob("*.seg")]
    data = bytearray((filled / name).read_bytes())
    first, second = slice(4096, 4096 + STRIDE), slice(4096 + STRIDE, 4096 + 2 * STRIDE)
    data[first], data[second] = data[second], data[first]
    shutil.copytree(filled, tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(data)
    assert check(tmp_path / "a") == (0, 0)


def test_a_record_of_another_model_is_not_believed(filled: Path, tmp_path: Path) -> None:
    (name,) = [path.name for path in filled.glob("*.seg")]
    other = open_store(tmp_path, fingerprint="weights 2")
    put_all(other, CHAIN)
    other.close()
    (target,) = list(tmp_path.glob("*.seg"))
    data = bytearray((filled / name).read_bytes())
    data[:4096] = target.read_bytes()[:4096]
    target.write_bytes(data)
    (tmp_path / index_file.NAME).unlink()
    other = open_store(tmp_path, fingerprint="weights 2")
    assert other.stats().blocks == 0
    other.close()


def test_what_does_not_belong_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000007.seg").write_text("not a segment")
    (tmp_path / "00000008.seg").mkdir()
    (tmp_path / "00000009.segment").write_text("")
    store = open_store(tmp_path)
    assert len(put_all(store, CHAIN)) == 3
    store.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "00000009.segment").exists()
    store = open_store(tmp_path)
    assert read_all(store, CHAIN) == 3
    store.close()


def test_a_read_error_is_a_miss(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R118."""
    shutil.copytree(filled, tmp_path / "a")
    store = open_store(tmp_path / "a")
    (ref, *_) = store.match(CHAIN)

    def fail(*_: Any) -> int:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(files.DataFile, "read_into", fail)
        into = memoryview(bytearray(b"x" * BYTES))
        assert not store.read(ref, into)
        assert into == bytes(BYTES)
    assert store.stats().damaged_blocks == 1
    assert put_all(store, CHAIN)
    assert read_all(store, CHAIN) == 3
    store.close()


# ---- an end between any two operations on files ----


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def kill_at(patch: pytest.MonkeyPatch, number: int, torn: bool) -> None:
    """The `number`th operation that changes a file does not happen, or only its first half."""
    count = iter(range(1 << 30))

    def wrap(owner: object, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def operation(*arguments: Any, **named: Any) -> Any:
            at = next(count)
            if at < number:
                return original(*arguments, **named)
            if at == number and torn and name == "write":
                file, offset, data = arguments
                original(file, offset, data[: len(data) // 2])
            raise Killed

        patch.setattr(owner, name, operation)

    for name in ("write", "truncate"):
        wrap(files.DataFile, name)
    for name in ("remove", "rename"):
        wrap(files, name)


ROUNDS = 6


def work(folder: Path, budget: int) -> None:
    store = open_store(folder, budget)
    try:
        for number in range(ROUNDS):
            put_all(store, tokens_of(1, 2, 100 + number, 200 + number))
            store.match(tokens_of(1, 2, 3))
            put_all(store, tokens_of(1, 2, 3))
        store.clear()
        put_all(store, tokens_of(1, 2, 3))
        store.close()
    finally:
        # What the system does when a process ends.
        store._contents.abandon()
        store._lock.release()


def ends(tmp_path: Path, budget: int, torn: bool) -> tuple[int, int]:
    """Ends the work at every operation, then opens and checks; returns ends, damaged blocks."""
    damaged = 0
    for number in range(10_000):
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number, torn)
            try:
                work(folder, budget)
            except Killed:
                pass
            else:
                return number, damaged
        store = open_store(folder, budget)
        assert store.state == "ready"
        for last in range(ROUNDS):
            read_all(store, tokens_of(1, 2, 100 + last, 200 + last))
        before = read_all(store, tokens_of(1, 2, 3))
        damaged += store.stats().damaged_blocks
        put_all(store, tokens_of(1, 2, 3))
        assert read_all(store, tokens_of(1, 2, 3)) >= before
        assert sum(path.stat().st_size for path in folder.glob("*.seg")) <= budget
        store.close()
        shutil.rmtree(folder)
    raise AssertionError("the work never ends")


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("places", [6, 36])
def test_an_end_between_any_two_operations_leaves_a_readable_store(
    tmp_path: Path, places: int, torn: bool
) -> None:
    count, damaged = ends(tmp_path, places * STRIDE, torn)
    assert count > 60
    assert damaged == 0, "a record that looks whole is not"


def test_the_ends_notice_a_head_that_is_written_before_its_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: in the wrong order records look whole that are not. None is believed."""
    append = Segment.append

    def head_first(self: Segment, head: Any, payload: memoryview, pace: Any) -> int:
        page = memoryview(blocks.encode_record(head, self.geometry))
        self.file.truncate(self.geometry.offset(self.records + 1))
        self.file.write(self.geometry.offset(self.records), page)
        return append(self, head, payload, pace)

    monkeypatch.setattr(Segment, "append", head_first)
    assert ends(tmp_path, 36 * STRIDE, True)[1] > 0


def test_segment_files_are_found_by_number(tmp_path: Path) -> None:
    for name in ("00000010.seg", "00000002.seg", "1.seg", "x.seg", "00000003.seg.tmp"):
        (tmp_path / name).write_text("")
    assert [number for number, _ in segments.numbered(tmp_path)] == [2, 10]
