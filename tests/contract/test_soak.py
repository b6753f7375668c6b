"""Minutes of mixed load on a real server: nothing leaks, nothing is stuck, nothing is forgotten.

Conversations in slots of their own and anywhere, streamed and not, more clients than may run or
wait, clients that leave at random moments, and so little KV and disk that contexts come and go.
About two minutes; `make test-slow N=5` makes it ten.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from tests.support import draftmodel
from tests.support.serveprocess import ServeProcess, serve

SECONDS = 110
SCALE = max(1, int(os.environ.get("COLIBRI_TEST_SCALE", "1")))
TIMEOUT = 60
CLIENTS, PARALLEL, SLOTS, QUEUE = 8, 4, 8, 3
SETTINGS = (
    *("--ctx", "1024", "--parallel", f"{PARALLEL}", "--kv-slots", f"{SLOTS}"),
    *("--max-queue", f"{QUEUE}", "--ram", "1", "--prefix-store-gb", "0.02"),
)
SYSTEM = "".join(chr(ord("!") + n * n % 90) for n in range(200))
PROBE = {"prompt": SYSTEM + "probe", "max_tokens": 40, "temperature": 0}
# What allocators and interpreters still take after the warm-up; a leak of a kilobyte per request
# would be more.
SLACK_BYTES = 12_000_000


class Client(threading.Thread):
    """Has conversations until told to stop; counts what became of its requests."""

    def __init__(self, running: ServeProcess, seed: int, expected: str, stop: threading.Event):
        super().__init__()
        self.rng = random.Random(seed)  # noqa: S311
        self.url = f"{running.url}/v1/completions"
        self.expected = expected
        self.stop = stop
        self.ends: Counter[str] = Counter()
        self.problems: list[str] = []
        self.history = ""

    def run(self) -> None:
        with httpx.Client(timeout=TIMEOUT) as client:
            while not self.stop.is_set():
                try:
                    self.turn(client)
                except Exception as error:
                    self.problems.append(repr(error))
                    return

    def turn(self, client: httpx.Client) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            answer = client.post(self.url, json=PROBE)
            if self.status(answer.status_code, answer.text):
                self.ends["answered"] += 1
                if answer.json()["choices"][0]["text"] != self.expected:
                    self.problems.append(f"another answer: {answer.text}")
            return
        if len(self.history) > 600 or rng.random() < 0.1:
            self.history = ""
        said = "".join(chr(rng.randint(33, 126)) for _ in range(rng.randint(1, 150)))
        prompt = (self.history or SYSTEM) + said
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.choice([1, 20, 60, 200])}
        body["temperature"] = rng.choice([0, 1])
        if rng.random() < 0.4:
            body["cache_slot"] = rng.randrange(SLOTS)
        text = self.stream(client, body) if rng.random() < 0.6 else self.whole(client, body)
        if text is not None:
            self.history = prompt + text

    def status(self, code: int, text: str) -> bool:
        """Whether there is an answer; a busy server is none of ours to complain about."""
        if code == 429:
            self.ends["busy"] += 1
            time.sleep(self.rng.random() * 0.05)
        elif code != 200:
            self.problems.append(f"{code}: {text}")
        return code == 200

    def stream(self, client: httpx.Client, body: dict[str, Any]) -> str | None:
        leave_after = self.rng.choice([0, 1, 5, 10**9, 10**9, 10**9])
        lines: list[str] = []
        with client.stream("POST", self.url, json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                self.status(answer.status_code, answer.read().decode())
                return None
            for line in answer.iter_lines():
                if len(lines) >= leave_after:
                    self.ends["left"] += 1
                    return None
                lines += [line] if line else []
        if lines[-1] != "data: [DONE]":
            self.problems.append(f"a stream ended with {lines[-1]}")
        self.ends["answered"] += 1
        return ""

    def whole(self, client: httpx.Client, body: dict[str, Any]) -> str | None:
        patience = self.rng.choice([0.05, 0.3, TIMEOUT, TIMEOUT, TIMEOUT])
        try:
            answer = client.post(self.url, json=body, timeout=patience)
        except httpx.TimeoutException:
            self.ends["left"] += 1
            return None
        if not self.status(answer.status_code, answer.text):
            return None
        self.ends["answered"] += 1
        text: str = answer.json()["choices"][0]["text"]
        return text


def health(running: ServeProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.url}/health", timeout=TIMEOUT).json()
    return found


class Watch:
    """Looks at the server once a second."""

    def __init__(self, running: ServeProcess) -> None:
        self.running = running
        self.server = psutil.Process(running.process.pid)
        self.engine = psutil.Process(health(running)["engine"]["pid"])
        self.rss: list[tuple[int, int]] = []
        self.prompts: list[tuple[int, int]] = []

    def look(self) -> None:
        self.rss.append((self.server.memory_info().rss, self.engine.memory_info().rss))
        kv = health(self.running)["engine"]["kv"]
        if kv is not None:
            self.prompts.append((kv["prompt_tokens"], kv["cached_tokens"]))

    def growth(self) -> list[int]:
        """Bytes that server and engine grew by from the second quarter to the last one."""
        quarter = len(self.rss) // 4
        parts = self.rss[quarter : 2 * quarter], self.rss[-quarter:]
        return [median(r[i] for r in parts[1]) - median(r[i] for r in parts[0]) for i in (0, 1)]

    def hit_rates(self) -> tuple[float, float]:
        """Share of prompt tokens that were not computed, in the second quarter and the last one."""
        quarter = len(self.prompts) // 4

        def rate(first: int, last: int) -> float:
            (prompt0, cached0), (prompt1, cached1) = self.prompts[first], self.prompts[last]
            return (cached1 - cached0) / max(prompt1 - prompt0, 1)

        return rate(quarter, 2 * quarter), rate(-quarter, -1)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(SECONDS * SCALE + 180)
def test_minutes_of_mixed_load_leave_the_server_as_it_was(
    tmp_path: Path, seeded: random.Random, scale: int
) -> None:
    model = draftmodel.make(tmp_path / "model")
    with serve(model, *SETTINGS, "--state-dir", str(tmp_path / "state")) as running:
        expected = httpx.post(f"{running.url}/v1/completions", json=PROBE, timeout=TIMEOUT).json()
        watch, stop = Watch(running), threading.Event()
        text = expected["choices"][0]["text"]
        clients = [Client(running, seeded.randrange(10**9), text, stop) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        end = time.monotonic() + SECONDS * scale
        while time.monotonic() < end and any(client.is_alive() for client in clients):
            time.sleep(1)
            watch.look()
        stop.set()
        for client in clients:
            client.join(TIMEOUT)
        idle = time.monotonic() + TIMEOUT
        while (now := health(running))["scheduler"]["active"] + now["scheduler"]["queued"]:
            assert time.monotonic() < idle, f"stuck: {now}"
            time.sleep(0.1)
        assert [problem for client in clients for problem in client.problems] == []
        ends = sum((client.ends for client in clients), Counter())
        check_counters(now, ends)
        assert not any(slot["busy"] for slot in now["engine"]["kv"]["slots"])
        assert now["engine"]["kv"]["dropped_sessions"] > 0
        assert now["engine"]["restarts"] == 0
        assert running.stop() == 0
        assert "Traceback" not in running.log.read_text()
    print(f"{sum(ends.values())} requests: {dict(ends)}; {now['scheduler']}; {now['engine']['kv']}")
    print(f"grown by {watch.growth()} of {watch.rss[-1]} bytes; hit rates {watch.hit_rates()}")
    assert max(watch.growth()) < SLACK_BYTES
    before, after = watch.hit_rates()
    assert before > 0.2
    assert after > 0.8 * before


def check_counters(now: dict[str, Any], ends: Counter[str]) -> None:
    """Every request that was admitted is in one counter; who left may have done so before that, or
    when the answer was on its way.
    """
    counters = now["scheduler"]
    assert counters["failed"] == 0
    assert counters["rejected"] + counters["timed_out"] >= ends["busy"]
    answered = ends["answered"] + 1  # the first probe
    assert counters["completed"] >= answered
    ended = sum(counters[name] for name in ("completed", "cancelled", "rejected", "timed_out"))
    assert answered + ends["busy"] <= ended <= answered + ends["busy"] + ends["left"]
    assert min(ends["answered"], ends["left"], ends["busy"], counters["cancelled"]) > 0
