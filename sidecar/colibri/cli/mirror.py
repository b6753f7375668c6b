"""`coli models mirror`: what a copy on another drive would bring, and making it when asked.

For: people with a second drive. Not for: the arithmetic and the copying (`models.mirror_plan`),
which are imported when the command runs. Ctrl-C keeps what was copied; the same command goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colibri import settings
from colibri.cli.convert import ProgressLine
from colibri.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from colibri.models.container import ModelFiles
    from colibri.models.mirror_plan import Proposal

_SCHEMA = 1
_GB = 1e9
_SECONDS = 2.0


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--budget", type=float, metavar="GB", help="Most to copy; default: what is free.")
@click.option(
    "--own-speed", type=float, metavar="GB/S", help="Speed of the model's drive; not measured then."
)
@click.option(
    "--mirror-speed", type=float, metavar="GB/S", help="Speed of FOLDER's drive; not measured then."
)
@click.option("--copy", "copying", is_flag=True, help="Copy the files now; else only say which.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def mirror(
    model: str,
    folder: Path,
    budget: float | None,
    own_speed: float | None,
    mirror_speed: float | None,
    copying: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Propose files of MODEL to copy to FOLDER on another drive, by what experts are used for."""
    from colibri.models import catalog, mirror_plan  # noqa: PLC0415 - reads configs
    from colibri.models.container import open_folder  # noqa: PLC0415

    for name, value in (
        ("--budget", budget),
        ("--own-speed", own_speed),
        ("--mirror-speed", mirror_speed),
    ):
        if value is not None and not 0 < value < 1 << 40:
            raise click.BadParameter("expected a number above 0", param_hint=name)
    if not folder.is_dir():
        raise UsageError(
            "there is no such folder.", where=str(folder), hint="Create it on the other drive."
        )
    home = catalog.resolve(model)
    files = open_folder(home, mirrors=[folder])
    if not files.geometry.n_experts:
        raise UsageError(
            "this model has no routed experts: it is read once, and a mirror gains nothing.",
            where=str(home),
        )
    counts = _counts(files)
    present = {number for number, path in enumerate(files.places[1].paths) if path is not None}
    speeds = (
        own_speed * _GB if own_speed else _measure(files.paths, home),
        mirror_speed * _GB if mirror_speed else _measure_mirror(files, folder),
    )
    proposal = mirror_plan.propose(
        mirror_plan.expert_reads(files, mirror_plan.uses_of(counts)),
        [path.stat().st_size for path in files.paths],
        present,
        mirror_plan.room_for(folder, int(budget * _GB) if budget is not None else None),
        speeds,
    )
    notes = _notes(files, folder, proposal, bool(counts))
    # Two speeds measured on one drive do not add up.
    one_drive = _one_drive(files, folder) and not (own_speed or mirror_speed)
    expected = (proposal.own_speed, 1.0) if one_drive else (proposal.speed, proposal.gain)
    if as_json:
        _print_json(files, folder, proposal, expected, notes)
    else:
        _print(files, folder, proposal, expected, notes)
    if copying:
        _copy(files, folder, proposal, quiet)
    return 0


def _counts(files: ModelFiles) -> dict[tuple[int, int], float]:
    from colibri.models import usage  # noqa: PLC0415

    shape = usage.ModelShape(
        family=files.family.name,
        layers=files.geometry.n_layers,
        mtp=files.geometry.n_mtp_layers,
        experts=files.geometry.n_experts,
    )
    state = settings.resolve().settings.state_dir
    place = usage.place(files.folder, state)
    counts = usage.load(files.folder, place, shape, only_look=True).counts
    return {
        (layer, expert): float(count)
        for layer, row in enumerate(counts.tolist())
        for expert, count in enumerate(row)
        if count
    }


def _measure(paths: tuple[Path, ...], where: Path) -> float:
    from colibri.hardware import disk  # noqa: PLC0415

    try:
        speed = disk.measure(paths, _SECONDS)
    except (disk.ReadFailure, OSError) as error:
        raise ResourceError(f"the drive cannot be measured: {error}.", where=str(where)) from error
    if speed is None:
        raise UsageError(
            "the files are too small to measure the drive.",
            where=str(where),
            hint="Give its speed with --own-speed and --mirror-speed.",
        )
    return speed.bytes_per_second


