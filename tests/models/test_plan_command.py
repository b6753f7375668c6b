"""`coli plan`: figures before anything is loaded, from headers alone.

Covers R164, R168, R177, R178, R180.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colibri import cli
from colibri.cli import coli
from colibri.cli import plan as plan_command
from colibri.engine import ffi_plan
from colibri.engine.ffi import Engine
from colibri.engine.ffi_plan import ExpertClass, Plan
from colibri.engine.table import EngineOptions, Format, Tensor
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.values import ConfigReader
from colibri.hardware import memory, processes
from colibri.models import estimate, formats, synthetic
from colibri.models.model import open_model
from colibri.models.synthetic import Shape
from tests.models.test_families import GLM_52
from tests.models.test_glm52_container import write

GB = 10**9
SHAPE = Shape(layers=4, hidden=512, experts=64, top_k=4, expert_ffn=384, mtp=True)


@pytest.fixture(scope="module")
def glm52(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every header of the published GLM-5.2; its data are holes."""
    folder = tmp_path_factory.mktemp("glm-5.2")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    synthetic.make(folder, SHAPE)
    return folder


@pytest.fixture(autouse=True)
def _like_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test process holds far more than a command of its own would."""
    monkeypatch.setattr(memory, "rss", lambda _pid=None: 60_000_000)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.run(coli, "coli", ["plan", *arguments])
    return code, capfd.readouterr().out


def planned(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out = run(capfd, *arguments, "--json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


def test_R180_the_known_figures_of_glm_5_2_come_from_its_headers(
    glm52: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(glm52), "--ram", "64", "--disk-speed", "6", "--drafts", "0")
    assert report["schema"] == 1
    # Without indexer tensors in the files attention is dense: latents only.
    assert report["kv_per_1000_tokens"] == 1000 * 78 * 576 * 2
    assert report["per_token"]["cold"] == 75 * 8 * 21_233_664  # 12.74 GB
    plan = report["plan"]
    assert plan["streaming"]
    assert plan["fits"]
    assert 11.0 * GB < plan["dense_bytes"] < 13.5 * GB
    assert plan["total_bytes"] <= plan["budget"] == 64 * GB
    assert plan["total_bytes"] > 0.99 * plan["budget"]
    held = sum(kind["slots"] * kind["slot_bytes"] for kind in plan["classes"])
    everything = sum(kind["experts"] * kind["slot_bytes"] for kind in plan["classes"])
    assert everything == 75 * 256 * 21_233_664
    expected = report["per_token"]["cold"] * (1 - held / everything)
    assert report["per_token"]["read_uniform"] == pytest.approx(expected, rel=1e-3)
    # 64 GB and 6 GB/s: public reports say 0.3 to 1.0 tokens per second.
    found = estimate.Traffic(**report["per_token"])
    speed = estimate.speed(found, disk=6e9, memory=50e9)
    assert 0.2 < speed.low < speed.high < 1.2
    assert report["assumptions"]["disk"] == {"bytes_per_second": 6e9, "source": "given"}


def test_R180_with_an_indexer_a_token_takes_95_232_bytes() -> None:
    """78 layers of latents and 21 of indexer keys, in 16 bit; nothing expanded."""
    family = GLM_MOE_DSA
    geometry = family.without(family.geometry(ConfigReader(GLM_52, "config.json")), "mtp")
    tensors, place = [], 0
    for spec in family.tensors(geometry):
        plain = spec.is_vector or spec.name.endswith("mlp.gate.weight")
        fmt, group = (Format.F32, 0) if plain else (Format.I4_GROUP, 64)
        size = formats.plain_bytes(fmt, spec.rows, spec.cols)
        scales = 4 * formats.scale_count(fmt, group, spec.rows, spec.cols)
        tensors.append(
            Tensor(
                name=spec.name,
                format=fmt,
                group=group,
                rows=spec.rows,
                cols=spec.cols,
                file=0,
                offset=place,
                bytes=size,
                scale_file=0 if scales else -1,
                scale_offset=place + size if scales else 0,
                scale_bytes=scales,
            )
        )
        place += size + scales
    assert ffi_plan.plan(geometry, tensors).kv_bytes_per_token == 95_232


def test_drafts_add_a_class_of_wider_experts(
    glm52: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(glm52), "--ram", "64", "--disk-speed", "6", "--drafts", "2")
    kinds = {kind["slot_bytes"]: kind for kind in report["plan"]["classes"]}
    assert kinds[37_789_696]["experts"] == 256
    assert kinds[21_233_664]["experts"] == 75 * 256
    assert report["per_token"]["cold"] == 75 * 8 * 21_233_664
    assert all(kind["slots"] >= 1 for kind in kinds.values())


def test_118_000_tensors_are_planned_in_seconds(
    glm52: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Five seconds of processor time at most, so that a busy machine does not decide."""
    start = time.process_time()
    planned(capfd, str(glm52), "--ram", "64", "--disk-speed", "1")
    assert time.process_time() - start < 5 * 3


