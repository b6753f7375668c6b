"""The same jobs through a thread and through a child process, and what happens when the child dies.

Covers R098, R165, R197, R208.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import psutil
import pytest

from colibri.engine import fake
from colibri.engine.answer import AnswerForm, Grammar
from colibri.engine.child import ChildSpec
from colibri.engine.client import EngineClient
from colibri.engine.fake import FakeBackend, Options, Script
from colibri.engine.process import ProcessEngine, Supervision
from colibri.engine.protocol import (
    MAX_FRAME_BYTES,
    Command,
    Done,
    Event,
    Failed,
    FrameError,
    JobEvent,
    Loading,
    Submit,
    Tokens,
    read_frame,
    write_frame,
)
from colibri.engine.thread import ThreadEngine
from colibri.errors import EngineFailure, ModelError, RequestError, WorkerUnavailableError

TIMEOUT = 30
QUICK = Supervision(poll_seconds=0.05, hang_seconds=0.5, backoff_seconds=0.05, stop_seconds=5)


def child_engine(*scripts: Script, rules: Supervision = QUICK, **options: object) -> ProcessEngine:
    plain = msgspec.to_builtins(Options(scripts=scripts, **options), builtin_types=(bytes,))
    return ProcessEngine(
        ChildSpec(factory="colibri.engine.fake:open_backend", options=plain), rules
    )


def submit(
    engine: EngineClient, job: str, prompt: str = "hi", grammar: str = ""
) -> queue.Queue[JobEvent]:
    events: queue.Queue[JobEvent] = queue.Queue()
    command = Submit(
        job=job,
        prompt=fake.encode(prompt),
        max_tokens=1000,
        temperature=0,
        top_p=1,
        seed=1,
        answer=AnswerForm(grammar=Grammar(grammar)),
    )
    engine.submit(command, events.put)
    return events


def finish(events: queue.Queue[JobEvent]) -> tuple[str, JobEvent]:
    text = ""
    while True:
        event = events.get(timeout=TIMEOUT)
        if isinstance(event, Tokens):
            text += "".join(part.text for part in event.parts)
        if isinstance(event, Done | Failed):
            return text, event


@pytest.fixture(params=["thread", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    scripts = (Script(pieces=("Hel", "lo")), Script(pieces=("x",), repeat=True, token_ms=1))
    made: EngineClient = (
        child_engine(*scripts)
        if request.param == "process"
        else ThreadEngine(lambda: FakeBackend(Options(scripts=scripts)))
    )
    made.start()
    yield made
    made.stop()


def test_a_job_runs_and_a_second_one_is_cancelled(engine: EngineClient) -> None:
    assert engine.wait_ready(TIMEOUT).isa == "fake"
    text, done = finish(submit(engine, "a"))
    assert text == "Hello"
    assert isinstance(done, Done)
    events = submit(engine, "b")
    events.get(timeout=TIMEOUT)
    snapshot = engine.snapshot(TIMEOUT)
    assert snapshot is not None
    assert [state.job for state in snapshot.jobs] == ["b"]
    engine.cancel("b")
    _, cancelled = finish(events)
    assert isinstance(cancelled, Done)
    assert cancelled.finish_reason == "cancelled"


def test_stopping_ends_jobs_and_later_ones_are_refused(engine: EngineClient) -> None:
    engine.wait_ready(TIMEOUT)
    finish(submit(engine, "a"))
    events = submit(engine, "b")
    events.get(timeout=TIMEOUT)
    engine.stop()
    assert isinstance(finish(events)[1], Failed)
    with pytest.raises(WorkerUnavailableError, match="stopped"):
        submit(engine, "c")


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_an_engine_that_cannot_be_opened_says_why(transport: str) -> None:
    sentence = "out-00001.safetensors: tensor overlaps its neighbour"
    engine: EngineClient = (
        child_engine(fail_load=sentence)
        if transport == "process"
        else ThreadEngine(lambda: FakeBackend(Options(fail_load=sentence)))
    )
    engine.start()
    with pytest.raises(ModelError, match="overlaps its neighbour"):
        engine.wait_ready(TIMEOUT)
    engine.stop()


def test_what_a_process_reads_while_it_loads_is_known_until_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = child_engine(load_ms=20)
    seen: list[tuple[Loading, Loading | None]] = []
    take = engine._dispatch

    def watched(event: Event) -> None:
        take(event)
        if isinstance(event, Loading):
            seen.append((event, engine.status().loading))

    monkeypatch.setattr(engine, "_dispatch", watched)
    engine.start()
    try:
        engine.wait_ready(TIMEOUT)
        assert all(told == known for told, known in seen)
        shares = [told.bytes_read / told.bytes_total for told, _ in seen]
        assert shares == [0, 0.25, 0.5, 0.75]
        assert engine.status().loading is None
    finally:
        engine.stop()


def test_kill_9_fails_the_request_in_flight_and_the_next_one_works() -> None:
    """R165: the client is told the signal, the likely reason and the memory that was held."""
    engine = child_engine(Script(pieces=("x",), repeat=True, token_ms=1))
    engine.start()
    engine.wait_ready(TIMEOUT)
    events = submit(engine, "a")
    events.get(timeout=TIMEOUT)
    status = engine.status()
    while not status.rss_bytes:
        status = engine.status()
    assert status.pid
    os.kill(status.pid, signal.SIGKILL)
    _, failed = finish(events)
    assert isinstance(failed, Failed)
    assert failed.code == "engine_lost"
    assert "killed (signal 9)" in failed.message
    assert "memory ran out" in failed.message
    assert "it held" in failed.message
    engine.wait_ready(TIMEOUT)
    again = engine.status()
    assert again.restarts == 1
    assert again.pid != status.pid
    assert "signal 9" in (again.last_failure or "")
    _, end = finish_soon(engine, "b")
    assert isinstance(end, Done | Failed)
    engine.stop()


def finish_soon(engine: EngineClient, job: str) -> tuple[str, JobEvent]:
    """A job on a restarted child, whose scripts start anew; it is cancelled once it runs."""
    events = submit(engine, job, "another prompt")
    events.get(timeout=TIMEOUT)
    engine.cancel(job)
    return finish(events)


def test_a_crash_names_its_signal() -> None:
    engine = child_engine(Script(pieces=("x",), repeat=True, token_ms=1))
    engine.start()
    engine.wait_ready(TIMEOUT)
    events = submit(engine, "a")
    events.get(timeout=TIMEOUT)
    pid = engine.status().pid
    assert pid
    os.kill(pid, signal.SIGSEGV)
    failed = finish(events)[1]
    assert isinstance(failed, Failed)
    assert "SIGSEGV" in failed.message
    engine.stop()


def test_a_child_without_progress_is_ended_and_says_so() -> None:
    """R098: a stuck engine fails the request; a long step alone would go on counting."""
    engine = child_engine(Script(pieces=("x", "y"), hang_at=1))
    engine.start()
    engine.wait_ready(TIMEOUT)
    failed = finish(submit(engine, "a"))[1]
    assert isinstance(failed, Failed)
    assert "no progress for 0.5 seconds" in failed.message
    engine.stop()


def test_a_read_that_hangs_while_a_prompt_is_read_is_noticed_though_the_loop_turns() -> None:
    """R098: between two slices of a prompt the loop goes round, which is no progress."""
    engine = child_engine(Script(stall_prefill=True))
    engine.start()
    engine.wait_ready(TIMEOUT)
    failed = finish(submit(engine, "a"))[1]
    assert isinstance(failed, Failed)
    assert "no progress for 0.5 seconds" in failed.message
    engine.stop()


def test_a_prompt_that_takes_longer_than_the_watchdog_is_no_hang() -> None:
    """R050: minutes of work are work."""
    rules = Supervision(poll_seconds=0.05, hang_seconds=1.0)
    engine = child_engine(Script(prefill_ms=2500), rules=rules)
    engine.start()
    engine.wait_ready(TIMEOUT)
    assert finish(submit(engine, "a"))[0] == "ok"
    assert engine.status().restarts == 0
    engine.stop()


def test_three_crashes_in_the_window_end_in_a_clear_refusal() -> None:
    engine = child_engine(Script(pieces=("x",), kill_at=0))
    engine.start()
    for n in range(3):
        engine.wait_ready(TIMEOUT)
        assert isinstance(finish(submit(engine, f"job{n}", f"prompt {n}"))[1], Failed)
    with pytest.raises(WorkerUnavailableError, match="crashed 3 times within 10 minutes"):
        engine.wait_ready(TIMEOUT)
    engine.stop()


def test_a_prompt_in_flight_at_two_crashes_is_refused() -> None:
    rules = Supervision(poll_seconds=0.05, backoff_seconds=0.05, crash_limit=10)
    engine = child_engine(Script(pieces=("x",), kill_at=0), rules=rules)
    engine.start()
    for n in range(2):
        engine.wait_ready(TIMEOUT)
        finish(submit(engine, f"job{n}", "the same"))
    engine.wait_ready(TIMEOUT)
    with pytest.raises(RequestError, match="2 crashes"):
        submit(engine, "c", "the same")
    engine.stop()


def test_a_job_that_cannot_be_sent_leaves_nothing_and_ends_no_engine() -> None:
    """It stayed among the jobs, without progress, and the engine was ended as hung."""
    engine = child_engine()
    engine.start()
    engine.wait_ready(TIMEOUT)
    pid = engine.status().pid
    command = Submit(job="a", prompt=[1 << 70], max_tokens=1, temperature=0, top_p=1, seed=1)
    with pytest.raises(OverflowError):
        engine.submit(command, print)
    assert not engine._sinks and not engine._in_flight  # the watchdog looks at the former
    assert finish(submit(engine, "b"))[0] == "ok"
    assert engine.status().pid == pid and not engine._in_flight
    engine.stop()


def test_a_prompt_that_ran_twice_at_one_crash_was_at_one_crash() -> None:
    """It was refused after one. Nor is it blamed for what it ran into with another form."""
    rules = Supervision(poll_seconds=0.05, backoff_seconds=0.05, crash_limit=10)
    engine = child_engine(Script(pieces=("x",), repeat=True, token_ms=20), rules=rules)
    engine.start()
    for names in (("a", "b"), ("c",)):
        engine.wait_ready(TIMEOUT)
        pid = engine.status().pid
        assert pid is not None
        jobs = [submit(engine, name, grammar="start: /x*/") for name in names]
        os.kill(pid, signal.SIGKILL)
        for events in jobs:
            assert isinstance(finish(events)[1], Failed)
    engine.wait_ready(TIMEOUT)
    with pytest.raises(RequestError, match="2 crashes"):
        submit(engine, "d", grammar="start: /x*/")
    submit(engine, "e")
    engine.stop()


def test_the_child_leaves_when_its_parent_is_killed() -> None:
    """R197: no orphan survives a SIGKILL of the server."""
    program = (
        "import msgspec, time\n"
        "from colibri.engine.child import ChildSpec\n"
        "from colibri.engine.process import ProcessEngine\n"
        "engine = ProcessEngine("
        "ChildSpec(factory='colibri.engine.fake:open_backend', options={}))\n"
        "engine.start(); engine.wait_ready(30)\n"
        "print(engine.status().pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        child.wait(TIMEOUT)
        assert not child.is_running()


def test_an_engine_process_never_starts_engine_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """R208."""
    monkeypatch.setenv("COLIBRI_ENGINE_CHILD", "1")
    with pytest.raises(EngineFailure, match="must not start another"):
        child_engine().start()


def test_the_api_key_does_not_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_API_KEY", "secret")
    engine = child_engine()
    engine.start()
    engine.wait_ready(TIMEOUT)
    assert "COLI_API_KEY" not in psutil.Process(engine.status().pid).environ()
    engine.stop()


def test_lines_of_the_child_are_told_with_their_level_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "colibri.engine.child")
    engine = ProcessEngine(
        ChildSpec(factory="tests.support.talkative:open_backend", options={}, log_level="debug"),
        QUICK,
    )
    engine.start()
    engine.wait_ready(TIMEOUT)
    engine.stop()  # joins the thread that reads the log
    told = [item for item in caplog.record_tuples if item[0] == "colibri.engine.child"]
    lines = [(level, text) for _, level, text in told if "talkative" in text or "library" in text]
    assert lines == [
        (logging.DEBUG, "talkative a detail"),
        (logging.WARNING, "talkative a doubt"),
        (logging.ERROR, "talkative a trouble"),
        (logging.INFO, "INFORMAL words of a library"),
    ]


def test_frames_survive_the_pipe_and_nonsense_is_refused_by_name() -> None:
    """R132: a huge length asks for no memory, a cut frame is no message."""
    stream = io.BytesIO()
    command = Submit(job="a", prompt=[1, 2], max_tokens=1, temperature=0, top_p=1, seed=2**64 - 1)
    write_frame(stream, command)
    whole = stream.getvalue()
    assert read_frame(io.BytesIO(whole), Command) == command
    assert read_frame(io.BytesIO(b""), Command) is None
    for bad in (
        whole[:2],
        whole[:-1],
        (MAX_FRAME_BYTES + 1).to_bytes(4, "little") + b"x",
        b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1",
    ):
        with pytest.raises(FrameError):
            read_frame(io.BytesIO(bad), Command)
    with pytest.raises(FrameError):
        read_frame(io.BytesIO(whole), Event)


def test_a_stopping_engine_leaves_no_process_behind() -> None:
    engine = child_engine(Script(prefill_ms=600_000))
    engine.start()
    engine.wait_ready(TIMEOUT)
    pid = engine.status().pid
    assert pid
    submit(engine, "a").get(timeout=TIMEOUT)
    engine.stop()
    assert not psutil.pid_exists(pid)
