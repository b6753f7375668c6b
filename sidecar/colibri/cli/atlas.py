"""`coli atlas`: what a model's experts are for: `run` measures, `analyze` makes sense of it.

For: a person who wants the Atlas of the dashboard, and scripts (`--json`). Not for: counting (the
engine does), figures (`models.atlas.analysis`) or files (`models.atlas.runs`, `file`). Measuring a
large model takes hours, so every prompt is on the disk when the next one begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from colibri import paths, settings
from colibri.cli import server
from colibri.cli.options import settings_options
from colibri.cli.serve import model_folder
from colibri.errors import UsageError
from colibri.settings import Settings

if TYPE_CHECKING:
    from colibri.cli.atlas_meter import Meter
    from colibri.models.atlas.analysis import Atlas
    from colibri.models.atlas.measure import Measured
    from colibri.models.atlas.runs import Header, Run
    from colibri.models.atlas.topics import Prompt, Topics

_SCHEMA: Final = 1
_LINE_SECONDS: Final = 5.0
_SHOWN_LAYERS: Final = 3


@click.group()
def atlas() -> None:
    """Measure what a model's experts are for."""


def _chosen(resolved: settings.Resolved, model: str | None) -> Settings:
    chosen = resolved.settings
    return chosen if model is None else dataclasses.replace(chosen, model=model)


# ---- run -----------------------------------------------------------------------------------------


