"""The published layout that `starter.export` writes, converted, computes what it did before.

The fixture is made anew from the model in the package, whose weights are decoded and rounded as the
exporter rounds them: names, types and text files are the exporter's, and no torch is needed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.engine.table import Precision
from colibri.models.container import open_folder
from starter.build import SHIPPED
from tests.models.test_gguf import values
from tests.oracle import reference
from tests.oracle.checkpoint import Checkpoint, Raw, round_bf16, to_bf16, write_safetensors
from tests.oracle.test_engine import TOLERANCE, decode, engine_of, prefill
from tests.starter.test_shipped import REFERENCE, answers

# As in `starter.export`, which a test cannot import without torch.
FULL_PRECISION = ("e_score_correction_bias", "mlp.gate.weight", "norm")
TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Floats = NDArray[np.float32]


def write_published(folder: Path, weights: Mapping[str, Floats]) -> Path:
    """A model folder as `starter.export` lays it down."""
    folder.mkdir()
    entries = {
        name: Raw("F32", w.shape, w)
        if any(part in name for part in FULL_PRECISION)
        else Raw("BF16", w.shape, to_bf16(round_bf16(w)))
        for name, w in sorted(weights.items())
    }
    write_safetensors(folder / "model.safetensors", entries)
    for name in TEXTS:
        shutil.copy(SHIPPED / name, folder / name)
    return folder


def convert(source: Path, out: Path, recipe: str) -> Path:
    command = [sys.executable, "-m", "colibri.cli", "convert", str(source), str(out)]
    subprocess.run([*command, "--weights", recipe], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def weights() -> dict[str, Floats]:
    return values(SHIPPED)


@pytest.fixture(scope="module")
def published(weights: dict[str, Floats], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("published") / "model", weights)


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(REFERENCE.read_text())["prompts"]
    return found


@pytest.fixture(scope="module")
def tokens(prompts: list[dict[str, Any]]) -> list[int]:
    """More than the indexer picks, so that the selection decides."""
    found: list[int] = prompts[-1]["ids"][:100]
    assert len(found) > json.loads((SHIPPED / "config.json").read_text())["index_topk"]
    return found


def logits(folder: Path, tokens: list[int]) -> tuple[Floats, Floats]:
    """Of every position, read at once and token by token."""
    with engine_of(open_folder(folder), Precision.F32) as engine:
        return prefill(engine, tokens), decode(engine, tokens)


def test_converted_unchanged_it_gives_the_logits_of_the_published_layout(
    published: Path, weights: dict[str, Floats], tokens: list[int], tmp_path: Path
) -> None:
    assert open_folder(published).kind == "original"
    before = logits(published, tokens)
    after = logits(convert(published, tmp_path / "out", "as-is"), tokens)
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    expected = reference.forward(Checkpoint(published), tokens).logits
    assert np.abs(before[0] - expected).max() < TOLERANCE
    # It can fail: one expert whose gate and up projections are exchanged.
    gate, up = (f"model.layers.1.mlp.experts.3.{part}_proj.weight" for part in ("gate", "up"))
    wrong = write_published(tmp_path / "wrong", {**weights, gate: weights[up], up: weights[gate]})
    assert not np.array_equal(logits(wrong, tokens)[0], before[0])


def test_converted_as_it_is_shipped_it_has_its_formats_and_answers(
    published: Path, prompts: list[dict[str, Any]], tmp_path: Path
) -> None:
    """`coli convert --weights gs64-dense8`, as `make starter` runs it."""
    files = open_folder(convert(published, tmp_path / "out", "gs64-dense8"))
    shipped = open_folder(SHIPPED)
    assert files.geometry == shipped.geometry
    kept = ("name", "format", "group", "rows", "cols", "layout")
    assert [[getattr(t, name) for name in kept] for t in files.tensors] == [
        [getattr(t, name) for name in kept] for t in shipped.tensors
    ]
    with engine_of(files, Precision.FAST) as engine:
        assert answers(engine, prompts[:-1]) == [prompt["greedy"] for prompt in prompts[:-1]]