def _measure_mirror(files: ModelFiles, folder: Path) -> float:
    from colibri.hardware import disk  # noqa: PLC0415

    try:
        there = [path for path in files.places[1].paths if path is not None]
        speed = disk.measure(there, _SECONDS) if there else None
        speed = speed or disk.measure_folder(folder, _SECONDS)
    except (disk.ReadFailure, OSError) as error:
        raise ResourceError(f"the drive cannot be measured: {error}.", where=str(folder)) from error
    if speed is None:
        raise ResourceError(
            "there is no room for a file of 256 MB to measure the drive with.",
            where=str(folder),
            hint="Make room, or give the speed with --mirror-speed.",
        )
    return speed.bytes_per_second


def _one_drive(files: ModelFiles, folder: Path) -> bool:
    return folder.stat().st_dev == files.folder.stat().st_dev


def _notes(files: ModelFiles, folder: Path, proposal: Proposal, learnt: bool) -> list[str]:
    notes = []
    if _one_drive(files, folder):
        notes.append(f"{folder} is on the same file system as the model: one drive gains nothing.")
    if not learnt:
        notes.append("no use counts of this model yet: all experts count alike.")
    if proposal.share < proposal.wanted and len(proposal.files) < len(files.paths):
        notes.append(f"more room would bring more, up to {proposal.wanted:.0%} of the reads.")
    notes += [f"{folder / shard.name}: {shard.reason}" for shard in files.places[1].bad]
    return notes


def _print(
    files: ModelFiles,
    folder: Path,
    proposal: Proposal,
    expected: tuple[float, float],
    notes: list[str],
) -> None:
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    new = [number for number in proposal.files if number not in proposal.present]
    click.echo(
        f"drives      {proposal.own_speed / _GB:.2f} GB/s for {files.folder}, "
        f"{proposal.mirror_speed / _GB:.2f} GB/s for {folder}"
    )
    click.echo(
        f"mirror      {len(proposal.files)} of {len(files.paths)} files, {len(new)} to be copied "
        f"({proposal.copy_bytes / _GB:.2f} GB)"
    )
    click.echo(
        f"reads       {proposal.share:.0%} can come from either drive; "
        f"from {proposal.wanted:.0%} on more copies bring nothing"
    )
    click.echo(
        f"expected    {expected[0] / _GB:.2f} GB/s together, {expected[1]:.2f} times as fast"
    )
    for number in new:
        click.echo(files.paths[number].name)


def _print_json(
    files: ModelFiles,
    folder: Path,
    proposal: Proposal,
    expected: tuple[float, float],
    notes: list[str],
) -> None:
    content = {
        "schema": _SCHEMA,
        "model": str(files.folder),
        "mirror": str(folder),
        "own_bytes_per_second": round(proposal.own_speed),
        "mirror_bytes_per_second": round(proposal.mirror_speed),
        "expected_bytes_per_second": round(expected[0]),
        "expected_gain": round(expected[1], 3),
        "share": round(proposal.share, 4),
        "share_wanted": round(proposal.wanted, 4),
        "present": [files.paths[number].name for number in proposal.present],
        "copy": [
            files.paths[number].name for number in proposal.files if number not in proposal.present
        ],
        "copy_bytes": proposal.copy_bytes,
        "notes": notes,
    }
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def _copy(files: ModelFiles, folder: Path, proposal: Proposal, quiet: bool) -> None:
    from colibri.models import mirror_plan  # noqa: PLC0415

    if not proposal.files:
        click.echo("Nothing was copied: there is no room for any of the files.", err=True)
        return
    progress, before = ProgressLine(quiet), 0
    with mirror_plan.alone(folder):
        for number in proposal.files:
            if number in proposal.present:
                continue
            path = files.paths[number]
            start = before

            def show(done: int, _size: int, start: int = start) -> None:
                progress(start + done, proposal.copy_bytes)

            mirror_plan.copy_shard(path, folder, show)
            before += path.stat().st_size
    done = "Copied" if proposal.copy_bytes else "Nothing to copy"
    click.echo(f"{done}. Use it with: coli serve --mirror {folder}", err=True)
