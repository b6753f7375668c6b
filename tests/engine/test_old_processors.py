"""Processors that are older than this one, emulated: the oldest that runs, and one too old.

An emulated process starts its children without emulation, so the engine runs in a thread here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.engine.processor import TOO_OLD
from colibri.errors import EngineFailure
from tests.support import draftmodel

pytestmark = pytest.mark.slow

# Opens a model as the server does, in a thread, and prints its kernels and a greedy answer.
ANSWER = """
import sys
from pathlib import Path
from tests.support.draftmodel import prompt
from tests.support.streamed import Streamed
streamed = Streamed(Path(sys.argv[1]), isa=sys.argv[2])
ids = streamed.answer(prompt(3), max_tokens=6, temperature=0.0).ids
print(streamed.backend.info.isa, *ids)
streamed.stop()
"""


def run(*arguments: str, cpu: str | None = None) -> subprocess.CompletedProcess[str]:
    emulator = ["qemu-x86_64", "-cpu", cpu] if cpu else []
    command = [*emulator, sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_engine_answers_on_a_processor_with_the_least_that_it_needs(tmp_path: Path) -> None:
    model = str(draftmodel.make(tmp_path / "model"))
    here = run("-c", ANSWER, model, "baseline")
    there = run("-c", ANSWER, model, "auto", cpu="Nehalem")
    assert there.stderr == ""
    assert there.stdout.split()[0] == "baseline"
    assert len(there.stdout.split()) > 1
    assert there.stdout == here.stdout


@pytest.mark.parametrize("command", [["doctor"], ["serve", "--port", "0"]])
def test_a_processor_that_is_too_old_is_told_so(command: list[str]) -> None:
    result = run("-m", "colibri.cli", *command, cpu="core2duo")
    assert result.returncode == EngineFailure.exit_code
    assert result.stderr.startswith(f"Error: {TOO_OLD}\nHint: ")
    assert result.stdout == ""
