"""What every test gets: its own user folders, no inherited settings, and no process left behind.

`make test` fetches SmolLM2 first; the fixture `smollm2_folder` only says where it lies.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from colibri import paths

SMOLLM2_NAME = "smollm2-135m-instruct"
# Taken before any test replaces the user folders.
SMOLLM2_FOLDER = paths.models_dir() / SMOLLM2_NAME
GRACE_SECONDS = 5.0

# The same examples in every run, and no limit on time: a busy machine must not fail a test.
# `--hypothesis-profile=search` looks at others, to be kept as tests where they fail.
for _name, _same in (("same", True), ("search", False)):
    hypothesis.settings.register_profile(
        _name,
        deadline=None,
        derandomize=_same,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """User folders below the test's own, and no setting from the caller's environment."""
    for name in list(os.environ):
        if name.startswith(("COLI_", "COLIBRI_")) and not name.startswith("COLIBRI_TEST_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("COLIBRI_HOME", str(home))
    # Which models a test sees is the test's own business, so the program's own is not among them.
    monkeypatch.setattr(paths, "starter_dir", lambda: None)
    return home


def _children() -> dict[int, psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return {child.pid: child for child in found if not _is_python_helper(child)}


def _is_python_helper(process: psutil.Process) -> bool:
    """multiprocessing keeps one tracker process for the whole life of its parent."""
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return True


@pytest.fixture(autouse=True)
def no_leaked_processes() -> Iterator[None]:
    """Fails a test that leaves a child process running; ends it, so that the next one is clean."""
    before = _children()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while leaked := {pid: child for pid, child in _children().items() if pid not in before}:
        if time.monotonic() > deadline:
            names = ", ".join(f"{pid} {child.name()}" for pid, child in leaked.items())
            for child in leaked.values():
                child.kill()
            pytest.fail(f"child processes were left running: {names}")
        time.sleep(0.02)


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """Folder of the converted SmolLM2."""
    if not (SMOLLM2_FOLDER / "colibri.json").exists():
        pytest.fail(f"no SmolLM2 in {SMOLLM2_FOLDER}; run `make model`")
    return SMOLLM2_FOLDER


@pytest.fixture
def seeded(record_property: Callable[[str, object], None]) -> random.Random:
    """Random numbers of a long test; COLIBRI_TEST_SEED repeats a run."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED", "20260101"))
    record_property("seed", seed)
    print(f"seed {seed}")
    return random.Random(seed)  # noqa: S311


@pytest.fixture(scope="session")
def scale() -> int:
    """How many times longer than usual a long test runs (`make test-long N=`)."""
    return max(1, int(os.environ.get("COLIBRI_TEST_SCALE", "1")))
