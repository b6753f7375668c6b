"""Mirrors and split folders: which copies are used, which are left out and why, equal tokens.

Covers R158, R160, R161, R162.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.engine.ffi import Engine
from colibri.engine.protocol import EngineSnapshot
from colibri.engine.table import EngineOptions, MirrorState
from colibri.engine.worker import Worker
from colibri.errors import ModelError, UsageError
from colibri.models import mirror, synthetic
from colibri.models.backend import NativeBackend, Options
from colibri.models.container import ModelFiles, open_folder
from colibri.models.convert import Options as ConvertOptions
from colibri.models.convert import convert
from colibri.models.synthetic import Shape

SHAPE = {"layers": 3, "hidden": 128, "experts": 16, "top_k": 4, "expert_ffn": 96}
TOKENS = [i * 37 % 4000 for i in range(60)]


def make(folder: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in several shards."""
    monkeypatch.setattr(synthetic, "_SHARD_BYTES", 400_000)
    source = folder if layout == "published" else folder.parent / "source"
    synthetic.make(source, Shape(**SHAPE, layout="published"))
    if layout == "packed":
        convert(source, folder, ConvertOptions(shard_bytes=400_000))
    assert len(shards(folder)) >= 4
    return folder


@pytest.fixture(params=["published", "packed"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make(tmp_path / "model", request.param, monkeypatch)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def copy(model: Path, name: str = "drive", only: Sequence[int] | None = None) -> Path:
    """Another folder with copies of the model's shards, or of those with the numbers given."""
    folder = model.parent / name
    folder.mkdir()
    for number, path in enumerate(shards(model)):
        if only is None or number in only:
            shutil.copy(path, folder)
    return folder


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 0x55]))


def engine(files: ModelFiles, slots: int = 2) -> Engine:
    options = EngineOptions(expert_slots=slots, context=256, threads=1)
    return Engine(
        files.own_paths, files.geometry, files.tensors, options, mirrors=files.mirror_paths
    )


def logits(opened: Engine) -> NDArray[np.float32]:
    out = np.empty((len(TOKENS), opened.vocab), dtype=np.float32)
    with opened.session() as session:
        session.prefill(TOKENS, out)
    return out


def answer(model: Path, mirrors: Sequence[Path] = ()) -> NDArray[np.float32]:
    with engine(open_folder(model, mirrors=mirrors)) as opened:
        return logits(opened)


def test_R158_a_whole_mirror_is_read_and_the_tokens_stay_the_same(model: Path) -> None:
    drive = copy(model)
    files = open_folder(model, mirrors=[drive])
    own, other = files.places
    assert own.paths == files.paths
    assert [path.parent for path in other.paths if path] == [drive] * len(files.paths)
    assert not own.bad
    assert not other.bad
    with engine(files) as opened:
        got = logits(opened)
        seen = opened.mirrors()
    assert (got == answer(model)).all()
    assert len(seen) == 2
    assert all(place.bytes > 0 and place.failures == 0 for place in seen)


def test_R158_a_drive_lost_in_mid_run_changes_no_token(model: Path) -> None:
    drive = copy(model)
    expected = answer(model)
    with engine(open_folder(model, mirrors=[drive])) as opened:
        assert (logits(opened) == expected).all()
        for path in shards(drive):
            os.truncate(path, 512)
        assert (logits(opened) == expected).all()
        lost = opened.mirrors()[1]
    # Whether it was read again before it was found out is up to the drives' speed.
    assert lost.state == (MirrorState.FAILED if lost.failures else MirrorState.IN_USE)


def test_R160_a_partial_mirror_serves_what_it_holds(model: Path) -> None:
    drive = copy(model, only=[1, 2])
    files = open_folder(model, mirrors=[drive])
    assert files.places[1].files == 2
    assert not files.places[1].bad  # what is not there is no damage
    with engine(files) as opened:
        got = logits(opened)
        assert opened.mirrors()[1].files == 2
    assert (got == answer(model)).all()


def test_R161_bad_copies_are_left_out_and_listed(model: Path) -> None:
    drive = copy(model)
    short, header, data, absent = shards(drive)[:4]
    os.truncate(short, short.stat().st_size - 4096)
    damage(header, 20)
    damage(data, -7)
    absent.unlink()
    files = open_folder(model, mirrors=[drive])
    place = files.places[1]
    reasons = {shard.name: shard.reason for shard in place.bad}
    assert set(reasons) == {short.name, header.name, data.name}
    assert f"{short.stat().st_size:,} bytes" in reasons[short.name]
    assert "header differs" in reasons[header.name] or "cannot be read" in reasons[header.name]
    assert "data differs" in reasons[data.name]
    left_out = {short.name, header.name, data.name, absent.name}
    assert {path.name for path in place.paths if path} == {
        path.name for path in files.paths
    } - left_out
    with engine(files) as opened:
        assert (logits(opened) == answer(model)).all()


