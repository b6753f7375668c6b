"""The slots' index files: saved whole, believed only whole, otherwise set aside and kept.

Covers R113, R114, R118.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.kv import files, slots
from colibri.kv.slots import SlotFiles, SlotState
from tests.kv.make import FINGERPRINT, TOKENS

STATE = SlotState(
    tokens=tuple(range(2 * TOKENS + 3)),
    blocks=(b"a" * 32, b"b" * 32),
    draft=b"\0draft",
    sampler=b"sampler\xff",
)


def open_files(folder: Path, fingerprint: str = FINGERPRINT, tokens: int = TOKENS) -> SlotFiles:
    return SlotFiles(folder, fingerprint, tokens)


def test_a_slot_is_saved_and_found_again(tmp_path: Path) -> None:
    """R113."""
    saved = open_files(tmp_path / "state")
    other = msgspec.structs.replace(STATE, draft=b"", tokens=STATE.tokens[:-1])
    assert saved.save(0, STATE)
    assert saved.save(15, other)
    again = open_files(tmp_path / "state")
    assert again.load(0) == STATE
    assert again.load(15) == other
    assert again.load(1) is None
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == [".coli_kv", ".coli_kv.15"]


@given(
    tokens=st.lists(st.integers(0, (1 << 32) - 1), max_size=40),
    draft=st.binary(max_size=50),
    data=st.data(),
)
def test_every_state_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], draft: bytes, data: st.DataObject
) -> None:
    count = len(tokens) // TOKENS
    ids = data.draw(st.lists(st.binary(min_size=32, max_size=32), min_size=count, max_size=count))
    state = SlotState(tokens=tuple(tokens), blocks=tuple(ids), draft=draft)
    saved = open_files(tmp_path_factory.mktemp("slots"))
    assert saved.save(3, state)
    assert saved.load(3) == state


def test_a_new_state_replaces_the_old_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = open_files(tmp_path)
    newer = msgspec.structs.replace(STATE, draft=b"newer")
    assert saved.save(0, STATE)
    order: list[str] = []

    def note(name: str, original: Any) -> Any:
        def operation(*arguments: Any) -> None:
            order.append(name)
            original(*arguments)
            # At every moment one of the two is whole.
            assert saved.load(0) in (STATE, newer)

        return operation

    monkeypatch.setattr(files.DataFile, "write", note("write", files.DataFile.write))
    monkeypatch.setattr(files.DataFile, "sync", note("sync", lambda _: None))
    monkeypatch.setattr(files, "rename", note("rename", files.rename))
    monkeypatch.setattr(files, "sync_folder", note("sync folder", lambda _: None))
    assert saved.save(0, newer)
    assert order == ["write", "sync", "rename", "sync folder"]
    assert saved.load(0) == newer


def test_every_flipped_byte_is_noticed_and_the_file_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R114."""
    saved = open_files(tmp_path)
    assert saved.save(0, STATE)
    path = tmp_path / slots.NAME
    data = path.read_bytes()
    rng = random.Random(4)  # noqa: S311
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        caplog.clear()
        assert saved.load(0) is None, f"byte {place}"
        assert not path.exists()
        assert len(caplog.records) == 1
        assert "set aside as .coli_kv.damaged-" in caplog.text
    aside = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
    assert len(aside) == slots.MOST_SET_ASIDE
    # The newest are the ones that are kept, byte by byte.
    newest = max(aside, key=lambda path: int(path.name.rpartition("-")[2]))
    assert newest.name.endswith(f"-{len(data)}")
    assert newest.read_bytes() == bytes(damaged)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    saved = open_files(tmp_path)
    assert saved.save(0, STATE)
    path = tmp_path / slots.NAME
    data = path.read_bytes()
    for end in (*range(0, len(data), 7), len(data) - 1):
        path.write_bytes(data[:end])
        assert saved.load(0) is None
    path.write_bytes(data + b"\0")
    assert saved.load(0) is None
    path.write_bytes(data)
    assert saved.load(0) == STATE


def test_another_models_file_is_set_aside_by_name(tmp_path: Path) -> None:
    other = ("weights 2", TOKENS)
    assert open_files(tmp_path, *other).save(
        2, SlotState(tokens=(1, 2, 3), blocks=(), sampler=b"s")
    )
    assert open_files(tmp_path).load(2) is None
    assert [path.name for path in tmp_path.iterdir()] == [".coli_kv.2.foreign-1"]
    # With the other model back, the file can be put back by hand: nothing was changed.
    (tmp_path / ".coli_kv.2.foreign-1").rename(tmp_path / ".coli_kv.2")
    assert open_files(tmp_path, *other).load(2) is not None


