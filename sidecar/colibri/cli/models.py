"""`coli models`: what is installed, and copies of it on other drives.

For: people and scripts (`--json`). Not for: reading the files (`colibri.models`), which is imported
when a command runs.
"""

from __future__ import annotations

import json

import click

from colibri.cli.mirror import mirror
from colibri.errors import printable

_SCHEMA = 1


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List installed models.

    `coli doctor MODEL` says whether one is whole.
    """
    if context.invoked_subcommand is not None:
        return
    from colibri import paths  # noqa: PLC0415 - only this command needs it
    from colibri.models import catalog  # noqa: PLC0415 - reads configs

    found = catalog.available()
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
    # The program's own model is no reason to keep silent about where others belong.
    if all(item.folder == paths.starter_dir() for item in found):
        click.echo(
            f"No other model is installed in {paths.models_dir()}."
            if found
            else f"No model is installed in {paths.models_dir()}.",
            err=True,
        )
    width = max((len(item.name) for item in found), default=0)
    for item in found:
        about = item.problem or (
            f"{item.family:12}  {item.kind:9}  {item.bytes / 1e9:8.2f} GB  context {item.context:,}"
        )
        click.echo(printable(f"{item.name:{width}}  {about}"))


models.add_command(mirror)
