"""The `timers_*` rows: what it costs that the engine books the time of its steps.

For: `run`. Two engines with the same model decode in turn, one of them with its clock switched off
(a planted fault); the row is how much more CPU time the other takes, in percent. Not for: whether
the booked times are right, which tests/engine/test_work.py shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from colibri.engine.ffi import Engine, Session
from colibri.engine.table import EngineOptions
from colibri.models import synthetic
from colibri.models.model import open_model
from tests.perf.driver_loop import fixed_ids
from tests.perf.rows import LOWER, Row

NAMES = ("timers_smollm2", "timers_moe")
TARGET = "not measurable: within the spread of two equal engines"
CLOCK_OFF = 9  # native/src/fault.h
CONTEXT = 1024
# The smaller the layers, the more a clock reading weighs: 4 sparse layers that take microseconds.
SHAPE = synthetic.Shape(layers=5, hidden=256, experts=32, top_k=4, expert_ffn=64)

Pairs = list[tuple[float, float]]


class _Decoder:
    """An engine on one thread that decodes the same tokens again and again."""

    def __init__(self, folder: Path, fault: int, tokens: int) -> None:
        model = open_model(folder)
        options = EngineOptions(threads=1, context=CONTEXT, fault=fault)
        self._engine = Engine(model.files.paths, model.geometry, model.files.tensors, options)
        self._session: Session = self._engine.session()
        self._ids = fixed_ids(tokens, self._engine.vocab, 7)

    def seconds(self) -> float:
        """CPU seconds of one run."""
        self._session.truncate(0)
        begun = time.process_time()
        for token in self._ids:
            self._engine.decode([self._session], [token])
        return time.process_time() - begun

    def close(self) -> None:
        self._engine.close()


def measure(folder: Path, tokens: int, runs: int) -> dict[str, Pairs]:
    """Seconds of neighbouring runs: `cost` (with, without), `noise` (without, without), the latter
    with two equal engines.
    """
    engines = [_Decoder(folder, fault, tokens) for fault in (0, CLOCK_OFF, CLOCK_OFF)]
    try:
        for engine in engines:
            engine.seconds()
        found: dict[str, Pairs] = {"cost": [], "noise": []}
        for run in range(runs):
            # Each is first as often as the others.
            order = [(run + i) % 3 for i in range(3)]
            seconds = dict(sorted((number, engines[number].seconds()) for number in order))
            found["cost"].append((seconds[0], seconds[1]))
            found["noise"].append((seconds[2], seconds[1]))
        return found
    finally:
        for engine in engines:
            engine.close()


def row_of(name: str, found: dict[str, Pairs]) -> Row:
    """Medians over the pairs, in percent of the time without; the limit is what two equal engines
    differ by in half of their pairs.
    """
    more = {
        kind: [100 * (mine / other - 1) for mine, other in pairs] for kind, pairs in found.items()
    }
    cost, spread = median(more["cost"]), median(map(abs, more["noise"]))
    return Row(
        name,
        "% more CPU time",
        ours=cost,
        limit=spread,
        share_of_limit=max(cost, 0.0) / spread if spread > 0 else None,
        runs=len(found["cost"]),
        better=LOWER,
        threads=1,
        target=TARGET,
        detail={kind: [round(value, 3) for value in values] for kind, values in more.items()},
    )


def timer_rows(
    build: Path, wants: Callable[..., bool], smollm2: Callable[[], Path], *, quick: bool
) -> Iterator[Row]:
    """The rows of both models; `smollm2` gives the packed folder."""
    runs = 9 if quick else 31
    if wants(NAMES[0]):
        yield row_of(NAMES[0], measure(smollm2(), 32, runs))
    if wants(NAMES[1]):
        folder = build / "bench-timers-model"
        if not (folder / "colibri.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            synthetic.make(folder, SHAPE)
        yield row_of(NAMES[1], measure(folder, 512, runs))
