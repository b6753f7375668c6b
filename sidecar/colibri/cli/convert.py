"""`coli convert`: a GGUF file or a Hugging Face folder becomes a packed container.

For: people and `make model`. Not for: the work itself (`colibri.models.convert`), which is imported
when the command runs.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from pathlib import Path

import click

_REFRESH_SECONDS = 0.5
_REFRESH_LOG_SECONDS = 60.0
_SMOOTHING_SECONDS = 30.0


class ProgressLine:
    """How far a conversion is, its speed and how long it will take, on stderr.

    On a terminal one line that changes; elsewhere a line per minute, so short work stays silent.
    """

    def __init__(self, quiet: bool, verb: str = "") -> None:
        self._quiet = quiet
        self._verb = f"{verb} " if verb else ""
        self._on_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.0 if self._on_terminal else _REFRESH_LOG_SECONDS)
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._quiet or (now < self._next and (done < total or not self._on_terminal)):
            return
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _SMOOTHING_SECONDS:  # noqa: PLR2004
            self._seen.popleft()
        text = self._verb + describe(done, total, self._speed())
        if self._on_terminal:
            self._next = now + _REFRESH_SECONDS
            click.echo(f"\r\x1b[K{text}", err=True, nl=done >= total)
        else:
            self._next = now + _REFRESH_LOG_SECONDS
            click.echo(text, err=True)

    def _speed(self) -> float:
        """Bytes per second of the last half minute; 0 as long as it is unknown."""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else 0.0


def describe(done: int, total: int, speed: float) -> str:
    """`12.5 %  1.00 of 8.00 GB  0.50 GB/s  0:14 left`; speed in bytes per second, 0 = unknown."""
    share = 100 * done / total if total else 100
    text = f"{share:5.1f} %  {done / 1e9:.2f} of {total / 1e9:.2f} GB"
    if speed <= 0:
        return text
    seconds = math.ceil((total - done) / speed)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    left = f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
    return f"{text}  {speed / 1e9:.2f} GB/s  {left} left"


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--weights",
    type=click.Choice(["auto", "as-is", "gs64", "gs64-dense8", "int8", "bf16"]),
    default="auto",
    show_default=True,
    help="What matrices become; auto: gs64 for original GLM checkpoints, else as-is.",
)
@click.option(
    "--only",
    type=click.Choice(["mtp"]),
    help="Add only the MTP layer (drafts) to the finished container OUT.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="tokenizer.json to use instead of the source's own.",
)
@click.option("--overwrite", is_flag=True, help="Replace a finished container in OUT.")
@click.option("--no-verify", is_flag=True, help="Do not read the result back and compare hashes.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def convert(
    source: Path,
    out: Path,
    weights: str,
    only: str | None,
    tokenizer: Path | None,
    overwrite: bool,
    no_verify: bool,
    quiet: bool,
) -> None:
    """Convert SOURCE (a .gguf file or a model folder) into the folder OUT.

    An interrupted conversion goes on where it stopped when the same command is given again. SOURCE
    is only read. A finished container is never replaced without --overwrite.
    """
    from colibri.models import convert as conversion  # noqa: PLC0415 - numpy and the engine

    options = conversion.Options(
        weights=weights, overwrite=overwrite, verify=not no_verify, tokenizer=tokenizer
    )
    run = conversion.convert_mtp if only == conversion.MTP else conversion.convert
    notes = run(source, out, options, ProgressLine(quiet), ProgressLine(quiet, "checking"))
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(out)
