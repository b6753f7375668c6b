"""What a model says about itself, and the model that comes with the program."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from colibri import paths
from colibri.cli.serve import _announce, model_folder
from colibri.errors import ConflictError, ModelNotFoundError
from colibri.models import about, catalog
from colibri.models.shelf import Shelf
from colibri.settings import Settings
from tests.models import files


def write(folder: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / about.NAME).write_text(text)
    return folder


def test_a_note_and_examples_are_read_and_bounded(tmp_path: Path) -> None:
    assert about.read(tmp_path) is None
    write(tmp_path, {"note": "n" * 1000, "examples": ["a", "", "b" * 1000, *"cdefghijk"]})
    found = about.read(tmp_path)
    assert found == about.About("n" * 400, tuple("acdefghi"))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "1", '{"note": 1}', '{"examples": "x"}', '{"examples": [1]}', "[" * 9999],
)
def test_a_broken_file_is_as_good_as_none(content: str, tmp_path: Path) -> None:
    assert about.read(write(tmp_path, content)) is None


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the place of the one that comes with the program."""
    folder = tmp_path / paths.STARTER_NAME
    files.llama_folder(folder)
    monkeypatch.setattr(paths, "starter_dir", lambda: folder)
    return folder


def test_the_starter_model_is_served_when_nothing_is_chosen(starter: Path, tmp_path: Path) -> None:
    assert model_folder(Settings()) == starter
    other = tmp_path / "other"
    files.llama_folder(other)
    assert model_folder(Settings(model=str(other))) == other


def test_an_installed_model_does_not_take_its_place_by_itself(starter: Path) -> None:
    files.llama_folder(paths.models_dir() / "mine")
    assert model_folder(Settings()) == starter
    assert model_folder(Settings(model="mine")) == paths.models_dir() / "mine"


def test_without_a_starter_model_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "starter_dir", lambda: None)
    with pytest.raises(ModelNotFoundError, match="make model"):
        model_folder(Settings())
    with monkeypatch.context() as installed:
        installed.setattr(paths, "in_source_tree", lambda: False)
        with pytest.raises(ModelNotFoundError, match=r"no model is installed\. --model also takes"):
            model_folder(Settings())
    files.llama_folder(paths.models_dir() / "mine")
    assert model_folder(Settings()) == paths.models_dir() / "mine"
    files.llama_folder(paths.models_dir() / "too")
    with pytest.raises(ModelNotFoundError, match="mine, too"):
        model_folder(Settings())


def test_the_starter_model_is_found_by_its_name_and_listed_last(starter: Path) -> None:
    assert catalog.resolve(paths.STARTER_NAME) == starter
    files.llama_folder(paths.models_dir() / "zebra")
    assert [item.name for item in catalog.available()] == ["zebra", paths.STARTER_NAME]
    assert [item.name for item in catalog.installed()] == ["zebra"]
    own = paths.models_dir() / paths.STARTER_NAME
    files.llama_folder(own)
    assert catalog.resolve(paths.STARTER_NAME) == own
    assert [item.name for item in catalog.available()] == [paths.STARTER_NAME, "zebra"]


def test_nothing_is_written_beside_the_program_and_it_cannot_be_deleted(starter: Path) -> None:
    assert starter not in (learnt := paths.learnt_dir(starter, None)).parents
    assert paths.state_dir() in learnt.parents
    with pytest.raises(ConflictError):
        Shelf(Mock()).propose_delete(paths.STARTER_NAME)


def test_only_the_starter_model_says_that_it_is_one(starter: Path, tmp_path: Path) -> None:
    write(starter, {"note": "x"})
    found = about.read(starter)
    assert found is not None
    assert found.starter
    write(tmp_path, {"note": "x"})
    other = about.read(tmp_path)
    assert other is not None
    assert not other.starter


def test_what_gets_another_model_depends_on_where_the_program_runs(
    starter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`make` is only named where it is, beside the sources, not in an installed program."""
    info = Mock(context=64, isa="avx2", threads=2, trained_context=2048)
    said = []
    for place in ("sidecar", "site-packages"):
        monkeypatch.setattr(paths, "__file__", str(tmp_path / place / "colibri" / "paths.py"))
        (tmp_path / "Makefile").touch()
        found = about.read(write(starter, {"note": "x"}))
        assert found is not None
        assert found.from_source == (place == "sidecar")
        _announce("http://h:1", Mock(id="m", about=found), info, Settings())
        said.append(capsys.readouterr().out)
    assert "make run MODEL=" in said[0]
    assert "make" not in said[1]
    assert "coli serve --model FOLDER" in said[1]
    other = about.read(write(tmp_path, {"note": "x"}))
    assert other is not None
    assert not other.from_source
