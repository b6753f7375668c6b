"""Settings that only change speed reach the engine, from the command line to its options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colibri.cli import serve
from colibri.engine.table import EngineOptions, IoMode
from colibri.models import backend, synthetic
from colibri.models.synthetic import Shape
from colibri.settings import Settings

SHAPE = Shape(layers=2, hidden=64, experts=4, top_k=2, expert_ffn=32)


class _Opened(Exception):
    """Carries the options that the engine would have been opened with."""

    def __init__(self, options: EngineOptions, mirrors: Any) -> None:
        super().__init__()
        self.options = options
        self.mirrors = mirrors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    synthetic.make(folder, SHAPE)
    return folder


def opened_with(chosen: Settings, model: Path, monkeypatch: pytest.MonkeyPatch) -> EngineOptions:
    return opened(chosen, model, monkeypatch).options


def opened(chosen: Settings, model: Path, monkeypatch: pytest.MonkeyPatch) -> _Opened:
    def stop(_paths: Any, _geometry: Any, _tensors: Any, *rest: Any) -> None:
        options, mirrors, _loading = rest
        raise _Opened(options, mirrors)

    monkeypatch.setattr(backend.ffi, "Engine", stop)
    with pytest.raises(_Opened) as caught:
        backend.open_backend(serve.engine_options(chosen, model))
    return caught.value


def test_mirrors_arrive_as_one_path_per_file(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shard = next(model.glob("*.safetensors"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drive").mkdir()
    shutil.copy(shard, tmp_path / "drive")
    with_mirror = opened(Settings(mirrors=("drive",)), model, monkeypatch)
    assert with_mirror.mirrors == ((tmp_path / "drive" / shard.name,),)
    assert opened(Settings(), model, monkeypatch).mirrors == ()


def test_the_defaults_leave_every_choice_to_the_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = opened_with(Settings(), model, monkeypatch)
    defaults = EngineOptions()
    for name in ("threads", "io_mode", "io_buffered", "no_prefetch", "prefill_chunk"):
        assert getattr(options, name) == getattr(defaults, name)


def test_what_is_set_arrives(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Settings(threads=3, io_mode="threads", prefetch="off", prefill_chunk=256)
    options = opened_with(chosen, model, monkeypatch)
    assert options.threads == 3
    assert options.io_mode == IoMode.THREADS
    assert options.no_prefetch
    assert options.prefill_chunk == 256


@pytest.mark.parametrize("mode", ["auto", "uring", "threads", "buffered"])
def test_every_way_of_reading_has_a_name(
    mode: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = opened_with(Settings(io_mode=mode), model, monkeypatch)
    assert options.io_mode == IoMode[mode.upper()]
    assert msgspec.to_builtins(options)["io_mode"] == IoMode[mode.upper()].value


def test_force_gives_a_model_that_does_not_fit_the_least_that_it_needs(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = opened_with(Settings(ram="1MB"), model, monkeypatch)
    assert tight.memory_budget == 1_000_000
    assert opened_with(Settings(ram="1MB", force=True), model, monkeypatch).memory_budget > 1e6
