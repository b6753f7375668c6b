"""`coli config`: what the settings are and who set them.

For: people who wonder why a value is what it is, and the page docs/settings.md. Not for: changing
values; the file is the user's own and is edited with an editor.
"""

from __future__ import annotations

import json

import click

from colibri import paths, settings


@click.group()
def config() -> None:
    """Show settings and where they come from."""


@config.command()
@click.option("--origin", is_flag=True, help="Also print where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(origin: bool, as_json: bool) -> None:
    """Print every setting's value; an API key is only said to be set."""
    resolved = settings.resolve()
    for warning in resolved.warnings:
        click.echo(f"Warning: {warning}", err=True)
    values = {row.key: getattr(resolved.settings, row.name) for row in settings.TABLE}
    if as_json:
        entries = {
            row.key: {
                "value": "(set)" if row.secret and values[row.key] else values[row.key],
                "origin": resolved.origins[row.name],
            }
            for row in settings.TABLE
        }
        click.echo(json.dumps({"schema": 1, "settings": entries}, indent=2))
        return
    width = max(len(row.key) for row in settings.TABLE)
    for row in settings.TABLE:
        line = f"{row.key:{width}}  {row.show(values[row.key])}"
        click.echo(f"{line}  ({resolved.origins[row.name]})" if origin else line)


@config.command()
def path() -> None:
    """Print where the config file belongs."""
    click.echo(paths.config_file())


@config.command()
def reference() -> None:
    """Print the table of all settings as Markdown."""
    click.echo(settings.reference(), nl=False)
