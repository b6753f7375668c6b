"""Memory above the budget is given back by the expert cache and not taken again (R154, R166)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from colibri.engine import ffi
from colibri.engine.table import EngineOptions
from colibri.models import synthetic
from colibri.models.guard import EVERY_SECONDS, MemoryGuard
from colibri.models.model import open_model

BUDGET = 1000


class World:
    """Memory, a cache in it, and a clock that each look at moves on."""

    def __init__(self, held: int, cache: int) -> None:
        self.held, self.cache, self.now = held, cache, 0.0
        self.measured = 0
        self.guard = MemoryGuard(
            BUDGET, self.measure, lambda: self.cache, self.shrink, lambda: self.now
        )

    def measure(self) -> int:
        self.measured += 1
        return self.held

    def shrink(self, size: int) -> None:
        self.held -= self.cache - size
        self.cache = size


def test_what_is_over_the_budget_is_given_back_with_a_margin() -> None:
    world = World(held=1100, cache=600)
    world.guard.after_step()
    assert world.cache == 490
    assert world.held <= BUDGET


@pytest.mark.parametrize("held", [0, 999, BUDGET])
def test_inside_the_budget_nothing_happens(held: int) -> None:
    world = World(held=held, cache=600)
    world.guard.after_step()
    assert world.cache == 600


def test_it_measures_once_a_second() -> None:
    world = World(held=1, cache=1)
    for _ in range(1000):
        world.guard.after_step()
        world.now += EVERY_SECONDS / 100
    assert 9 <= world.measured <= 11


def test_a_cache_too_small_for_the_excess_gives_all(caplog: pytest.LogCaptureFixture) -> None:
    world = World(held=5000, cache=600)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            world.guard.after_step()
            world.now += 2 * EVERY_SECONDS
    assert world.cache == 0
    assert sum("lower --ctx" in record.message for record in caplog.records) == 1


def test_without_a_limit_nothing_is_measured() -> None:
    world = World(held=5000, cache=600)
    MemoryGuard(0, world.measure, lambda: 600, world.shrink).after_step()
    assert world.measured == 0


def test_a_forced_pass_holds_over_many_steps_and_changes_no_token(tmp_path: Path) -> None:
    """R154: the real cache, half of it taken away in the middle, does not grow again."""
    shape = synthetic.Shape(layers=3, hidden=64, experts=16, top_k=2, expert_ffn=32, gb=0, seed=3)
    synthetic.make(tmp_path / "model", shape)
    model = open_model(tmp_path / "model")

    def tokens(*, guarded: bool) -> list[int]:
        options = EngineOptions(threads=1, context=512, expert_slots=12)
        with ffi.Engine(model.files.own_paths, model.geometry, model.tensors, options) as engine:
            over = iter([False] * 50 + [guarded] + [False] * 1000)
            cache = engine.snapshot().expert_bytes
            guard = MemoryGuard(
                2 * cache,
                lambda: 2 * cache + cache // 2 if next(over) else cache,
                lambda: engine.snapshot().expert_bytes,
                engine.shrink,
                clock=iter(range(0, 10_000, 2)).__next__,
            )
            session = engine.session()
            session.prefill([1, 2, 3])
            drawn: list[int] = []
            for step in range(400):
                drawn.append(session.sample())
                engine.decode([session], [drawn[-1]])
                guard.after_step()
                if guarded and step > 50:
                    assert engine.snapshot().expert_slots <= 6
            return drawn

    assert tokens(guarded=True) == tokens(guarded=False)
