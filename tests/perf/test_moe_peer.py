"""The peer's Mixture-of-Experts file, and the arithmetic of the rows that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.models import gguf
from tests.perf.moe_gguf import MoeShape, write_moe
from tests.perf.moe_peer import streamed_row

SHAPE = MoeShape(
    layers=2, hidden=256, experts=8, top_k=2, expert_ffn=128, vocab=512, heads=4, kv_heads=2
)


def _answer(tokens: int, wall: float) -> dict[str, float]:
    return {"tokens": tokens, "wall": wall, "expert_bytes_read": 8e9}


def test_the_file_has_the_experts_it_says_in_four_bits(tmp_path: Path) -> None:
    write_moe(tmp_path / "moe.gguf", SHAPE)
    file = gguf.read(tmp_path / "moe.gguf")
    experts = [tensor for tensor in file.tensors.values() if "_exps" in tensor.name]
    assert len(experts) == 3 * SHAPE.layers
    weights = SHAPE.hidden * SHAPE.expert_ffn * SHAPE.experts
    assert {tensor.bytes for tensor in experts} == {weights * 18 // 32}
    assert not list(tmp_path.glob("*.partial"))


def test_the_peer_counts_with_its_faster_mode_and_pairs_are_neighbours() -> None:
    ours = [_answer(8, 2.0), _answer(8, 1.0)]
    peer = [_answer(8, 4.0), _answer(8, 8.0)]
    row = streamed_row("x", "", ours, peer, _answer(4, 16.0), small_read_ahead=True)
    assert row.ours == pytest.approx(6.0)
    assert row.ratio == pytest.approx((2.0 + 8.0) / 2)
    faster = streamed_row("x", "", ours, peer, _answer(4, 1.0), small_read_ahead=True)
    assert faster.peer == pytest.approx(4.0)
    assert faster.ratio == pytest.approx((1.0 + 2.0) / 2)
