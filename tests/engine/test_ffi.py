"""The binding: tables into C, errors out of it, ownership, use after close, calls from threads."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from colibri.engine import cvalues, experts, ffi, ffi_plan, packing
from colibri.engine.ffi import Engine, EngineCancelled, EngineError, Loading, Status
from colibri.engine.table import (
    EngineOptions,
    Family,
    Format,
    Isa,
    Precision,
    Sampling,
    Tensor,
)
from colibri.families import LLAMA
from tests.engine.tiny import CONTEXT, GEOMETRY, OPTIONS, VOCAB, write

PROMPT = [1, 5, 9, 2, 30, 7]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    paths, tensors = write(tmp_path)
    with Engine(paths, GEOMETRY, tensors, OPTIONS) as engine:
        yield engine


def _refused(call: Callable[[], Any]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        call()
    assert caught.value.message
    return caught.value


@pytest.mark.parametrize(("source", "todo"), [(True, "make setup"), (False, "install Colibri")])
def test_a_missing_extension_says_what_to_do_where_the_program_runs(
    monkeypatch: pytest.MonkeyPatch, source: bool, todo: str
) -> None:
    monkeypatch.setitem(sys.modules, "colibri.engine._colibri", None)
    monkeypatch.setattr("colibri.paths.in_source_tree", lambda: source)
    spec = importlib.util.find_spec(cvalues.__name__)
    assert spec
    assert spec.loader
    with pytest.raises(ImportError, match=todo):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_opening_tells_the_bytes_that_it_has_read(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    loading = Loading()
    assert loading.look() == (0, 0)
    everything = sum(tensor.bytes for tensor in tensors)
    # The same place a second time: it begins anew.
    for _ in range(2):
        with Engine(paths, GEOMETRY, tensors, OPTIONS, loading=loading):
            assert loading.look() == (everything, everything)


def test_bytes_of_scales_that_are_not_there_do_not_count(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    everything = sum(tensor.bytes for tensor in tensors)
    absurd = [
        msgspec.structs.replace(tensor, scale_bytes=2**63 - 1, scale_offset=-1)
        for tensor in tensors
        if tensor.scale_file < 0
    ]
    assert len(absurd) == len(tensors)
    loading = Loading()
    with Engine(paths, GEOMETRY, absurd, OPTIONS, loading=loading):
        assert loading.look() == (everything, everything)


def test_an_opening_that_is_refused_tells_nothing(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    loading = Loading()
    broken = msgspec.structs.replace(OPTIONS, memory_budget=1)
    _refused(lambda: Engine(paths, GEOMETRY, tensors, broken, loading=loading))
    assert loading.look() == (0, 0)


def test_a_prompt_is_prefilled_decoded_and_sampled(engine: Engine) -> None:
    with engine.session() as session:
        every = np.zeros((len(PROMPT), VOCAB), dtype=np.float32)
        session.prefill(PROMPT, every)
        assert len(session) == len(PROMPT)
        assert np.array_equal(session.logits(), every[-1])
        token = session.sample()
        assert token == int(every[-1].argmax())
        engine.decode([session], [token])
        assert session.tokens().tolist() == [*PROMPT, token]
        assert np.isfinite(session.logits()).all()


def test_one_prompt_cut_or_batched_differently_gives_equal_bits(engine: Engine) -> None:
    first, second = engine.session(), engine.session()
    first.prefill(PROMPT)
    second.prefill(PROMPT[:2])
    second.prefill(PROMPT[2:])
    engine.decode([first, second], [3, 3])
    assert np.array_equal(first.logits(), second.logits())
    first.truncate(len(PROMPT))
    engine.decode([first], [3])
    assert np.array_equal(first.logits(), second.logits())


def test_kv_is_shared_exported_and_imported_with_equal_bits(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    options = msgspec.structs.replace(OPTIONS, context=200)
    with Engine(paths, GEOMETRY, tensors, options) as engine:
        block = engine.block_tokens
        prompt = [i % VOCAB for i in range(block + 5)]
        first, second, third = (engine.session() for _ in range(3))
        first.prefill(prompt)
        first.fork(block + 2, second)
        second.prefill(prompt[block + 2 :])
        third.import_block(prompt[:block], first.export_block(0))
        assert _refused(lambda: third.import_block(prompt[:block], b"")).code is Status.INVALID
        # The last block may be incomplete, and less of it may be used than there was.
        third.import_block(prompt[block : block + 3], first.export_block(1))
        assert third.draftless() == 0
        third.prefill(prompt[block + 3 :])
        assert np.array_equal(first.logits(), second.logits())
        assert np.array_equal(first.logits(), third.logits())
        assert _refused(lambda: third.import_block(prompt[:block], b"")).code is Status.INVALID
        assert _refused(lambda: first.export_block(2)).code is Status.INVALID
        assert _refused(lambda: first.export_block(0, bytearray(3))).code is Status.INVALID
        assert _refused(lambda: first.fork(1, second)).code is Status.INVALID
        layout = engine.kv_layout()
    with Engine(paths, GEOMETRY, tensors, OPTIONS) as shorter:
        assert shorter.kv_layout() == layout


@pytest.mark.parametrize("field", ["head_dim", "kv_lora", "index_dim", "expert_ffn", "topk_group"])
@pytest.mark.parametrize("value", [993_737_536, -1])
def test_sizes_that_no_model_has_are_refused_by_name(
    tmp_path: Path, field: str, value: int
) -> None:
    """Also of fields that the family does not read: sizes are computed from them."""
    paths, tensors = write(tmp_path)
    geometry = msgspec.structs.replace(GEOMETRY, **{field: value})
    refusal = _refused(lambda: Engine(paths, geometry, tensors, OPTIONS))
    assert refusal.code is Status.FORMAT
    assert f"{field} = {value}" in refusal.message


@pytest.mark.parametrize("offset", [2**63 - 1, -1, 2**62])
def test_places_that_no_file_has_are_refused_in_a_plan_too(tmp_path: Path, offset: int) -> None:
    _, tensors = write(tmp_path)
    tensors[2] = msgspec.structs.replace(tensors[2], offset=offset)
    refusal = _refused(lambda: ffi_plan.plan(GEOMETRY, tensors, OPTIONS))
    assert refusal.code is Status.FORMAT
    assert tensors[2].name in refusal.message


def test_the_snapshot_and_the_plan_tell_sizes(engine: Engine, tmp_path: Path) -> None:
    _, tensors = write(tmp_path)
    planned = ffi_plan.plan(GEOMETRY, tensors, OPTIONS)
    snapshot = engine.snapshot()
    assert snapshot.context == CONTEXT
    assert snapshot.sessions == 0
    held = planned.dense_bytes + planned.expert_bytes
    assert 0 <= held - snapshot.weight_bytes < 128, "the plan rounds up as the allocator does"
    assert snapshot.kv_bytes_per_token == planned.kv_bytes_per_token > 0
    with engine.session() as session:
        session.prefill(PROMPT)
        after = engine.snapshot()
    assert (after.sessions, after.prompt_tokens) == (1, len(PROMPT))
    assert after.progress > snapshot.progress


def test_sizes_of_keys_and_values_never_overflow_a_plan() -> None:
    heads, dim = 1024, 256
    geometry = msgspec.structs.replace(
        GEOMETRY, n_layers=1024, n_heads=heads, n_kv_heads=heads, head_dim=dim, max_position=1 << 26
    )
    tensors, offset = [], 0
    for spec in LLAMA.tensors(geometry):
        size = spec.rows * spec.cols * 4
        tensors.append(Tensor(spec.name, Format.F32, spec.rows, spec.cols, 0, offset, size))
        offset += size
    options = EngineOptions(threads=1, precision=Precision.F32, sessions=64)
    refusal = _refused(lambda: ffi_plan.plan(geometry, tensors, options))
    assert refusal.code is Status.FORMAT
    assert "keys and values per token" in refusal.message


GLM_GEOMETRY = msgspec.structs.replace(
    GEOMETRY,
    family=Family.GLM_MOE_DSA,
    latent_eps=1e-6,
    q_lora=16,
    kv_lora=16,
    qk_nope=8,
    qk_rope=4,
    v_head=8,
    n_experts=4,
    experts_per_token=2,
    expert_ffn=16,
    n_group=1,
    topk_group=1,
    routed_scale=1.0,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experts_per_token": 64}, "64 of 4 experts"),
        ({"experts_per_token": 0}, "0 of 4 experts"),
        ({"n_group": 3}, "n_group 3"),
        ({"expert_ffn": 0}, "expert_ffn 0"),
    ],
)
def test_a_drafting_layers_experts_are_checked_behind_dense_layers_too(
    change: dict[str, Any], words: str
) -> None:
    geometry = msgspec.structs.replace(GLM_GEOMETRY, n_mtp_layers=1, layer_sparse=bytes(2))
    refusal = _refused(lambda: ffi_plan.plan(msgspec.structs.replace(geometry, **change), []))
    assert refusal.code is Status.FORMAT
    assert words in refusal.message


def test_experts_that_only_the_config_knows_take_no_memory(tmp_path: Path) -> None:
    """Their list alone would take gigabytes here."""
    geometry = msgspec.structs.replace(
        GLM_GEOMETRY, n_layers=64, n_experts=65_536, layer_sparse=b"\1" * 64
    )
    _, tensors = write(tmp_path)
    refusal = _refused(lambda: ffi_plan.plan(geometry, tensors))
    assert refusal.code is Status.FORMAT
    assert "64 layers of 65536 experts" in refusal.message


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused_not_drawn_from(
    tmp_path: Path, name: str, value: float, temperature: float
) -> None:
    paths, tensors = write(tmp_path)
    (broken,) = (tensor for tensor in tensors if tensor.name == name)
    weights = np.fromfile(paths[0], np.float32)
    weights[broken.offset // 4 : (broken.offset + broken.bytes) // 4] = value
    weights.tofile(paths[0])
    with Engine(paths, GEOMETRY, tensors, OPTIONS) as engine, engine.session() as session:
        session.prefill(PROMPT)
        assert not np.isfinite(session.logits()).any()
        sampling = Sampling(temperature=temperature, top_p=0.9)
        refusal = _refused(lambda: session.sample(sampling))
    assert refusal.code is Status.NUMERIC
    assert f"position {len(PROMPT) - 1}" in refusal.message


def test_one_logit_that_is_no_number_is_never_drawn(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    (head,) = (tensor for tensor in tensors if tensor.name == "lm_head.weight")
    weights = np.fromfile(paths[0], np.float32)
    weights[head.offset // 4] = np.nan
    weights.tofile(paths[0])
    with Engine(paths, GEOMETRY, tensors, OPTIONS) as engine, engine.session() as session:
        session.prefill(PROMPT)
        assert np.isnan(session.logits()[0])
        best = int(np.nanargmax(session.logits()))
        assert session.sample() == best
        drawn = {session.sample(Sampling(temperature=1.0, seed=seed)) for seed in range(64)}
        assert 0 not in drawn
        assert len(drawn) > 1


def test_a_trace_larger_than_any_memory_is_refused(engine: Engine) -> None:
    assert _refused(lambda: experts.record(engine, 1 << 62)).code is Status.MEMORY


def test_sampling_takes_a_mask(engine: Engine) -> None:
    with engine.session() as session:
        session.prefill(PROMPT)
        mask = np.zeros(2, dtype="<u4")
        mask[1] = 1 << (35 - 32)
        assert session.sample(Sampling(mask=mask.tobytes())) == 35
        assert "8" in _refused(lambda: session.sample(Sampling(mask=b"\1"))).message


def test_a_cancelled_prefill_tells_how_far_it_came(engine: Engine) -> None:
    with engine.session() as session:
        session.prefill_start(PROMPT)
        session.cancel()
        with pytest.raises(EngineCancelled) as caught:
            session.prefill_step()
        assert caught.value.code is Status.CANCELLED
        assert caught.value.progress.tokens_done == len(session)


def test_use_after_close_is_refused_and_cancel_does_nothing(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    engine = Engine(paths, GEOMETRY, tensors, OPTIONS)
    session = engine.session()
    engine.close()
    engine.close()
    session.cancel()
    assert session.closed and engine.closed
    for call in (session.logits, session.tokens, engine.snapshot, engine.session):
        assert _refused(call).code is Status.INVALID
    assert _refused(lambda: engine.decode([session], [1])).code is Status.INVALID


def test_a_dropped_engine_warns_and_frees_its_memory(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    with pytest.warns(ResourceWarning, match="without close"):
        Engine(paths, GEOMETRY, tensors, OPTIONS).session()
        gc.collect()


def test_the_logits_buffer_outlives_its_last_python_reference(engine: Engine) -> None:
    with engine.session() as session:
        session.prefill_start(PROMPT, np.zeros((len(PROMPT), VOCAB), dtype=np.float32))
        gc.collect()
        np.zeros((len(PROMPT), VOCAB), dtype=np.float32).fill(7)
        assert session.prefill_step().finished


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros((1, VOCAB), dtype=np.float32),
        np.zeros((len(PROMPT), VOCAB), dtype=np.float64),
        np.zeros((VOCAB, len(PROMPT)), dtype=np.float32).T,
    ],
)
def test_a_logits_buffer_of_another_shape_or_type_is_refused(
    engine: Engine, buffer: np.ndarray[Any, Any]
) -> None:
    with engine.session() as session:
        refusal = _refused(lambda: session.prefill_start(PROMPT, buffer))
        assert "float32" in refusal.message


def test_token_ids_that_do_not_fit_are_refused(engine: Engine) -> None:
    with engine.session() as session:
        for tokens in ([1 << 40], [-1], [VOCAB], [1.5], ["a"]):
            assert _refused(lambda t=tokens: session.prefill(t)).code is Status.INVALID  # type: ignore[misc]
        assert len(session) == 0


def test_an_engine_refuses_another_engines_session(engine: Engine, tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    with Engine(paths, GEOMETRY, tensors, OPTIONS) as other, other.session() as session:
        assert "another engine" in _refused(lambda: engine.decode([session], [1])).message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bytes": 4}, "needs"),
        ({"rows": 1 << 70}, "rows"),
        ({"rows": "many"}, "rows"),
        ({"offset": 2.5}, "offset"),
        ({"format": 1 << 40}, "format"),
        ({"file": 3}, "file"),
        ({"offset": 1 << 40}, "truncated"),
        ({"name": "a\0b"}, "NUL"),
        ({"name": "model.unknown.weight"}, "model.embed_tokens.weight"),
    ],
)
def test_a_hostile_table_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    paths, tensors = write(tmp_path)
    tensors[0] = msgspec.structs.replace(tensors[0], **change)
    refusal = _refused(lambda: Engine(paths, GEOMETRY, tensors, OPTIONS))
    assert refusal.code in (Status.FORMAT, Status.INVALID)
    assert words in refusal.message


def test_a_hostile_geometry_or_option_is_refused_by_name(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    wide = msgspec.structs.replace(GEOMETRY, hidden=1 << 40)
    assert "hidden" in _refused(lambda: Engine(paths, wide, tensors, OPTIONS)).message
    layers = msgspec.structs.replace(GEOMETRY, layer_sparse=b"\0")
    assert "layer_sparse" in _refused(lambda: Engine(paths, layers, tensors, OPTIONS)).message
    negative = EngineOptions(threads=-1)
    assert _refused(lambda: Engine(paths, GEOMETRY, tensors, negative)).code is Status.INVALID


def test_a_missing_or_short_weights_file_is_named(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    missing = tmp_path / "nowhere.bin"
    refusal = _refused(lambda: Engine([missing], GEOMETRY, tensors, OPTIONS))
    assert refusal.code is Status.IO
    assert "nowhere.bin" in refusal.message
    # A folder of that name is there; what was missing before it is another file's trouble.
    refusal = _refused(
        lambda: Engine([missing, tmp_path], GEOMETRY, tensors, OPTIONS, mirrors=[[paths[0], None]])
    )
    assert refusal.code is Status.IO
    assert str(tmp_path) in refusal.message
    assert "directory" in refusal.message
    assert "No such" not in refusal.message
    paths[0].write_bytes(paths[0].read_bytes()[:-8])
    refusal = _refused(lambda: Engine(paths, GEOMETRY, tensors, OPTIONS))
    assert refusal.code is Status.FORMAT
    assert "weights.bin" in refusal.message


def test_a_budget_too_small_is_refused_with_numbers(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    small = EngineOptions(threads=1, context=CONTEXT, memory_budget=1000)
    refusal = _refused(lambda: Engine(paths, GEOMETRY, tensors, small))
    assert refusal.code is Status.MEMORY
    assert any(character.isdigit() for character in refusal.message)


def test_a_published_models_table_of_118000_entries_reaches_c_whole() -> None:
    tensors = [
        Tensor(f"model.layers.{i // 1536}.mlp.experts.{i}.w", Format.F32, 1, 2 + i, 0, 8 * i, 4)
        for i in range(118_000)
    ]
    blob, rows = cvalues._tensor_rows(tensors)
    text = blob.tobytes()
    start = int(blob.ctypes.data)
    for i in (0, 1, 59_000, 117_999):
        begin = int(rows[i]["name"]) - start
        assert text[begin : text.index(b"\0", begin)].decode() == tensors[i].name
        assert rows[i]["cols"] == tensors[i].cols
        assert rows[i]["offset"] == tensors[i].offset
    assert (rows["scale_file"] == -1).all()


def test_snapshots_and_cancels_from_threads_survive_a_close(tmp_path: Path) -> None:
    paths, tensors = write(tmp_path)
    engine = Engine(paths, GEOMETRY, tensors, OPTIONS)
    session = engine.session()
    stop = threading.Event()
    seen: list[int] = []
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            while not stop.is_set():
                seen.append(engine.snapshot().progress)
                session.cancel()
        except EngineError as error:
            if not engine.closed:
                failures.append(error)

    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        session.truncate(0)
        session.prefill_start(PROMPT)
        try:
            session.prefill_step()
        except EngineCancelled:
            continue
    engine.close()
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert failures == []
    assert seen


@pytest.mark.parametrize("format", [Format.F32, Format.BF16, Format.Q8_0])
def test_packing_and_unpacking_a_matrix_loses_nothing(format: Format) -> None:
    random = np.random.default_rng(3)
    rows, cols = 33, 64
    data = {
        Format.F32: random.normal(size=(rows, cols)).astype("<f4"),
        Format.BF16: random.integers(0x3E00, 0x4000, (rows, cols)).astype("<u2"),
        Format.Q8_0: _q8_0(random, rows, cols),
    }[format]
    expected = {
        Format.F32: lambda: data,
        Format.BF16: lambda: (data.astype("<u4") << 16).view("<f4"),
        Format.Q8_0: lambda: _from_q8_0(data, rows, cols),
    }[format]()
    packed = packing.weight_pack(format, 0, rows, cols, np.ascontiguousarray(data))
    assert packed.nbytes == packing.weight_packed_bytes(format, 0, rows, cols)
    assert np.array_equal(packing.weight_unpack(format, 0, rows, cols, packed), expected)


def _q8_0(random: np.random.Generator, rows: int, cols: int) -> np.ndarray[Any, Any]:
    blocks = np.zeros((rows, cols // 32), dtype=[("d", "<f2"), ("q", "i1", 32)])
    blocks["d"] = random.uniform(0.01, 0.1, blocks.shape)
    blocks["q"] = random.integers(-127, 128, (*blocks.shape, 32))
    return blocks


def _from_q8_0(blocks: np.ndarray[Any, Any], rows: int, cols: int) -> np.ndarray[Any, Any]:
    scale = blocks["d"].astype(np.float32)[..., None]
    return (scale * blocks["q"].astype(np.float32)).reshape(rows, cols)


def test_impossible_matrices_are_refused() -> None:
    assert _refused(lambda: packing.weight_packed_bytes(99, 0, 4, 4)).code is Status.INVALID
    assert (
        _refused(lambda: packing.weight_packed_bytes(1, 0, 1 << 40, 1 << 40)).code is Status.INVALID
    )
    data = np.zeros(3, dtype="<f4")
    assert _refused(lambda: packing.weight_pack(1, 0, 2, 2, data)).code is Status.INVALID


def test_the_processor_has_its_best_instruction_set() -> None:
    best = ffi.best_isa()
    assert best is not Isa.AUTO
    assert ffi.has_isa(best)
    assert ffi.isa_name(best)
    assert ffi.has_isa(Isa.BASELINE)
