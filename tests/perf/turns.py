"""The `turn2_*` rows: what the second turn of a long conversation costs beside the first.

For: `run`, and the test of the 2 % in tests/engine. A conversation of an agent (12,000 tokens on a
synthetic GLM model whose experts are read from disk, 6,000 on SmolLM2) goes on by a question: at
once, after another conversation, after the client has left the reasoning out, and after a restart.
`recomputed` are tokens that were computed although an earlier turn had them.
Not for: whether the answers are right, which tests/engine/test_reuse.py shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from colibri.engine.protocol import Done, Event, Tokens
from colibri.models import synthetic
from colibri.models.backend import NativeBackend
from tests.perf.rows import LOWER, Row
from tests.support.engineloop import EngineLoop
from tests.support.streamed import open_backend

CASES = ("", "_other", "_stripped", "_restart")
TARGET = ">= 20x"
MOST_RECOMPUTED = 0.02
ANSWER, QUESTION, OTHER = 48, 64, 1000
RUNS = 3
# 4 sparse layers of 64 experts: 47 MB, of which the cache holds a quarter.
SHAPE = synthetic.Shape(layers=5, hidden=512, experts=64, top_k=4, expert_ffn=256)
EXPERT_SLOTS = 64


@dataclass(frozen=True)
class Turn:
    """One answer: seconds to its first token, tokens of the prompt, cached, and known before."""

    seconds: float
    prompt: int
    cached: int
    known: int

    @property
    def recomputed(self) -> float:
        """Share of the prompt that was computed again."""
        return max(0, self.known - self.cached) / self.prompt


class Talk:
    """A conversation with an engine that can be opened anew on the same disk."""

    def __init__(self, opened: Callable[[], NativeBackend], vocab: int) -> None:
        self._opened = opened
        self._random = np.random.default_rng(5)
        self._vocab = vocab
        self._start()

    def _start(self) -> None:
        self._backend = self._opened()
        self._loop = EngineLoop(self._backend)
        self._loop.on_event = self._note
        self._first = 0.0

    def _note(self, event: Event) -> None:
        if isinstance(event, Tokens | Done) and not self._first:
            self._first = time.monotonic()

    def text(self, tokens: int) -> list[int]:
        """Random tokens of a prompt."""
        return self._random.integers(0, self._vocab, tokens).tolist()

    def turn(self, prompt: list[int], known: int) -> tuple[Turn, list[int]]:
        """Answers a prompt of which `known` tokens were computed before; returns its answer too."""
        self._first, begun = 0.0, time.monotonic()
        _, done = self._loop.answer(prompt, max_tokens=ANSWER, cache_slot=0)
        held = self._loop.worker._slots.slots[0].history[len(prompt) :]
        turn = Turn(self._first - begun, len(prompt), done.usage.cached, known)
        return turn, held

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        self._loop.close()
        self._backend.close()


def talk(conversation: Talk, length: int, runs: int) -> tuple[Turn, dict[str, list[Turn]]]:
    """The cold first turn, then every case's, so many times, each a turn further."""
    prompt = conversation.text(length)
    cold, said = conversation.turn(prompt, 0)
    turns: dict[str, list[Turn]] = {case: [] for case in CASES}
    for case in CASES * runs:
        if case == "_other":
            conversation.turn(conversation.text(OTHER), 0)
        elif case == "_restart":
            conversation.restart()
        known = len(prompt)
        if case == "_stripped":  # the first half of the answer is gone, and the rest is new
            said = said[len(said) // 2 :]
        else:
            known += len(said)
        prompt = [*prompt, *said, *conversation.text(QUESTION)]
        turn, said = conversation.turn(prompt, known)
        turns[case].append(turn)
    return cold, turns


def rows_of(name: str, cold: Turn, turns: dict[str, list[Turn]]) -> Iterator[Row]:
    """A row for every case (the median) and one for the worst share of tokens computed again."""
    for case, runs in turns.items():
        yield Row(
            name + case,
            "x (time to first token, cold / warm)",
            ours=median(cold.seconds / turn.seconds for turn in runs),
            runs=len(runs),
            target=TARGET,
            detail={
                "cold_seconds": cold.seconds,
                "cold_tokens": cold.prompt,
                "warm_seconds": [turn.seconds for turn in runs],
                "warm_tokens": [turn.prompt for turn in runs],
                "cached": [turn.cached for turn in runs],
                "recomputed_share": [turn.recomputed for turn in runs],
            },
        )
    shares = [turn.recomputed for runs in turns.values() for turn in runs]
    yield Row(
        f"{name}_recomputed",
        "share of tokens",
        ours=max(shares),
        limit=MOST_RECOMPUTED,
        share_of_limit=max(shares) / MOST_RECOMPUTED,
        runs=len(shares),
        better=LOWER,
        target="< 0.02",
    )


def glm_options(folder: Path, state: Path, context: int) -> dict[str, Any]:
    """The GLM model as the rows and the test open it: experts through a cache of a quarter."""
    return {
        "folder": str(folder),
        "state_dir": str(state),
        "prefix_store_gb": 2.0,
        "context": context,
        "drafts": "0",
        "expert_slots": EXPERT_SLOTS,
    }


def measure(
    options: dict[str, Any], vocab: int, length: int, runs: int = 1
) -> tuple[Turn, dict[str, list[Turn]]]:
    """All turns on a state directory of its own, which is deleted before and afterwards."""
    state = Path(options["state_dir"])
    shutil.rmtree(state, ignore_errors=True)
    conversation = Talk(lambda: open_backend(options), vocab)
    try:
        return talk(conversation, length, runs)
    finally:
        conversation.stop()
        shutil.rmtree(state, ignore_errors=True)


def _names(name: str) -> tuple[str, ...]:
    return (*(name + case for case in CASES), f"{name}_recomputed")


def turn_rows(
    build: Path, wants: Callable[..., bool], smollm2: Callable[[], Path], *, quick: bool
) -> Iterator[Row]:
    """The rows of both models; `smollm2` gives the packed folder."""
    state, runs = build / "bench-turns-state", 1 if quick else RUNS
    if wants(*_names("turn2_glm")):
        folder = build / "bench-turns-model"
        if not (folder / "colibri.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            synthetic.make(folder, SHAPE)
        options = glm_options(folder, state, 16_384)
        yield from rows_of("turn2_glm", *measure(options, 256, 12_000, runs))
    if wants(*_names("turn2_smollm2")):
        length = 1000 if quick else 6000
        options = {**glm_options(smollm2(), state, 8192), "expert_slots": 0}
        yield from rows_of("turn2_smollm2", *measure(options, 49_000, length, runs))
