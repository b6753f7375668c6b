"""A long conversation of an agent goes on: the second turn computes what is new, and under 2 %.

At once, after another conversation, after the reasoning was left out, and after a restart; the
times are in the benchmark's `turn2_*` rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.models import synthetic
from tests.perf.turns import CASES, MOST_RECOMPUTED, Turn, glm_options, measure

SHAPE = synthetic.Shape(layers=3, hidden=128, experts=32, top_k=3, expert_ffn=64)


def check(cold: Turn, turns: dict[str, list[Turn]], length: int) -> None:
    assert (cold.prompt, cold.cached) == (length, 0)
    assert list(turns) == list(CASES)
    for case, (turn,) in turns.items():
        assert turn.prompt > length
        assert turn.recomputed < MOST_RECOMPUTED, case
        assert turn.cached < turn.prompt
    # In memory nothing is computed again; on disk there are whole blocks only.
    assert all(turns[case][0].recomputed == 0 for case in CASES if case != "_restart")


def test_twelve_thousand_tokens_on_a_streamed_glm_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    synthetic.make(folder, SHAPE)
    options = {**glm_options(folder, tmp_path / "state", 16_384), "expert_slots": 12}
    check(*measure(options, 256, 12_000), 12_000)


@pytest.mark.slow
def test_six_thousand_tokens_on_smollm2(smollm2_folder: Path, tmp_path: Path) -> None:
    options = {**glm_options(smollm2_folder, tmp_path / "state", 8192), "expert_slots": 0}
    check(*measure(options, 49_000, 6000), 6000)
