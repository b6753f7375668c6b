"""`coli convert`: a GGUF file or a Hugging Face folder becomes a packed container.

For: people and `make model`. Not for: the work itself (`colibri.models.convert`), which is imported
when the command runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

_REFRESH_SECONDS = 0.5


class ProgressLine:
    """One line on a terminal's stderr that shows how far a conversion is; silent elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        if not self._shown or (time.monotonic() < self._next and done < total):
            return
        self._next = time.monotonic() + _REFRESH_SECONDS
        share = 100 * done / total if total else 100
        click.echo(
            f"\r{share:5.1f} %  {done / 1e9:.2f} of {total / 1e9:.2f} GB", err=True, nl=False
        )
        if done >= total:
            click.echo(err=True)


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--weights",
    type=click.Choice(["as-is", "int8", "bf16"]),
    default="as-is",
    show_default=True,
    help="Keep the numbers, or requantize every matrix.",
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
    tokenizer: Path | None,
    overwrite: bool,
    no_verify: bool,
    quiet: bool,
) -> None:
    """Convert SOURCE (a .gguf file or a model folder) into the folder OUT.

    An interrupted conversion goes on where it stopped when the same command is given again. A
    finished container is never touched without --overwrite.
    """
    from colibri.models import convert as conversion  # noqa: PLC0415 - numpy and the engine

    options = conversion.Options(
        weights=weights, overwrite=overwrite, verify=not no_verify, tokenizer=tokenizer
    )
    conversion.convert(source, out, options, ProgressLine(quiet))
    click.echo(out)
