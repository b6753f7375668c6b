"""Real engines take each other's place in a running `coli serve`, and nothing of a conversation is
computed again when its model comes back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.contract.test_real_server import CAPITAL, EXACT
from tests.support import draftmodel
from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 60


@pytest.fixture
def empty(smollm2_folder: Path, tmp_path: Path) -> Iterator[ServeProcess]:
    """A server without a model, with two installed ones."""
    draftmodel.make(tmp_path / "glm")
    with serve(smollm2_folder, "--no-model", "--precision", "f32") as running:
        folder = Path(httpx.get(f"{running.url}/api/models", timeout=TIMEOUT).json()["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "small").symlink_to(smollm2_folder)
        (folder / "glm").symlink_to(tmp_path / "glm")
        yield running


def changed(server: ServeProcess, path: str, **body: Any) -> dict[str, Any]:
    """The task of a change, when it has ended."""
    answer = httpx.post(f"{server.url}/api/models/{path}", json=body, timeout=TIMEOUT)
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        task: dict[str, Any] = httpx.get(f"{server.url}/api/tasks").json()["tasks"][0]
        if task["state"] != "running":
            return task
        time.sleep(0.05)
    raise AssertionError("the change never ended")


def ask(server: ServeProcess) -> httpx.Response:
    body = {"messages": CAPITAL, "temperature": 0, "max_tokens": 12}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=TIMEOUT)


@pytest.mark.e2e
def test_models_take_turns_and_keep_what_they_know(empty: ServeProcess) -> None:
    assert "without a model" in empty.announced
    assert ask(empty).json()["error"]["code"] == "no_model_loaded"
    assert changed(empty, "small/load")["state"] == "done"
    first = ask(empty).json()
    assert first["choices"][0]["message"]["content"] == EXACT
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    assert changed(empty, "glm/load", ctx=512)["state"] == "done"
    health = httpx.get(f"{empty.url}/health").json()
    assert (health["model"]["family"], health["model"]["context_length"]) == ("glm_moe_dsa", 512)
    assert ask(empty).json()["model"] == health["model"]["id"]
    assert httpx.get(f"{empty.url}/experts").json()["rows"] > 0
    assert len(psutil.Process(empty.process.pid).children()) == 1

    assert changed(empty, "small/load")["state"] == "done"
    again = ask(empty).json()
    assert again["choices"][0]["message"]["content"] == EXACT
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    assert changed(empty, "unload")["state"] == "done"
    assert psutil.Process(empty.process.pid).children() == []
    assert httpx.get(f"{empty.url}/health").status_code == 503
    assert empty.stop() == 0
