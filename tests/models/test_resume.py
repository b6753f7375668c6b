"""Real kills (SIGKILL) of conversions at counted moments: repeated, they end as if never killed.

A child process counts what it does to the file system (audit events of opening, renaming, removing)
and how often it reports progress, and kills itself at one of these moments; writes that are not
flushed are lost, as in a real kill. Case R182.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.models import packed
from tests.models import glm_checkpoint
from tests.models.glm_checkpoint import CONFIG, as_bf16, as_fp8

MTP = "model.layers.4."
CHILD = """
import os, signal, sys
from pathlib import Path
from colibri.engine import ffi
from colibri.errors import ColibriError
from colibri.models import convert as module
from colibri.models.convert import Options

mode, source, out, moment = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
seen = 0

def count():
    global seen
    seen += 1
    if seen == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def hook(event, arguments):
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
        count()
    elif event == "open" and str(arguments[0]).startswith(str(out)):
        count()

sys.addaudithook(hook)
run = module.convert_mtp if mode == "mtp" else module.convert
options = Options(
    weights="bf16" if mode == "overwrite" else "auto",
    overwrite=mode == "overwrite",
    shard_bytes=96 << 10,
    threads=2,
)
try:
    run(source, out, options, lambda done, total: count(), lambda done, total: count())
except ColibriError as error:
    sys.exit(str(error))
print(seen)
"""


def child(mode: str, source: Path, out: Path, moment: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, mode, str(source), str(out), str(moment)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Case:
    """One kind of conversion: how its target looks before, its source, and the right result."""

    def __init__(self, mode: str, root: Path) -> None:
        self.mode = mode
        self.root = root
        weights = glm_checkpoint.values(CONFIG)
        self.source = glm_checkpoint.write(root / "source", as_fp8(weights))
        if mode == "mtp":
            trunk = {n: raw for n, raw in as_bf16(weights).items() if not n.startswith(MTP)}
            self.first = glm_checkpoint.write(root / "first", trunk)
        elif mode == "overwrite":
            self.first = self.source
        self.prepare("whole")
        done = child(mode, self.source, self.root / "whole")
        assert done.returncode == 0, done.stderr
        self.moments = int(done.stdout)
        self.expected = content(root / "whole")

    def prepare(self, name: str) -> Path:
        out = self.root / name
        if self.mode != "new":
            assert child("new", self.first, out).returncode == 0
        return out

    def check(self, moments: list[int]) -> None:
        """Kills one conversion at each of these moments in turn, each counted from its own start,
        then completes it."""
        out = self.prepare("out")
        for moment in moments:
            killed = child(self.mode, self.source, out, moment)
            if killed.returncode != -signal.SIGKILL:  # it was done before that moment
                self._is_done(killed)
        self.complete(out, moments)

    def complete(self, out: Path, moments: list[int]) -> None:
        """The last run: it must give what a run that was never killed gives."""
        self._is_done(child(self.mode, self.source, out))
        assert content(out) == self.expected, moments
        assert packed.verify(out) == []
        names = {path.name for path in self.root.iterdir()}
        assert names - {"first"} == {"source", "whole", "out"}, moments
        for path in out.iterdir():
            path.unlink()
        out.rmdir()

    def _is_done(self, done: subprocess.CompletedProcess[str]) -> None:
        """A run that follows a finished one refuses to touch it; every other one succeeds."""
        assert done.returncode == 0 or (self.mode != "overwrite" and "already" in done.stderr), done


@pytest.fixture(scope="module", params=["new", "overwrite", "mtp"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def test_R182_a_kill_early_in_the_middle_and_at_the_very_end_changes_no_byte(case: Case) -> None:
    assert case.moments > 40
    for share in (0.1, 0.5):
        case.check([int(share * case.moments)])
    # Publishing: the last events are the renames and the removal of what is not needed any more.
    case.check([case.moments - 1, 3])


def test_the_whole_result_is_the_same_in_one_run(case: Case) -> None:
    index = json.loads(case.expected["colibri.json"])
    assert len(index["files"]) > 3  # else there is nothing to go on with


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_R182_kills_at_any_moment_change_no_byte(case: Case) -> None:
    seed = int(os.environ.get("COLIBRI_TEST_SEED", "1"))
    scale = int(os.environ.get("COLIBRI_TEST_SCALE", "1"))
    rng = random.Random(f"{seed} {case.mode}")  # noqa: S311 - picks moments
    print(f"SEED={seed}")
    last = [[case.moments - n] for n in range(10)]
    several = [
        [rng.randint(1, case.moments) for _ in range(rng.randint(1, 4))] for _ in range(8 * scale)
    ]
    for moments in last + several:
        case.check(moments)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_R182_kills_by_the_clock_change_no_byte(case: Case) -> None:
    """Kills from outside, at any point of the machine code."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED", "1"))
    scale = int(os.environ.get("COLIBRI_TEST_SCALE", "1"))
    rng = random.Random(f"{seed} {case.mode} clock")  # noqa: S311 - picks moments
    print(f"SEED={seed}")
    out = case.prepare("out")
    kills = 0
    for _ in range(10 * scale):
        command = [sys.executable, "-c", CHILD, case.mode, str(case.source), str(out), "0"]
        with subprocess.Popen(command, stdout=-3, stderr=-3) as process:
            try:
                process.wait(rng.uniform(0.2, 2.0))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
    print(f"{kills} kills")
    case.complete(out, [])
