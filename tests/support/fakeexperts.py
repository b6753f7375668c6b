"""Experts of the scripted engine: any shape, asked for as a model would ask.

For: tests of maps, and the dashboard's clicks on models that are too large to have at hand. Run as
a program it serves such a model until its input ends:

    python -m tests.support.fakeexperts 76 256      # rows, columns; prints its address

A third argument, JSON, may hold the fields of the `script` that each answer follows, the path of
an `atlas` (`experts.json`) that the model has, and fields of the server's settings. While an answer
is written it asks eight experts of each row ten times a second, some far more than others. Threads:
`Routing` has one; `with_experts` and `ask` belong to whoever owns the server.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np

from colibri.engine.fake import Script
from colibri.engine.heat import ExpertCounts
from colibri.engine.protocol import ExpertLayout
from colibri.models.atlas import file
from tests.support.fakeserver import FakeServer

FIRST_LAYER: Final = 3
_EVERY_SECONDS: Final = 0.1
_TOP_K: Final = 8
# Each answer takes one script.
_ANSWERS: Final = 1000
_IN_MEMORY: Final = 0.3


def with_experts(server: FakeServer, rows: int = 2, cols: int = 3) -> None:
    """Gives the scripted engine experts: cell i is in tier i % 3 and was asked for i times."""
    cells = np.arange(rows * cols, dtype=np.uint32).reshape(rows, cols)
    show(server, (cells % 3).astype(np.uint8), cells)


def show(server: FakeServer, tiers: np.ndarray, asked: np.ndarray) -> None:
    """Lets the scripted engine tell of these experts [rows, cols]."""
    rows, cols = tiers.shape
    server.backend.experts = ExpertCounts(
        tiers=tiers, asked=asked, learnt=np.zeros((rows, cols), np.int64)
    )
    info = server.backend.info
    layers = tuple(range(FIRST_LAYER, FIRST_LAYER + rows))
    server.engine._info = type(info)(
        **{name: getattr(info, name) for name in info.__struct_fields__ if name != "experts"},
        experts=ExpertLayout(layers=layers, cols=cols, bytes=600),
    )


def ask(server: FakeServer, cells: np.ndarray | list[int]) -> None:
    """Asks once more for each of these cells."""
    counts = server.backend.experts
    assert counts is not None
    asked = counts.asked.copy()
    asked.reshape(-1)[cells] += 1
    server.backend.experts = ExpertCounts(tiers=counts.tiers, asked=asked, learnt=counts.learnt)


class Routing:
    """Asks for experts while the server writes an answer."""

    def __init__(self, server: FakeServer, rows: int, cols: int) -> None:
        self._server, self._stop = server, threading.Event()
        self._random = np.random.default_rng(1)
        # Each row has its own order of favourites.
        favour = 1 / np.arange(1, cols + 1, dtype=np.float64)
        self._favour = np.stack([self._random.permutation(favour) for _ in range(rows)])
        hot = self._favour >= np.quantile(self._favour, 1 - _IN_MEMORY)
        asked = (self._favour * 4000 * self._random.random((rows, cols))).astype(np.uint32)
        show(server, hot.astype(np.uint8), asked)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rows, cols = self._favour.shape
        while not self._stop.wait(_EVERY_SECONDS):
            if self._server.scheduler.counters().active == 0:
                continue
            # The k best of a race that each expert wins as often as it is favoured.
            race = self._random.exponential(size=(rows, cols)) / self._favour
            chosen = np.argsort(race, axis=1)[:, : min(_TOP_K, cols)]
            ask(self._server, (chosen + np.arange(rows)[:, None] * cols).reshape(-1))


def main(rows: int, cols: int, options: dict[str, Any]) -> None:
    fields = {"pieces": ("word ",), "repeat": True, "token_ms": 50, **options.pop("script", {})}
    atlas = options.pop("atlas", None)
    with tempfile.TemporaryDirectory() as folder:
        if atlas:
            shutil.copy(atlas, Path(folder) / file.NAME)
        scripts = (Script(**fields),) * _ANSWERS
        server = FakeServer(*scripts, context=32_768, folder=Path(folder), **options)
        server.start()
        routing = Routing(server, rows, cols) if rows else None
        print(server.url, flush=True)
        try:
            sys.stdin.read()
        finally:
            if routing:
                routing.stop()
            server.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads((sys.argv[3:] or ["{}"])[0]))
