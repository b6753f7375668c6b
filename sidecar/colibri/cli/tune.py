"""`coli tune`: which settings are really faster here, and writing them down.

For: a person with a quarter of an hour and an otherwise idle machine. Not for: measuring
(`models.tune_run`), deciding (`models.tune`, `models.tune_stats`) or editing the file
(`config_file`). Only settings that can never change a token are tried; one is changed only if it
won twice.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri import config_file, paths, settings
from colibri.cli.options import Finite, settings_options
from colibri.cli.serve import engine_options, model_folder
from colibri.settings import Settings

if TYPE_CHECKING:
    from colibri.engine.client import EngineClient
    from colibri.models.model import Model
    from colibri.models.tune import Outcome, Plan
    from colibri.models.tune_run import Runner

_SCHEMA = 1
# Of the time that was granted, the share that one run may take: three settings can then be tried.
_RUN_SHARE = 1 / 64
# Runs that differ by more than this among themselves hide every gain that matters.
_RESTLESS = 0.1


@click.command()
@click.argument("model", required=False)
@click.option(
    "--minutes",
    type=Finite(min=0.1),
    default=15.0,
    show_default=True,
    help="Time to measure; more finds smaller gains.",
)
@click.option("--apply", is_flag=True, help="Write what won into the config file.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options("engine")
def tune(
    resolved: settings.Resolved,
    model: str | None,
    minutes: float,
    apply: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure MODEL with other settings, in turn with the current ones, and say what is faster.

    Stop with Ctrl-C at any time; nothing is changed before the end.
    """
    from colibri.models import tune_run  # noqa: PLC0415 - imported when it runs
    from colibri.models.model import open_model  # noqa: PLC0415 - reads headers, tokenizer

    chosen = resolved.settings
    if model is not None:
        chosen = dataclasses.replace(chosen, model=model)
    folder = model_folder(chosen)
    opened = open_model(folder, [paths.given(name).absolute() for name in chosen.mirrors])
    progress = _Progress(quiet)
    budget = _budget(chosen, progress)
    with tempfile.TemporaryDirectory(prefix="colibri-tune-") as state:
        runner = tune_run.Runner(
            lambda changes: _engine(
                dataclasses.replace(chosen, **changes), folder, budget, Path(state)
            ),
            opened.tokenizer,
            budget,
        )
        outcome, work_plan = _measure(runner, chosen, opened, budget, minutes, progress)
    written = _apply(outcome.chosen) if apply and outcome.chosen else None
    if as_json:
        report = _report(outcome, work_plan, runner, budget, written)
        click.echo(json.dumps(report, indent=2, allow_nan=False))
    else:
        _show(outcome, work_plan, written, resolved)


def _measure(
    runner: Runner,
    chosen: Settings,
    opened: Model,
    budget: int,
    minutes: float,
    progress: _Progress,
) -> tuple[Outcome, Plan]:
    """Finds the size of the work, then what fits into the time, then who wins."""
    from colibri.models import tune as tuning  # noqa: PLC0415

    for work in runner.size_up(60 * minutes * _RUN_SHARE):
        progress.say(f"trying a prompt of {work.prompt} and {work.generated} generated tokens")
    weights = sum(item.bytes + item.scale_bytes for item in opened.tensors)
    wanted = _candidates(
        chosen,
        runner,
        streams=opened.geometry.n_experts > 0 and 0 < budget < weights,
        drafts=opened.geometry.n_mtp_layers > 0,
    )
    work_plan = tuning.plan(wanted, runner.wall_seconds, 60 * minutes)
    return tuning.tune(runner, work_plan, progress), work_plan


