"""`coli tune` with real engine processes on a model whose experts do not all fit.

Covers R172.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from colibri import cli, paths
from colibri.cli import coli
from colibri.cli import tune as command
from colibri.engine.protocol import EngineInfo
from colibri.errors import EngineFailure, ResourceError
from colibri.hardware import memory, processes
from colibri.models import synthetic, tune_run, usage
from colibri.models.model import open_model
from colibri.models.synthetic import Shape
from colibri.models.tune import Candidate, Measurement
from colibri.settings import Settings

SHAPE = Shape(layers=4, hidden=256, experts=64, top_k=4, expert_ffn=512, mtp=True)
BUDGET = 40_000_000
# Beside it, about what the engine's process holds itself.
PROGRAM = 68_000_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    synthetic.make(folder, SHAPE)
    return folder


def runner(model: Path, budget: int = 0, **changed: Any) -> tune_run.Runner:
    chosen = dataclasses.replace(Settings(ctx=256, threads=1), **changed)
    tokenizer = open_model(model).tokenizer
    state = model.parent / "state"
    state.mkdir(exist_ok=True)
    return tune_run.Runner(
        lambda changes: command._engine(
            dataclasses.replace(chosen, **changes), model, budget, state
        ),
        tokenizer,
        budget,
    )


def test_every_setting_that_is_tried_gives_the_same_answer(model: Path) -> None:
    run = runner(model, budget=BUDGET + PROGRAM)
    tried: list[Mapping[str, Any]] = [
        {},
        {"threads": 2},
        {"io_mode": "threads"},
        {"io_mode": "buffered"},
        {"prefetch": "off"},
        {"prefill_chunk": 8},
        {"drafts": "0"},
        {"drafts": "1"},
        {"drafts": "3"},
    ]
    measured = [run(changes) for changes in tried]
    assert len({item.answer for item in measured}) == 1
    assert all(item.seconds > 0 for item in measured)
    assert run.info is not None
    assert run.info.context == 256
    size = (model / "packed-00000.safetensors").stat().st_size
    assert size > 1.5 * BUDGET >= 1.5 * run.info.weight_bytes, "experts come from disk"


def test_nothing_is_learnt_from_runs_and_each_starts_with_what_is_known(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = model / usage.NAME
    known.write_text("-1 4 64\n-2 1 3815245270\n2 5 100\n")
    started: list[str] = []
    real = tune_run.Runner._job

    def look(self: tune_run.Runner, client: Any) -> Measurement:
        started.append((model.parent / "state" / usage.NAME).read_text())
        return real(self, client)

    monkeypatch.setattr(tune_run.Runner, "_job", look)
    run = runner(model, budget=BUDGET + PROGRAM)
    try:
        run({})
        run({"threads": 2})
        assert started == [known.read_text()] * 2
        assert known.read_text() == "-1 4 64\n-2 1 3815245270\n2 5 100\n"
        assert (model.parent / "state" / usage.NAME).read_text() != known.read_text()
    finally:
        known.unlink()


def test_the_work_grows_until_it_can_be_timed_and_stays_inside_the_context(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(model)
    monkeypatch.setattr(
        tune_run.Runner, "__call__", lambda self, _changes: self._fake() or Measurement(0.01, "a")
    )
    info = EngineInfo(
        context=100,
        vocab=1,
        isa="",
        precision="",
        threads=1,
        weight_bytes=1,
        kv_bytes_per_token=1,
        memory_budget=0,
    )
    monkeypatch.setattr(
        tune_run.Runner, "_fake", lambda self: setattr(self, "info", info), raising=False
    )
    sizes = [work.prompt for work in run.size_up(1000)]
    assert sizes == [16, 32, 64]
    assert run.work.prompt + run.work.generated <= 100


def test_the_prompt_has_exactly_the_tokens_asked_for(model: Path) -> None:
    tokenizer = open_model(model).tokenizer
    for count in (1, 16, 1000):
        assert len(tune_run.prompt_ids(tokenizer, count)) == count


def test_an_engine_that_cannot_hold_the_model_says_so_once(model: Path) -> None:
    with pytest.raises(ResourceError):
        runner(model, budget=1_000_000)({})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(coli, ["tune", *arguments])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take fake time; two compute threads are 30 % faster than what is set."""

    def fake(self: tune_run.Runner, changes: Mapping[str, Any]) -> Measurement:
        tune_run.check_memory(self._budget)
        self.wall_seconds = 1.0
        self.info = EngineInfo(
            context=4096,
            vocab=1,
            isa="",
            precision="",
            threads=1,
            weight_bytes=1,
            kv_bytes_per_token=1,
            memory_budget=0,
        )
        return Measurement(10 / 1.3 if changes.get("threads") == 2 else 10.0, "a")

    monkeypatch.setattr(tune_run.Runner, "__call__", fake)
    monkeypatch.setattr(command, "_candidates", _two_threads)


