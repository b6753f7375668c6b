"""Probes of disk and processor from given files, and what is said about the machine.

Covers R164, R168.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri import findings
from colibri.findings import Finding
from colibri.hardware import checkup, cpu, disk, memory, processes
from colibri.hardware.gpu import Gpu, Gpus

GB = 10**9


def complete(found: list[Finding]) -> list[Finding]:
    for item in found:
        if item.level in ("warning", "error"):
            assert item.where
            assert item.fix
    return found


# ---- processor -----------------------------------------------------------------------------------


def test_the_processors_name_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name : Fast Chip 9\nflags : a b\nmodel name : Other\n")
    assert cpu.name(path) == "Fast Chip 9"
    assert cpu.name(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("junk", None), ("", None)],
)
def test_the_grant_of_a_control_group_is_counted_in_cores(
    text: str, cores: float | None, tmp_path: Path
) -> None:
    listing = tmp_path / "listing"
    listing.write_text("0::/inner\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "cpu.max").write_text(text)
    assert cpu.quota(tmp_path, listing) == cores


def test_the_older_kind_of_control_group_grants_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu.quota(tmp_path, tmp_path / "none") == 2


def test_more_threads_than_are_granted_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = cpu.Cpu(name="x", architecture="y", cores=8, threads=8, usable=8, quota=2.5)
    monkeypatch.setattr(cpu, "probe", lambda: facts)
    _, found = checkup.processor()
    warning = next(item for item in complete(found) if "grants" in item.what)
    assert "--threads 2" in warning.fix


# ---- memory --------------------------------------------------------------------------------------


def system(monkeypatch: pytest.MonkeyPatch, total: int, available: int) -> None:
    figures = SimpleNamespace(total=total, available=available)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: figures)
    monkeypatch.setattr(memory, "meminfo", lambda: (0, 0))
    monkeypatch.setattr(memory, "_sysconf_figures", lambda: (0, 0))
    monkeypatch.setattr(memory, "cgroup_left", lambda: None)


def test_R164_the_figure_shown_is_the_one_that_opening_a_model_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system(monkeypatch, 32 * GB, 20 * GB)
    facts, found = checkup.ram()
    assert facts["budget"] == memory.budget()
    assert f"{memory.budget() / 1e9:.1f} GB" in complete(found)[0].what


def test_R164_a_probe_that_says_zero_is_a_warning_and_never_shown_as_a_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system(monkeypatch, 128 * GB, 0)
    facts, found = checkup.ram()
    assert facts["available"] is None
    assert facts["budget"] == memory.budget() > 50 * GB
    assert any(item.level == "warning" for item in complete(found))
    assert not any("0.0" in item.what for item in found)

    def broken() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(memory.psutil, "virtual_memory", broken)
    facts, found = checkup.ram()
    assert facts["total"] is facts["available"] is facts["budget"] is None
    assert any("no limit is kept" in item.what for item in complete(found))


def test_the_figure_that_was_asked_for_is_the_one_shown_and_warned_about_when_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system(monkeypatch, 32 * GB, 20 * GB)
    facts, found = checkup.ram("8")
    assert facts["budget"] == 8 * GB
    assert not any(item.level == "warning" for item in found)
    facts, found = checkup.ram("30")
    assert facts["budget"] == 30 * GB
    assert any("30.00 GB" in item.what for item in complete(found) if item.level == "warning")


def test_R168_memory_that_others_hold_is_told_with_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system(monkeypatch, 64 * GB, 10 * GB)
    holder = processes.Holder(pid=7, name="browser", bytes=40 * GB, ours=False)
    monkeypatch.setattr(processes, "memory_holders", lambda: [holder])
    _, found = checkup.ram()
    note = next(item for item in complete(found) if "in use" in item.what)
    assert "54.0 of 64.0 GB" in note.what
    assert "browser (process 7) 40.0 GB" in note.what
    ours = processes.Holder(pid=8, name="python", bytes=40 * GB, ours=True)
    monkeypatch.setattr(processes, "memory_holders", lambda: [ours])
    _, found = checkup.ram()
    note = next(item for item in found if "in use" in item.what)
    assert "Colibri (process 8)" in note.what
    assert "running already" in note.fix


def test_the_largest_processes_come_first() -> None:
    found = processes.memory_holders(count=5, least=1)
    assert found
    assert [item.bytes for item in found] == sorted((item.bytes for item in found), reverse=True)
    assert os.getpid() not in {item.pid for item in found}


def test_little_memory_points_to_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """R178: before a download of hundreds of gigabytes, the plan."""
    system(monkeypatch, 16 * GB, 15 * GB // 10)
    monkeypatch.setattr(processes, "memory_holders", lambda: [])
    _, found = checkup.ram()
    assert any("coli plan" in item.fix for item in complete(found) if item.level == "warning")


# ---- GPU, port -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (Gpus(), "note", "no NVIDIA GPU"),
        (Gpus(problem="nvidia-smi did not answer within 5 s"), "warning", "did not answer"),
        (
            Gpus(
                gpus=(
                    Gpu(
                        index=0,
                        name="H200",
                        driver="",
                        memory_total=None,
                        memory_used=None,
                        memory_free=None,
                    ),
                )
            ),
            "note",
            "H200; not used",
        ),
    ],
)
def test_a_gpu_is_told_and_never_an_error(
    seen: Gpus, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup.gpu, "probe", lambda: seen)
    facts, (found,) = checkup.graphics()
    complete([found])
    assert found.level == level
    assert words in found.what
    json.dumps(facts, allow_nan=False)


def test_a_port_in_use_is_a_warning_and_an_impossible_address_an_error(free_port: int) -> None:
    assert checkup.port("127.0.0.1", free_port).level == "ok"
    assert checkup.port("127.0.0.1", 0).level == "ok"
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        (taken,) = complete([checkup.port("127.0.0.1", free_port)])
    assert taken.level == "warning"
    assert "--port" in taken.fix
    (nowhere,) = complete([checkup.port("192.0.2.1", free_port)])
    assert nowhere.level == "error"
    assert nowhere.kind == "settings"


# ---- disk ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "large"
    path.write_bytes(os.urandom(1 << 20) * 96)
    return path


def test_the_speed_of_reading_a_file_is_measured_from_real_reads(large: Path) -> None:
    speed = disk.measure([large], seconds=0.3)
    assert speed is not None
    assert 0 < speed.bytes <= large.stat().st_size
    assert speed.bytes_per_second == pytest.approx(speed.bytes / speed.seconds)


def test_without_direct_reads_it_is_measured_and_said(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_direct_works", lambda _path: False)
    facts, found = checkup.storage([large], large.parent)
    assert facts is not None
    assert facts["direct"] is False
    assert any("page cache" in item.what for item in complete(found))


def test_too_little_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 1000)
    facts, (found,) = checkup.storage([tmp_path / "small"], tmp_path)
    assert facts is None
    assert found.level == "note"


def test_a_slow_disk_points_to_the_planner() -> None:
    found = checkup._speed_findings(disk.Speed(0.1e9, GB, 10.0, True), "place")
    assert any("coli plan" in item.fix for item in complete(found) if item.level == "warning")


def test_an_empty_models_folder_is_measured_with_a_file_that_goes_away(tmp_path: Path) -> None:
    speed = disk.measure_folder(tmp_path, seconds=0.2)
    assert speed is not None
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_nearly_full_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, (found,) = checkup.space(tmp_path)
    assert facts is not None
    assert 0 < facts["free"] <= facts["total"]
    usage = SimpleNamespace(total=100 * GB, free=GB)
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _folder: usage)
    _, (found,) = checkup.space(tmp_path)
    assert complete([found])[0].level == "warning"
    assert "1.0 of 100.0 GB" in found.what


def test_R157_a_read_that_fails_in_the_speed_test_is_a_device_problem(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_descriptor: int, _buffer: object, _offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "_read_into", failing)
    facts, (found,) = checkup.storage([large], large.parent)
    assert facts is None
    assert found.kind == "device"
    assert "do not download again" in found.fix
    assert found.where == str(large)


def test_reading_a_place_continues_short_reads_and_names_what_is_lost(tmp_path: Path) -> None:
    """R152: wanted, got, file and offset; a file that just ends is no device problem."""
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    with disk.opened(path) as descriptor:
        one = lambda fd, size, offset: os.pread(fd, 1, offset)  # noqa: E731
        assert disk.read_at(path, descriptor, 10, 5, one) == bytes(range(5, 15))
        with pytest.raises(disk.ReadFailure) as ended:
            disk.read_at(path, descriptor, 20, 90)
    assert (ended.value.offset, ended.value.wanted, ended.value.got) == (100, 20, 10)
    assert ended.value.error is None
    assert not findings.is_device_error(ended.value)


# ---- findings ------------------------------------------------------------------------------------


def test_the_gravest_kind_decides_the_exit_code() -> None:
    model = findings.error("model", "a", "b", "c")
    bytes_ = findings.error("integrity", "a", "b", "c")
    device = findings.error("device", "a", "b", "c")
    warning = findings.warning("model", "a", "b", "c")
    assert findings.exit_code([]) == 0
    assert findings.exit_code([warning]) == 0
    assert findings.exit_code([warning, model]) == 4
    assert findings.exit_code([model, bytes_]) == 7
    assert findings.exit_code([model, bytes_, device]) == 5
    assert findings.worst([warning]) == "warning"
    assert findings.worst([]) == "ok"
