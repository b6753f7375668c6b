"""Waiting, being turned away, leaving: the scheduler seen from the network.

Covers R074, R092, R093, R094, R096, R097, R098, R165, and the counters of /health.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from colibri.api.front import Limits
from colibri.engine.child import ChildSpec
from colibri.engine.fake import FakeBackend, Options, Script
from colibri.engine.process import ProcessEngine, Supervision
from colibri.engine.thread import ThreadEngine
from colibri.errors import ModelError
from tests.support.fakeserver import TIMEOUT, FakeServer, chat_body, chat_request
from tests.support.messages import messages_body

Start = Callable[..., FakeServer]
ENDLESS = Script(pieces=("x",), repeat=True, token_ms=1)
LONG_PREFILL = Script(prefill_ms=600_000)
BOTH_MODES = pytest.mark.parametrize("stream", [False, True])


def in_thread(call: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


@BOTH_MODES
@pytest.mark.parametrize("script", [ENDLESS, LONG_PREFILL], ids=["decode", "prefill"])
def test_a_client_that_leaves_frees_the_slot(start: Start, script: Script, stream: bool) -> None:
    """R093, R096: in both modes, also while nothing is being written."""
    server = start(script)
    with server.raw(chat_request(chat_body(stream=stream))):
        server.wait_for(active=1)
    server.wait_for(active=0, cancelled=1)
    assert server.chat().json()["choices"][0]["message"]["content"] == "ok"


def test_a_waiting_request_whose_client_left_never_starts(start: Start) -> None:
    """R094: its script is still there for the next one."""
    server = start(ENDLESS, Script(pieces=("second",)))
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        with server.raw(chat_request(chat_body())):
            server.wait_for(queued=1)
        server.wait_for(queued=0, active=1, cancelled=1)
    server.wait_for(active=0, cancelled=2)
    assert server.chat().json()["choices"][0]["message"]["content"] == "second"


def test_a_request_for_a_slot_in_use_waits_and_lets_others_pass(start: Start) -> None:
    scripts = [Script(pieces=(word,)) for word in ("behind", "pinned")]
    server = start(ENDLESS, *scripts, kv_slots=2, parallel=2)
    with server.raw(chat_request(chat_body(cache_slot=1))):
        server.wait_for(active=1)
        thread, answers = in_thread(lambda: server.chat(cache_slot=1))
        server.wait_for(queued=1)
        behind = server.chat(cache_slot=0)
        assert behind.json()["choices"][0]["message"]["content"] == "behind"
        server.wait_for(active=1, queued=1)
    thread.join(TIMEOUT)
    assert answers[0].json()["choices"][0]["message"]["content"] == "pinned"
    assert int(answers[0].headers["x-colibri-queue-wait-ms"]) > 0


def test_two_requests_run_side_by_side(start: Start) -> None:
    server = start(ENDLESS, Script(pieces=("second",)), kv_slots=2, parallel=2)
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        assert server.chat().json()["choices"][0]["message"]["content"] == "second"


@pytest.mark.parametrize("slot", [-1, 2, 10**6])
def test_a_slot_that_does_not_exist_is_refused_by_name(start: Start, slot: int) -> None:
    answer = start(kv_slots=2).chat(cache_slot=slot)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_slot"
    assert "0 to 1" in answer.json()["error"]["message"]


def test_three_requests_that_are_dropped_at_once_leave_an_idle_engine(start: Start) -> None:
    """R097."""
    server = start(ENDLESS, ENDLESS, ENDLESS)
    request = chat_request(chat_body(stream=True))
    with server.raw(request), server.raw(request), server.raw(request):
        server.wait_for(active=1, queued=2)
    server.wait_for(active=0, queued=0, cancelled=3)


def test_waiting_requests_are_served_in_order_and_told_their_wait(start: Start) -> None:
    scripts = [Script(pieces=(f"answer {n}",)) for n in range(3)]
    server = start(LONG_PREFILL, *scripts)
    waiting: list[tuple[threading.Thread, list[httpx.Response]]] = []
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        for n in range(3):
            waiting.append(in_thread(server.chat))
            server.wait_for(queued=n + 1)
    for n, (thread, answers) in enumerate(waiting):
        thread.join(TIMEOUT)
        assert answers[0].json()["choices"][0]["message"]["content"] == f"answer {n}"
        assert int(answers[0].headers["x-colibri-queue-wait-ms"]) > 0
    server.wait_for(completed=3)


@BOTH_MODES
def test_a_full_queue_is_a_429_before_any_header_of_a_stream(start: Start, stream: bool) -> None:
    server = start(LONG_PREFILL, max_queue=1)
    request = chat_request(chat_body())
    with server.raw(request):
        server.wait_for(active=1)
        with server.raw(request):
            server.wait_for(queued=1)
            response = server.chat(stream=stream)
            assert response.status_code == 429
            assert response.headers["content-type"] == "application/json"
            assert int(response.headers["retry-after"]) > 0
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert server.scheduler.counters().rejected == 1


@BOTH_MODES
def test_a_request_that_waited_too_long_is_a_429(start: Start, stream: bool) -> None:
    server = start(LONG_PREFILL, queue_timeout=0.3)
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        response = server.chat(stream=stream)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_timeout"
        assert "retry-after" in response.headers
        server.wait_for(timed_out=1, queued=0, active=1)


def test_nothing_is_sent_while_a_stream_waits_for_its_turn(start: Start) -> None:
    """Its status is still open: it may yet become a 429."""
    server = start(LONG_PREFILL)
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        with server.raw(chat_request(chat_body(stream=True))) as waiting:
            server.wait_for(queued=1)
            waiting.settimeout(0.7)  # longer than any poll of the queue
            with pytest.raises(TimeoutError):
                waiting.recv(1)


def test_the_counters_add_up(start: Start) -> None:
    server = start(Script(), Script(fail_at=0), LONG_PREFILL)
    server.chat()
    server.chat()
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
    server.wait_for(cancelled=1, active=0)
    counters = server.get("/health").json()["scheduler"]
    assert {name: counters[name] for name in ("completed", "failed", "cancelled", "rejected")} == {
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
        "rejected": 0,
    }


def test_stopping_the_server_ends_streams_in_band_and_turns_the_queue_away(start: Start) -> None:
    server = start(LONG_PREFILL)
    thread, waiting = None, []
    with server.raw(chat_request(chat_body(stream=True))) as stream:
        assert b'"role":"assistant"' in stream.recv(1 << 16)
        thread, waiting = in_thread(server.chat)
        server.wait_for(queued=1)
        server.http.stop()
        server.scheduler.close()
        server.engine.stop()
        rest = b""
        while piece := stream.recv(1 << 16):
            rest += piece
    assert b"engine_stopped" in rest
    thread.join(TIMEOUT)
    assert waiting[0].status_code == 503
    assert server.http.wait_idle(TIMEOUT)


# ---- a worker that dies ------------------------------------------------------------------------


def child_server(start: Start, *scripts: Script, **rules: Any) -> FakeServer:
    plain = msgspec.to_builtins(Options(scripts=scripts), builtin_types=(bytes,))
    quick = Supervision(poll_seconds=0.05, backoff_seconds=0.05, **rules)
    spec = ChildSpec(factory="colibri.engine.fake:open_backend", options=plain)
    return start(engine=ProcessEngine(spec, quick))


def kill_worker(server: FakeServer) -> None:
    pid = server.get("/health").json()["engine"]["pid"]
    os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_fails_the_request_names_the_cause_and_comes_back(start: Start) -> None:
    """R165, R074: in band for a stream, as 503 for the other mode; the next request works."""
    server = child_server(start, Script(), LONG_PREFILL)
    assert server.chat("first").status_code == 200
    with server.raw(chat_request(chat_body(stream=True))) as stream:
        assert b'"role":"assistant"' in stream.recv(1 << 16)
        server.wait_for(active=1)
        kill_worker(server)
        rest = b""
        while piece := stream.recv(1 << 16):
            rest += piece
    event = json.loads(rest.split(b"data: ")[-1].split(b"\n\n")[0])
    assert event["error"]["code"] == "engine_lost"
    assert "signal 9" in event["error"]["message"]
    assert b"[DONE]" not in rest
    assert server.chat("after the crash").json()["choices"][0]["message"]["content"] == "ok"
    engine = server.get("/health").json()["engine"]
    assert engine["restarts"] == 1
    assert "memory ran out" in engine["last_failure"]


def test_a_request_without_stream_gets_a_503_when_its_worker_dies(start: Start) -> None:
    server = child_server(start, LONG_PREFILL)
    thread, answers = in_thread(server.chat)
    server.wait_for(active=1)
    kill_worker(server)
    thread.join(TIMEOUT)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "engine_lost"
    assert "retry-after" in answers[0].headers


@BOTH_MODES
def test_R074_a_killed_worker_is_told_in_anthropics_dialect_and_a_retry_is_answered(
    start: Start, stream: bool
) -> None:
    server = child_server(start, Script(pieces=("a",) * 5), Script(pieces=("x",), repeat=True))
    path, body = "/v1/messages", messages_body(stream=stream, max_tokens=4000)
    assert server.post(path, messages_body()).status_code == 200
    if stream:
        with httpx.stream("POST", server.url + path, json=body, timeout=TIMEOUT) as answer:
            lines = answer.iter_lines()
            assert any("text_delta" in line for line in lines)
            kill_worker(server)
            rest = [line for line in lines if line]
        assert rest[-2] == "event: error"
        assert not any("message_stop" in line or "message_delta" in line for line in rest)
        told = json.loads(rest[-1].removeprefix("data: "))
        assert told["request_id"] == answer.headers["x-request-id"]
    else:
        thread, answers = in_thread(lambda: server.post(path, body))
        server.wait_for(active=1)
        kill_worker(server)
        thread.join(TIMEOUT)
        assert answers[0].status_code == 503
        assert "retry-after" in answers[0].headers
        told = answers[0].json()
    assert told["type"] == "error"
    assert told["error"]["type"] == "overloaded_error"
    assert "signal 9" in told["error"]["message"]
    server.wait_for(active=0, failed=1)
    again = server.post(path, messages_body())
    assert again.json()["stop_reason"] == "end_turn", again.text


def test_a_stuck_worker_fails_its_request_and_health_says_so(start: Start) -> None:
    """R098."""
    server = child_server(start, Script(hang_at=0), hang_seconds=0.5)
    response = server.chat()
    assert response.status_code == 503
    assert "no progress" in response.json()["error"]["message"]
    assert "no progress" in server.get("/health").json()["engine"]["last_failure"]


def test_after_three_crashes_the_refusal_is_clear_and_quick(start: Start) -> None:
    server = child_server(start, Script(kill_at=0))
    for n in range(3):
        assert server.chat(f"prompt {n}").status_code == 503
    response = server.chat("one more")
    assert response.status_code == 503
    assert "crashed 3 times" in response.json()["error"]["message"]
    health = server.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "failed"


@contextmanager
def loading_server(**settings: Any) -> Iterator[tuple[FakeServer, threading.Event]]:
    """A server whose model is being loaded until the event is set."""
    loaded = threading.Event()
    backend = FakeBackend(Options(scripts=tuple(Script(pieces=(word,)) for word in "abcdef")))

    def load() -> FakeBackend:
        loaded.wait()
        return backend

    server = FakeServer(engine=ThreadEngine(load, slots=1, parallel=1), **settings)
    server.engine.start()
    http = threading.Thread(target=server.http.serve)
    http.start()
    try:
        yield server, loaded
    finally:
        loaded.set()
        server.http.stop()
        server.scheduler.close()
        server.engine.stop()
        http.join(TIMEOUT)


def test_while_the_model_loads_health_and_models_say_so() -> None:
    with loading_server() as (server, _):
        health = server.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert server.get("/v1/models").json()["data"][0]["context_length"] is None


def test_requests_that_come_while_the_model_loads_wait_and_are_served_in_order() -> None:
    with loading_server() as (server, loaded):
        waiting = []
        for n in range(3):
            waiting.append(in_thread(server.chat))
            server.wait_for(queued=n + 1)
        loaded.set()
        for thread, _answers in waiting:
            thread.join(TIMEOUT)
        texts = [a[0].json()["choices"][0]["message"]["content"] for _, a in waiting]
        assert texts == ["a", "b", "c"]
        server.wait_for(completed=3, queued=0)


def test_the_wait_for_the_first_load_is_a_wait_for_the_turn() -> None:
    with loading_server() as (server, loaded):
        thread, answers = in_thread(server.chat)
        server.wait_for(queued=1)
        begun = time.monotonic()
        time.sleep(0.1)
        loaded.set()
        waited = (time.monotonic() - begun) * 1000
        thread.join(TIMEOUT)
        assert int(answers[0].headers["x-colibri-queue-wait-ms"]) >= int(waited)
        assert server.scheduler.measures.now().queue_wait.total >= waited / 1000


def test_the_queue_in_front_of_a_model_that_loads_has_its_limits() -> None:
    """As any other: full, too long, left."""
    with loading_server(max_queue=0, queue_timeout=2.0) as (server, _):
        thread, answers = in_thread(server.chat)
        server.wait_for(queued=1)
        full = server.chat()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        thread.join(TIMEOUT)
        assert answers[0].status_code == 429
        assert answers[0].json()["error"]["code"] == "queue_timeout"
        server.wait_for(queued=0, timed_out=1, rejected=1)


def test_a_client_that_leaves_while_the_model_loads_is_forgotten() -> None:
    with loading_server() as (server, _):
        with server.raw(chat_request(chat_body())):
            server.wait_for(queued=1)
        server.wait_for(queued=0, cancelled=1)


def test_a_server_that_stops_while_its_model_loads_turns_the_queue_away() -> None:
    with loading_server() as (server, _):
        thread, answers = in_thread(server.chat)
        server.wait_for(queued=1)
        server.scheduler.close()
        thread.join(TIMEOUT)
        assert answers[0].status_code == 503


def test_a_model_that_cannot_be_loaded_fails_those_who_waited() -> None:
    loaded = threading.Event()

    def load() -> FakeBackend:
        loaded.wait()
        raise ModelError("the files are damaged.")

    server = FakeServer(engine=ThreadEngine(load, slots=1, parallel=1))
    server.engine.start()
    http = threading.Thread(target=server.http.serve)
    http.start()
    try:
        thread, answers = in_thread(server.chat)
        server.wait_for(queued=1)
        loaded.set()
        thread.join(TIMEOUT)
        assert answers[0].status_code == 500
        assert "damaged" in answers[0].json()["error"]["message"]
    finally:
        server.http.stop()
        server.engine.stop()
        http.join(TIMEOUT)


# ---- the server's own limits -------------------------------------------------------------------


def test_more_requests_at_work_than_the_cap_are_turned_away_at_once(start: Start) -> None:
    server = start(LONG_PREFILL, limits=Limits(handlers=2))
    with server.raw(chat_request(chat_body())), server.raw(chat_request(chat_body())):
        server.wait_for(active=1, queued=1)
        answer = server.exchange(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in answer
        assert b"\r\nRetry-After: " in answer
        assert b"\r\nx-request-id: req_" in answer
    server.wait_for(active=0, queued=0)
    assert server.get("/health").status_code == 200


def test_an_aborted_connection_is_one_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """R009."""
    caplog.set_level("INFO", logger="colibri")
    server = start(*[ENDLESS] * 20)
    for n in range(20):
        with server.raw(chat_request(chat_body(stream=True))) as connection:
            connection.recv(1 << 16)
        server.wait_for(cancelled=n + 1)
    assert "Traceback" not in caplog.text
    assert all(record.exc_info is None for record in caplog.records)
