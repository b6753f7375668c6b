"""Maps of experts on the wire: what a page decodes is the map, whole or by what has changed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from colibri.engine.protocol import ExpertMap
from colibri.telemetry import maps

Arrays = tuple[Any, Any, Any]


def made(tiers: list[int], heat: list[int], hits: list[int], turn: int = 1) -> ExpertMap:
    return ExpertMap(
        turn=turn,
        tiers=bytes(tiers),
        heat=bytes(heat),
        hits=np.array(hits, "<u2").tobytes(),
    )


def decode(data: bytes, before: Arrays | None = None) -> tuple[dict[str, int], Arrays]:
    """Written from docs/dashboard.md, as a page would."""
    magic, version, kind, zero, rows, cols, seq, base, turn, n = struct.unpack_from(
        "<4sBBHIIIIII", data
    )
    assert (magic, version, zero) == (b"CBXM", 1, 0)
    head = {"kind": kind, "rows": rows, "cols": cols, "seq": seq, "base": base, "turn": turn}
    if kind == 1:
        assert n == rows * cols
        tier = np.frombuffer(data, np.uint8, n, 32)
        heat = np.frombuffer(data, np.uint8, n, 32 + n)
        hits = np.frombuffer(data, "<u2", n, 32 + 2 * n)
        assert len(data) == 32 + 4 * n
        return head, (tier, heat, hits)
    assert before is not None
    tier, heat, hits = (array.copy() for array in before)
    index = np.frombuffer(data, "<u4", n, 32)
    hits[index] = np.frombuffer(data, "<u2", n, 32 + 4 * n)
    tier[index] = np.frombuffer(data, np.uint8, n, 32 + 6 * n)
    heat[index] = np.frombuffer(data, np.uint8, n, 32 + 7 * n)
    assert len(data) == 32 + 8 * n
    return head, (tier, heat, hits)


CELLS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 255), st.integers(0, 65_535)),
    min_size=6,
    max_size=6,
)


@given(CELLS, CELLS, st.integers(0, 5))
def test_a_delta_makes_the_new_map_out_of_the_old_one(
    old: list[tuple[int, int, int]], new: list[tuple[int, int, int]], same: int
) -> None:
    new = [*old[:same], *new[same:]]
    first, second = (
        made(*(list(column) for column in zip(*cells, strict=True))) for cells in (old, new)
    )
    head, arrays = decode(maps.full(first, 2, 3, 7))
    assert head == {"kind": 1, "rows": 2, "cols": 3, "seq": 7, "base": 0, "turn": 1}
    data = maps.delta(first and second, first, (2, 3), (7, 9))
    if old == new:
        assert data == b""
        return
    head, arrays = decode(data, arrays)
    assert head["seq"] == 9
    assert head["base"] == (7 if head["kind"] == 2 else 0)
    assert [list(map(int, cell)) for cell in zip(*arrays, strict=True)] == [list(c) for c in new]


def test_a_new_turn_is_told_although_no_cell_has_changed() -> None:
    before, after = made([1], [2], [0], turn=1), made([1], [2], [0], turn=2)
    head, _ = decode(maps.delta(after, before, (1, 1), (1, 2)), (np.zeros(1, np.uint8),) * 3)
    assert head["turn"] == 2


def test_a_map_of_another_size_comes_whole() -> None:
    before, after = made([1], [2], [0]), made([1, 0], [2, 0], [0, 0])
    assert decode(maps.delta(after, before, (1, 2), (1, 2)))[0]["kind"] == 1


def test_a_token_of_the_largest_model_is_a_small_message() -> None:
    rng = np.random.default_rng(1)
    cells = 76 * 256
    tiers, heat = rng.integers(0, 2, cells, np.uint8), rng.integers(0, 256, cells, np.uint8)
    hits = np.zeros(cells, "<u2")
    before = ExpertMap(turn=1, tiers=tiers.tobytes(), heat=heat.tobytes(), hits=hits.tobytes())
    hits[rng.choice(cells, 8 * 76, replace=False)] += 1
    after = ExpertMap(turn=1, tiers=tiers.tobytes(), heat=heat.tobytes(), hits=hits.tobytes())
    assert len(maps.full(after, 76, 256, 2)) == 32 + 4 * cells
    assert len(maps.delta(after, before, (76, 256), (1, 2))) == 32 + 8 * 8 * 76
