"""Measurements of an atlas with a known truth, for its tests: counts drawn by design."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from colibri.models.atlas.runs import Header, Measurement, Sample
from colibri.models.atlas.topics import SETS

LAYERS, COLS, PER_TOKEN = (1, 2, 5), 16, 4
TOPICS = ("code", "law", "cooking", "poetry")


def header(topics: Sequence[str] = TOPICS) -> Header:
    return Header(
        atlas=1, model="made", weights="w", layers=LAYERS, cols=COLS, per_token=PER_TOKEN,
        topics=tuple(topics), tokens=8,
    )  # fmt: skip


@functools.cache
def measurement(
    planted: tuple[tuple[int, int, str], ...] = (),
    *,
    only: str = "ab",
    prompts: int = 8,
    tokens: int = 60,
    seed: int = 1,
) -> Measurement:
    """`planted` (row, col, topic): an expert that only prompts of its topic ask for, ten times as
    often as others are asked for; in the sets that `only` names, elsewhere it is like all others.
    """
    random = np.random.default_rng(seed)
    samples = []
    for side in SETS:
        for topic in TOPICS:
            own: Mapping[tuple[int, int], str] = (
                {(row, col): name for row, col, name in planted} if side in only else {}
            )
            weights = np.ones((len(LAYERS), COLS))
            for (row, col), name in own.items():
                weights[row, col] = 10 if name == topic else 0
            shares = weights / weights.sum(axis=1, keepdims=True)
            for number in range(prompts):
                drawn = [
                    np.stack([random.multinomial(PER_TOKEN * n, row) for row in shares])
                    for n in (tokens // 3, tokens - tokens // 3)
                ]
                samples.append(
                    Sample(
                        f"{side}{topic}{number}",
                        topic,
                        side,
                        drawn[0].astype(np.uint32),
                        drawn[1].astype(np.uint32),
                    )
                )
    return Measurement(header(), tuple(samples))
