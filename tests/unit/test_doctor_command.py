"""`coli doctor` and `coli verify` from the outside: what they print and how they end.

Covers R157, R185.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from colibri import cli, paths
from colibri.cli import coli
from colibri.hardware import checkup, disk
from colibri.models import synthetic
from colibri.models import verify as verify_checks
from colibri.models.synthetic import Shape
from tests.models import broken

SHAPE = Shape(layers=2, hidden=64, experts=4, top_k=2, expert_ffn=32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    synthetic.make(folder, SHAPE)
    return folder


@pytest.fixture(autouse=True)
def no_disk_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 MB are not written by every test."""
    monkeypatch.setattr(disk, "measure_folder", lambda _folder: None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(coli, arguments)


def report(*arguments: str) -> dict[str, Any]:
    result = run("doctor", *arguments, "--json")
    content: dict[str, Any] = json.loads(result.stdout)
    assert content["schema"] == 1
    for item in content["findings"]:
        if item["level"] in ("warning", "error"):
            assert item["what"]
            assert item["where"]
            assert item["fix"]
    return content


def test_the_remedy_for_a_broken_config_file_works_with_that_file() -> None:
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.write_text("[server]\nport = = 1\n")
    found = report()["findings"][0]
    assert found["where"] == str(path)
    _, command, _ = found["fix"].split("`")
    result = run(*command.removeprefix("coli ").split())
    assert result.exit_code == 0, result.output


def test_a_healthy_machine_and_model_end_with_0(whole: Path) -> None:
    content = report(str(whole), "--deep")
    assert content["exit_code"] == 0, content["findings"]
    assert content["kind"] == "packed"
    assert content["model"] == str(whole)
    assert {"versions", "paths", "cpu", "memory", "gpus", "disk", "fit"} <= set(content["facts"])
    assert content["facts"]["versions"]["colibri"]
    assert content["facts"]["cpu"]["usable"] >= 1


def test_the_exit_code_is_that_of_the_worst(whole: Path, tmp_path: Path) -> None:
    folder = broken.copy(whole, tmp_path / "m")
    os.truncate(folder / "packed-00000.safetensors", 1000)
    assert cli.run(coli, "coli", ["doctor", str(folder)]) == 7
    (folder / "packed-00000.safetensors").unlink()
    assert cli.run(coli, "coli", ["doctor", str(folder)]) == 4
    assert cli.run(coli, "coli", ["doctor", "no-such-model"]) == 3


def test_without_a_model_the_machine_alone_is_checked() -> None:
    content = report()
    assert content["model"] is None
    assert content["exit_code"] == 0
    assert any("no model is installed" in item["what"] for item in content["findings"])


def test_the_only_installed_model_is_the_one_that_is_meant(whole: Path) -> None:
    target = paths.models_dir() / "tiny"
    target.parent.mkdir(parents=True)
    broken.copy(whole, target)
    assert report()["model"] == str(target)
    assert report("tiny")["model"] == str(target)


@pytest.mark.parametrize("name", ["\0", "a\nb", "x" * 5000, "..", "/dev/null", "~nobody/x", ""])
def test_names_of_any_kind_are_findings(name: str) -> None:
    assert report(name)["exit_code"] in (0, 3, 4)


def test_a_folder_that_is_no_model_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"junk")
    content = report(str(tmp_path))
    places = {item["where"] for item in content["findings"] if item["level"] == "error"}
    assert {str(tmp_path / "x.safetensors"), str(tmp_path / "config.json")} <= places


def test_a_config_file_that_is_damaged_is_a_finding_and_the_rest_goes_on(whole: Path) -> None:
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.write_text("[server\n")
    content = report(str(whole))
    assert content["exit_code"] == 2
    assert content["kind"] == "packed"


