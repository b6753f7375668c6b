"""`coli atlas`: a small model's experts are measured, by an engine of its own or by a server, and
told of; a kill costs one prompt.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from colibri.cli import coli
from colibri.engine.fake import Script
from colibri.engine.protocol import ExpertLayout
from colibri.errors import (
    ColibriError,
    EngineFailure,
    NetworkError,
    ResourceError,
    UsageError,
)
from colibri.models import usage
from colibri.models.atlas import file, runs
from tests.models import files
from tests.support import draftmodel
from tests.support.fakeserver import FakeServer

TOPICS = ("letters", "digits", "signs")
TEXTS = {"letters": "abcdefgh", "digits": "01234567", "signs": "!#$%&*+-"}
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    """Nobody answers on the configured address, whatever runs on this machine."""
    monkeypatch.setenv("COLI_PORT", str(free_port))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("atlas") / "model")


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    """The model, without what an earlier test has left in its folder."""
    before = set(made.iterdir())
    yield made
    for path in set(made.iterdir()) - before:
        path.unlink()


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """Three topics, each with two prompts in each set."""
    path = tmp_path / "topics.toml"
    lines = []
    for name, text in TEXTS.items():
        lines += [f"[{name}]", f'a = ["{text * 3}", "{text[::-1] * 3}"]']
        lines += [f'b = ["{text[4:] * 6}", "{text[:4] * 6}"]']
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def server() -> Iterator[FakeServer]:
    layout = ExpertLayout(layers=(1, 2), cols=4, bytes=0)
    server = FakeServer(experts=layout)
    server.start()
    yield server
    server.stop()


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(coli, ["atlas", *map(str, arguments)])


def told(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert found["schema"] == 1
    return dict(found)


def refused(kind: type[ColibriError], *arguments: object) -> str:
    error = invoke(*arguments).exception
    assert isinstance(error, kind), error
    return f"{error.where}: {error.message} {error.hint}"


def options(topics: Path) -> tuple[object, ...]:
    return "--topics", topics, "--tokens", 4, "--ctx", 256, "--threads", 1


def test_an_own_engine_measures_every_prompt_and_the_model_learns_nothing(
    folder: Path, topics: Path
) -> None:
    known = "-1 3 16\n1 2 5\n"
    (folder / usage.NAME).write_text(known)
    report = told("run", folder, *options(topics))
    assert (report["prompts"], report["measured"], report["server"]) == (12, 12, None)
    assert (folder / usage.NAME).read_text() == known
    found = runs.load(folder / runs.NAME)
    k = draftmodel.SHAPE.top_k
    assert [sample.topic for sample in found.samples[:3]] == list(TOPICS)
    assert found.header.cols == draftmodel.SHAPE.experts
    for sample in found.samples:
        # 24 characters, the mark that closes the turn and the one that opens the answer, or so.
        prompt = sample.prompt.sum(axis=1)
        assert len(set(prompt.tolist())) == 1
        assert 24 * k <= prompt[0] <= 30 * k
        assert (sample.answer.sum(axis=1) <= 3 * k).all()
    counted = sum(int(sample.prompt[0].sum() + sample.answer[0].sum()) for sample in found.samples)
    assert report["tokens"] == counted // k


def test_what_was_measured_is_told_and_written(folder: Path, topics: Path) -> None:
    told("run", folder, *options(topics))
    report = told("analyze", folder, "--min-tokens", 1)
    assert report["written"] is None
    assert (report["prompts"], report["topics"]) == (12, list(TOPICS))
    assert report["mutual_information_bits"]["found"] > 0
    assert report["prediction"]["chance"] < 1
    result = invoke("analyze", folder, "--min-tokens", 1, "--web")
    assert result.exit_code == 0, result.output
    path = folder / file.NAME
    assert str(path) in result.stdout
    assert "mutual information of topic and expert" in result.stdout
    columns = file.parse(path.read_bytes())
    assert columns.categories == TOPICS
    assert len(columns.layer) == report["experts"] > 0
    assert columns.measurement is not None
    assert columns.measurement.prompts == 12


def wait_for_lines(path: Path, lines: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if path.read_bytes().count(b"\n") >= lines:
                return
        time.sleep(0.005)
    raise AssertionError("nothing was measured")


def test_a_kill_costs_one_prompt_and_changes_nothing(folder: Path, topics: Path) -> None:
    command = [sys.executable, "-m", "colibri.cli", "atlas", "run", str(folder)]
    killed = subprocess.Popen([*command, *map(str, options(topics)), "--quiet"])
    path = folder / runs.NAME
    try:
        wait_for_lines(path, 3)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    kept = len(runs.load(path).samples)
    assert kept >= 2
    report = told("run", folder, *options(topics))
    assert report["measured"] == 12 - kept
    again = told("run", folder, *options(topics))
    assert again["measured"] == 0
    whole = folder / "whole"
    told("run", folder, *options(topics), "--out", whole)
    assert path.read_bytes() == whole.read_bytes()


def test_a_server_measures_with_its_own_engine(
    server: FakeServer, topics: Path, tmp_path: Path
) -> None:
    out = tmp_path / "measurement"
    server.backend.enqueue(*(Script(pieces=("x", "y")) for _ in range(12)))
    report = told("run", "--url", server.url, "--out", out, "--topics", topics, "--tokens", 4)
    assert (report["server"], report["measured"]) == (server.url, 12)
    assert runs.load(out).header.layers == (1, 2)
    result = told("analyze", "--from", out, "--out", tmp_path / "experts.json")
    assert result["written"] == str(tmp_path / "experts.json")


def test_what_a_server_refuses_is_told_in_its_words(
    server: FakeServer, topics: Path, tmp_path: Path
) -> None:
    server.backend.enqueue(Script(fail_prefill="it broke"))
    given = ("run", "--url", server.url, "--out", tmp_path / "m", "--topics", topics)
    assert "it broke" in refused(EngineFailure, *given)


def test_wrong_use_is_refused_with_what_to_do(
    folder: Path, topics: Path, server: FakeServer, tmp_path: Path, free_port: int
) -> None:
    assert "--out" in refused(UsageError, "run", "--url", server.url)
    assert "not" in refused(UsageError, "run", folder, "--url", server.url)
    refused(NetworkError, "run", "--url", f"http://127.0.0.1:{free_port}", "--out", tmp_path / "m")
    assert "coli atlas run" in refused(UsageError, "analyze", folder)
    topics.write_text("[x]")
    assert str(topics) in refused(UsageError, "run", folder, "--topics", topics)
    missing = tmp_path / "a file"
    missing.write_text("")
    assert "written" in refused(ResourceError, "run", folder, "--out", missing / "x")


def test_a_dense_model_is_refused(tmp_path: Path, topics: Path) -> None:
    dense = tmp_path / "dense"
    files.llama_folder(dense)
    assert "dense" in refused(UsageError, "run", dense, "--topics", topics)
