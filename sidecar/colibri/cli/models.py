"""`coli models`: what is installed, and whether a model is whole.

For: people and scripts (`--json`). Not for: reading the files (`colibri.models`), which is imported
when a command runs.
"""

from __future__ import annotations

import json
from typing import Any

import click

from colibri.cli.mirror import mirror
from colibri.errors import IntegrityError

_SCHEMA = 1


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List installed models; see the subcommands for one model."""
    if context.invoked_subcommand is not None:
        return
    from colibri import paths  # noqa: PLC0415 - only this command needs it
    from colibri.models import catalog  # noqa: PLC0415 - reads configs

    found = catalog.installed()
    if as_json:
        entries = [
            {
                "name": item.name,
                "folder": str(item.folder),
                "family": item.family,
                "kind": item.kind,
                "bytes": item.bytes,
                "context": item.context,
                "problem": item.problem or None,
            }
            for item in found
        ]
        click.echo(json.dumps({"schema": _SCHEMA, "models": entries}, indent=2))
        return
    if not found:
        click.echo(f"No model is installed in {paths.models_dir()}.", err=True)
    width = max((len(item.name) for item in found), default=0)
    for item in found:
        about = item.problem or (
            f"{item.family:12}  {item.kind:9}  {item.bytes / 1e9:8.2f} GB  context {item.context:,}"
        )
        click.echo(f"{item.name:{width}}  {about}")


models.add_command(mirror)


@models.command()
@click.argument("model")
@click.option("--hashes", is_flag=True, help="Also read every byte of a packed container.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(model: str, hashes: bool, as_json: bool) -> None:
    """Say everything that is missing or damaged in MODEL (a name or a folder)."""
    from colibri.models import catalog, container, packed  # noqa: PLC0415 - reads headers
    from colibri.models import model as opening  # noqa: PLC0415 - loads the tokenizer

    folder = catalog.resolve(model)
    files, problems = container.inspect_folder(folder)
    opening.open_text(folder)
    if files is not None and hashes and files.kind == "packed":
        problems = packed.verify(folder)
    report: dict[str, Any] = {
        "schema": _SCHEMA,
        "model": folder.name,
        "kind": files.kind if files is not None else None,
        "tensors": len(files.tensors) if files is not None else None,
        "notes": list(files.notes) if files is not None else [],
        "problems": problems,
    }
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        for note in report["notes"]:
            click.echo(f"Note: {note}", err=True)
        for problem in problems:
            click.echo(problem)
    if problems:
        raise IntegrityError(f"{len(problems)} problems were found.", where=str(folder))
    if not as_json:
        click.echo(f"{folder.name}: complete ({report['tensors']} tensors)")
