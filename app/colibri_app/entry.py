"""The command `sidecar`, which is also the frozen program.

For: people who start the app, services that start the server (`--no-window`), and the program
itself, which starts its engine process through this entry. Not for: anything else; no code of a
window is imported on the way to the server.

    sidecar --engine-child      the engine process (only the program itself does this)
    sidecar --no-window ...     the server, as `coli serve`
    sidecar ...                 the server and a web browser, as long as there is no window of our
    own
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import webbrowser
from typing import NoReturn

import click

from colibri import cli, settings
from colibri.cli.options import settings_options
from colibri.engine.child import CHILD_FLAG


def _has_display() -> bool:
    """Whether a browser of the desktop could appear; elsewhere one might take over the terminal."""
    if os.name == "nt" or sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(url: str) -> None:
    if not _has_display() or not webbrowser.open(url):
        click.echo(f"Open {url} in a web browser.", err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_options("app", "model", "engine", "server", "log")
def sidecar(resolved: settings.Resolved) -> int:
    """Start Colibri: the server, and a web browser unless --no-window or --no-browser is given."""
    from colibri.cli.serve import run  # noqa: PLC0415 - --help needs none of it

    chosen = resolved.settings
    if chosen.no_window:
        return run(chosen)
    click.echo("This version has no window of its own; it opens your web browser.", err=True)
    return run(chosen, None if chosen.no_browser else _open_browser)


def main() -> NoReturn:
    """Console script `sidecar` and entry of the frozen program."""
    multiprocessing.freeze_support()
    if sys.argv[1:2] == [CHILD_FLAG]:
        from colibri.engine.child import main as engine_child  # noqa: PLC0415

        sys.exit(engine_child())
    sys.exit(cli.run(sidecar, "sidecar"))


if __name__ == "__main__":
    main()
