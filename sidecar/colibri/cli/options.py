"""Command line options made from the settings table.

For: subcommands, which decorate themselves with the groups of settings they use and receive one
`Resolved`; and types that their own options share. Not for: options of one command alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from colibri import settings


class Finite(click.FloatRange):
    """A range of numbers without NaN and infinity, which click lets pass."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number to calculate with.", param, ctx)
        return number


def _option(row: settings.Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (*row.flags, row.name)
    text = f"{row.help}  [{row.env}]"
    if row.kind is bool:
        # None, not False, when absent: the variable and the file must still get their say.
        return click.option(*names, is_flag=True, default=None, flag_value=True, help=text)
    kind: Any = click.Choice(row.choices) if row.choices else row.kind
    if row.kind is tuple:
        return click.option(*names, multiple=True, metavar=row.metavar, help=text)
    return click.option(*names, type=kind, default=None, metavar=row.metavar, help=text)


def settings_options(
    *groups: str, names: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the flags of these groups, and those of single settings; the command gets `resolved`,
    warnings already printed.
    """
    rows = [
        row for row in settings.TABLE if row.flags and (row.group in groups or row.name in names)
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_settings(**arguments: Any) -> Any:
            flags = {row.name: arguments.pop(row.name) for row in rows}
            resolved = settings.resolve(flags)
            for warning in resolved.warnings:
                click.echo(f"Warning: {warning}", err=True)
            return command(resolved=resolved, **arguments)

        wrapped: Callable[..., Any] = with_settings
        for row in reversed(rows):
            wrapped = _option(row)(wrapped)
        return wrapped

    return decorate
