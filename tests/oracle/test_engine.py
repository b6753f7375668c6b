"""The engine against the oracle, through Python: container reader, binding, engine.

The C program `native/tests/test_oracle.c` compares more combinations on the same fixtures; here the
way from a folder to logits is the subject, and containers of further formats, whose logits come
from the NumPy reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.engine.ffi import Engine, has_isa
from colibri.engine.table import EngineOptions, Format, Isa, Precision
from colibri.models.container import ModelFiles, open_folder
from colibri.models.convert import Options, convert
from tests.oracle import fixture, published, reference
from tests.oracle.checkpoint import GROUPS, Array, Checkpoint, Raw, round_bf16, write_safetensors
from tests.oracle.published import Style

TOLERANCE = 1e-3
CONTEXT = 256
ISAS = [isa for isa in Isa if isa != Isa.AUTO and has_isa(isa)]


def engine_of(files: ModelFiles, precision: Precision, **options: int) -> Engine:
    settings = EngineOptions(precision=precision, context=CONTEXT, **options)
    return Engine(files.paths, files.geometry, files.tensors, settings)


def prefill(engine: Engine, tokens: list[int]) -> Array:
    """Logits [len(tokens), vocab] of one prefill in a session of its own."""
    logits = np.empty((len(tokens), engine.vocab), np.float32)
    with engine.session() as session:
        session.prefill(tokens, logits)
    return logits


def decode(engine: Engine, tokens: list[int]) -> Array:
    """The same logits, token by token."""
    rows = []
    with engine.session() as session:
        session.prefill(tokens[:1])
        rows.append(session.logits())
        for token in tokens[1:]:
            engine.decode([session], [token])
            rows.append(session.logits())
    return np.stack(rows)


def decode_together(engine: Engine, many: list[list[int]], n: int) -> list[Array]:
    """Logits of the last n tokens of every list, decoded in one batch."""
    sessions = [engine.session() for _ in many]
    rows: list[list[Array]] = [[] for _ in many]
    for session, tokens in zip(sessions, many, strict=True):
        session.prefill(tokens[:-n])
    for step in range(-n, 0):
        engine.decode(sessions, [tokens[step] for tokens in many])
        for session, row in zip(sessions, rows, strict=True):
            row.append(session.logits())
    for session in sessions:
        session.close()
    return [np.stack(row) for row in rows]


def greedy(engine: Engine, prompt: list[int], n: int) -> list[int]:
    tokens: list[int] = []
    with engine.session() as session:
        session.prefill(prompt)
        for _ in range(n):
            tokens.append(session.sample())
            engine.decode([session], tokens[-1:])
    return tokens


def check_against_reference(folder: Path, formats: set[Format]) -> None:
    """Opens a container made by a test; its logits must be those of the NumPy reference."""
    files = open_folder(folder)
    assert formats <= {tensor.format for tensor in files.tensors}
    tokens = np.random.default_rng(5).integers(3, files.geometry.vocab, 20).tolist()
    expected = reference.forward(Checkpoint(folder), tokens).logits
    with engine_of(files, Precision.F32) as engine:
        assert np.abs(prefill(engine, tokens) - expected).max() < TOLERANCE
    with engine_of(files, Precision.FAST) as engine:
        assert np.abs(prefill(engine, tokens) - expected).mean() < 0.1 * expected.std()


# ---- committed fixtures -----------------------------------------------------------------------


@pytest.mark.parametrize("name", fixture.NAMES)
def test_f32_logits_of_every_position_and_greedy_tokens_are_the_oracles(name: str) -> None:
    one = fixture.load(name)
    with engine_of(open_folder(one.model), Precision.F32) as engine:
        for prompt in one.prompts:
            assert np.abs(prefill(engine, prompt.tokens) - prompt.logits).max() < TOLERANCE
            assert greedy(engine, prompt.prompt, len(prompt.greedy)) == prompt.greedy


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", fixture.NAMES)
def test_fast_path_gives_equal_bits_over_threads_chunks_decode_and_batch_mates(
    name: str, isa: Isa
) -> None:
    one = fixture.load(name)
    files, many = open_folder(one.model), [p.tokens for p in one.prompts]
    with engine_of(files, Precision.FAST, isa=isa, threads=1) as engine:
        alone = [prefill(engine, tokens) for tokens in many]
    for threads, chunk in ((2, 5), (3, 16)):
        options = {"isa": isa, "threads": threads, "prefill_chunk": chunk}
        with engine_of(files, Precision.FAST, **options) as engine:
            for tokens, expected in zip(many, alone, strict=True):
                assert np.array_equal(prefill(engine, tokens), expected)
            assert np.array_equal(decode(engine, many[2]), alone[2])
            for got, expected in zip(decode_together(engine, many, 5), alone, strict=True):
                assert np.array_equal(got, expected[-5:])


def test_a_planted_dependence_on_the_batch_breaks_the_equality_above() -> None:
    one = fixture.load("glm_dsa")
    files, many = open_folder(one.model), [p.tokens for p in one.prompts]
    with engine_of(files, Precision.FAST) as engine:
        alone = [prefill(engine, tokens)[-5:] for tokens in many]
    with engine_of(files, Precision.FAST, fault=1) as engine:
        together = decode_together(engine, many, 5)
    assert not any(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


# ---- packed containers ------------------------------------------------------------------------


@pytest.mark.parametrize("name", fixture.NAMES)
def test_a_packed_container_gives_the_oracles_logits_and_the_sources_bits(
    name: str, tmp_path: Path
) -> None:
    one = fixture.load(name)
    (tmp_path / "tokenizer.json").write_text(fixture.tokenizer_json())
    options = Options(tokenizer=tmp_path / "tokenizer.json", weights="as-is")
    convert(one.model, tmp_path / "packed", options)
    files, source = open_folder(tmp_path / "packed"), open_folder(one.model)
    assert files.kind == "packed"
    assert files.geometry == source.geometry
    with engine_of(files, Precision.F32) as engine:
        for prompt in one.prompts:
            assert np.abs(prefill(engine, prompt.tokens) - prompt.logits).max() < TOLERANCE
            assert greedy(engine, prompt.prompt, len(prompt.greedy)) == prompt.greedy
    with engine_of(files, Precision.FAST) as ours, engine_of(source, Precision.FAST) as theirs:
        for prompt in one.prompts:
            assert np.array_equal(prefill(ours, prompt.tokens), prefill(theirs, prompt.tokens))


# ---- containers of further formats ------------------------------------------------------------


def write_container(source: Path, folder: Path, style: Style, ffn: int) -> None:
    """The weights of a GLM checkpoint as a published-style container, layer 0 with a new dense MLP
    of width `ffn`."""
    weights, rng = Checkpoint(source), np.random.default_rng(3)
    config = weights.config | {"intermediate_size": ffn}
    (folder / "config.json").write_text(json.dumps(config))
    values = {name: weights(name) for name in weights.names()}
    for part in ("gate_proj", "up_proj", "down_proj"):
        shape = (
            (config["hidden_size"], ffn) if part == "down_proj" else (ffn, config["hidden_size"])
        )
        w = rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        values[f"model.layers.0.mlp.{part}.weight"] = w
    n_layers = config["num_hidden_layers"]
    entries, _ = published.quantize_model(values, style, n_layers)
    published.write_shards(folder, entries, published.split_expert(n_layers))


@pytest.mark.parametrize("group", GROUPS)
def test_published_int4_containers_of_every_group_size(group: int, tmp_path: Path) -> None:
    # 400 columns make another number of groups for every group size, so that nothing is ambiguous.
    source = fixture.load("glm_i8").model
    write_container(source, tmp_path, Style("i4_group", group), ffn=400)
    check_against_reference(tmp_path, {Format.I4_GROUP, Format.I8_ROW})


def test_published_fp8_containers(tmp_path: Path) -> None:
    source = fixture.load("glm_dsa_fp8").model
    write_container(source, tmp_path, Style("fp8_block", edge="fp8_block", indexer=True), ffn=272)
    check_against_reference(tmp_path, {Format.FP8_BLOCK, Format.F32})


def _exact_f16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "cast", "wanted"),
    [
        ("F32", lambda x: x, Format.F32),
        ("F16", _exact_f16, Format.F16),
        ("BF16", round_bf16, Format.BF16),
    ],
)
def test_plain_checkpoints_of_every_float_type(
    dtype: str, cast: Callable[[Array], Array], wanted: Format, tmp_path: Path
) -> None:
    source = fixture.load("llama_untied").model
    weights, rng = Checkpoint(source), np.random.default_rng(7)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    entries = {}
    for name in weights.names():
        w = weights(name)
        noisy = cast((w * rng.uniform(0.9, 1.1, w.shape)).astype(np.float32))
        bits = (noisy.view("<u4") >> 16).astype("<u2") if dtype == "BF16" else noisy
        entries[name] = Raw(dtype, w.shape, bits)
    write_safetensors(tmp_path / "model.safetensors", entries)
    check_against_reference(tmp_path, {wanted})
