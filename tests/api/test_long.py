"""Kills and mixed load for many rounds; part of `make test-long`.

Covers R093, R094, R097, R165, R197.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import msgspec
import psutil
import pytest

from colibri.engine.child import ChildSpec
from colibri.engine.fake import Options, Script
from colibri.engine.process import ProcessEngine, Supervision
from tests.support.fakeserver import FakeServer, chat_body, chat_request

Start = Callable[..., FakeServer]
CLIENTS = 6
ANSWERS = {200, 429, 503}


def child_server(start: Start) -> FakeServer:
    scripts = tuple(Script(pieces=("a", "b", "c") * 10, token_ms=1) for _ in range(1000))
    plain = msgspec.to_builtins(Options(scripts=scripts), builtin_types=(bytes,))
    rules = Supervision(
        poll_seconds=0.05, backoff_seconds=0.01, backoff_limit_seconds=0.05, crash_limit=10**9
    )
    spec = ChildSpec(factory="colibri.engine.fake:open_backend", options=plain)
    return start(engine=ProcessEngine(spec, rules))


@pytest.mark.slow
def test_kills_at_random_moments_never_lose_a_request(
    start: Start, seeded: random.Random, scale: int
) -> None:
    """Every request ends with an answer or an error that names the cause; the server stays."""
    server = child_server(start)
    for number in range(50 * scale):
        wait = seeded.random() * 0.1
        pid = server.engine.status().pid

        def kill(pid: int | None = pid, wait: float = wait) -> None:
            time.sleep(wait)
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        response = server.chat(f"request {number}")
        killer.join()
        if response.status_code == 200:
            assert response.json()["choices"][0]["message"]["content"] == "abc" * 10
        else:
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] in ("engine_lost", "engine_unavailable")
    server.wait_for(active=0, queued=0)
    assert server.chat("at the end").status_code in (200, 503)


def behave(server: FakeServer, rng: random.Random, problems: list[str]) -> None:
    """One client's next step: a normal request, or one it walks away from."""
    kind = rng.choice(["whole", "stream", "leave", "leave early", "wrong"])
    if kind == "wrong":
        if server.chat(n=2).status_code != 400:
            problems.append("a wrong request was not refused")
    elif kind in ("whole", "stream"):
        response = server.chat(stream=kind == "stream")
        if response.status_code not in ANSWERS:
            problems.append(response.text)
    else:
        with server.raw(chat_request(chat_body(stream=rng.random() < 0.5))):
            time.sleep(0 if kind == "leave early" else rng.random() * 0.05)


@pytest.mark.slow
def test_mixed_load_with_clients_that_leave_leaks_nothing(
    start: Start, seeded: random.Random, scale: int
) -> None:
    """Counters add up, threads end, memory stays: after rounds of six clients at once."""
    script = Script(pieces=("x",) * 20, token_ms=0.5)
    server = start(max_queue=3)
    problems: list[str] = []
    process = psutil.Process()

    def round_of_load(steps: int) -> None:
        server.backend.enqueue(*[script] * steps * CLIENTS)
        seeds = [seeded.random() for _ in range(CLIENTS)]

        def client(seed: float) -> None:
            rng = random.Random(seed)  # noqa: S311
            for _ in range(steps):
                try:
                    behave(server, rng, problems)
                except httpx.HTTPError as error:
                    problems.append(repr(error))

        threads = [threading.Thread(target=client, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.wait_for(active=0, queued=0)

    round_of_load(40)
    before = (process.memory_info().rss, threading.active_count(), process.num_fds())
    for _ in range(10 * scale):
        round_of_load(40)
    assert server.http.wait_idle(20)
    assert problems == []
    assert threading.active_count() <= before[1]
    assert process.num_fds() <= before[2] + 4
    assert process.memory_info().rss < before[0] + (64 << 20)
    counters = server.scheduler.counters()
    assert counters.failed == 0
    assert counters.completed > 0
    assert counters.cancelled > 0
    assert counters.rejected > 0
