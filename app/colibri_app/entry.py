"""The command `sidecar`, which is also the frozen program.

For: people who start the app, services that start the server (`--no-window`), and the program
itself, which starts its sidecar and its engine process through this entry. Not for: anything else;
no code of a window is imported on the way to a server.

    sidecar --engine-child      the engine process      (only the program itself does this)
    sidecar --app-child ...     the sidecar of a window (only the program itself does this)
    sidecar --no-window ...     the server, as `coli serve`
    sidecar ...                 the window; where there can be none, the server and a web browser
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import NoReturn

import click

from colibri import __version__, cli, settings
from colibri.cli.browser import has_display, open_browser
from colibri.cli.options import settings_options
from colibri.engine.child import CHILD_FLAG
from colibri_app.environment import restore_library_path
from colibri_app.serving import APP_CHILD_FLAG, run_child, with_a_model


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sidecar")
@settings_options("app", "model", "engine", "server", "log")
def sidecar(resolved: settings.Resolved) -> int:
    """Start Colibri: its window, or with --no-window the server alone.

    Where there is no display, the server runs without a window. Where no window toolkit is
    installed, it opens the web browser, unless --no-browser is given.
    """
    from colibri.cli.serve import run  # noqa: PLC0415 - --help needs none of it

    if resolved.settings.no_window:
        return run(resolved.settings)
    chosen = with_a_model(resolved.settings)
    if not has_display():
        click.echo("There is no display here: the server runs without a window.", err=True)
        return run(chosen)
    from colibri_app import shell  # noqa: PLC0415 - imports no toolkit yet

    try:
        return shell.run(child_command(), sys.argv[1:])
    except shell.NoWindowError as error:
        click.echo(f"{error} The web browser is used instead.", err=True)
    return run(chosen, None if chosen.no_browser else open_browser)


def child_command() -> list[str]:
    """The command that starts this very program as the sidecar of a window."""
    if getattr(sys, "frozen", False):
        return [sys.executable, APP_CHILD_FLAG]
    return [sys.executable, "-m", "colibri_app.entry", APP_CHILD_FLAG]


def main() -> NoReturn:
    """Console script `sidecar` and entry of the frozen program."""
    multiprocessing.freeze_support()
    restore_library_path()
    if sys.argv[1:2] == [CHILD_FLAG]:
        from colibri.engine.child import main as engine_child  # noqa: PLC0415

        sys.exit(engine_child())
    if sys.argv[1:2] == [APP_CHILD_FLAG]:
        sys.exit(run_child(sys.argv[2:]))
    if Path(sys.argv[0]).stem == "coli":
        # A frozen program holds the command `coli` under that name: a link, or a copy on Windows.
        sys.exit(cli.run(cli.coli, "coli"))
    sys.exit(cli.run(sidecar, "sidecar"))


if __name__ == "__main__":
    main()
