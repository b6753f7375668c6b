"""The real engine's process dies, crashes or hangs while it works; its context outlives it.

Covers R074, R098, R100, R165.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from colibri.engine.child import ChildSpec
from colibri.engine.process import ProcessEngine, Supervision
from colibri.engine.protocol import Accepted, Done, Failed, JobEvent, Submit, Tokens
from colibri.models.backend import Options
from tests.support import draftmodel
from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 60
BLOCK = 128  # tokens of a KV block
PROMPT = "".join(chr(ord("!") + n * n % 90) for n in range(700))
BODY = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("faults") / "model")


def health(running: ServeProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.url}/health", timeout=TIMEOUT).json()
    return found


def complete(running: ServeProcess) -> dict[str, Any]:
    """The answer to BODY; a request that still meets the dead process is sent again."""
    end = time.monotonic() + TIMEOUT
    while True:
        answer = httpx.post(f"{running.url}/v1/completions", json=BODY, timeout=TIMEOUT)
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        assert answer.status_code == 503, answer.text
        assert time.monotonic() < end, answer.text
        time.sleep(0.1)


def saved(running: ServeProcess) -> bool:
    store = health(running)["engine"]["kv"]["store"]
    return bool(store["put_blocks"] >= len(PROMPT) // BLOCK and store["waiting_blocks"] == 0)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_R074_a_replay_after_the_engine_was_killed_in_a_stream_meets_its_context_on_disk(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with serve(model, "--ctx", "16384") as running:
        expected = complete(running)["choices"][0]["text"]
    assert len(expected) == 300
    store = ("--state-dir", str(tmp_path), "--prefix-store-gb", "0.2", "--ram", "1")
    with serve(model, "--ctx", "16384", *store) as running:
        complete(running)  # an earlier turn; what it held is written while nothing else is to do
        end = time.monotonic() + TIMEOUT
        while not saved(running):
            assert time.monotonic() < end, health(running)["engine"]["kv"]
            time.sleep(0.05)
        pid = health(running)["engine"]["pid"]
        url = f"{running.url}/v1/completions"
        body = {**BODY, "stream": True, "max_tokens": 15_000}
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT) as stream:
            lines = stream.iter_lines()
            first = next(line for line in lines if '"text":"' in line and '"text":""' not in line)
            assert first.startswith("data: ")
            os.kill(pid, number)
            rest = [line.removeprefix("data: ") for line in lines if line]
        error = json.loads(rest[-1])["error"]
        assert error["code"] == "engine_lost"
        named = "signal 9" if number == signal.SIGKILL else "SIGSEGV"
        assert named in error["message"]
        assert re.search(r"it held \d+\.\d GB of a budget of 1\.0 GB", error["message"])
        again = complete(running)
        assert again["choices"][0]["text"] == expected
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= len(PROMPT) // BLOCK * BLOCK
        after = health(running)
        assert after["status"] == "ok"
        assert (after["engine"]["restarts"], after["scheduler"]["failed"]) == (1, 1)
        assert named in after["engine"]["last_failure"]
        assert "of a budget of" in after["engine"]["last_failure"]
        assert after["engine"]["pid"] != pid
        assert not any(slot["busy"] for slot in after["engine"]["kv"]["slots"])


@pytest.mark.e2e
def test_R098_an_engine_that_stands_still_is_ended_and_the_next_request_works(model: Path) -> None:
    options = Options(folder=str(model), context=2048, threads=1, slots=2, parallel=2)
    spec = ChildSpec(
        factory="colibri.models.backend:open_backend",
        options=msgspec.to_builtins(options),
        slots=2,
        parallel=2,
    )
    rules = Supervision(poll_seconds=0.1, backoff_seconds=0.05, hang_seconds=1.5)
    engine = ProcessEngine(spec, rules)
    engine.start()
    try:
        engine.wait_ready(TIMEOUT)

        def submit(job: str, tokens: int) -> queue.Queue[JobEvent]:
            events: queue.Queue[JobEvent] = queue.Queue()
            prompt = draftmodel.prompt(len(job), 40)
            command = Submit(
                job=job, prompt=prompt, max_tokens=tokens, temperature=0, top_p=1, seed=1
            )
            engine.submit(command, events.put)
            return events

        jobs = [submit("one", 2000), submit("another", 2000)]
        for events in jobs:
            while not isinstance(events.get(timeout=TIMEOUT), Tokens):
                pass
        pid = engine.status().pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        for events in jobs:
            while not isinstance(event := events.get(timeout=TIMEOUT), Done | Failed):
                assert isinstance(event, Accepted | Tokens)
            assert isinstance(event, Failed)
            assert "no progress for 1.5 seconds" in event.message
        engine.wait_ready(TIMEOUT)
        assert "no progress" in (engine.status().last_failure or "")
        events = submit("the next", 5)
        while not isinstance(event := events.get(timeout=TIMEOUT), Done | Failed):
            pass
        assert isinstance(event, Done)
    finally:
        engine.stop()


@pytest.mark.e2e
def test_R100_stopping_one_server_leaves_the_other_and_its_engine_alone(
    model: Path, tmp_path: Path
) -> None:
    options = ("--ctx", "16384", "--ram", "1", "--prefix-store-gb", "0.2")
    with (
        serve(model, *options, "--state-dir", str(tmp_path / "a")) as first,
        serve(model, *options, "--state-dir", str(tmp_path / "b")) as second,
    ):
        expected = complete(second)["choices"][0]["text"]
        engine, gone = (health(running)["engine"]["pid"] for running in (second, first))
        assert first.stop() == 0
        assert not psutil.pid_exists(gone)
        after = health(second)
        assert (after["status"], after["engine"]["pid"]) == ("ok", engine)
        assert after["engine"]["restarts"] == 0
        assert complete(second)["choices"][0]["text"] == expected
