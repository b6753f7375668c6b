"""The whole way with drafts: `coli serve --drafts`, its engine process, a model with an MTP layer.

Covers R138 and R140 through every layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import draftmodel
from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 60
PROMPTS = ["once upon", "def main():", "1 2 3"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("served") / "drafts")


def texts(running: ServeProcess, temperature: float) -> list[str]:
    found = []
    for number, prompt in enumerate(PROMPTS):
        body = {"prompt": prompt, "max_tokens": 120, "temperature": temperature, "seed": number}
        answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=TIMEOUT).json()
        assert answer["usage"]["completion_tokens"] > 0
        found.append(answer["choices"][0]["text"])
    return found


def drafts(running: ServeProcess) -> dict[str, Any]:
    state: dict[str, Any] = httpx.get(f"{running.url}/health", timeout=TIMEOUT).json()["engine"][
        "drafts"
    ]
    return state


@pytest.mark.e2e
def test_the_same_texts_with_and_without_drafts_and_the_state_in_health(model: Path) -> None:
    answers = []
    for setting in ("0", "3", "auto"):
        with serve(model, "--ctx", "512", "--drafts", setting) as running:
            before = drafts(running)
            answers.append([texts(running, 0), texts(running, 0.8)])
            after = drafts(running)
        if setting == "0":
            assert before["reason"] == after["reason"] == "off: --drafts 0"
            assert after["proposed"] == 0
        else:
            assert (before["most"], before["reason"]) == (3, "on: being measured")
            assert after["accepted"] > 0
            assert after["acceptance"] > 0.5
            assert after["ms_per_token_with"] > 0
            assert after["ms_per_token_without"] > 0
    assert answers[0] == answers[1] == answers[2]
