"""A container cut as the published GLM-5.2 one is: 141 shards, an empty one, no indexer.

The generated model is narrow, but has every kind of layer; cuts fall between any two entries, so
experts are split over shards. Opened by the engine, compared with the NumPy reference on the
dequantized values, and with its own conversion to the packed layout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine import ffi, packing
from colibri.engine.table import EngineOptions, Format, KvType, Precision
from colibri.models.container import ModelFiles, open_folder
from colibri.models.convert import convert
from tests.models import files as model_files
from tests.models import glm_checkpoint
from tests.oracle import published, reference
from tests.oracle.checkpoint import Array, Checkpoint, dequantize
from tests.oracle.published import Style
from tests.oracle.test_engine import TOLERANCE, decode, engine_of, prefill

SHARDS, EMPTY = 141, 70
CONFIG: dict[str, Any] = {
    **model_files.GLM,
    "num_hidden_layers": 6,
    "mlp_layer_types": ["dense", *["sparse"] * 5],
    "indexer_types": ["full", "full", "shared", "shared", "full", "shared"],
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "index_n_heads": 8,
    # Wider than 64, so that a group is not a row.
    "q_lora_rank": 80,
    "kv_lora_rank": 72,
    "v_head_dim": 40,
    "num_nextn_predict_layers": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("glm_i4")
    model_files.text_files(path, CONFIG)
    style = Style("i4_group", 64)
    entries, _ = published.quantize_model(glm_checkpoint.values(CONFIG), style, 6)
    where = published.cut(entries, SHARDS, EMPTY)
    empty = f"out-{EMPTY:05d}.safetensors"
    published.write_shards(path, entries, where.__getitem__, [empty])
    return path


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    convert(folder, out)
    return out


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return np.random.default_rng(8).integers(3, CONFIG["vocab_size"], 60).tolist()


def test_the_container_has_141_shards_an_empty_one_split_experts_and_no_indexer(
    folder: Path,
) -> None:
    paths = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in paths] == [f"out-{n:05d}.safetensors" for n in range(SHARDS)]
    assert [path.stat().st_size == 0 for path in paths].count(True) == 1
    opened = open_folder(folder)
    assert opened.kind == "published"
    assert opened.geometry.index_topk == 0
    shards_of: dict[str, set[int]] = {}
    for tensor in opened.tensors:
        if ".experts." in tensor.name:
            shards = shards_of.setdefault(tensor.name.rsplit(".", 2)[0], set())
            shards |= {tensor.file, tensor.scale_file}
            # Weights lie in two or more shards as well, not only apart from their scales.
            shards_of.setdefault(tensor.name.rsplit(".", 2)[0] + " data", set()).add(tensor.file)
    assert all(len(shards) > 1 for name, shards in shards_of.items() if " data" not in name)
    assert sum(len(shards) > 1 for name, shards in shards_of.items() if " data" in name) > 20
    formats = {(Format(tensor.format), tensor.group) for tensor in opened.tensors}
    assert formats == {(Format.F32, 0), (Format.I8_ROW, 0), (Format.I4_GROUP, 64)}


def test_the_engines_logits_are_those_of_the_dequantized_reference(
    folder: Path, tokens: list[int]
) -> None:
    expected = reference.forward(Checkpoint(folder), tokens).logits
    with engine_of(open_folder(folder), Precision.F32) as engine:
        assert np.abs(prefill(engine, tokens) - expected).max() < TOLERANCE
        assert np.abs(decode(engine, tokens) - expected).max() < TOLERANCE
    with engine_of(open_folder(folder), Precision.FAST) as engine:
        difference = np.abs(prefill(engine, tokens) - expected)
    # The median: a random router has near-ties, and a token whose experts flip differs by more.
    assert np.median(difference) < 0.1 * expected.std()


def mtp_drafts(files: ModelFiles, tokens: list[int], **options: int) -> list[list[int]]:
    """What the MTP layer guesses behind every tenth token."""
    settings = EngineOptions(context=256, drafts=3, **options)
    found = []
    with ffi.Engine(files.paths, files.geometry, files.tensors, settings) as engine:
        for n in range(10, len(tokens), 10):
            with engine.session() as session:
                session.prefill(tokens[:n])
                found.append(session.draft(tokens[n], 3))
    return found


@pytest.mark.parametrize("slots", [0, 4, 6])
def test_the_packed_and_the_published_layout_give_equal_bits(
    folder: Path, packed: Path, tokens: list[int], slots: int
) -> None:
    """Resident, and with experts that do not all fit: 16 experts in a few slots, 16-bit KV."""
    results: list[Array] = []
    drafts = []
    for path in (folder, packed):
        files = open_folder(path)
        options = {"expert_slots": slots, "kv_type": KvType.BF16}
        with engine_of(files, Precision.FAST, **options) as engine:
            results += [prefill(engine, tokens), decode(engine, tokens)]
            if slots:
                assert engine.snapshot().expert_misses > 0
        drafts.append(mtp_drafts(files, tokens, expert_slots=slots))
    assert all(np.array_equal(results[0], other) for other in results[1:])
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 5


def test_packing_a_published_container_loses_nothing(folder: Path, packed: Path) -> None:
    source, opened = Checkpoint(folder), open_folder(packed)
    names = set()
    for tensor in opened.tensors:
        names.add(tensor.name)
        data = opened.paths[tensor.file].read_bytes()[tensor.offset :][: tensor.bytes]
        shape = (tensor.rows, tensor.cols)
        if tensor.rows == 1:
            found = np.frombuffer(data, np.float32).reshape(shape)
        else:
            found = packing.weight_unpack(tensor.format, tensor.group, *shape, data)
        stored = source.stored(tensor.name)
        assert np.array_equal(found, dequantize(stored).reshape(shape)), tensor.name
        assert Format(tensor.format).name.lower() == stored.format
    assert names == set(source.names())
    index = json.loads((packed / "colibri.json").read_text())
    assert len(index["experts"]) == 6 * 16


def test_a_shifted_shard_is_noticed_by_the_comparison_above(
    folder: Path, tmp_path: Path, tokens: list[int]
) -> None:
    """The reference comparison can fail: one nibble of an expert that is used makes it fail."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    opened = open_folder(tmp_path)
    for tensor in opened.tensors:
        if "layers.3.mlp.shared_experts.down_proj" in tensor.name:
            path = opened.paths[tensor.file]
            data = bytearray(path.read_bytes())
            data[tensor.offset : tensor.offset + 40] = bytes(40)
            path.write_bytes(data)
    expected = reference.forward(Checkpoint(folder), tokens).logits
    with engine_of(open_folder(tmp_path), Precision.F32) as engine:
        assert np.abs(prefill(engine, tokens) - expected).max() > TOLERANCE