def test_R178_a_laptop_is_told_before_the_download(
    glm52: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(glm52), "--ram", "14.5", "--disk-speed", "1")
    text = " ".join(report["warnings"])
    assert "Too slow" in text
    assert "would run from memory" in text
    tiny = planned(capfd, str(glm52), "--ram", "8", "--disk-speed", "1")
    assert not tiny["plan"]["fits"]
    assert "does not fit" in " ".join(tiny["warnings"])
    assert tiny["plan"]["least_budget"] > 8 * GB


def test_files_that_are_holes_are_not_measured(
    glm52: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(glm52), "--ram", "64")
    assert report["assumptions"]["disk"]["source"] == "assumed"


def test_the_text_names_every_tier(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """R177: also why there is nothing in VRAM."""
    code, out = run(capfd, str(small), "--ram", "0.3", "--disk-speed", "1")
    assert code == 0
    for word in ("VRAM: 0 (", "Disk: ", "KV: ", "Budget: ", "Expected: ", "together"):
        assert word in out


def test_what_plan_says_is_what_opening_holds(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(small), "--ram", "0.27", "--ctx", "512", "--disk-speed", "1")
    plan = report["plan"]
    options = EngineOptions(
        memory_budget=plan["budget"],
        caller_bytes=plan["caller_bytes"],
        context=512,
        sessions=1,
        drafts=report["drafts"]["most"],
    )
    model = open_model(small)
    with Engine(model.paths, model.geometry, model.tensors, options) as engine:
        snapshot = engine.snapshot()
    held = sum(kind["slots"] for kind in plan["classes"])
    assert plan["streaming"]
    assert snapshot.streaming == plan["streaming"]
    assert snapshot.expert_slots == held
    assert snapshot.kv_bytes_per_token * 1000 == report["kv_per_1000_tokens"]


def test_R168_others_are_named_and_the_whole_machine_is_planned_too(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    figures = SimpleNamespace(total=64 * GB, available=12 * GB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: figures)
    monkeypatch.setattr(memory, "cgroup_left", lambda: None)
    monkeypatch.setattr(memory, "total", lambda: 64 * GB)
    holder = processes.Holder(pid=7, name="python", bytes=50 * GB, ours=True)
    monkeypatch.setattr(processes, "memory_holders", lambda: [holder])
    report = planned(capfd, str(small), "--disk-speed", "1")
    assert report["in_use"]["bytes"] == 52 * GB
    assert report["in_use"]["by"][0]["pid"] == 7
    assert report["plan"]["budget"] < 12.2 * GB
    assert report["whole_machine"]["plan"]["budget"] > 60 * GB
    _, out = run(capfd, str(small), "--disk-speed", "1")
    assert "Colibri (process 7)" in out
    assert "With the whole machine" in out


def test_an_unknown_model_exits_with_3() -> None:
    assert cli.run(coli, "coli", ["plan", "no-such-model"]) == 3


@pytest.mark.parametrize("arguments", [["--ram", "lots"], ["--disk-speed", "0"]])
def test_bad_values_are_usage_errors(small: Path, arguments: list[str]) -> None:
    assert cli.run(coli, "coli", ["plan", str(small), *arguments]) == 2


@pytest.mark.parametrize("arguments", [["--ctx", "99999999999999999999"], ["--parallel", "4"]])
def test_what_serve_would_refuse_is_refused_with_the_flag_to_change(
    small: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(coli, "coli", ["plan", str(small), *arguments, "--disk-speed", "1"]) == 2
    assert arguments[0] in capfd.readouterr().err


def test_a_context_beyond_the_model_is_planned_with_a_warning(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(small), "--ctx", "300000", "--ram", "64", "--disk-speed", "1")
    assert report["plan"]["context"] == 300_000
    assert any("longer than the" in text for text in report["warnings"])


def test_what_does_not_fit_is_told_with_settings_that_do(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = planned(capfd, str(small), "--ram", "1MB", "--disk-speed", "1")
    assert report["plan"]["fits"] is False
    said = next(text for text in report["warnings"] if "does not fit" in text)
    assert "the budget is 1.00 MB" in said
    named = said.split("--ram ")[1].split()[0].rstrip(",")
    assert f"at least {named} GB" in said
    again = planned(capfd, str(small), "--ram", named, "--disk-speed", "1")
    assert again["plan"]["fits"] is True


def test_planning_changes_nothing_also_beside_damaged_counts(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(small, folder)
    (folder / ".coli_usage").write_text("not counts")
    before = sorted(path.name for path in folder.iterdir())
    planned(capfd, str(folder), "--ram", "0.3", "--disk-speed", "1")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_mirror_that_is_not_there_is_warned_about(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    report = planned(capfd, str(small), "--mirror", str(gone), "--disk-speed", "1")
    assert any(str(gone) in text for text in report["warnings"])


def test_a_split_model_is_planned_with_the_part_on_its_mirror(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home, mirror = tmp_path / "home", tmp_path / "mirror"
    mirror.mkdir()
    shutil.copytree(small, home)
    for shard in home.glob("*.safetensors"):
        shard.rename(mirror / shard.name)
    flags = ("--ram", "0.3", "--disk-speed", "1")
    split = planned(capfd, str(home), *flags, "--mirror", str(mirror))
    assert split["plan"] == planned(capfd, str(small), *flags)["plan"]
    assert run(capfd, str(home), *flags)[0] == 4


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0123, "0.012"), (9.94, "9.9"), (141.2, "141"), (1234, "1,234")]
)
def test_rates_are_written_without_exponents(rate: float, text: str) -> None:
    assert plan_command._rate(rate) == text


# ---- estimates -----------------------------------------------------------------------------------


def streaming_plan(slots: int) -> Plan:
    numbers = dict.fromkeys(Plan.__struct_fields__[:-1], 0)
    numbers |= {"streaming": 1, "fits": 1, "dense_bytes": 100}
    return Plan(**numbers, classes=(ExpertClass(10, 100, slots),))


def test_learnt_usage_lowers_what_is_read() -> None:
    geometry = SimpleNamespace(n_experts=10, experts_per_token=2)
    even = estimate.traffic(geometry, streaming_plan(25), 20)  # type: ignore[arg-type]
    assert (even.cold, even.computed, even.read_uniform) == (200, 280, 150)
    assert even.read_learnt is None
    counts = np.ones((10, 10), dtype=np.int64)
    counts[:, :2] = 46
    skewed = estimate.traffic(geometry, streaming_plan(20), 20, counts)  # type: ignore[arg-type]
    assert skewed.read_uniform == 160
    assert skewed.read_learnt == pytest.approx(200 * 0.08, abs=1)


def test_speed_lies_between_full_overlap_and_none() -> None:
    found = estimate.Traffic(cold=200, computed=1000, read_uniform=100, read_learnt=None)
    rate = estimate.speed(found, disk=100.0, memory=1000.0)
    assert rate.high == pytest.approx(1 / (1000 / 850))
    assert rate.low == pytest.approx(1 / (100 / 60 + 1000 / 400))