def test_a_misspelt_key_and_an_open_api_key_are_warnings(whole: Path) -> None:
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.write_text("[server]\nprot = 1\napi_key = 'secret'\n")
    path.chmod(0o644)
    content = report(str(whole))
    text = json.dumps(content["findings"])
    assert "did you mean server.port" in text
    assert f"chmod 600 {path}" in text
    assert "secret" not in text
    path.chmod(0o600)
    assert "chmod" not in json.dumps(report(str(whole))["findings"])


def test_a_home_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "file" / "home"))
    content = report()
    assert content["exit_code"] == 2, "the config file below it cannot be read either"
    assert any("cannot be made" in item["what"] for item in content["findings"])


def test_a_port_in_use_does_not_make_the_check_fail(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = checkup.findings.warning("machine", "port 1 is in use", "h:1", "fix")
    monkeypatch.setattr(checkup, "port", lambda _host, _number: taken)
    content = report(str(whole))
    assert content["worst"] == "warning"
    assert content["exit_code"] == 0


def test_people_get_lines_with_the_remedy_below_and_a_count(tmp_path: Path) -> None:
    folder = broken.make(tmp_path / "m")
    (folder / "out-00002.safetensors").unlink()
    result = run("doctor", str(folder))
    assert "error    " in result.stdout
    assert "-> Go on with: hf download REPO out-00002.safetensors" in result.stdout
    assert "errors, " in result.stderr


def test_verify_says_what_it_read_and_ends_with_0(whole: Path) -> None:
    result = run("verify", str(whole), "--json")
    content = json.loads(result.stdout)
    assert content["exit_code"] == 0
    assert content["bytes"] == (whole / "packed-00000.safetensors").stat().st_size
    assert content["bytes_with_hash"] > 0.9 * content["bytes"]
    assert content["manifest"] is None


def test_verify_writes_a_manifest_only_for_a_good_container(whole: Path, tmp_path: Path) -> None:
    folder = broken.copy(whole, tmp_path / "m")
    assert cli.run(coli, "coli", ["verify", str(folder), "--manifest", "--repo", "a/b"]) == 0
    path = folder / "colibri-manifest.json"
    assert json.loads(path.read_text())["source"] == {"repo": "a/b"}
    path.unlink()
    data = bytearray((folder / "packed-00000.safetensors").read_bytes())
    data[-3] ^= 4
    (folder / "packed-00000.safetensors").write_bytes(data)
    assert cli.run(coli, "coli", ["verify", str(folder), "--manifest"]) == 7
    assert not path.exists()


def test_verify_refuses_a_repository_that_is_none(whole: Path) -> None:
    assert run("verify", str(whole), "--repo", "https://x/y/z").exit_code == 2
    assert cli.run(coli, "coli", ["verify", "no-such-model"]) == 3


def test_an_interrupted_verify_ends_with_130(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("colibri.models.verify.verify", interrupt)
    assert cli.run(coli, "coli", ["verify", str(whole)]) == 130


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_R161_copies_on_a_mirror_are_checked_too(command: str, whole: Path, tmp_path: Path) -> None:
    good, bad = broken.copy(whole, tmp_path / "good"), broken.copy(whole, tmp_path / "bad")
    shard = broken.shards(bad)[0]
    shard.write_bytes(shard.read_bytes()[:-4096])
    result = run(command, str(whole), "--mirror", str(good), "--mirror", str(bad))
    assert result.exit_code == 0
    assert f"{good}: a mirror with 1 of 1 files" in result.stdout
    assert f"{bad}: {shard.name} is left out" in result.stdout
    assert f"{bad}: a mirror with" not in result.stdout


def test_a_context_beyond_the_model_is_a_finding(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLI_CTX", "10000000")
    found = [item for item in report(str(whole))["findings"] if item["where"] == "--ctx"]
    assert [item["level"] for item in found] == ["warning"]
    assert "longer than the" in found[0]["what"]


def test_a_manifest_that_cannot_be_written_is_told_with_its_folder(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(verify_checks, "write_manifest", full)
    folder = broken.copy(whole, tmp_path / "copy")
    code = cli.run(coli, "coli", ["verify", str(folder), "--manifest", "--quiet"])
    assert code == 5
