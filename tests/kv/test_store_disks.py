"""The prefix store on disks that are full, failing, gone or read-only, and among people.

Whatever happens costs stored blocks and a line in the log, never an answer.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from colibri.kv import blocks, files, lock, pins
from colibri.kv.store import budget_bytes
from tests.kv.make import (
    STRIDE,
    TOKENS,
    fill,
    ids_of,
    open_store,
    put_all,
    read_all,
    size_on_disk,
    tokens_of,
)


def fail_writes(monkeypatch: pytest.MonkeyPatch, number: int, after: int = 0) -> None:
    """Every write fails with this error from the `after`th on, with some bytes written."""
    write, count = files.DataFile.write, iter(range(1 << 30))

    def failing(self: files.DataFile, offset: int, data: memoryview) -> None:
        if next(count) >= after:
            write(self, offset, data[: len(data) // 2])
            raise OSError(number, os.strerror(number))
        write(self, offset, data)

    monkeypatch.setattr(files.DataFile, "write", failing)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_or_failing_disk_costs_new_blocks_only(
    tmp_path: Path, after: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        fail_writes(patch, number, after)
        assert len(put_all(store, tokens_of(3, 4, 5, 6, 7))) < 5
        assert put_all(store, tokens_of(8)) == []
    assert caplog.text.count("nothing is stored for 60 s") == 1
    assert os.strerror(number) in caplog.text
    assert read_all(store, tokens_of(1, 2)) == 2
    store._paused_until = 0.0  # a minute later
    assert len(put_all(store, tokens_of(8, 9))) == 2
    store.close()
    again = open_store(tmp_path)
    assert read_all(again, tokens_of(8, 9)) == 2
    assert read_all(again, tokens_of(1, 2)) == 2
    again.close()


def test_a_nearly_full_disk_is_left_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, spare_disk=1 << 60)
    assert put_all(store, tokens_of(1, 2)) == []
    assert caplog.text.count("the disk is nearly full") == 1
    store.close()


def test_a_disk_that_fills_up_while_segments_are_rewritten_loses_nothing_else(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, 60 * STRIDE)
    kept = tokens_of(1, 2, 3)
    put_all(store, kept)
    store.hold(ids_of(store, kept)[-1])
    for number in range(100):
        with pytest.MonkeyPatch.context() as patch:
            fail_writes(patch, errno.ENOSPC, number % 7)
            fill(store, number, 1)
        store._paused_until = 0.0
        fill(store, 1000 + number, 1)
        assert read_all(store, kept) == 3
        assert size_on_disk(tmp_path) <= 60 * STRIDE
    store.close()
    again = open_store(tmp_path, 60 * STRIDE)
    assert read_all(again, kept) == 3
    again.close()


def test_a_folder_that_vanishes_switches_the_store_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path / "kv")
    put_all(store, tokens_of(1, 2))
    shutil.rmtree(tmp_path / "kv")
    assert put_all(store, tokens_of(1, 2, 3)) == []
    assert store.state == "off"
    assert "has gone" in caplog.text
    assert store.match(tokens_of(1, 2)) == ()
    assert not store.sync()
    assert store.list() == []
    store.close()


def test_a_newest_segment_that_vanishes_takes_only_its_own_blocks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 0, 20)
    newest = max(tmp_path.glob("*.seg"))
    newest.unlink()
    fill(store, 100, 1)
    assert store.state == "ready"
    assert read_all(store, tokens_of(1100, 2100)) == 2
    assert read_all(store, tokens_of(1000, 2000)) == 2
    store.close()


def test_a_folder_that_cannot_be_made_switches_the_store_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(tmp_path / "file" / "kv")
    assert store.state == "off"
    assert "is off" in caplog.text
    assert put_all(store, tokens_of(1)) == []


def test_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    put_all(store, tokens_of(1, 2))
    store.close()

    def refuse(self: lock.WriterLock) -> bool:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    # Tests may run as root, whom no permission stops.
    monkeypatch.setattr(lock.WriterLock, "take", refuse)
    store = open_store(tmp_path)
    assert store.state == "read-only"
    assert "Read-only" in store.note
    assert read_all(store, tokens_of(1, 2)) == 2
    assert put_all(store, tokens_of(3)) == []
    store.close()


def test_a_clock_that_jumps_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([4e9, -5.0, 0.0, 1e9, 3e9] * 200)
    monkeypatch.setattr(time, "time", lambda: next(now))
    store = open_store(tmp_path, 60 * STRIDE)
    fill(store, 0, 60)
    store.close()
    monkeypatch.undo()
    store = open_store(tmp_path, 60 * STRIDE)
    assert read_all(store, tokens_of(1059, 2059)) == 2
    assert store.match(tokens_of(1000, 2000)) == ()
    store.close()


def test_a_pin_file_of_nonsense_counts_as_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("", "[]", "{}", '{"schema": 1, "pins": ["zz"]}', '{"schema": 9, "pins": []}'):
        (tmp_path / pins.NAME).write_text(text)
        caplog.clear()
        store = open_store(tmp_path)
        assert len(put_all(store, tokens_of(1))) <= 1
        store.close()
        assert "counts as empty" in caplog.text


def test_numbers_that_are_no_tokens_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for wrong in (-1, 1 << 32):
        with pytest.raises(ValueError, match="token"):
            store.match([wrong] * TOKENS)
    assert blocks.unpack_tokens(blocks.pack_tokens([0, (1 << 32) - 1])) == (0, (1 << 32) - 1)
    store.close()


def test_the_default_budget_leaves_most_of_a_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 100_000_000_000
    monkeypatch.setattr(files, "free_bytes", lambda _: free)
    assert budget_bytes(tmp_path / "not" / "yet", None) == 10_000_000_000
    (tmp_path / "00000001.seg").write_bytes(bytes(5000))
    assert budget_bytes(tmp_path, None) == 10_000_000_500
    free = 10**15
    assert budget_bytes(tmp_path, None) == 32_000_000_000
    assert budget_bytes(tmp_path, 0.0) == 0
    assert budget_bytes(tmp_path, 1.5) == 1_500_000_000


def test_one_line_tells_how_large_the_store_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        open_store(tmp_path).close()
    assert "0 blocks" in caplog.text
