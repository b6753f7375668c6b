"""The workflow that builds every system's release: valid, and true to the tree."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
SCRIPTS = [ROOT / "packaging" / "macos" / "release.sh", ROOT / "packaging/windows/release.ps1"]


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    found["on"] = found.pop(True)  # YAML 1.1 takes `on` for a truth value
    return found


@pytest.fixture(scope="module")
def schema() -> Draft7Validator:
    vendored = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    text = (vendored / "github-workflows.json").read_text(encoding="utf-8")
    return Draft7Validator(json.loads(text))


def test_the_workflow_is_valid(workflow: dict[str, Any], schema: Draft7Validator) -> None:
    assert [error.message for error in schema.iter_errors(workflow)] == []
    del workflow["jobs"]["linux"]["runs-on"]
    assert list(schema.iter_errors(workflow))  # the check can fail


def test_every_system_builds_tries_and_keeps_its_release(workflow: dict[str, Any]) -> None:
    assert set(workflow["jobs"]) == {"linux", "windows", "macos"}
    for name, job in workflow["jobs"].items():
        steps = job["steps"]
        assert "timeout-minutes" in job, name
        assert [step for step in steps if step.get("name") == "Build and try"], name
        assert steps[-1]["with"]["path"] == "build/release/out/", name


def test_the_workflow_and_its_scripts_call_what_exists(workflow: dict[str, Any]) -> None:
    commands = "\n".join(
        step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\S+)", commands.replace("make gcc", "")):
        assert f"\n{target}:" in makefile
    for script in re.findall(r"\./(\S+)", commands):
        assert ROOT / script in SCRIPTS
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        for needed in ("requirements/release.lock", "release.build", "packaging/smoke"):
            assert needed in text


def test_the_release_lock_has_the_packages_of_every_system() -> None:
    lock = (ROOT / "requirements" / "release.lock").read_text(encoding="utf-8")
    for name, system in {
        "pythonnet": "win32",
        "pyobjc-core": "darwin",
        "colorama": "win32",
    }.items():
        assert re.search(rf"^{name}==\S+ ; sys_platform == '{system}'", lock, re.MULTILINE), name
    runtime = (ROOT / "requirements" / "runtime.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^(\S+==\S+)", runtime, re.MULTILINE)
    assert pins and [pin for pin in pins if f"{pin} " not in lock] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (freezer,) = [
        item for item in project["dependency-groups"]["release"] if "pyinstaller" in str(item)
    ]
    assert f"\n{freezer} " in lock