@pytest.mark.parametrize("other", [(2 * TOKENS, ""), (TOKENS, "f32")])
def test_R112_a_file_that_other_settings_wrote_stays_until_it_is_replaced(
    tmp_path: Path, other: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither damaged nor foreign: going back to these settings finds it again."""
    written = SlotFiles(tmp_path, FINGERPRINT, *other)
    assert written.save(0, SlotState(tokens=(1, 2, 3), blocks=()))
    assert open_files(tmp_path).load(0) is None
    assert [path.name for path in tmp_path.iterdir()] == [".coli_kv"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert written.load(0) is not None
    assert open_files(tmp_path).save(0, STATE)
    assert open_files(tmp_path).load(0) == STATE


def test_an_older_version_is_set_aside_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = open_files(tmp_path)
    monkeypatch.setattr(slots, "VERSION", 0)
    assert saved.save(0, STATE)
    monkeypatch.undo()
    assert saved.load(0) is None
    assert [path.name for path in tmp_path.iterdir()] == [".coli_kv.version-1"]


def craft(body: bytes) -> bytes:
    head = slots._HEAD.pack(slots._MAGIC, slots.VERSION, len(body))
    return head + slots._hash(head, body) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([FINGERPRINT, "", TOKENS]),
        msgspec.msgpack.encode([FINGERPRINT, "", TOKENS, b"123", b"", b"", b""]),
        msgspec.msgpack.encode([FINGERPRINT, "", TOKENS, b"1234" * TOKENS, b"", b"", b""]),
        msgspec.msgpack.encode([FINGERPRINT, "", TOKENS, b"", b"x" * 31, b"", b""]),
        msgspec.msgpack.encode({"fingerprint": FINGERPRINT}),
        b"\x91" * 5000,
    ],
    ids=range(8),
)
def test_a_whole_file_with_a_contradicting_body_is_set_aside(tmp_path: Path, body: bytes) -> None:
    (tmp_path / slots.NAME).write_bytes(craft(body))
    assert open_files(tmp_path).load(0) is None
    assert [path.name for path in tmp_path.iterdir()] == [".coli_kv.damaged-1"]


def test_a_state_that_contradicts_itself_is_a_mistake_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one block"):
        open_files(tmp_path).save(0, SlotState(tokens=(1,) * TOKENS, blocks=()))


def test_what_a_disk_refuses_is_one_line_and_a_cold_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R118."""
    (tmp_path / "file").write_text("")
    nowhere = open_files(tmp_path / "file")
    assert not nowhere.save(0, STATE)
    assert nowhere.load(0) is None
    saved = open_files(tmp_path)
    assert saved.save(0, STATE)

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(files.DataFile, "write", full)
        assert not saved.save(0, msgspec.structs.replace(STATE, draft=b"newer"))
    assert saved.load(0) == STATE
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", full)
        (tmp_path / slots.NAME).write_bytes(b"x")
        caplog.clear()
        assert saved.load(0) is None
        assert len(caplog.records) == 1
    (tmp_path / slots.NAME).unlink()
    (tmp_path / slots.NAME).mkdir()
    assert saved.load(0) is None
    assert not saved.save(0, STATE)
    assert not saved.forget(0)


def test_forgetting_a_slot_deletes_its_file_alone(tmp_path: Path) -> None:
    saved = open_files(tmp_path)
    assert saved.save(0, STATE)
    assert saved.save(1, STATE)
    assert saved.forget(0)
    assert saved.forget(0)
    assert saved.load(0) is None
    assert saved.load(1) == STATE


def test_all_files_of_slots_are_told_from_those_of_others(tmp_path: Path) -> None:
    ours = [".coli_kv", ".coli_kv.1", ".coli_kv.1.tmp", ".coli_kv.15.foreign-2", ".coli_kv.tmp"]
    for name in [*ours, ".coli_usage", ".coli_kvx", "coli_kv", ".coli_kv.notes"]:
        (tmp_path / name).write_text("")
    assert [path.name for path in slots.all_files(tmp_path)] == sorted(ours)
