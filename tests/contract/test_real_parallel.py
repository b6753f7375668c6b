"""The whole way with several requests at once: `coli serve --parallel`, its engine, a real model.

Covers R101, R102 and the header that tells the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 120
# Prompts and answers of different lengths.
JOBS = [
    ("The capital of France is", 1),
    ("Once upon a time there was a", 40),
    ("def fibonacci(n):\n    ", 24),
    ("1, 2, 3, 4, 5,", 33),
    ("Water boils at a temperature of " * 6, 7),
    ("The quick brown fox", 2),
    ("My favourite season is autumn, because " * 3, 17),
    ("In the beginning", 48),
]


@pytest.fixture(scope="module")
def running(smollm2_folder: Path) -> Iterator[ServeProcess]:
    with serve(smollm2_folder, "--kv-slots", "8", "--parallel", "8", "--ctx", "1024") as made:
        yield made


def ask(running: ServeProcess, job: tuple[str, int]) -> dict[str, Any]:
    prompt, tokens = job
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-colibri-queue-wait-ms"]) >= 0
    found: dict[str, Any] = answer.json()
    assert found["usage"]["completion_tokens"] <= tokens
    return found


@pytest.mark.e2e
def test_R102_answers_of_many_at_once_equal_those_one_after_the_other(
    running: ServeProcess,
) -> None:
    def texts(width: int) -> list[str]:
        with ThreadPoolExecutor(width) as pool:
            answers = list(pool.map(lambda job: ask(running, job), JOBS))
        return [answer["choices"][0]["text"] for answer in answers]

    expected = texts(1)
    for width in (2, 4, 8, 8):
        assert texts(width) == expected, f"{width} at a time"
    counters = httpx.get(f"{running.url}/health", timeout=TIMEOUT).json()["scheduler"]
    assert (counters["completed"], counters["active"], counters["failed"]) == (40, 0, 0)


@pytest.mark.e2e
def test_the_header_tells_the_wait_of_streams_too(running: ServeProcess) -> None:
    for route, field in (
        ("completions", {"prompt": "Hi"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        for stream in (False, True):
            body = {**field, "max_tokens": 2, "stream": stream}
            answer = httpx.post(f"{running.url}/v1/{route}", json=body, timeout=TIMEOUT)
            assert answer.status_code == 200
            assert 0 <= int(answer.headers["x-colibri-queue-wait-ms"]) < TIMEOUT * 1000
