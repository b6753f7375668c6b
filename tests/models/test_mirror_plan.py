"""What to copy to a second drive: the arithmetic, the command, copies that survive interruption.

Covers R160 and R161 (expected gain before copying).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from colibri.cli import coli, run
from colibri.cli import mirror as mirror_command
from colibri.errors import IntegrityError, UsageError
from colibri.models import mirror_plan, synthetic
from colibri.models.container import open_folder
from colibri.models.mirror_plan import ExpertReads, Proposal, copy_shard, part_name, propose
from colibri.models.synthetic import Shape

GB = 10**9
FAST, SLOW = 14.6 * GB, 6.3 * GB


def one_per_file(uses: Sequence[float], size: int = 100) -> list[ExpertReads]:
    return [ExpertReads(frozenset({n}), size, use) for n, use in enumerate(uses)]


def plan(
    experts: Sequence[ExpertReads],
    files: int,
    room: int = 1 << 40,
    present: Sequence[int] = (),
    speeds: tuple[float, float] = (FAST, SLOW),
) -> Proposal:
    return propose(experts, [100] * files, present, room, speeds)


def test_R160_the_hottest_shards_are_taken_until_the_drives_end_together() -> None:
    uses = [1.0, 50.0, 2.0, 30.0, 1.0, 3.0, 5.0, 8.0]
    found = plan(one_per_file(uses), 8)
    assert found.wanted == pytest.approx(6.3 / 20.9)
    assert found.files == (1,)  # half of all reads: more than the slow drive can take
    assert found.speed == pytest.approx(FAST + SLOW)
    assert found.gain == pytest.approx(1.43, abs=0.01)


def test_R160_with_little_room_the_gain_is_what_the_share_allows() -> None:
    found = plan(one_per_file([1.0] * 10), 10, room=250)
    assert len(found.files) == 2
    assert found.copy_bytes == 200
    assert found.share == pytest.approx(0.2)
    assert found.gain == pytest.approx(1 / 0.8)


def test_more_than_the_fair_share_is_never_proposed() -> None:
    found = plan(one_per_file([1.0] * 100), 100)
    assert len(found.files) == 31
    assert plan(one_per_file([1.0] * 100), 100, speeds=(GB, GB)).gain == pytest.approx(2)


def test_what_is_there_already_costs_nothing() -> None:
    found = plan(one_per_file([1.0] * 10), 10, room=0, present=[3, 4])
    assert found.files == found.present == (3, 4)
    assert found.copy_bytes == 0
    assert found.share == pytest.approx(0.2)


def test_an_expert_in_two_shards_counts_once_both_are_there() -> None:
    experts = [ExpertReads(frozenset({0, 1}), 100, 1.0), ExpertReads(frozenset({1}), 100, 1.0)]
    assert plan(experts, 2, room=100).share == pytest.approx(0.5)
    assert mirror_plan.covered(experts, {0}) == 0
    assert mirror_plan.covered(experts, {0, 1}) == 1


def test_shards_without_experts_and_experts_nobody_asks_for_are_not_copied() -> None:
    assert plan(one_per_file([0.0, 1.0, 0.0]), 5).files == (1,)
    assert plan([], 5).files == ()
    assert plan([], 5).gain == 1


# ---- a model -------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(synthetic, "_SHARD_BYTES", 400_000)
    folder = tmp_path / "model"
    shape = Shape(layers=3, hidden=128, experts=16, top_k=4, expert_ffn=96, layout="published")
    synthetic.make(folder, shape)
    (tmp_path / "drive").mkdir()
    return folder


def command(*arguments: object) -> int:
    return run(coli, "coli", ["models", "mirror", *map(str, arguments)])


def test_the_command_says_the_gain_and_copies_only_when_asked(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = model.parent / "drive"
    speeds = ("--own-speed", 3, "--mirror-speed", 1)
    assert command(model, drive, *speeds) == 0
    shown = capsys.readouterr()
    assert "1.33 times as fast" in shown.out
    assert "all experts count alike" in shown.err
    assert "same file system" in shown.err
    assert not list(drive.iterdir())
    assert command(model, drive, *speeds, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["expected_gain"] == pytest.approx(4 / 3, abs=0.001)
    assert told["share"] >= told["share_wanted"] == 0.25
    assert 0 < len(told["copy"]) < len(list(model.glob("*.safetensors")))
    assert command(model, drive, *speeds, "--copy", "--quiet") == 0
    assert sorted(path.name for path in drive.iterdir()) == sorted(told["copy"])
    capsys.readouterr()
    assert command(model, drive, *speeds, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["copy"] == []
    assert again["present"] == sorted(told["copy"])
    assert open_folder(model, mirrors=[drive]).places[1].files == len(told["copy"])


def test_one_drive_twice_is_not_said_to_be_faster(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_command, "_measure", lambda *_: 2e9)
    monkeypatch.setattr(mirror_command, "_measure_mirror", lambda *_: 2e9)
    assert command(model, model.parent / "drive", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["expected_gain"] == 1
    assert told["expected_bytes_per_second"] == 2e9


def test_R160_what_was_used_decides(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only one layer was ever asked for: its shards are what is proposed."""
    lines = [f"1 {expert} {expert + 1}" for expert in range(16)]
    (model / ".coli_usage").write_text("-1 3 16\n" + "\n".join(lines) + "\n")
    drive = model.parent / "drive"
    assert command(model, drive, "--own-speed", 1, "--mirror-speed", 9, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    files = open_folder(model)
    first = {
        files.paths[number].name
        for tensor in files.tensors
        if tensor.name.startswith("model.layers.1.mlp.experts.")
        for number in (tensor.file, tensor.scale_file)
        if number >= 0
    }
    assert set(told["copy"]) <= first
    assert told["share"] >= 0.9
    assert not any("count alike" in note for note in told["notes"])


def test_small_files_are_not_measured_and_bad_values_refused(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = model.parent / "drive"
    assert command(model, drive) == 2
    assert "--own-speed" in capsys.readouterr().err
    assert command(model, drive, "--budget", -1) == 2
    assert command(model, drive.parent / "absent") == 2
    assert command(model, model, "--own-speed", 1, "--mirror-speed", 1) == 2
    assert "own folder" in capsys.readouterr().err


# ---- copying -------------------------------------------------------------------------------------


def test_two_commands_never_copy_into_one_folder(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = model.parent / "drive"
    flags = ("--own-speed", 3, "--mirror-speed", 1, "--copy", "--quiet")
    with mirror_plan.alone(drive):
        assert command(model, drive, *flags) == 2
        assert "another command copies" in capsys.readouterr().err
    assert command(model, drive, *flags) == 0
    assert all(path.suffix == ".safetensors" for path in drive.iterdir())


def test_without_room_for_any_file_no_mirror_is_recommended(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = ("--own-speed", 3, "--mirror-speed", 1)
    assert command(model, model.parent / "drive", *speeds, "--copy", "--budget", 1e-6) == 0
    said = capsys.readouterr().err
    assert "no room for any of the files" in said
    assert "Use it with" not in said


@pytest.fixture
def source(model: Path) -> Path:
    return sorted(model.glob("*.safetensors"))[1]


def test_a_copy_goes_on_where_it_was_interrupted(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, size = tmp_path / "drive", source.stat().st_size
    monkeypatch.setattr(mirror_plan, "_PIECE", 4096)

    class Killed(Exception):
        pass

    def stop(done: int, _size: int) -> None:
        if done > size // 2:
            raise Killed

    with pytest.raises(Killed):
        copy_shard(source, drive, stop)
    part = drive / part_name(source.name)
    assert size // 2 <= part.stat().st_size < size
    assert not (drive / source.name).exists()
    seen: list[int] = []
    assert copy_shard(source, drive, lambda done, _size: seen.append(done)) == drive / source.name
    assert seen[0] > size // 2
    assert (drive / source.name).read_bytes() == source.read_bytes()
    assert not part.exists()


def test_a_foreign_beginning_is_written_anew(source: Path, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    (drive / part_name(source.name)).write_bytes(b"x" * (2 * source.stat().st_size))
    copy_shard(source, drive)
    assert (drive / source.name).read_bytes() == source.read_bytes()


def test_a_file_that_is_there_is_never_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "drive" / source.name
    target.write_bytes(b"something else")
    with pytest.raises(UsageError, match="copy it again"):
        copy_shard(source, tmp_path / "drive")
    assert target.read_bytes() == b"something else"


def test_a_copy_that_came_out_wrong_is_not_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_plan.mirror, "difference", lambda *_: "it differs")
    with pytest.raises(IntegrityError, match="it differs"):
        copy_shard(source, tmp_path / "drive")
    assert not list((tmp_path / "drive").iterdir())
