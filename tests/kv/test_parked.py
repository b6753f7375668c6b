"""Unfinished chunks on disk: whole or a miss, few, within the store's budget, gone when not needed.

Covers R052, R114, R118.
"""

from __future__ import annotations

import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colibri.kv import files, inventory, parked
from colibri.kv.parked import LEAD, MOST, ROWS, Parked, ParkedChunks, kv_name
from colibri.kv.segments import no_pace
from colibri.kv.store import PrefixStore
from colibri.kv.writer import Piece, Writer
from tests.kv.make import STRIDE, TOKENS, open_store, put_all, size_on_disk, tokens_of

PROMPT = tokens_of(1, 2, 3, 4)
FIRST, END = TOKENS + 2, len(PROMPT) - 1
SIZES = {LEAD: 700, kv_name(0): 900, kv_name(1): 900, ROWS: 2000}


def payload(name: str, number: int = 0) -> memoryview:
    return memoryview(random.Random(f"{name} {number}").randbytes(SIZES[name]))  # noqa: S311


def save(chunks: ParkedChunks, prompt: list[int], layers: int = 2) -> Parked:
    """A chunk with everything that it takes to go on behind `layers` layers."""
    one = chunks.begin(prompt, FIRST, END)
    assert one is not None
    for name in (LEAD, *map(kv_name, range(layers))):
        assert chunks.write(one, name, payload(name), 0, no_pace)
    assert chunks.write(one, ROWS, payload(ROWS, layers), layers, no_pace)
    return one


def whole(chunks: ParkedChunks, one: Parked) -> bool:
    """Whether every piece comes back as it was written."""
    for name in (LEAD, *map(kv_name, range(one.chunk.layers)), ROWS):
        into = memoryview(bytearray(SIZES[name]))
        if not chunks.read(one, name, into):
            return False
        assert into == payload(name, one.chunk.layers if name == ROWS else 0), name
    return True


def in_folder(store: PrefixStore) -> int:
    return sum(path.stat().st_size for path in (store.folder / parked.NAME).glob("*/*"))


def test_a_saved_chunk_is_found_by_prompts_that_begin_with_it_after_a_restart_too(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    save(chunks, PROMPT)
    for _ in range(2):
        for prompt in (PROMPT, PROMPT[:END], [*PROMPT, 5, 6]):
            found = chunks.find(prompt)
            assert found is not None
            assert (found.chunk.first, found.chunk.end, found.chunk.layers) == (FIRST, END, 2)
            assert whole(chunks, found)
        for other in (PROMPT[: END - 1], [9, *PROMPT[1:]], [*PROMPT[: END - 1], 9, 9]):
            assert chunks.find(other) is None
        assert store.beside == in_folder(store) > 0
        store.close()
        store = open_store(tmp_path)
        chunks = ParkedChunks(store)
    store.close()


def test_nothing_is_found_before_the_rows_are_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    one = chunks.begin(PROMPT, FIRST, END)
    assert one is not None
    assert chunks.write(one, kv_name(0), payload(kv_name(0)), 0, no_pace)
    assert chunks.find(PROMPT) is None
    assert chunks.begin(PROMPT, FIRST, END) is one
    store.close()
    store = open_store(tmp_path)
    ParkedChunks(store)
    assert in_folder(store) == store.beside == 0, "what is of no use is deleted"
    store.close()


def test_later_rows_replace_the_earlier_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    one = save(chunks, PROMPT, 1)
    before = store.beside
    assert chunks.write(one, kv_name(1), payload(kv_name(1)), 0, no_pace)
    assert chunks.write(one, ROWS, payload(ROWS, 2), 2, no_pace)
    found = chunks.find(PROMPT)
    assert found is not None
    assert found.chunk.layers == 2
    assert whole(chunks, found)
    assert before + SIZES[kv_name(1)] < store.beside == in_folder(store) < before + 1200
    store.close()


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    """R114."""
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    one = save(chunks, PROMPT)
    rng = random.Random(3)  # noqa: S311
    for name, size in SIZES.items():
        path = one.folder / name
        data = path.read_bytes()
        into = memoryview(bytearray(size))
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            assert not chunks.read(one, name, into), f"{name}: byte {place}"
        for end in range(0, len(data), 61):
            path.write_bytes(data[:end])
            assert not chunks.read(one, name, into), f"{name}: cut at {end}"
        path.write_bytes(data)
    assert whole(chunks, one)
    # Pieces in the wrong place are whole, and not what they should be.
    shutil.copy(one.folder / kv_name(0), one.folder / kv_name(1))
    assert not whole(chunks, one)
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        {"start": -TOKENS},
        {"first": -1},
        {"first": 1 << 63},
        {"first": END},
        {"tokens": b"\0" * 7},
        {"layers": -1},
        {"layers": 1 << 30},
        {"layers": 3},
    ],
)
def test_a_place_that_no_chunk_has_is_a_miss(tmp_path: Path, change: dict[str, Any]) -> None:
    """What rows say of their chunk is believed before their checksum is looked at."""
    store = open_store(tmp_path)
    one = save(ParkedChunks(store), PROMPT)
    store.close()
    chunk = msgspec.structs.replace(one.chunk, **change)
    own = one.chunk.id if min(chunk.start, chunk.first) < 0 else chunk.id
    meta = msgspec.msgpack.encode(parked._Meta(store.root, own, ROWS, chunk))
    data = parked._HEAD.pack(parked._MAGIC, len(meta), SIZES[ROWS]) + meta + payload(ROWS, 2)
    (one.folder / ROWS).write_bytes(data + parked._CRC.pack(zlib.crc32(data)))
    store = open_store(tmp_path)
    assert ParkedChunks(store).find(PROMPT) is None
    assert in_folder(store) == 0
    store.close()


