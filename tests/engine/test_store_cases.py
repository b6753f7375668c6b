"""Reported failures of expert stores elsewhere, on ours.

R153: the cache is made smaller in the middle of work while experts are read ahead. R170: a budget
means the same for every family. R174: experts lie in our cache or in the system's, not in both.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import cffi
import pytest

from colibri.engine.ffi import Engine
from colibri.engine.ffi_plan import Planner
from colibri.engine.table import EngineOptions, IoMode
from colibri.models import synthetic
from colibri.models.model import Model, open_model
from colibri.models.synthetic import Shape
from tests.models import files

SHAPE = Shape(layers=3, hidden=128, experts=32, top_k=4, expert_ffn=96, seed=3)
STEPS = 60
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models") / "streamed"
    synthetic.make(folder, SHAPE)
    return open_model(folder)


def opened(model: Model, options: EngineOptions) -> Engine:
    return Engine(model.files.own_paths, model.geometry, model.tensors, options)


def answer(engine: Engine, *, shrinking: bool) -> list[int]:
    """Greedy tokens; `shrinking` takes a piece of the cache away after every one of them."""
    session = engine.session()
    session.prefill(PROMPT)
    drawn: list[int] = []
    piece = engine.snapshot().expert_bytes // STEPS
    for _ in range(STEPS):
        drawn.append(session.sample())
        engine.decode([session], [drawn[-1]])
        if shrinking:
            before = engine.snapshot()
            engine.shrink(max(before.expert_bytes - piece, 0))
            assert engine.snapshot().expert_slots <= before.expert_slots
    return drawn


@pytest.mark.parametrize("io_mode", [IoMode.AUTO, IoMode.THREADS, IoMode.BUFFERED])
def test_R153_a_cache_that_shrinks_at_every_token_while_experts_are_read_ahead_changes_none(
    model: Model, io_mode: IoMode
) -> None:
    plain = EngineOptions(threads=1, context=256, expert_slots=48, no_prefetch=True)
    with opened(model, plain) as engine:
        expected = answer(engine, shrinking=False)
    options = EngineOptions(threads=2, context=256, expert_slots=48, io_mode=io_mode)
    with opened(model, options) as engine:
        assert answer(engine, shrinking=True) == expected
        found = engine.snapshot()
    assert found.expert_slots < 24, "the cache did shrink"
    assert found.guessed_bytes > 0, "experts were read ahead"


@pytest.mark.parametrize("kind", ["llama", "glm"])
def test_R170_a_budget_means_all_of_it_for_every_family(
    kind: str, model: Model, tmp_path: Path
) -> None:
    if kind == "llama":
        files.llama_folder(tmp_path / "dense")
    found = model if kind == "glm" else open_model(tmp_path / "dense")
    planner = Planner(found.geometry, found.tensors)
    options = EngineOptions(threads=1, context=64, sessions=2, caller_bytes=1 << 20)
    resident = planner.plan(options).resident_budget
    least = planner.plan(options).least_budget
    for budget in sorted({least, (least + resident) // 2, resident}):
        limited = EngineOptions(
            threads=1, context=64, sessions=2, caller_bytes=1 << 20, memory_budget=budget
        )
        plan = planner.plan(limited)
        experts = plan.cache_bytes if plan.streaming else plan.expert_bytes
        parts = plan.caller_bytes + plan.dense_bytes + experts + plan.sessions_bytes
        parts += plan.prefill_bytes + plan.staging_bytes + plan.work_bytes + plan.table_bytes
        assert parts <= plan.total_bytes <= budget
        with opened(found, limited) as engine:
            snapshot = engine.snapshot()
            engine.session().prefill([1, 2, 3])
        assert snapshot.expert_slots == sum(each.slots for each in plan.classes)
        assert snapshot.streaming == plan.streaming
    if least < resident:
        with pytest.raises(Exception, match="too small"):
            opened(
                found, EngineOptions(threads=1, context=64, sessions=2, memory_budget=least // 2)
            )


def cached_share(path: Path) -> float:
    """Part of a file that the system holds in memory."""
    system = cffi.FFI()
    system.cdef("int mincore(void *address, size_t bytes, unsigned char *pages);")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        pages = system.new("unsigned char[]", -(-len(view) // mmap.PAGESIZE))
        start = system.from_buffer(view)
        status = system.dlopen(None).mincore(start, len(view), pages)
        system.release(start)
    assert status == 0
    return sum(page & 1 for page in pages) / len(pages)


def forget(path: Path) -> float:
    """Writes a file out and asks the system to drop it from memory; what of it stays there."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(path)


def test_R174_what_our_cache_holds_the_system_does_not_hold_too(tmp_path: Path) -> None:
    shape = Shape(layers=3, hidden=512, experts=64, top_k=4, expert_ffn=384, seed=3)
    synthetic.make(tmp_path / "model", shape)
    model = open_model(tmp_path / "model")
    shard = max(model.paths, key=lambda path: path.stat().st_size)
    shares = {}
    for mode in (IoMode.AUTO, IoMode.BUFFERED):
        options = EngineOptions(threads=1, context=256, expert_slots=32, io_mode=mode)
        with opened(model, options) as engine:
            if forget(shard) == 1:  # a file system in memory has no second copy to avoid
                return
            answer(engine, shrinking=False)
            assert engine.snapshot().expert_misses > 100
        shares[mode] = cached_share(shard)
    assert shares[IoMode.BUFFERED] > 0.5, "the measurement sees copies where there are some"
    assert shares[IoMode.AUTO] < 0.02