class _Progress:
    """One line on a terminal's stderr; silent elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._shown = not quiet and sys.stderr.isatty()

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[Krun {done} of at most {total}: {what}", err=True, nl=done == total)

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._quiet:
            click.echo(text, err=True)


def _budget(chosen: Settings, progress: _Progress) -> int:
    """Bytes for every run; tells once when much of the machine is taken by others."""
    from colibri import sizes  # noqa: PLC0415
    from colibri.hardware import checkup, memory  # noqa: PLC0415
    from colibri.models import tune_run  # noqa: PLC0415

    budget = tune_run.memory_budget()
    facts, found = checkup.ram()
    if chosen.ram:
        wanted = sizes.parse(chosen.ram).of(memory.total() or budget)
        budget = min(budget, wanted) if budget else wanted
    busy = next((item for item in found if "in use" in item.what), None)
    if busy is not None:
        progress.say(
            f"{busy.what} Settings are tuned for the {budget / 1e9:.1f} GB that are left. "
            "Close other programs first to tune for the whole machine."
        )
    elif not facts["budget"]:
        progress.say("The free memory is unknown, so no limit is kept.")
    return budget


def _engine(chosen: Settings, folder: Path, budget: int, state: Path) -> EngineClient:
    """An engine process as a server would have it, with the wanted budget.

    What is learnt about the model goes to `state`, which starts each time with what is known now:
    runs must be alike, and nothing is to be learnt from them.
    """
    from colibri.engine.child import ChildSpec  # noqa: PLC0415
    from colibri.engine.process import ProcessEngine  # noqa: PLC0415
    from colibri.models import usage  # noqa: PLC0415

    for old in state.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
    known = usage.place(folder, chosen.state_dir)
    if known.is_file():
        shutil.copyfile(known, state / usage.NAME)
    options = {
        **engine_options(chosen, folder),
        "ram": f"{budget}B" if budget else "",
        "server": 0,  # this process serves nothing: only the engine's own counts
        "state_dir": str(state),
        "prefix_store_gb": 0,
        "trace": None,
    }
    return ProcessEngine(
        ChildSpec(factory="colibri.models.backend:open_backend", options=options, log_level="error")
    )


def _candidates(chosen: Settings, runner: Runner, *, streams: bool, drafts: bool) -> list[Any]:
    from colibri.hardware import cpu  # noqa: PLC0415
    from colibri.models import tune as tuning  # noqa: PLC0415

    facts = cpu.probe()
    return tuning.candidates(
        chosen,
        cores=min(facts.cores, facts.usable),
        usable=facts.usable,
        streams=streams,
        prompt=runner.work.prompt,
        drafts=drafts,
    )


def _keys(changes: dict[str, Any]) -> dict[str, Any]:
    """Config keys of settings by field name."""
    return {row.key: changes[row.name] for row in settings.TABLE if row.name in changes}


def _apply(chosen: dict[str, Any]) -> Path:
    path = paths.config_file()
    config_file.write(path, _keys(chosen))
    return path


def _report(
    outcome: Outcome, work_plan: Plan, runner: Runner, budget: int, written: Path | None
) -> dict[str, Any]:
    def verdict(found: Any) -> dict[str, Any] | None:
        if found is None:
            return None
        plain = dataclasses.asdict(found)
        return {name: value for name, value in plain.items() if value != float("inf")}

    return {
        "schema": _SCHEMA,
        "memory_budget": budget,
        "work": dataclasses.asdict(runner.work),
        "rounds": work_plan.rounds,
        "baseline_seconds": outcome.baseline,
        "noise": outcome.noise,
        "candidates": [
            {
                "settings": _keys(dict(item.candidate.changes)),
                "problem": item.problem or None,
                "verdict": verdict(item.verdict),
            }
            for item in outcome.tried
        ],
        "left_out": [_keys(dict(item.changes)) for item in work_plan.left_out],
        "confirmations": [
            {"settings": _keys(dict(item.changes)), "verdict": verdict(found)}
            for item, found in outcome.confirmations
        ],
        "chosen": _keys(outcome.chosen),
        "written": str(written) if written is not None else None,
    }


def _show(
    outcome: Outcome, work_plan: Plan, written: Path | None, resolved: settings.Resolved
) -> None:
    click.echo(
        f"current settings: {outcome.baseline:.2f} s a run, which varies by "
        f"{100 * outcome.noise:.1f} % from one to the next"
    )
    width = max((len(item.candidate.what) for item in outcome.tried), default=0)
    for item in outcome.tried:
        found = item.verdict
        if item.problem or found is None:
            click.echo(f"{item.candidate.what:{width}}  not possible here: {item.problem}")
            continue
        sign = "faster" if found.wins else "no certain gain"
        click.echo(
            f"{item.candidate.what:{width}}  {100 * (found.ratio - 1):+6.1f} %  "
            f"(certainly above {100 * (found.low - 1):+.1f} %, {found.pairs} pairs)  {sign}"
        )
    for skipped in work_plan.left_out:
        click.echo(f"{skipped.what:{width}}  not measured: --minutes is too short")
    for candidate, found in outcome.confirmations:
        state = "confirmed" if found.wins else "not confirmed"
        click.echo(f"measured again: {candidate.what}  {100 * (found.ratio - 1):+.1f} %  {state}")
    if not outcome.chosen:
        click.echo("Nothing is certainly faster than the current settings; they stay.")
        if outcome.noise > _RESTLESS:
            click.echo("This machine is busy with other things: measure when it is idle.", err=True)
        return
    if written is not None:
        click.echo(f"Written to {written}:")
    else:
        click.echo(f"Faster; put this into {paths.config_file()}, or give --apply:")
    for key, value in _keys(outcome.chosen).items():
        click.echo(f"  {key} = {config_file.literal(value)}")
    _overruled(outcome.chosen, resolved)


def _overruled(chosen: dict[str, Any], resolved: settings.Resolved) -> None:
    """A variable or flag wins over the file: say so."""
    for row in settings.TABLE:
        if row.name in chosen and os.environ.get(row.env):
            click.echo(f"Warning: {row.env} is set and wins over the file.", err=True)
        elif row.name in chosen and resolved.origins.get(row.name) == "flag":
            click.echo(f"Note: {row.flags[0]} was given and would win again.", err=True)