def test_another_models_chunks_are_not_believed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(ParkedChunks(store), PROMPT)
    store.close()
    other = open_store(tmp_path, fingerprint="weights 2")
    assert ParkedChunks(other).find(PROMPT) is None
    assert in_folder(other) == 0
    other.close()


def test_few_chunks_are_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    prompts = [tokens_of(1, number, 3, 4) for number in range(10, 10 + MOST + 2)]
    for prompt in prompts:
        save(chunks, prompt)
    found = [chunks.find(prompt) is not None for prompt in prompts]
    assert found == [False, False, *[True] * MOST]
    assert store.beside == in_folder(store)
    store.close()


def test_blocks_and_chunks_share_the_budget(tmp_path: Path) -> None:
    budget = 20 * STRIDE
    store = open_store(tmp_path, budget)
    chunks = ParkedChunks(store)
    for number in range(100, 130):
        put_all(store, tokens_of(number, number + 1000))
        if number % 3 == 0:
            save(chunks, tokens_of(1, number, 3, 4))
        assert size_on_disk(tmp_path) + in_folder(store) <= budget
    assert store.stats().bytes == size_on_disk(tmp_path) + in_folder(store)
    store.close()


def test_a_chunk_too_large_for_its_share_is_given_up(tmp_path: Path) -> None:
    store = open_store(tmp_path, 8 * STRIDE)
    chunks = ParkedChunks(store)
    one = chunks.begin(PROMPT, FIRST, END)
    assert one is not None
    assert chunks.write(one, kv_name(0), payload(kv_name(0)), 0, no_pace)
    big = memoryview(bytes(store.budget // 4))
    assert not chunks.write(one, ROWS, big, 1, no_pace)
    assert one.dropped.is_set()
    assert chunks.find(PROMPT) is None
    assert in_folder(store) == store.beside == 0
    store.close()


def test_what_a_disk_refuses_costs_the_chunk_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R118."""
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    one = chunks.begin(PROMPT, FIRST, END)
    assert one is not None

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(files.DataFile, "write", full)
        assert not chunks.write(one, LEAD, payload(LEAD), 0, no_pace)
        assert not chunks.write(one, kv_name(0), payload(kv_name(0)), 0, no_pace)
    assert len(caplog.records) == 1
    assert in_folder(store) == store.beside == 0
    assert whole(chunks, save(chunks, PROMPT))
    store.close()
    assert chunks.begin(PROMPT, FIRST, END) is None
    assert not chunks.write(one, LEAD, payload(LEAD), 0, no_pace)


def test_what_is_stored_in_blocks_covers_its_chunks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chunks = ParkedChunks(store)
    one = save(chunks, PROMPT)
    assert chunks.covered(PROMPT[: END - 1]) == []
    assert chunks.covered([9, *PROMPT[1:]]) == []
    assert chunks.covered(PROMPT) == [one]
    chunks.remove(one)
    assert chunks.find(PROMPT) is None
    assert not one.folder.exists()
    store.close()


def test_the_writer_takes_pieces_in_their_turn(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    writer = Writer(store, queue_bytes=1000)
    order: list[str] = []

    def run(_pace: object) -> bool:
        order.append("run")
        return True

    def fail(_pace: object) -> bool:
        raise RuntimeError("a fault of ours")

    assert writer.submit(Piece(memoryview(bytes(900)), run, lambda ok: order.append(f"{ok!r}")))
    assert not writer.submit(Piece(memoryview(bytes(1001)), run))
    assert writer.flush(20)
    assert writer.submit(Piece(memoryview(b""), fail, lambda ok: order.append(f"{ok!r}")))
    assert writer.stop(20)
    assert order == ["run", "b''", "None"]
    assert writer.stats().written_blocks == 0
    store.close()


def test_the_inventory_counts_and_clears_chunks(tmp_path: Path) -> None:
    store = open_store(tmp_path / inventory.STORE_NAME)
    save(ParkedChunks(store), PROMPT)
    put_all(store, PROMPT)
    held = store.stats().bytes
    store.close()
    assert inventory.look(tmp_path).held_bytes == held
    inventory.clear(tmp_path, pinned=False)
    assert inventory.look(tmp_path).held_bytes == 0
    assert not (tmp_path / inventory.STORE_NAME / parked.NAME).exists()


def test_folders_that_are_none_of_ours_are_deleted_and_never_followed(tmp_path: Path) -> None:
    place = tmp_path / parked.NAME
    (place / "notes").mkdir(parents=True)
    (place / ("00000001-" + "0" * 64)).mkdir()
    (place / ("00000002-" + "0" * 64)).mkdir()
    (place / ("00000002-" + "0" * 64) / ROWS).write_bytes(b"COLIKVC1" + b"\xff" * 100)
    store = open_store(tmp_path)
    assert ParkedChunks(store).find(PROMPT) is None
    assert not list(place.iterdir())
    store.close()
