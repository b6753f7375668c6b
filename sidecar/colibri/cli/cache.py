"""`coli cache`: the context that is stored on disk, per model.

For: people who wonder what their disk holds, and scripts (`--json`). Not for: computing anything,
which `cache_warm` does; a prefix is named by the first letters of its id, as `list` prints it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri import paths, settings
from colibri.cli.cache_warm import warm
from colibri.errors import NotFoundError, ResourceError, UsageError

if TYPE_CHECKING:
    from colibri.kv.inventory import Inventory, Layout
    from colibri.kv.store import ChainInfo

_SCHEMA = 1
_ID_CHARS = 12
_FEWEST_ID_CHARS = 4


@click.group()
def cache() -> None:
    """Show, fill, clear and pin the stored context of models."""


cache.add_command(warm)


def _state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    (row,) = [row for row in settings.TABLE if row.name == "state_dir"]
    return click.option("--state-dir", metavar="DIR", help=f"{row.help}  [{row.env}]")(command)


def _resolved(state_dir: str | None) -> settings.Settings:
    resolved = settings.resolve({"state_dir": state_dir})
    for warning in resolved.warnings:
        click.echo(f"Warning: {warning}", err=True)
    return resolved.settings


def _look(model: str, chosen: settings.Settings) -> tuple[Path, Inventory]:
    """State directory of a model, and what is stored there."""
    from colibri.kv import inventory  # noqa: PLC0415 - only these commands need it
    from colibri.models import catalog  # noqa: PLC0415 - reads configs

    state = paths.learnt_dir(catalog.resolve(model), chosen.state_dir)
    try:
        return state, inventory.look(state)
    except OSError as error:
        raise _unreadable(state, error) from error


def _unreadable(state: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"the stored context cannot be used: {error.strerror or error}.",
        where=str(error.filename or state),
        hint="Check that the folder exists and may be read and written.",
    )


@cache.command(name="list")
@click.argument("model", required=False)
@_state_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(model: str | None, state_dir: str | None, as_json: bool) -> None:
    """List what is stored for MODEL (a name or a folder), or for all installed models."""
    from colibri.kv.store import budget_bytes  # noqa: PLC0415
    from colibri.models import catalog  # noqa: PLC0415

    chosen = _resolved(state_dir)
    names = [model] if model else [str(item.folder) for item in catalog.available()]
    found = [(Path(name).name, *_look(name, chosen)) for name in names]
    stores = [
        _as_json(name, what, budget_bytes(what.folder, chosen.prefix_store_gb))
        for name, _, what in found
    ]
    if as_json:
        click.echo(json.dumps({"schema": _SCHEMA, "stores": stores}, indent=2))
        return
    if not found:
        click.echo(f"No model is installed in {paths.models_dir()}.", err=True)
    for (name, _, what), store in zip(found, stores, strict=True):
        _print(name, what, store["budget_bytes"])


def _as_json(name: str, what: Inventory, budget: int) -> dict[str, Any]:
    return {
        "model": name,
        "folder": str(what.folder),
        "bytes": what.held_bytes,
        "budget_bytes": budget,
        "writer_pid": what.writer,
        "slots": [path.name for path in what.slots],
        "prefixes": [
            {
                "id": prefix.id.hex(),
                "tokens": prefix.tokens,
                "own_bytes": prefix.own_blocks * layout.block_bytes,
                "written": _time(prefix.written),
                "pinned_tokens": prefix.kept_tokens,
            }
            for layout, prefix in _prefixes(what)
        ],
    }


def _prefixes(what: Inventory) -> list[tuple[Layout, ChainInfo]]:
    return [(layout, prefix) for layout in what.layouts for prefix in layout.prefixes]


def _time(seconds: int) -> str:
    """A time as everyone writes it; clocks may have been anywhere when it was taken."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return "-"
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _print(name: str, what: Inventory, budget: int) -> None:
    writer = f", process {what.writer} writes" if what.writer else ""
    count = len(what.slots)
    slots = f", {count} file{'' if count == 1 else 's'} of slots" if count else ""
    click.echo(f"{name}: {what.held_bytes / 1e9:.2f} of {budget / 1e9:.2f} GB{slots}{writer}")
    for layout, prefix in _prefixes(what):
        pinned = f"  pinned {prefix.kept_tokens:,}" if prefix.kept_tokens else ""
        click.echo(
            f"  {prefix.id.hex()[:_ID_CHARS]}  {prefix.tokens:9,} tokens  "
            f"{prefix.own_blocks * layout.block_bytes / 1e9:8.3f} GB of its own  "
            f"{_time(prefix.written)}{pinned}"
        )


@cache.command()
@click.argument("model")
@_state_option
@click.option("--pinned", is_flag=True, help="Also delete what is pinned.")
def clear(model: str, state_dir: str | None, pinned: bool) -> None:
    """Delete what is stored for MODEL, the files of its slots included; no server may use it."""
    from colibri.kv import inventory  # noqa: PLC0415

    state, before = _look(model, _resolved(state_dir))
    try:
        inventory.clear(state, pinned=pinned)
        after = inventory.look(state)
    except OSError as error:
        raise _unreadable(state, error) from error
    click.echo(f"{(before.held_bytes - after.held_bytes) / 1e9:.2f} GB were freed.", err=True)
    if after.held_bytes:
        rest = f"{after.held_bytes / 1e9:.2f} GB are pinned"
        click.echo(f"{rest}; --pinned deletes them too.", err=True)


@cache.command()
@click.argument("model")
@click.argument("prefix")
@_state_option
@click.option("--off", is_flag=True, help="Take the pin back.")
def pin(model: str, prefix: str, state_dir: str | None, off: bool) -> None:
    """Keep PREFIX of MODEL whatever the budget says, also while a server runs.

    PREFIX is an id of `coli cache list`, or its first letters.
    """
    from colibri.kv import pins  # noqa: PLC0415

    state, what = _look(model, _resolved(state_dir))
    ids = what.pins if off else [chain.id for _, chain in _prefixes(what)]
    own = frozenset((_find(prefix, list(ids), off),))
    try:
        if off:
            pins.change(what.folder, remove=own)
        else:
            pins.change(what.folder, add=own)
    except OSError as error:
        raise _unreadable(state, error) from error


def _find(prefix: str, ids: Sequence[bytes], off: bool) -> bytes:
    """The one id that begins so."""
    wanted = prefix.lower()
    if len(wanted) < _FEWEST_ID_CHARS:
        raise UsageError(f"give {_FEWEST_ID_CHARS} letters of the id or more.", where="PREFIX")
    found = [own for own in ids if own.hex().startswith(wanted)]
    if not found:
        what = "pinned" if off else "stored"
        raise NotFoundError(
            f"no {what} prefix begins with {prefix!r}.",
            where="PREFIX",
            hint="`coli cache list` prints the ids.",
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} prefixes begin with {prefix!r}.",
            where="PREFIX",
            hint="Give more letters of the id.",
        )
    return found[0]