def _two_threads(*_: Any, **__: Any) -> list[Any]:
    return [Candidate({"threads": 2}), Candidate({"prefetch": "off"})]


@pytest.mark.usefixtures("measured")
def test_what_won_is_printed_and_only_written_when_asked(model: Path) -> None:
    result = run(str(model), "--threads", "1")
    assert result.exit_code == 0, result.output
    assert "engine.threads = 2" in result.stdout
    assert "prefetch = off" in result.stdout
    assert "no certain gain" in result.stdout
    assert not paths.config_file().exists()
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.write_text("# mine\n[server]\nport = 0  # any\n")
    assert run(str(model), "--apply").exit_code == 0
    assert path.read_text().startswith("# mine\n[server]\nport = 0  # any\n")
    assert tomllib.loads(path.read_text())["engine"] == {"threads": 2}


@pytest.mark.usefixtures("measured")
def test_the_report_for_programs_holds_every_figure(model: Path) -> None:
    content = json.loads(run(str(model), "--json").stdout)
    assert content["schema"] == 1
    assert content["chosen"] == {"engine.threads": 2}
    assert content["written"] is None
    by_key = {next(iter(item["settings"])): item for item in content["candidates"]}
    assert by_key["engine.threads"]["verdict"]["wins"]
    assert not by_key["engine.prefetch"]["verdict"]["wins"]
    assert content["confirmations"][0]["verdict"]["wins"]


@pytest.mark.usefixtures("measured")
def test_nothing_is_written_when_nothing_is_certainly_faster(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_candidates", lambda *_, **__: _two_threads()[1:])
    result = run(str(model), "--apply")
    assert result.exit_code == 0
    assert "they stay" in result.stdout
    assert not paths.config_file().exists()


@pytest.mark.usefixtures("measured")
def test_a_machine_whose_runs_differ_by_a_quarter_is_called_busy(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 13.0] * 500)
    real = tune_run.Runner.__call__

    def restless(self: tune_run.Runner, changes: Mapping[str, Any]) -> Measurement:
        real(self, changes)
        return Measurement(next(times), "a")

    monkeypatch.setattr(tune_run.Runner, "__call__", restless)
    result = run(str(model))
    assert "they stay" in result.stdout
    assert "busy with other things" in result.stderr


@pytest.mark.usefixtures("measured")
def test_a_variable_that_would_win_over_the_file_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLI_THREADS", "1")
    assert "COLI_THREADS" in run(str(model)).stderr


@pytest.mark.usefixtures("measured")
def test_R172_memory_held_by_others_is_told_once_with_the_remedy(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds 60 % of the memory from the start."""
    holder = processes.Holder(pid=9, name="other", bytes=60 * 10**9, ours=False)
    monkeypatch.setattr(processes, "memory_holders", lambda: [holder])
    monkeypatch.setattr(memory, "system_figures", lambda: (100 * 10**9, 39 * 10**9))
    monkeypatch.setattr(memory, "budget", lambda: 38 * 10**9)
    result = run(str(model))
    assert result.exit_code == 0
    assert result.stderr.count("other (process 9)") == 1
    assert "Close other programs" in result.stderr
    assert "34.2 GB" in result.stderr, "that is what runs may take"


@pytest.mark.usefixtures("measured")
def test_runs_take_no_more_than_was_asked_for_and_no_more_than_is_free(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "budget", lambda: 10 * 10**9)
    assert json.loads(run(str(model), "--json").stdout)["memory_budget"] == 9 * 10**9
    asked = json.loads(run(str(model), "--json", "--ram", "4").stdout)
    assert asked["memory_budget"] == 4 * 10**9
    more = json.loads(run(str(model), "--json", "--ram", "400").stdout)
    assert more["memory_budget"] == 9 * 10**9


def test_a_model_that_does_not_fit_is_one_message(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "budget", lambda: 1_000_000)
    assert cli.run(coli, "coli", ["tune", str(model)]) == 5
    said = capfd.readouterr().err
    assert said.count("Error:") == 1
    assert "Traceback" not in said


def test_an_unknown_model_exits_with_3() -> None:
    assert cli.run(coli, "coli", ["tune", "no-such-model"]) == 3


def test_an_interrupt_leaves_no_engine_and_changes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: tune_run.Runner, _client: Any) -> Measurement:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_run.Runner, "_job", interrupt)
    assert cli.run(coli, "coli", ["tune", str(model), "--apply"]) == 130
    assert not paths.config_file().exists()


def test_a_worker_that_dies_is_a_failure_with_its_cause(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ = runner(model)
    real = tune_run.Runner._job

    def kill(self: tune_run.Runner, client: Any) -> Measurement:
        os.kill(client.status().pid, signal.SIGKILL)
        return real(self, client)

    monkeypatch.setattr(tune_run.Runner, "_job", kill)
    with pytest.raises(EngineFailure):
        run_({})
