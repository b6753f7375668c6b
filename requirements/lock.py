"""Writes the lock files: exact versions and hashes of everything that pyproject.toml asks for.

Run by `make lock` in the project environment. `runtime.lock` is what a user needs, `dev.lock`
what building, testing and linting need on top; `release.lock` is what freezing the program needs,
on every system: its lines carry markers, so that Windows and macOS find theirs; `window.lock` is
all that the window alone needs, in an environment of the system's Python whose GTK it uses, and
`qt.lock` the same with Qt. `starter.lock` trains the starter model; PyPI's torch for Linux does not
load without CUDA's libraries, so they are in it, although training never uses them. Only names,
versions and hashes are written, so a lock says nothing about where the packages come from. Pass
`--upgrade` to move to newer versions.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADER = "# Written by `make lock` from pyproject.toml; do not edit.\n"


def group(project: dict[str, Any], name: str) -> list[str]:
    """The requirements of a dependency group, included groups resolved."""
    found: list[str] = []
    for item in project["dependency-groups"][name]:
        found += group(project, item["include-group"]) if isinstance(item, dict) else [item]
    return found


def compile_lock(requirements: list[str], target: Path, extra: list[str]) -> None:
    """Resolves `requirements` and writes `target`; versions already in it are kept."""
    command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-options", "--allow-unsafe"]
    command += ["--strip-extras", "--output-file", str(target), *extra, "-"]
    subprocess.run(command, input="\n".join(requirements), text=True, check=True)  # noqa: S603
    target.write_text(HEADER + target.read_text().removeprefix(HEADER))


def compile_release(requirements: list[str], target: Path, extra: list[str]) -> None:
    """Resolves `requirements` for all systems at once, which pip-tools cannot."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet"]
    command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"]
    command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--constraint", str(HERE / "dev.lock"), "--output-file", str(target), *extra, "-"]
    subprocess.run(command, input="\n".join(requirements), text=True, check=True)  # noqa: S603
    target.write_text(HEADER + target.read_text().removeprefix(HEADER))


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    runtime = project["project"]["dependencies"]
    extra = sys.argv[1:]
    compile_lock([*runtime, *group(project, "dev")], HERE / "dev.lock", extra)
    # The runtime lock repeats the versions of the larger one: both are tested together.
    constraint = ["--constraint", str(HERE / "dev.lock"), *extra]
    compile_lock(runtime, HERE / "runtime.lock", constraint)
    window = project["project"]["optional-dependencies"]
    frozen = [*runtime, *window["window"], *group(project, "release")]
    compile_release(frozen, HERE / "release.lock", extra)
    folders = [item for item in runtime if item.startswith("platformdirs")]
    compile_lock([*window["window"], *folders], HERE / "window.lock", constraint)
    compile_lock([*window["qt"], *folders], HERE / "qt.lock", constraint)
    compile_release(group(project, "starter"), HERE / "starter.lock", extra)


if __name__ == "__main__":
    main()
