"""Docs are tested: a setting, command, flag or route that no page names fails here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from colibri import settings
from colibri.api.app import create_app
from colibri.api.services import Services
from colibri.cli import COMMANDS, coli
from colibri_app.entry import sidecar
from tests.clients.environments import NODE, PYTHON

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Set by the program for its own child processes, never by a person.
INTERNAL = {"COLIBRI_APP_CHILD", "COLIBRI_ENGINE_CHILD"}
OUTSIDE_V1 = ("/health", "/metrics", "/experts", "/profile", "/api/", "/app")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def documented() -> str:
    return "\n".join(page.read_text() for page in PAGES)


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups opened."""
    context = click.Context(coli)
    pending = [(f"coli {name}", coli.get_command(context, name)) for name in COMMANDS]
    pending.append(("sidecar", sidecar))
    while pending:
        name, command = pending.pop()
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            pending += [(f"{name} {sub}", found) for sub, found in command.commands.items()]


def test_the_settings_page_is_the_settings_table() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page.strip() == settings.reference().strip(), "run `coli config reference`"


def test_every_command_and_flag_is_named_in_the_docs(documented: str) -> None:
    missing = []
    for name, command in _commands():
        if name not in documented:
            missing.append(name)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                missing += [
                    f"{name} {flag}"
                    for flag in parameter.opts
                    if flag.startswith("--") and f"`{flag}" not in documented
                ]
    assert missing == []


def test_every_variable_is_named_in_the_docs(documented: str) -> None:
    variables = {row.env for row in settings.TABLE}
    for package in (ROOT / "sidecar", ROOT / "app"):
        for source in package.rglob("*.py"):
            variables |= set(re.findall(r'"(COLI(?:BRI)?_[A-Z0-9_]*[A-Z0-9])"', source.read_text()))
    assert sorted(name for name in variables - INTERNAL if name not in documented) == []


def _routes() -> set[str]:
    """`METHOD /path` of every route, with the doubled and missing /v1 brought back to one."""
    services = Services(
        settings=settings.resolve({}, environ={}).settings,
        engine=Mock(),
        scheduler=Mock(),
        loader=Mock(),
    )
    found = set()
    for rule in create_app(services).url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        bare = re.sub(r"^(/v1)+", "", path)
        outside = path == "/" or path.startswith(OUTSIDE_V1)
        path = path if outside else f"/v1{bare}"
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            found.add(f"{method} {path}")
    return found


def test_every_route_is_named_in_the_docs(documented: str) -> None:
    routes = _routes()
    assert "POST /v1/chat/completions" in routes
    assert [route for route in sorted(routes) if f"`{route}`" not in documented] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]:
        for target in LINK.findall(page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []


def test_every_make_target_that_the_docs_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set()
    for page in [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]:
        named |= set(re.findall(r"`?make ([a-z][a-z-]+)`", page.read_text()))
    assert {"setup", "run", "test"} <= named
    assert [name for name in sorted(named) if f"\n{name}:" not in makefile] == []


@pytest.mark.parametrize("target", ["run", "app"])
def test_the_first_command_downloads_no_model_unless_one_is_asked_for(target: str) -> None:
    def needs(*variables: str) -> str:
        command = ["make", "--dry-run", "--question", "--print-data-base", target, *variables]
        # What a make around the tests was given is not meant for this one.
        environ = {name: value for name, value in os.environ.items() if "MAKE" not in name}
        told = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        ).stdout
        return " ".join(line for line in told.splitlines() if line.startswith(f"{target}: "))

    assert " setup " in needs()
    assert " model " not in needs()
    assert " model " in needs("MODEL=smollm2-135m-instruct")


def test_every_client_is_set_up_as_the_dashboard_shows_it() -> None:
    """The page Server and docs/clients.md have one source: its blocks, filled in."""
    filled = {"URL": "http://127.0.0.1:8000", "MODEL": "glm-5.2-colibri", "KEY": "local"}
    page = (ROOT / "docs" / "clients.md").read_text()
    clients = json.loads((ROOT / "frontend" / "src" / "server" / "clients.json").read_text())
    assert len(clients) >= 11
    for client in clients:
        assert f"## {client['name']}\n" in page
        for block in client["blocks"]:
            text = block["text"]
            for name, value in {**filled, "CONTEXT": "32768"}.items():
                text = text.replace(f"%{name}%", value)
            assert "%" not in text
            assert f"```{block['language']}\n{text}\n```" in page, client["name"]


def test_the_page_of_clients_names_the_versions_that_are_tried() -> None:
    page = " ".join((ROOT / "docs" / "clients.md").read_text().split())
    pins = [pin for name, pins in PYTHON.items() if name != "node" for pin in pins]
    pins += [f"{name}=={version}" for package in NODE.values() for name, version in package.items()]
    tried = page[page.index("Tried with") :]
    for pin in pins:
        assert f" {pin.partition('==')[2]}" in tried, pin
