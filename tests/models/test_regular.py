"""Pipes, sockets and devices by the names of a model's files: refused, without waiting for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import regular
from colibri.errors import ColibriError
from colibri.models import about, catalog, doctor, manifest, safetensors, sources
from colibri.models.atlas import file as atlas
from colibri.models.atlas import runs
from colibri.models.model import open_model
from tests.models import files

Reader = Callable[[Path], Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files.llama_folder(tmp_path / "model")
    return tmp_path / "model"


def replaced(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "colibri.json",
        manifest.MANIFEST_NAME,
    ],
)
def test_a_pipe_in_a_model_folder_is_refused_by_every_reader(model: Path, name: str) -> None:
    path = replaced(model / name)
    named: list[str] = []
    for read in (open_model, sources.open_source, manifest.read, catalog.describe):
        try:
            found = read(model)
        except ColibriError as error:
            named.append(str(error))
        else:
            named.append(str(getattr(found, "problem", "")))
    named += [f"{item.where}: {item.what}" for item in doctor.examine(model).findings]
    assert any(str(path) in text and "it is a pipe, not a file" in text for text in named), named


def test_weights_that_are_a_pipe_are_refused(model: Path) -> None:
    path = replaced(model / "extra.safetensors")
    for read in (open_model, sources.open_source, safetensors.read_header):
        with pytest.raises(ColibriError, match=r"no readable file|it is a pipe"):
            read(path if read is safetensors.read_header else model)
    assert str(path) in {item.where for item in doctor.examine(model).findings}


def test_what_only_helps_is_passed_over_or_refused(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replaced(model / about.NAME)
    assert about.read(model) is None
    assert "it is a pipe, not a file" in caplog.text
    with pytest.raises(ColibriError, match="it is a pipe"):
        runs.load(replaced(model / "measured.jsonl"))
    replaced(model / atlas.NAME)
    with pytest.raises(ColibriError, match="it is a pipe"):
        atlas.AtlasFile().get(model, None, [])


def test_sockets_devices_and_links_to_them_are_told_by_what_they_are(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tmp_path, os.O_RDONLY)
        try:  # the path of a socket must be short
            listener.bind(f"/proc/self/fd/{here}/s")
        finally:
            os.close(here)
        with pytest.raises(OSError, match="it is a socket, not a file"):
            regular.open_file(tmp_path / "s")
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is a device, not a file"):
        regular.read_file(tmp_path / "link")
    with pytest.raises(IsADirectoryError):
        regular.open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        regular.open_file(tmp_path / "none")
    (tmp_path / "text").write_bytes(b"whole")
    assert regular.read_file(tmp_path / "text") == b"whole"
