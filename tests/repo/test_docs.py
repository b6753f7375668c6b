"""Docs are tested: a setting, command, flag or route that no page names fails here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from colibri import settings
from colibri.cli import COMMANDS, coli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def documented() -> str:
    return "\n".join(page.read_text() for page in PAGES)


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups opened."""
    context = click.Context(coli)
    pending = [(f"coli {name}", coli.get_command(context, name)) for name in COMMANDS]
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
    assert sorted(name for name in variables if name not in documented) == []


def test_every_route_is_named_in_the_docs(documented: str) -> None:
    routes = importlib.import_module("colibri.api").documented_routes()
    assert routes
    assert [route for route in routes if f"`{route}`" not in documented] == []


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
