"""`coli bench policy`: how often experts would have been in memory, under our cache policy and
under others.

For: people with a trace of their model (`coli serve --trace FILE`), and scripts (`--json`). Not
for: the simulation, which is imported when the command runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from colibri.cli.options import Finite

_SCHEMA = 1


@click.command("policy")
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path), metavar="[TRACE]...")
@click.option(
    "--routing",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Synthetic trace: uniform, zipf:S, drifting, sticky, phases (repeatable). "
    "Default without TRACE: a set of all.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, (1 << 31) - 1),
    multiple=True,
    help="Experts that fit in memory (repeatable).",
)
@click.option(
    "--share",
    "shares",
    type=Finite(0.1, 100),
    multiple=True,
    help="The same in percent of all experts (repeatable). Default: 10, 25, 50, 75.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def policy(
    traces: tuple[Path, ...],
    kinds: tuple[str, ...],
    slots: tuple[int, ...],
    shares: tuple[float, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Replay traces of routed experts through our cache policy, LRU, LFU, decayed LFU (at its best
    half-life) and Belady's optimum, which knows the future.
    """
    from colibri.models import policy as simulator  # noqa: PLC0415 - numpy and the engine
    from colibri.models import routing, trace  # noqa: PLC0415

    if not traces and not kinds:
        kinds = routing.KINDS
    loaded = [trace.load(path) for path in traces]
    loaded += [routing.trace(kind, seed=seed) for kind in kinds]
    rates = []
    for one in loaded:
        sizes = list(slots) + [simulator.slots_of(one, share / 100) for share in shares]
        sizes = sizes or [simulator.slots_of(one, share) for share in simulator.SHARES]
        rates += [simulator.hit_rates(one, size) for size in sizes]
    if as_json:
        rows = [{**msgspec.to_builtins(row), "margin": row.margin} for row in rates]
        click.echo(json.dumps({"schema": _SCHEMA, "rates": rows}, indent=2))
    else:
        click.echo(simulator.table(rates))