def test_the_models_own_folder_and_one_twice_are_refused(model: Path, tmp_path: Path) -> None:
    drive = copy(model)
    link = tmp_path / "link"
    link.symlink_to(model, target_is_directory=True)
    for mirrors in ([model], [link], [drive, drive], [drive, tmp_path / "drive" / ".." / "drive"]):
        with pytest.raises(UsageError, match=r"own folder|given twice") as caught:
            open_folder(model, mirrors=mirrors)
        assert caught.value.where == "--mirror"
    with pytest.raises(UsageError, match="32 mirrors"):
        open_folder(model, mirrors=[tmp_path / str(number) for number in range(32)])


def test_a_link_to_the_models_own_file_is_no_copy(model: Path) -> None:
    drive = copy(model, only=[0])
    target = shards(model)[1]
    (drive / target.name).symlink_to(target)
    place = open_folder(model, mirrors=[drive]).places[1]
    assert place.files == 1
    assert [shard.name for shard in place.bad] == [target.name]
    assert "itself" in place.bad[0].reason


def test_a_mirror_that_is_not_there_is_listed_and_not_fatal(model: Path, tmp_path: Path) -> None:
    files = open_folder(model, mirrors=[tmp_path / "unplugged"])
    assert files.places[1].files == 0
    assert "mounted" in files.places[1].bad[0].reason
    with engine(files) as opened:
        assert (logits(opened) == answer(model)).all()


def test_a_model_may_be_split_over_drives(model: Path) -> None:
    expected = answer(model)
    drive = copy(model, only=[1, 3])
    shards(model)[3].unlink()
    shards(model)[1].unlink()
    with pytest.raises(ModelError):
        open_folder(model)
    files = open_folder(model, mirrors=[drive])
    assert files.own_paths.count(None) == 2
    assert sum(path.parent == drive for path in files.paths) == 2
    with engine(files) as opened:
        assert (logits(opened) == expected).all()
        assert all(place.bytes > 0 for place in opened.mirrors())


def test_R162_a_shard_cut_off_in_the_folder_is_taken_from_the_mirror(model: Path) -> None:
    expected = answer(model)
    drive = copy(model)
    cut = shards(model)[1]
    os.truncate(cut, cut.stat().st_size - 4096)
    with pytest.raises(ModelError, match=cut.name):
        open_folder(model)
    files = open_folder(model, mirrors=[drive])
    own = files.places[0]
    assert drive / cut.name in files.paths
    assert [shard.name for shard in own.bad] == [cut.name]
    with engine(files) as opened:
        assert (logits(opened) == expected).all()
    other = drive / cut.name
    os.truncate(other, other.stat().st_size - 4096)
    with pytest.raises(ModelError, match=cut.name):
        open_folder(model, mirrors=[drive])


def test_an_empty_copy_is_listed_and_a_stray_shard_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(tmp_path / "model", "published", monkeypatch)
    drive = copy(model, only=[0])
    (drive / shards(model)[1].name).write_bytes(b"")
    stray = drive / "zzz.safetensors"
    shutil.copy(shards(model)[2], stray)
    (drive / "junk.safetensors").write_bytes(b"no weights")
    files = open_folder(model, mirrors=[drive])
    place = files.places[1]
    assert place.files == 1
    reasons = {shard.name: shard.reason for shard in place.bad}
    assert set(reasons) == {shards(model)[1].name, stray.name, "junk.safetensors"}
    assert "is also in" in reasons[stray.name]
    with engine(files) as opened:
        assert (logits(opened) == answer(model)).all()


def test_an_incomplete_model_says_what_its_mirror_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(tmp_path / "model", "published", monkeypatch)
    drive = copy(model)
    lost = shards(model)[2]
    lost.unlink()
    os.truncate(drive / lost.name, 100)
    with pytest.raises(ModelError, match=r"left out") as caught:
        open_folder(model, mirrors=[drive])
    assert f"{drive / lost.name}" in caught.value.message


def test_the_backend_reports_every_place(model: Path) -> None:
    drive = copy(model, only=[0, 1, 2])
    os.truncate(shards(drive)[0], 4096)
    backend = NativeBackend(Options(folder=str(model), mirrors=(str(drive),), context=256, ram="1"))
    try:
        snapshot = Worker(backend, lambda _event: None).snapshot()
        sent = msgspec.msgpack.encode(snapshot)
        own, other = msgspec.msgpack.decode(sent, type=EngineSnapshot).experts.mirrors
    finally:
        backend.close()
    assert (own.folder, other.folder) == (str(model), str(drive))
    assert own.files == len(shards(model))
    assert other.files == 2
    assert len(other.left_out) == 1
    assert shards(drive)[0].name in other.left_out[0]


def test_a_low_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    """In a process of its own: 800 shards and two mirrors, opened twice, with 1,024 allowed."""
    program = """
import resource
from colibri.models.mirror import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, min(hard, 4096)))
for wanted in (100, 2000, 4800):
    allow_open_files(wanted)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["1024", "2128", "4096"]


def test_the_sampled_places_lie_in_the_data() -> None:
    for size in (100, 4096, 5000, 1 << 30):
        for offset in mirror._sample_offsets("out-00001.safetensors", 64, size):
            assert 0 <= offset < size
