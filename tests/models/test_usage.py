"""`.coli_usage`: read and written as published, added up over runs, never a reason to fail; and
what an engine does with it: a warm cache, the same tokens.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from colibri import paths
from colibri.engine import experts, ffi
from colibri.engine.table import EngineOptions
from colibri.errors import ModelError, UsageError
from colibri.models import policy, synthetic, trace, usage
from colibri.models.backend import NativeBackend, Options
from colibri.models.learning import Learning
from colibri.models.model import open_model
from colibri.models.synthetic import Shape
from colibri.models.usage import Keeper, ModelShape

SHAPE = ModelShape(family="glm_moe_dsa", layers=4, mtp=1, experts=8)
MODEL = Shape(layers=4, hidden=64, experts=16, top_k=2, expert_ffn=32, skew=1.2, mtp=True)
SLOTS = 12
# Written by another program: header lines in any order, drafting layer counted.
FOREIGN = "-1 5 8\n-2 1 3815245270\n1 0 12\n3 7 4000000000\n4 2 1\n"


def counts_of(text: str) -> dict[tuple[int, int], int]:
    found = usage.parse(text, SHAPE).counts
    return {(int(i), int(j)): int(found[i, j]) for i, j in zip(*np.nonzero(found), strict=True)}


def test_the_name_of_the_family_is_hashed_as_published() -> None:
    assert usage.fnv1a("glm_moe_dsa") == 3815245270


def test_a_file_of_another_program_is_read_and_written_back_unchanged() -> None:
    assert counts_of(FOREIGN) == {(1, 0): 12, (3, 7): 4_000_000_000, (4, 2): 1}
    assert usage.render(usage.parse(FOREIGN, SHAPE), SHAPE) == FOREIGN


def test_the_headers_shape_is_kept_as_it_was() -> None:
    text = "-1 4 8\n-2 1 3815245270\n1 0 12\n"
    assert usage.render(usage.parse(text, SHAPE), SHAPE) == text


def test_headers_may_be_absent_and_repeated_lines_add_up() -> None:
    assert counts_of("1 2 3\n\n1 2 4\n") == {(1, 2): 7}


def test_counts_of_a_drafting_layer_widen_the_shape() -> None:
    found = usage.empty(SHAPE)
    found.counts[4, 0] = 1
    assert usage.render(found, SHAPE).startswith("-1 5 8\n")


DAMAGED = [
    "1 2\n",
    "1 2 3 4\n",
    "1 2 x\n",
    "1 2 3.5\n",
    "5 0 1\n",
    "0 8 1\n",
    "0 0 -1\n",
    f"0 0 {1 << 63}\n",
    "-1 4 9\n",
    "-1 3 8\n",
    "-1 6 8\n",
    "-2 1 1\n0 0 1\n",
    "-3 0 0\n",
    "\x00\x01\x02",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_or_foreign_file_is_refused(text: str) -> None:
    with pytest.raises(ModelError):
        usage.parse(text, SHAPE)


@pytest.mark.parametrize("data", [*(text.encode() for text in DAMAGED[:3]), b"\xff\xfe1 2 3\n"])
def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / usage.NAME).write_bytes(data)
    keeper = Keeper(tmp_path, None, SHAPE)
    assert not keeper.before.counts.any()
    assert (tmp_path / (usage.NAME + usage.DAMAGED)).read_bytes() == data
    assert not (tmp_path / usage.NAME).exists()
    assert usage.NAME in caplog.text


def test_counts_add_up_over_runs_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    since = np.zeros((5, 8), np.int64)
    for run in range(1, 4):
        keeper = Keeper(tmp_path, None, SHAPE)
        since[2, 3] = 10
        keeper.save(since)
        keeper.save(since)  # nothing new: as if it were not called
        assert usage.load(tmp_path, tmp_path / usage.NAME, SHAPE).counts[2, 3] == 10 * run
    assert [path.name for path in tmp_path.iterdir()] == [usage.NAME]


def test_a_state_folder_takes_over_what_lies_beside_the_model(tmp_path: Path) -> None:
    model, state = tmp_path / "model", tmp_path / "state" / "deep"
    model.mkdir()
    (model / usage.NAME).write_text("0 0 5\n")
    since = np.ones((5, 8), np.int64)
    Keeper(model, str(state), SHAPE).save(since)
    assert usage.load(model, state / usage.NAME, SHAPE).counts[0, 0] == 6
    Keeper(model, str(state), SHAPE).save(since)
    assert usage.load(model, state / usage.NAME, SHAPE).counts[0, 0] == 7
    assert (model / usage.NAME).read_text() == "0 0 5\n"


def test_a_model_that_cannot_be_written_keeps_its_counts_below_the_users_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    model = tmp_path / "model"
    where = usage.place(model, None)
    assert where.parent.parent == paths.state_dir() / "models"
    assert where != usage.place(tmp_path / "other" / "model", None)


def test_a_disk_that_takes_no_counts_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    keeper = Keeper(tmp_path, str(tmp_path / "file" / "below"), SHAPE)
    for count in (1, 2):
        keeper.save(np.full((5, 8), count, np.int64))
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


# ---- with an engine ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    synthetic.make(made, MODEL)
    return made


def run(
    folder: Path, state: Path, *, warm: bool, slots: int = SLOTS, trace: Path | None = None
) -> tuple[list[int], ffi.Snapshot, ffi.Snapshot]:
    """Tokens of an answer; counters before and after it."""
    model = open_model(folder)
    options = EngineOptions(context=256, expert_slots=slots, threads=1, drafts=1)
    with ffi.Engine(model.paths, model.geometry, model.tensors, options) as engine:
        learning = Learning(
            engine, model, folder, state_dir=str(state), trace=str(trace) if trace else None
        )
        while warm and learning.idle(1):
            pass
        before = engine.snapshot()
        tokens: list[int] = []
        with engine.session() as session:
            session.prefill(list(range(1, 9)))
            for _ in range(40):
                tokens.append(session.sample())
                engine.decode([session], tokens[-1:])
                learning.after_step()
        after = engine.snapshot()
        learning.close()
    return tokens, before, after


def test_what_was_learnt_warms_the_cache_and_changes_no_token(folder: Path, tmp_path: Path) -> None:
    cold_tokens, cold, cold_end = run(folder, tmp_path, warm=True)
    assert cold.cached_experts == 0
    assert (tmp_path / usage.NAME).exists()
    known_tokens, known, _ = run(folder, tmp_path, warm=False)
    assert known.cached_experts == 0
    warm_tokens, warm, warm_end = run(folder, tmp_path, warm=True)
    assert cold_tokens == known_tokens == warm_tokens
    # Two sizes of experts, whose pools for guesses stay free.
    assert warm.cached_experts >= SLOTS - 1
    assert warm.expert_misses == 0
    assert warm_end.expert_misses < cold_end.expert_misses


def test_warming_takes_free_slots_only_and_the_hottest_first(folder: Path, tmp_path: Path) -> None:
    model = open_model(folder)
    options = EngineOptions(context=256, expert_slots=SLOTS, threads=1, no_prefetch=1)
    with ffi.Engine(model.paths, model.geometry, model.tensors, options) as engine:
        shape = (model.geometry.n_layers + 1, model.geometry.n_experts)
        counts = np.zeros(shape, np.int64)
        counts[1] = np.arange(100, 100 + shape[1])
        counts[2] = np.arange(shape[1]) ** 3
        experts.set_usage(engine, counts)
        while not experts.warm(engine, 5):
            pass
        read = engine.snapshot().expert_bytes_read
        assert engine.snapshot().cached_experts == SLOTS
        assert experts.warm(engine, 5)
        assert engine.snapshot().expert_bytes_read == read


def test_a_trace_of_a_run_can_be_replayed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    plain, _, _ = run(folder, tmp_path / "a", warm=False)
    traced, _, _ = run(folder, tmp_path / "b", warm=False, trace=path)
    assert plain == traced
    found = trace.load(path)
    assert (found.layers, found.experts) == (MODEL.layers + 1, MODEL.experts)
    single = [at for at in found.starts() if found.records[at + 2] == 1]
    assert len(single) == 40 * (MODEL.layers - 1)
    rates = policy.hit_rates(found, 12)
    assert 0 < rates.ours <= rates.belady <= 1
    counted = usage.load(folder, tmp_path / "b" / usage.NAME, SHAPE_OF_MODEL).counts
    assert counted[0].sum() == 0
    assert counted[1].sum() >= 40 * MODEL.top_k


SHAPE_OF_MODEL = ModelShape(family="glm_moe_dsa", layers=MODEL.layers, mtp=1, experts=MODEL.experts)


def test_the_backend_keeps_counts_while_idle_and_at_the_end(folder: Path, tmp_path: Path) -> None:
    backend = NativeBackend(
        Options(folder=str(folder), context=128, threads=1, state_dir=str(tmp_path))
    )
    where = tmp_path / usage.NAME
    session = backend.session()
    session.prefill_start([1, 2, 3])
    while not session.prefill_step(0).finished:
        pass
    backend.decode([session], [[4]])
    assert not where.exists()
    assert not backend.idle(5)
    first = usage.load(folder, where, SHAPE_OF_MODEL).counts.sum()
    backend.decode([session], [[5]])
    backend.close()
    assert usage.load(folder, where, SHAPE_OF_MODEL).counts.sum() > first > 0


def test_a_trace_that_cannot_be_written_is_refused_before_serving(
    folder: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing" / "run.trace"
    with pytest.raises(UsageError) as caught:
        NativeBackend(Options(folder=str(folder), context=128, trace=str(missing)))
    assert str(missing) == caught.value.where


def test_a_trace_whose_disk_fills_up_ends_and_the_model_works_on(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "run.trace"
    backend = NativeBackend(
        Options(
            folder=str(folder), context=128, threads=1, state_dir=str(tmp_path), trace=str(trace)
        )
    )
    assert backend._learning is not None
    writer = backend._learning._trace
    assert writer is not None
    session = backend.session()
    session.prefill_start([1, 2, 3])
    while not session.prefill_step(0).finished:
        pass
    writer._file.close()
    with contextlib.suppress(OSError), Path("/dev/full").open("w", encoding="ascii") as full:
        monkeypatch.setattr(writer, "_file", full)
        backend.decode([session], [[4]])
        backend.decode([session], [[5]])
        backend.idle(5)
        backend.close()
    said = [record.message for record in caplog.records if "the trace ends here" in record.message]
    assert len(said) == 1
