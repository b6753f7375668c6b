"""The server against its own description: requests that schemathesis makes up, right and wrong.

No answer may be a 5xx, of an undescribed status or of another shape; what the description forbids
must be refused. The opposite is not demanded (`positive_data_acceptance`): a prompt may be too long
for the context, and rules about several fields stand in no schema.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fakeserver import FakeServer


@pytest.fixture
def make() -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def one(**settings: str) -> FakeServer:
        servers.append(FakeServer(**settings))
        servers[-1].start()
        return servers[-1]

    yield one
    for server in servers:
        server.stop()


def explore(server: FakeServer, folder: Path, seconds: int, seed: int, *options: str) -> None:
    """Lets schemathesis look for faults for so long. Raises AssertionError with what it found."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--max-time", str(seconds), "--seed", str(seed), "--no-color", "--warnings", "off"]
    # A chat may have any id, "export" too, so OPTIONS on such a path rightly names its methods.
    left_out = "positive_data_acceptance,allow_header_conformance"
    command += ["--exclude-checks", left_out, "--continue-on-failure", *options]
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds + 240, check=False
    )
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2_000:]
    assert "Tested: " in found.stdout
    server.wait_for(active=0, queued=0)


@pytest.mark.timeout(300)
def test_the_server_keeps_to_its_description(
    make: Callable[..., FakeServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = make()
    explore(server, tmp_path, 20, 1)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_server_keeps_to_its_description_for_ten_minutes(
    make: Callable[..., FakeServer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    scale: int,
) -> None:
    server = make()
    seed = int(os.environ.get("COLIBRI_TEST_SEED", "20260101"))
    explore(server, tmp_path, 600 * scale, seed)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
