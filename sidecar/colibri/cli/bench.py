"""`coli bench`: what benchmarks and tests need beside `make bench`.

For: people who measure. Not for: the work itself, which is imported when a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from colibri.cli.bench_policy import policy
from colibri.cli.options import Finite

_EXPERT_FORMATS = ("int4g64", "int4g32", "int4row", "int8")


_BY_TOPIC = ("sticky", "drifting")


class _Routing(click.ParamType[tuple[float, str]]):
    """`uniform`, `zipf:EXPONENT`, `sticky` or `drifting`, as Zipf exponent and kind."""

    name = "routing"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, str]:
        text = str(value)
        if text == "uniform":
            return 0.0, "steady"
        if text in _BY_TOPIC:
            return 0.0, text
        kind, _, exponent = text.partition(":")
        try:
            skew = float(exponent)
        except ValueError:
            skew = -1.0
        if kind != "zipf" or not 0 < skew <= 3:  # noqa: PLR2004 - beyond that a few experts do all
            self.fail(
                "give uniform, sticky, drifting, or zipf:EXPONENT with an exponent up to 3",
                param,
                ctx,
            )
        return skew, "steady"


@click.group()
def bench() -> None:
    """Make synthetic models and measure with them."""


bench.add_command(policy)


@bench.command("make-model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--gb",
    type=Finite(0.001, 100_000),
    default=8.0,
    show_default=True,
    help="Size; it decides the number of layers.",
)
@click.option("--layers", type=click.IntRange(2, 1024), help="Layers, instead of a size.")
@click.option(
    "--hidden",
    type=click.IntRange(64, 65536),
    default=2048,
    show_default=True,
    help="Width of the residual stream.",
)
@click.option(
    "--experts",
    type=click.IntRange(2, 4096),
    default=128,
    show_default=True,
    help="Routed experts of a layer.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Experts that each token uses.",
)
@click.option(
    "--expert-ffn",
    type=click.IntRange(32, 65536),
    default=768,
    show_default=True,
    help="Width inside an expert.",
)
@click.option(
    "--layout",
    type=click.Choice(["packed", "published"]),
    default="packed",
    show_default=True,
    help="Our container, or that of published ones.",
)
@click.option(
    "--format",
    "expert_format",
    type=click.Choice(_EXPERT_FORMATS),
    default="int4g64",
    show_default=True,
    help="Of the experts.",
)
@click.option(
    "--routing",
    type=_Routing(),
    default="uniform",
    show_default=True,
    help="How evenly experts are asked for: uniform, zipf:EXPONENT, sticky or drifting.",
)
@click.option("--mtp", is_flag=True, help="With the layer that drafts tokens.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Of the random weights.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def make_model(  # noqa: PLR0913, PLR0917 - one parameter per option
    out: Path,
    gb: float,
    layers: int | None,
    hidden: int,
    experts: int,
    top_k: int,
    expert_ffn: int,
    layout: str,
    expert_format: str,
    routing: tuple[float, str],
    mtp: bool,
    seed: int,
    quiet: bool,
) -> None:
    """Write a GLM-shaped model with random weights into the new folder OUT."""
    from colibri.cli.convert import ProgressLine  # noqa: PLC0415 - only when the command runs
    from colibri.models import synthetic  # noqa: PLC0415 - numpy and the engine

    if top_k > experts:
        raise click.BadParameter(f"at most {experts}, the number of experts", param_hint="--top-k")
    shape = synthetic.Shape(
        gb=gb,
        layers=layers or 0,
        hidden=hidden,
        experts=experts,
        top_k=top_k,
        expert_ffn=expert_ffn,
        layout=layout,
        format=expert_format,
        skew=routing[0],
        routing=routing[1],
        mtp=mtp,
        seed=seed,
    )
    made = synthetic.make(out, shape, ProgressLine(quiet))
    click.echo(f"{out}: {made} layers, experts of {synthetic.expert_bytes(shape):,} bytes")