@atlas.command()
@click.argument("model", required=False)
@click.option("--topics", metavar="FILE", help="Prompts of your own by topic (TOML).")
@click.option(
    "--prompts", type=click.IntRange(min=1), metavar="N", help="Only the first N of each set."
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 4096),
    default=48,
    show_default=True,
    help="Longest answer; 1 measures the prompts alone.",
)
@click.option("--out", metavar="FILE", help="Where to keep the measurement.")
@click.option("--restart", is_flag=True, help="Begin anew; what is there is deleted.")
@click.option("--url", metavar="URL", help="Measure with this server's engine.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options("engine", names=("ctx",))
def run(
    resolved: settings.Resolved, model: str | None, url: str | None, as_json: bool, **options: Any
) -> None:
    """Ask MODEL prompts by topic and count which experts answer them.

    A server on the configured address does it if it serves the model; else an engine of this
    command's own. Goes on where it stopped when given again.
    """
    from colibri.models.atlas import runs, topics  # noqa: PLC0415 - imported when it runs

    chosen = _chosen(resolved, model)
    folder = None if url is not None and chosen.model is None else model_folder(chosen)
    wanted = chosen if folder is None else dataclasses.replace(chosen, model=str(folder))
    base = server.find(wanted, url)
    if base is not None and url is not None:
        _check_served(base, wanted)
    given = options["topics"]
    asked = topics.load(paths.given(given) if given else topics.find(folder))
    place = _place(options["out"], folder, chosen)
    prompts = asked.prompts(options["prompts"])
    started = time.monotonic()
    with runs.Run(place, restart=options["restart"]) as file:
        weights = _weights(folder)
        file.check(weights=weights, topics=asked.names, tokens=options["tokens"])
        left = [prompt for prompt in prompts if prompt.key not in file.done]
        progress = _Progress(len(prompts), len(prompts) - len(left), quiet=options["quiet"])
        work = _Work(asked, weights, options["tokens"], chosen.model or (folder or place).name)
        with progress, _meter(base, chosen, folder, idle=not left) as meter:
            tokens = _measure(file, left, work, meter, progress)
    report = {
        "schema": _SCHEMA,
        "file": str(place),
        "server": base,
        "topics": list(asked.names),
        "prompts": len(prompts),
        "measured": len(left),
        "tokens": tokens,
        "seconds": round(time.monotonic() - started, 3),
    }
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(
        f"{len(prompts)} prompts of {len(asked.names)} topics are measured, {len(left)} of them "
        f"now in {report['seconds']:.0f} s: {place}"
    )
    name = shlex.quote(chosen.model) if chosen.model else ""
    more = f"--from {shlex.quote(str(place))}" if options["out"] else ""
    click.echo(f"Next: {' '.join(f'coli atlas analyze {name} {more} --web'.split())}", err=True)


@dataclasses.dataclass(frozen=True)
class _Work:
    """What is measured: for the first line of the file."""

    topics: Topics
    weights: str
    tokens: int
    model: str

    def header(self, found: Measured) -> Header:
        from colibri.models.atlas import runs  # noqa: PLC0415

        return runs.Header(
            atlas=runs.VERSION,
            model=self.model,
            weights=self.weights,
            layers=found.layers,
            cols=found.cols,
            per_token=found.per_token,
            topics=self.topics.names,
            tokens=self.tokens,
        )


def _measure(file: Run, left: list[Prompt], work: _Work, meter: Meter, progress: _Progress) -> int:
    """Measures prompt after prompt; returns the tokens that were counted."""
    tokens = 0
    for prompt in left:
        progress.show(prompt.topic)
        found = meter(prompt.text, work.tokens)
        file.add(work.header(found), prompt, found)
        counted = int(found.prompt[0].sum()) + int(found.answer[0].sum())
        tokens += counted // found.per_token
        progress.step()
    return tokens


@contextlib.contextmanager
def _meter(
    base: str | None, chosen: Settings, folder: Path | None, *, idle: bool
) -> Iterator[Meter]:
    from colibri.cli import atlas_meter  # noqa: PLC0415

    if idle:
        yield _nothing_to_do
    elif base is not None:
        yield atlas_meter.ServerMeter(base, chosen)
    else:
        assert folder is not None  # noqa: S101 - without a server there is a folder
        with atlas_meter.own_engine(chosen, folder) as meter:
            yield meter


def _nothing_to_do(text: str, tokens: int) -> Measured:
    raise AssertionError(f"nothing was left to measure: {text[:20]}, {tokens}")


def _check_served(base: str, chosen: Settings) -> None:
    served = server.served_model(base, chosen, named=True) or ""
    if not server.is_wanted(served, chosen):
        raise UsageError(
            f"the server at {base} serves {served}, not {chosen.model}.",
            where="--url",
            hint="Leave MODEL out and name a file with --out, or load that model there first.",
        )


def _place(out: str | None, folder: Path | None, chosen: Settings) -> Path:
    from colibri.models.atlas import runs  # noqa: PLC0415

    if out is not None:
        return paths.given(out).absolute()
    if folder is None:
        raise UsageError(
            "say whose model the server at --url has, or where to keep its measurement.",
            where="--url",
            hint="Give MODEL as well, or --out FILE.",
        )
    return paths.learnt_dir(folder, chosen.state_dir) / runs.NAME


def _weights(folder: Path | None) -> str:
    """Says which weights are measured; "" where only a server knows."""
    if folder is None:
        return ""
    from colibri.models.container import open_folder  # noqa: PLC0415
    from colibri.models.identity import content_id  # noqa: PLC0415

    return content_id(open_folder(folder))


class _Progress:
    """Prompts done, total and time left, on stderr: one line again and again, or one now and then.
    An interrupted measurement says how to go on.
    """

    def __init__(self, total: int, known: int, *, quiet: bool) -> None:
        self._total, self._done, self._known = total, known, known
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._started: float | None = None
        self._next = 0.0
        self._open = False

    def __enter__(self) -> None:
        if self._known and not self._quiet:
            click.echo(f"{self._known} of {self._total} prompts are known already", err=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._open:
            click.echo(err=True)
        if kind is not None and self._done > 0:
            click.echo(
                f"{self._done} of {self._total} prompts are measured and kept; the same command "
                "goes on there.",
                err=True,
            )

    def show(self, topic: str) -> None:
        """A prompt begins."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        if self._quiet or (not self._terminal and now < self._next):
            return
        self._next = now + _LINE_SECONDS
        new = self._done - self._known
        left = (now - self._started) / new * (self._total - self._done) if new else None
        text = f"{self._done} of {self._total} prompts" + (
            f", {duration(left)} left" if left else ""
        )
        if self._terminal:
            click.echo(f"\r{f'{text} ({topic})':70}", err=True, nl=False)
            self._open = True
        else:
            click.echo(text, err=True)

    def step(self) -> None:
        """A prompt is measured."""
        self._done += 1


def duration(seconds: float) -> str:
    """For people."""
    minutes = round(seconds / 60)
    if seconds < 100:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"  # noqa: PLR2004


# ---- analyze -------------------------------------------------------------------------------------


@atlas.command()
@click.argument("model", required=False)
@click.option("--from", "source", metavar="FILE", help="The measurement, instead of the model's.")
@click.option("--web", is_flag=True, help="Write experts.json, which the dashboard shows.")
@click.option("--out", metavar="FILE", help="Write it there instead.")
@click.option(
    "--count",
    type=click.Choice(("both", "prompt", "answer")),
    default="both",
    show_default=True,
    help="Whose tokens count.",
)
@click.option(
    "--min-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Fewest tokens of an expert to be told of; 4 for each topic, at least 32.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options(names=("state_dir",))
def analyze(
    resolved: settings.Resolved,
    model: str | None,
    source: str | None,
    web: bool,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what the experts of MODEL are for, and how far that is more than chance."""
    from colibri.models.atlas import analysis, file, runs  # noqa: PLC0415

    chosen = _chosen(resolved, model)
    folder = None if source and (out or not web) and chosen.model is None else model_folder(chosen)
    place = paths.given(source).absolute() if source else _place(None, folder, chosen)
    found = analysis.analyze(runs.load(place), options["count"], options["min_tokens"])
    written = None
    if web or out:
        assert out is not None or folder is not None  # noqa: S101 - see `folder`
        written = (
            paths.given(out).absolute()
            if out is not None
            else file.place(folder or Path(), chosen.state_dir)
        )
        file.write(written, file.render(found))
    if as_json:
        report = {
            "schema": _SCHEMA,
            "measurement": str(place),
            "written": str(written) if written else None,
            **analysis.report(found),
        }
        click.echo(json.dumps(report, indent=2, allow_nan=False))
        return
    _show(found)
    if written is not None:
        click.echo(f"Written to {written}")


def _show(found: Atlas) -> None:
    evidence, everyone = found.evidence, len(found.layers) * found.cols
    counted = {"both": "prompts and answers", "prompt": "prompts", "answer": "answers"}
    click.echo(
        f"{found.prompts} prompts of {len(found.topics)} topics, {found.tokens:,} tokens of "
        f"{counted[found.counted]}, {len(found.layers)} layers of {found.cols} experts"
    )
    information = evidence.information
    click.echo(
        f"mutual information of topic and expert: {information.found:.4f} bits a layer; "
        f"with topics dealt out at random: {information.chance:.4f}, "
        f"at most {information.chance_most:.4f}"
    )
    for side, own in evidence.by_set.items():
        click.echo(f"  set {side} alone: {own.found:.4f}, at random {own.chance:.4f}")
    if len(found.layers) > 1:
        pairs = zip(evidence.by_layer, found.layers, strict=True)
        best = sorted(pairs, reverse=True)[:_SHOWN_LAYERS]
        most = ", ".join(f"layer {layer} ({bits:.3f})" for bits, layer in best)
        click.echo(f"  most in {most}")
    agreement, guessed = evidence.agreement, evidence.prediction
    click.echo(
        f"agreement of the two sets (correlation): {agreement.found:.3f}; at random "
        f"{agreement.chance:.3f}, at most {agreement.chance_most:.3f}"
    )
    click.echo(
        f"topic of an answer told from its experts by the other set: {100 * guessed.found:.1f} % "
        f"right; at random {100 * guessed.chance:.1f} %, at most "
        f"{100 * guessed.chance_most:.1f} %; always the most frequent topic: "
        f"{100 * evidence.majority:.1f} %"
    )
    click.echo(
        f"specialists: {found.specialists:,} of {everyone:,} experts; {found.left_out:,} with "
        f"fewer than {found.min_tokens} tokens are left out"
    )
    for number, topic in enumerate(found.topics):
        own_experts = sum(one.specialist and one.top == number for one in found.experts)
        if own_experts:
            click.echo(f"  {topic}: {own_experts:,}")
    if information.found <= information.chance_most:
        click.echo("Routing shows no more of these topics than chance does.")
