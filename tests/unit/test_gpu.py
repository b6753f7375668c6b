"""The GPU probe: a driver that is absent, broken, silent or half working never hurts us."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colibri.hardware import gpu
from colibri.hardware.gpu import Gpus, probe

GOOD = "0, NVIDIA H200, 580.95.05, 143771, 4, 143160\n"
MIB = 1 << 20


def answers(text: str, code: int = 0) -> gpu.Run:
    return lambda _command, _seconds: (code, text)


def nothing() -> list[dict[str, Any]]:
    return []


def ask(text: str, code: int = 0, theirs: Any = nothing) -> Gpus:
    return probe(answers(text, code), theirs, tool="nvidia-smi", seconds=1)


def test_a_gpu_is_read_with_its_memory_in_bytes() -> None:
    (found,) = ask(GOOD).gpus
    assert found.name == "NVIDIA H200"
    assert found.driver == "580.95.05"
    assert (found.memory_total, found.memory_used) == (143771 * MIB, 4 * MIB)


def test_what_the_driver_does_not_tell_is_none_and_never_nan() -> None:
    (found,) = ask("0, GB10, 580, [N/A], [N/A], nan\n").gpus
    assert found.memory_total is found.memory_used is found.memory_free is None
    json.dumps(msgspec.to_builtins(found), allow_nan=False)


@pytest.mark.parametrize("value", ["[N/A]", "nan", "inf", "-1", "", "[x]", None, "1e999"])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    assert gpu.number(value) is None


def test_a_name_with_a_comma_and_several_gpus_are_read() -> None:
    found = ask("1, Strange, Card, 5, 100, 1, 99\n" + GOOD).gpus
    assert [(item.index, item.name) for item in found] == [(0, "NVIDIA H200"), (1, "Strange, Card")]


def test_no_device_is_no_problem() -> None:
    assert ask("No devices were found\n", 6) == Gpus()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18),
        ("\x00\x01garbage", 0),
        ("", 1),
    ],
)
def test_a_broken_driver_is_one_sentence(text: str, code: int) -> None:
    found = ask(text, code)
    assert found.gpus == ()
    assert "nvidia-smi" in found.problem
    assert "\n" not in found.problem


def test_without_the_tool_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.shutil, "which", lambda _name: None)

    def never(_command: Sequence[str], _seconds: float) -> tuple[int, str]:
        pytest.fail("a program was run")

    assert probe(never, nothing) == Gpus()


def fake_tool(folder: Path, body: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_driver_that_hangs_costs_the_limit_and_leaves_no_process(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "import time; print('0, half', flush=True); time.sleep(600)")
    start = time.monotonic()
    found = probe(gputil=nothing, tool=tool, seconds=0.5)
    assert time.monotonic() - start < 30
    assert "did not answer" in found.problem


def test_a_tool_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text("")
    assert "cannot be run" in probe(gputil=nothing, tool=str(path), seconds=5).problem


def test_a_real_program_is_asked_and_read(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, f"print({GOOD!r}, end='')")
    (found,) = probe(gputil=nothing, tool=tool, seconds=30).gpus
    assert found.name == "NVIDIA H200"


def test_gputil_that_raises_or_hangs_leaves_the_drivers_own_answer() -> None:
    def divides_by_zero() -> list[dict[str, Any]]:
        raise ZeroDivisionError

    release = threading.Event()

    def hangs() -> list[dict[str, Any]]:
        release.wait(60)
        return []

    assert ask(GOOD, theirs=divides_by_zero).gpus == ask(GOOD).gpus
    start = time.monotonic()
    assert ask(GOOD, theirs=hangs).gpus == ask(GOOD).gpus
    assert time.monotonic() - start < 30
    release.set()


def test_gputils_nan_is_filled_in_from_the_driver() -> None:
    def half() -> list[dict[str, Any]]:
        return [{"id": 0, "name": "H200", "memoryTotal": math.nan, "memoryUsed": 7.0}]

    (found,) = ask(GOOD, theirs=half).gpus
    assert found.name == "H200"
    assert found.memory_total == 143771 * MIB
    assert found.memory_used == 7 * MIB


def test_gputil_itself_reads_what_the_tool_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package, with the standard library's `distutils` or without."""
    line = "0, GPU-1, 3, 143771, 4, 143160, 580, H200, 0, Disabled, Disabled, 31"
    fake_tool(tmp_path, f"print({line!r})")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "GPUtil", raising=False)
    before = sys.modules.get("distutils")
    (found,) = gpu.ask_gputil()
    assert (found["id"], found["name"], found["memoryTotal"]) == (0, "H200", 143771.0)
    assert sys.modules.get("distutils") is before


def test_a_command_that_is_late_raises_after_it_was_killed(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        gpu.run_limited([tool], 0.2)
