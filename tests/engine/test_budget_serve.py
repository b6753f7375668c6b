"""What `coli plan` calls usable holds: server and engine process together, through prompts and
answers, inside a control group where one can be made.

R154, R166, R173: memory is sampled over both processes for the least budget, some between, and the
resident one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from colibri.models import synthetic
from colibri.models.synthetic import Shape
from tests.support.serveprocess import serve

SHAPE = Shape(layers=16, hidden=1024, experts=64, top_k=4, expert_ffn=512)
CONTEXT = 1024
# The kernel counts page tables and the like in a group; the budget is about our own memory.
KERNEL_BYTES = 48 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "larger"
    synthetic.make(folder, SHAPE)
    return folder


def plan(model: Path, ram: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "colibri.cli", "plan", str(model), "--json", "--ram", ram]
    command += ["--ctx", str(CONTEXT), "--disk-speed", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)["plan"]
    return found


@contextmanager
def limited(budget: int) -> Iterator[Path | None]:
    """The file of a new control group with that limit; None where none can be made."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").is_file()
    folder = (root if unified else root / "memory") / f"colibri-budget-{os.getpid()}"
    limit = folder / ("memory.max" if unified else "memory.limit_in_bytes")
    try:
        folder.mkdir()
        limit.write_text(str(budget + KERNEL_BYTES))
    except OSError:
        if folder.is_dir():
            folder.rmdir()
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


class Sampler:
    """Largest sums of resident and of proportional bytes over a process and its children."""

    def __init__(self, pid: int) -> None:
        self.rss = self.pss = self.samples = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                processes = [self._process, *self._process.children(recursive=True)]
                found = [process.memory_full_info() for process in processes]
            except psutil.Error:
                continue
            self.rss = max(self.rss, sum(item.rss for item in found))
            self.pss = max(self.pss, sum(item.pss for item in found))
            self.samples += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def ask(url: str, text: str, tokens: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "model": "x"}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=240) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
    return found


def health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0.0, 0.45, 0.8, 1.0])
def test_R166_memory_stays_inside_every_budget_that_plan_calls_usable(
    model: Path, share: float
) -> None:
    smallest = plan(model, "0.05")
    assert not smallest["fits"]
    least, resident = smallest["least_budget"], smallest["resident_budget"]
    budget = int(least + share * (resident - least))
    usable = plan(model, f"{budget}B")
    assert usable["fits"]
    flags = ("--ram", f"{budget}B", "--ctx", str(CONTEXT))
    with limited(budget) as group, serve(model, *flags, group=group) as server:
        sampler = Sampler(server.process.pid)
        try:
            for turn in range(3):
                ask(server.url, f"{turn} " + "word " * 150, 60)
            said = health(server.url)["engine"]
        finally:
            sampler.stop()
    assert sampler.samples > 10
    assert sampler.rss <= budget, f"{sampler.rss:,} of {budget:,} bytes"
    assert said["memory"]["budget"] == budget
    assert said["memory"]["origin"] == "flag"
    assert said["restarts"] == 0
    if share == 1:
        assert not usable["streaming"], "what fits is resident"
        assert said["memory"]["experts"] == usable["expert_bytes"]
    if usable["streaming"] and share > 0:
        assert sampler.rss >= 0.9 * budget, f"only {sampler.rss:,} of {budget:,} bytes"
