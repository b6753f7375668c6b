"""The vocabulary prepared for grammars: once, beside the loading of a large model."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from colibri.engine.answer import AnswerForm
from colibri.models import answers, backend
from colibri.models.answers import Prepared
from colibri.models.backend import NativeBackend, Options
from colibri.models.budget import grammar_bytes
from colibri.models.model import open_text
from colibri.text.grammar import Masks, Syntax, json_object
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop

OBJECT = AnswerForm(parse=True, grammar=json_object(Syntax("glm")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("answers") / "model")


def test_what_is_prepared_is_made_once_and_waited_for() -> None:
    begun, go, made = threading.Event(), threading.Event(), []

    def make() -> None:
        made.append(threading.current_thread().name)
        begun.set()
        assert go.wait(60)

    prepared = Prepared(make)
    prepared.start()
    assert begun.wait(60)
    found: list[Masks | None] = []
    waiting = threading.Thread(target=lambda: found.append(prepared.get()))
    waiting.start()
    assert not found
    go.set()
    waiting.join(60)
    assert found == [None]
    assert prepared.get() is None
    assert made == ["grammars"]


@pytest.mark.parametrize("large", [False, True])
def test_a_large_model_prepares_grammars_while_it_loads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(backend, "_LONG_LOAD_BYTES", 1)
    made: list[str] = []
    real = answers.Masks

    def counted(*arguments: object) -> Masks:
        made.append(threading.current_thread().name)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "Masks", counted)
    opened = NativeBackend(Options(folder=str(folder), context=256, threads=1))
    loop = EngineLoop(opened)
    try:
        text, _ = loop.answer(draftmodel.prompt(1), max_tokens=200, answer=AnswerForm(parse=True))
        assert not text.startswith("{")
        assert made == (["grammars"] if large else [])
        for _ in range(2):
            text, done = loop.answer(draftmodel.prompt(1), max_tokens=200, answer=OBJECT)
            assert text.startswith("{")
            assert done.finish_reason == "length" or isinstance(json.loads(text), dict)
        assert len(made) == 1
    finally:
        loop.close()
        opened.close()


def test_a_tokenizer_that_the_library_refuses_costs_the_forms_and_a_line_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("unknown pre-tokenizer")

    monkeypatch.setattr("colibri.text.grammar.LLTokenizer", refuse)
    assert answers.prepare_masks(open_text(folder)).get() is None
    assert "unknown pre-tokenizer" in caplog.text


def test_what_grammars_take_is_part_of_the_budget(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(share: int) -> int:
        monkeypatch.setattr("colibri.models.budget._GRAMMAR_SHARE", share)
        opened = NativeBackend(Options(folder=str(folder), context=256, threads=1, ram="2GB"))
        memory = opened.info.memory
        opened.close()
        assert memory is not None
        return memory.program

    size = (folder / "tokenizer.json").stat().st_size
    assert grammar_bytes(size) >= 10 * size
    # What the process holds beside it moves a little.
    assert program(100_000) - program(0) > 90_000 * size
