"""`/api/atlas`: given out as columns, refused by name, and measured beside other requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import paths
from colibri.engine.fake import Script
from colibri.engine.protocol import ExpertLayout
from colibri.models.atlas import file, measure
from tests.models.test_atlas_file import HOSTILE, atlas_json
from tests.support.fakeserver import FakeServer

Start = Callable[..., FakeServer]
LAYOUT = ExpertLayout(layers=(1, 2), cols=4, bytes=0)


@pytest.fixture
def folder() -> Path:
    made = paths.models_dir() / "a model"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def sparse(start: Start, folder: Path) -> Iterator[FakeServer]:
    """A server whose scripted engine has experts."""
    yield start(Script(pieces=("Hello", " you")), folder=folder, experts=LAYOUT)


def error_of(server: FakeServer, status: int) -> dict[str, Any]:
    answer = server.get("/api/atlas")
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_without_an_atlas_the_commands_that_make_one_are_told(sparse: FakeServer) -> None:
    error = error_of(sparse, 404)
    assert error["code"] == "atlas_missing"
    assert error["commands"] == ["coli atlas run 'a model'", "coli atlas analyze 'a model' --web"]
    assert error["commands"][0] in error["message"]


def test_a_dense_model_has_no_atlas(start: Start, folder: Path) -> None:
    (folder / file.NAME).write_bytes(atlas_json())
    server = start(folder=folder)
    assert error_of(server, 404)["code"] == "atlas_no_experts"
    asked = server.post("/api/atlas/measure", {"text": "hi"})
    assert (asked.status_code, asked.json()["error"]["code"]) == (404, "atlas_no_experts")


def test_the_atlas_is_given_out_once_for_each_version(sparse: FakeServer, folder: Path) -> None:
    path = folder / file.NAME
    path.write_bytes(atlas_json())
    first = sparse.get("/api/atlas")
    assert first.json() == {
        "version": 1, "model": sparse.model.id, "categories": ["x", "y"], "cols": 4, "layer": [1],
        "expert": [2], "top": [0], "specialist": [False], "entropy": [0.811],
        "affinity": [750, 250], "tokens": None, "measurement": None,
    }  # fmt: skip
    tag = first.headers["ETag"]
    assert sparse.get("/api/atlas", headers={"If-None-Match": tag}).status_code == 304
    path.write_bytes(atlas_json(categories=["y", "x"]))
    second = sparse.get("/api/atlas", headers={"If-None-Match": tag})
    assert (second.status_code, second.json()["top"]) == (200, [1])


def test_damaged_files_and_those_of_other_models_are_refused_by_name(
    sparse: FakeServer, folder: Path
) -> None:
    other = json.loads(atlas_json())
    other["experts"] = {"1:4": other["experts"]["1:2"]}
    for data in (*HOSTILE.values(), json.dumps(other).encode()):
        (folder / file.NAME).write_bytes(data)
        assert error_of(sparse, 422)["code"] == "atlas_damaged"
    (folder / file.NAME).write_bytes(HOSTILE["a list"])
    assert str(folder / file.NAME) in error_of(sparse, 422)["message"]
    (folder / file.NAME).unlink()
    (folder / file.NAME).mkdir()
    assert error_of(sparse, 422)["code"] == "atlas_damaged"


def test_a_prompt_is_measured_from_its_own_text_on(sparse: FakeServer) -> None:
    text = "What is a heron?"
    answer = sparse.post("/api/atlas/measure", {"text": text, "max_tokens": 5})
    assert answer.status_code == 200, answer.text
    found = measure.from_wire(answer.content)
    tokens, first = measure.tokens_of(sparse.model, text)
    expected = np.bincount(np.array(tokens[first:]) % 4, minlength=4)
    assert 0 < first < len(tokens)
    assert found.layers == (1, 2)
    assert found.prompt.tolist() == [expected.tolist()] * 2
    assert found.answer.sum() == 2 * 2  # two tokens in two layers, then the end
    assert base64.b64decode(answer.json()["prompt"]) == found.prompt.astype("<u4").tobytes()


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"text": " \n"}, {"text": 3}, {"text": "x", "max_tokens": 0},
             {"text": "x", "max_tokens": 1 << 40}, []],
)  # fmt: skip
def test_a_wrong_request_is_refused(sparse: FakeServer, body: Any) -> None:
    assert sparse.post("/api/atlas/measure", body).status_code == 400


def test_a_prompt_beyond_the_context_is_refused(sparse: FakeServer) -> None:
    answer = sparse.post("/api/atlas/measure", {"text": "x" * 5000})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
