"""The command `coli`.

For: a person at a terminal and scripts; data goes to stdout, words for people to stderr. Not for:
any work of its own: every subcommand lives in its module and is imported only when it runs, which
keeps
`import colibri.cli` and `coli --help` quick.
Exit codes: 0 ok, 1 failure, 2 usage, 3 model not found, 4 model or engine, 5 out of resources, 6
network, 7 integrity, 130 interrupted (see `colibri.errors`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import click

from colibri import __version__
from colibri.engine import processor
from colibri.errors import ColibriError, ResourceError, printable

INTERRUPTED = 130

# name: (module:command, one line of help). The help stands here so that listing imports nothing.
COMMANDS = {
    "serve": (
        "colibri.cli.serve:serve",
        "Serve a model over HTTP, in OpenAI's and Anthropic's dialects.",
    ),
    "chat": ("colibri.cli.chat:chat", "Chat in the terminal."),
    "web": ("colibri.cli.web:web", "Serve a model, and open the dashboard in the web browser."),
    "models": (
        "colibri.cli.models:models",
        "List installed models, and copy one to further drives.",
    ),
    "convert": ("colibri.cli.convert:convert", "Convert a model to Colibri's packed container."),
    "verify": ("colibri.cli.verify:verify", "Check a model completely before it is published."),
    "doctor": ("colibri.cli.doctor:doctor", "Find out why a model does not run, and what to do."),
    "plan": (
        "colibri.cli.plan:plan",
        "Say where a model's memory would go and how fast it would be.",
    ),
    "tune": ("colibri.cli.tune:tune", "Measure which settings are faster on this machine."),
    "atlas": ("colibri.cli.atlas:atlas", "Measure what a model's experts are for."),
    "cache": ("colibri.cli.cache:cache", "Show, fill, clear and pin stored context."),
    "bench": ("colibri.cli.bench:bench", "Make synthetic models and measure with them."),
    "config": ("colibri.cli.config:config", "Show settings and where they come from."),
}


class _LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="coli")
def coli() -> None:
    """Run large Mixture-of-Experts models on the computer you already own."""


def prepare_streams() -> None:
    """Makes printing safe everywhere: no stream becomes the null device, no character raises.

    A windowed bundle has no stdout and stderr at all; a legacy console has an encoding without
    arrows.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def report(error: ColibriError) -> None:
    """Prints an error for people: what, where, what to do."""
    where = f"{error.where}: " if error.where else ""
    click.echo(printable(f"Error: {where}{error.message}"), err=True)
    if error.hint:
        click.echo(printable(f"Hint: {error.hint}"), err=True)


def run(command: click.Command, prog_name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a click command and returns its exit code; never raises for what a user did."""
    prepare_streams()
    try:
        # Before any command is imported: the libraries that it needs end the process instead.
        processor.require()
        result = command.main(args=arguments, prog_name=prog_name, standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ColibriError as error:
        report(error)
        return error.exit_code
    except (BrokenPipeError, SystemExit):
        # The reader of our output left (`coli models | head`): nothing to tell, nobody to tell it
        # to. click answers some of these with an exit of its own.
        sys.stdout = None
        return 0
    except OSError as error:
        # What no command expected: most of all a full disk behind stdout.
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}.", err=True)
        sys.stdout = None
        return ResourceError.exit_code
    return result if isinstance(result, int) else 0


def main() -> NoReturn:
    """Console script `coli`."""
    sys.exit(run(coli, "coli"))
