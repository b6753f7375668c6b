"""`coli doctor`: is everything there that a model needs, and if not, what to do.

For: people whose model does not start or answers nonsense, and scripts (`--json`). Not for: the
checks themselves (`models.doctor`, `hardware.checkup`), which are imported when the command runs.
It never stops at the first problem, and ends with the exit code of the worst.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri import __version__, findings, paths, settings
from colibri.cli.convert import ProgressLine
from colibri.errors import ColibriError, UsageError
from colibri.findings import Finding

if TYPE_CHECKING:
    from colibri.models.doctor import Report

SCHEMA = 1
_OWNER_ONLY = 0o077


# Without the flag: what variable and config file say.
mirror_option = click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="DIR",
    help="Also check the copies in this folder, as `coli serve --mirror` uses them (repeatable).",
)


def folders(names: tuple[str, ...]) -> list[Path]:
    """Folders of mirrors."""
    return [paths.given(name).absolute() for name in names]


@click.command()
@click.argument("model", required=False)
@mirror_option
@click.option("--deep", is_flag=True, help="Also read every byte of the model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(model: str | None, mirrors: tuple[str, ...], deep: bool, as_json: bool) -> int:
    """Check settings, machine and MODEL (a name or a folder) and say what to do.

    Without MODEL the chosen model is checked, else the only installed one; where none is
    installed, the starter model.
    """
    found: list[Finding] = []
    facts: dict[str, Any] = {}
    chosen = _settings(found)
    _places(found)
    _machine(chosen, facts, found)
    folder = _folder(model or chosen.model, found)
    copies = mirrors or chosen.mirrors
    report = _model(folder, copies, deep, found) if folder is not None else None
    _disk(report, facts, found)
    if report is not None:
        _fit(report, chosen, facts, found)
    code = findings.exit_code(found)
    if as_json:
        content = {
            "schema": SCHEMA,
            "model": str(folder) if folder is not None else None,
            "kind": report.kind if report is not None else None,
            "worst": findings.worst(found),
            "exit_code": code,
            "facts": facts,
            "findings": as_plain(found),
        }
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        show(found)
    return code


def as_plain(found: list[Finding]) -> list[dict[str, str]]:
    """Findings for JSON."""
    return [{name: getattr(item, name) for name in item.__struct_fields__} for item in found]


def show(found: list[Finding]) -> None:
    """Findings for people, a remedy that several share once, and one line that counts them."""
    for item, following in zip(found, [*found[1:], None], strict=True):
        shared = following is not None and following.fix == item.fix
        click.echo(item.line(remedy=not shared))
    counts = {level: sum(item.level == level for item in found) for level in findings.LEVELS}
    errors, warnings = counts["error"], counts["warning"]
    click.echo(
        f"{errors} error{'' if errors == 1 else 's'}, "
        f"{warnings} warning{'' if warnings == 1 else 's'}.",
        err=True,
    )


def _settings(found: list[Finding]) -> settings.Settings:
    """The settings; those that cannot be read are findings, and defaults take their place."""
    path = paths.config_file()
    try:
        resolved = settings.resolve()
    except UsageError as failure:
        fix = "Correct it; `coli config reference` describes every setting."
        found.append(findings.from_error(failure, str(path), fix))
        return settings.Settings()
    for sentence in resolved.warnings:
        found.append(
            findings.warning(
                "settings",
                sentence if sentence.endswith("?") else f"{sentence}.",
                "settings",
                "Correct the name; `coli config reference` lists all.",
            )
        )
    if path.exists():
        found.append(findings.ok("settings", "the config file is readable.", str(path)))
        _secret(path, resolved, found)
    else:
        found.append(
            findings.note("settings", "there is no config file; defaults apply.", str(path))
        )
    return resolved.settings


def _secret(path: Path, resolved: settings.Resolved, found: list[Finding]) -> None:
    """Warns when others may read the API key."""
    holds_key = resolved.origins.get("api_key") == str(path)
    if holds_key and os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & _OWNER_ONLY:
        what = "it holds an API key, and other users of this machine may read it."
        found.append(findings.warning("settings", what, str(path), f"chmod 600 {path}"))


def _places(found: list[Finding]) -> None:
    """Our own folders: there or possible, and writable."""
    places = {
        "config": paths.config_dir(),
        "state": paths.state_dir(),
        "models": paths.models_dir(),
        "cache": paths.cache_dir(),
    }
    for name, folder in places.items():
        nearest = folder
        while not nearest.exists() and nearest.parent != nearest:
            nearest = nearest.parent
        where = str(folder)
        if not nearest.is_dir():
            what = f"the {name} folder cannot be made: {nearest} is no folder."
            fix = f"Move {nearest} away, or set COLIBRI_HOME to another folder."
            found.append(findings.error("machine", what, where, fix))
        elif not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            what = f"there is no permission to write the {name} folder."
            fix = f"Give your user the right to write {nearest}, or set COLIBRI_HOME."
            found.append(findings.error("machine", what, where, fix))
        else:
            state = "is there and writable" if folder.exists() else "can be made"
            found.append(findings.ok("machine", f"the {name} folder {state}.", where))


def _machine(chosen: settings.Settings, facts: dict[str, Any], found: list[Finding]) -> None:
    from colibri.engine import ffi  # noqa: PLC0415 - loads the engine
    from colibri.hardware import checkup  # noqa: PLC0415

    facts["versions"] = {
        "colibri": __version__,
        "engine": ffi.version(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    facts["paths"] = {
        "config": str(paths.config_file()),
        "models": str(paths.models_dir()),
        "state": str(paths.state_dir()),
    }
    versions = f"Colibri {__version__}, engine {ffi.version()}, Python {platform.python_version()}"
    found.append(findings.ok("machine", f"{versions} on {platform.platform()}.", "versions"))
    for name, check in (
        ("cpu", checkup.processor),
        ("memory", partial(checkup.ram, chosen.ram)),
        ("gpus", checkup.graphics),
    ):
        facts[name], items = check()
        found += items
    found.append(checkup.port(chosen.host, chosen.port))


def _folder(model: str | None, found: list[Finding]) -> Path | None:
    """The folder to look at; any folder will do, also one that is no model (yet)."""
    from colibri.models import catalog  # noqa: PLC0415 - reads configs

    if model is None:
        installed, starter = catalog.installed(), paths.starter_dir()
        if len(installed) == 1:
            return installed[0].folder
        if starter is not None and not installed:
            return starter
        names = ", ".join(item.name for item in installed)
        what = f"installed models: {names}." if installed else "no model is installed."
        fix = "`coli doctor MODEL` checks one of them." if installed else ""
        found.append(findings.note("model", what, str(paths.models_dir()), fix))
        return None
    try:
        return catalog.resolve(model)
    except ColibriError as failure:
        path = paths.given(model)
        if catalog.is_folder(path):
            return path
        found.append(findings.from_error(failure, model, "`coli models` lists what is installed."))
    except (OSError, ValueError) as failure:
        what = f"this is no path that can be read: {failure}."
        fix = "Give the name of an installed model or the path of a folder."
        found.append(findings.error("not_found", what, ascii(model), fix))
    return None


def _model(folder: Path, mirrors: tuple[str, ...], deep: bool, found: list[Finding]) -> Report:
    from colibri.models import doctor as checks  # noqa: PLC0415 - numpy, tokenizers

    report = checks.examine(
        folder,
        deep=deep,
        progress=ProgressLine(quiet=False),
        mirrors=folders(mirrors),
    )
    found += report.findings
    return report


def _disk(report: Report | None, facts: dict[str, Any], found: list[Finding]) -> None:
    from colibri.hardware import checkup  # noqa: PLC0415

    folder = report.folder if report is not None else paths.models_dir()
    if not folder.is_dir():
        facts["disk"] = facts["space"] = None
        return
    files = []
    if report is not None and report.scan is not None:
        files = [report.scan.path(name) for name, size in report.scan.sizes.items() if size]
    facts["disk"], items = checkup.storage(files, folder)
    found += items
    facts["space"], items = checkup.space(folder)
    found += items


def _fit(
    report: Report, chosen: settings.Settings, facts: dict[str, Any], found: list[Finding]
) -> None:
    """Whether the model fits into the memory that the server would give it."""
    if report.files is None:
        return
    from colibri.hardware import memory  # noqa: PLC0415
    from colibri.models import doctor as checks  # noqa: PLC0415
    from colibri.models.limits import beyond_training  # noqa: PLC0415

    budget = facts["memory"]["budget"]
    trained = report.files.geometry.max_position
    beyond = beyond_training(chosen.ctx or 0, trained)
    if beyond is not None:
        fix = f"Leave --ctx out, or give at most {trained}."
        found.append(findings.warning("model", beyond, "--ctx", fix))
    facts["fit"], item = checks.fit(report.files, budget, chosen, memory.rss())
    found.append(item)
