"""What steps cost and where experts were found, from the engine's counters to each job; and maps.

Covers R188.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri.engine import work
from colibri.engine.heat import ExpertCounts, ExpertMaps, heat_of
from colibri.engine.protocol import ExpertMap
from colibri.engine.work import Found, Times, Work
from tests.support import draftmodel
from tests.support.streamed import streamed


def test_arrays_of_the_engine_become_named_numbers() -> None:
    """R188: by phase and by place."""
    found = work.from_counters([n * 10**6 for n in range(10)], list(range(20, 30)), 7)
    assert found.prefill.time == Times(
        disk_ms=0, experts_ms=1, attention_ms=2, head_ms=3, other_ms=4
    )
    assert found.decode.time.total_ms == 5 + 6 + 7 + 8 + 9
    assert found.prefill.found == Found(resident=20, warm=21, cache=22, guess=23, disk=24)
    assert found.decode.found == Found(resident=25, warm=26, cache=27, guess=28, disk=29)
    assert found.bytes_read == 7


def test_a_part_of_the_work_is_what_came_since() -> None:
    before = work.from_counters([10**6] * 10, [1] * 10, 5)
    after = work.from_counters([3 * 10**6] * 10, [4] * 10, 9)
    part = after.since(before)
    assert part.prefill.time.head_ms == 2
    assert part.decode.found.disk == 3
    assert part.bytes_read == 4
    assert before.since(after) == Work(), "never negative, also after a restart of the engine"


def counts(asked: list[int], learnt: list[int] | None = None) -> ExpertCounts:
    return ExpertCounts(
        tiers=np.array([[0, 1, 3, 1]], np.uint8),
        asked=np.array([asked], np.uint32),
        learnt=np.array([learnt or [0] * 4], np.int64),
    )


def test_heat_is_logarithmic_and_tells_used_from_unused() -> None:
    assert heat_of(counts([0, 0, 0, 0])).tolist() == [[0, 0, 0, 0]]
    heat = heat_of(counts([0, 1, 1000, 10**9]))[0].tolist()
    assert heat[0] == 0 < heat[1] < heat[2] < heat[3] == 255
    assert heat_of(counts([0, 0, 0, 0], [5, 0, 0, 0]))[0].tolist() == [255, 0, 0, 0]


class Backend:
    def __init__(self) -> None:
        self.counts: ExpertCounts | None = counts([0, 0, 0, 0])

    def expert_counts(self) -> ExpertCounts | None:
        return self.counts


def hits(found: ExpertMap | None) -> list[int]:
    assert found is not None
    return np.frombuffer(found.hits, "<u2").tolist()


def test_a_turn_counts_what_was_asked_for_since_it_began() -> None:
    backend = Backend()
    maps = ExpertMaps(backend)
    backend.counts = counts([1, 2, 0, 0])
    assert hits(maps.take()) == [1, 2, 0, 0]
    maps.begin_turn()
    found = maps.take()
    assert found is not None
    assert (found.turn, hits(found), found.tiers) == (1, [0, 0, 0, 0], bytes([0, 1, 3, 1]))
    backend.counts = counts([1, 3, 0, 100_000])
    assert hits(maps.take()) == [0, 1, 0, 65_535]
    maps.begin_turn()
    again = maps.take()
    assert again is not None
    assert (again.turn, hits(again)) == (2, [0] * 4)
    backend.counts = None
    assert maps.take() is None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("model") / "glm")


CLOCK_GAP = 8  # native/src/fault.h


def shares_booked(model: Path, slots: int, fault: int) -> list[float]:
    """Of each phase's steps, the share of their time that is booked as some kind of work."""
    choices = {"drafts": "2", "expert_slots": slots, "fault": fault}
    with streamed(model, **choices) as server:
        for seed in (1, 2):
            server.answer(draftmodel.prompt(seed, 150), max_tokens=30)
        found = server.backend._engine.snapshot()
    kinds = len(Times.__struct_fields__)
    return [
        sum(found.time_ns[phase * kinds : (phase + 1) * kinds]) / found.step_ns[phase]
        for phase in (0, 1)
    ]


@pytest.mark.parametrize("slots", [0, 5])
def test_the_parts_of_steps_sum_up_to_the_steps(model: Path, slots: int) -> None:
    """R188: resident or from disk. What is measured apart is the whole step, so nothing that takes
    time can be missing, and nothing is booked twice.
    """
    for share in shares_booked(model, slots, 0):
        assert share == pytest.approx(1, abs=0.001)
    for share in shares_booked(model, slots, CLOCK_GAP):
        assert share < 0.995


@pytest.mark.parametrize("drafts", ["0", "2"])
def test_the_real_engine_tells_of_each_job(model: Path, drafts: str) -> None:
    """R188: prompt and answer apart; the jobs' parts make up the whole."""
    with streamed(model, drafts=drafts) as server:
        layout = server.backend.info.experts
        assert layout is not None
        rows = draftmodel.LAYERS - draftmodel.config()["first_k_dense_replace"] + (drafts != "0")
        assert (len(layout.layers), layout.cols) == (rows, draftmodel.SHAPE.experts)
        assert layout.bytes > 0
        jobs = [server.answer(draftmodel.prompt(seed, 40), max_tokens=12) for seed in (1, 2)]
        maps = server.loop.worker._maps.take()
        whole = server.loop.worker.snapshot()
    parts = [job.work for job in jobs]
    for part in parts:
        assert part.prefill.time.experts_ms > 0
        assert part.decode.time.attention_ms > 0
        assert part.decode.time.head_ms > 0
        lookups = [getattr(part.decode.found, name) for name in Found.__struct_fields__]
        assert sum(lookups) >= 11 * draftmodel.SHAPE.top_k
        assert part.decode.found.resident == part.decode.found.vram == 0
    for phase in ("prefill", "decode"):
        for name in Found.__struct_fields__:
            total = getattr(getattr(whole.work, phase).found, name)
            assert total == sum(getattr(getattr(part, phase).found, name) for part in parts)
    assert whole.experts.cached > 0
    assert maps is not None
    cells = rows * draftmodel.SHAPE.experts
    assert (len(maps.tiers), len(maps.heat), len(maps.hits)) == (cells, cells, 2 * cells)
    assert maps.turn == 2
    in_ram = sum(tier in (1, 3) for tier in maps.tiers)
    assert in_ram == whole.experts.cached
    found = parts[1].prefill.found, parts[1].decode.found
    asked = sum(getattr(f, name) for f in found for name in Found.__struct_fields__)
    assert sum(hits(maps)) == asked
    assert max(maps.heat) == 255
