"""The supervisor with processes that pretend to be the sidecar; and the app's lock.

Covers R197, R198, R200, R201 and R208.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from colibri_app import shell, sidecar
from colibri_app.environment import CHILD_MARK
from colibri_app.instance import Instance, focus_running
from colibri_app.restarts import Restarts
from colibri_app.supervisor import State, Supervisor, end_stale, read_record, write_record
from tests.app import pretend

PRETEND = [sys.executable, str(Path(pretend.__file__))]
SECONDS = 60


class Told(queue.Queue[State]):
    """The states in order."""

    def until(self, name: str) -> State:
        while True:
            state = self.get(timeout=SECONDS)
            if state.name == name:
                return state


@contextmanager
def supervised(kind: str, *more: str, **fields: object) -> Iterator[tuple[Supervisor, Told]]:
    told = Told()
    supervisor = Supervisor([*PRETEND, kind], more, on_change=told.put, **fields)  # type: ignore[arg-type]
    supervisor.start()
    try:
        yield supervisor, told
    finally:
        supervisor.stop()


def test_a_sidecar_is_found_by_its_handshake_and_leaves_when_its_stdin_ends(tmp_path: Path) -> None:
    record = tmp_path / "server.json"
    with supervised("good", record=record) as (_, told):
        running = told.until("running").handshake
        assert running is not None
        assert sidecar.instance_of(running.url) == running.instance
        kept = read_record(record)
        assert kept is not None
        assert (kept.port, kept.token) == (running.port, None)
    assert told.until("stopped").name == "stopped"
    assert not psutil.pid_exists(running.pid)


def test_a_sidecar_that_ignores_every_wish_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri_app.supervisor.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("colibri_app.supervisor.TERMINATE_SECONDS", 0.2)
    with supervised("stubborn") as (_, told):
        running = told.until("running").handshake
        assert running is not None
    assert not psutil.pid_exists(running.pid)


def test_a_crash_is_told_with_last_words_and_tried_again_until_it_is_hopeless() -> None:
    with supervised("crash", restarts=Restarts(first_wait=0.01, most=2)) as (supervisor, told):
        waiting = told.until("waiting")
        assert "signal 6" in waiting.problem
        assert "last words" in waiting.last_words
        assert told.until("failed").last_words
        supervisor.restart()
        assert told.until("waiting").name == "waiting"


def test_a_killed_sidecar_is_started_again_and_its_port_is_asked_for() -> None:
    with supervised("good", restarts=Restarts(first_wait=0.01)) as (_, told):
        first = told.until("running").handshake
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        words = told.until("waiting").last_words
        assert '"ports": []' in words[0]
        assert '"reuse": true' in words[0]
        second = told.until("running").handshake
        assert second is not None
        os.kill(second.pid, signal.SIGKILL)
        assert f'"ports": [{first.port}]' in told.until("waiting").last_words[0]


def test_a_wrong_option_is_shown_and_not_tried_again() -> None:
    with supervised("usage", "--prot", "1") as (_, told):
        failed = told.until("failed")
    assert "exit code 2" in failed.problem
    assert failed.last_words[-1] == "Error: --prot: no such option"
    # With options of its own, no other server is as good.
    assert '"reuse": false' in failed.last_words[0]


def test_what_answers_under_another_name_is_no_server_of_ours() -> None:
    """R200: something answers is not enough."""
    with supervised("liar", restarts=Restarts(most=1)) as (_, told):
        assert "another server answers" in told.until("failed").last_words[-1]


def test_a_program_that_is_not_there_is_told() -> None:
    told = Told()
    supervisor = Supervisor(["/nowhere/at/all"], on_change=told.put)
    supervisor.start()
    assert "could not be started" in told.until("failed").problem
    supervisor.stop()


def test_a_server_that_runs_already_is_used_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri_app.supervisor.LOOK_SECONDS", 0.05)
    with subprocess.Popen(
        [*PRETEND, "good"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as other:
        assert other.stdin
        assert other.stdout
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()
        greeting = pretend.json.loads(other.stdout.readline())
        environ = {
            **os.environ,
            "PRETEND_PORT": str(greeting["port"]),
            "PRETEND_INSTANCE": greeting["instance"],
        }
        with supervised("there", environ=environ) as (supervisor, told):
            running = told.until("running").handshake
            assert running is not None
            assert running.reused
            supervisor.stop()
            assert sidecar.instance_of(running.url) == greeting["instance"]
        with supervised("there", environ=environ) as (_, told):
            told.until("running")
            other.kill()
            # It is noticed, and one of our own is started: this one pretends to know of another.
            assert told.until("starting").name == "starting"


def test_the_sidecar_of_an_app_that_is_gone_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R198, R201: also one that does not leave by itself."""
    monkeypatch.setattr("colibri_app.supervisor.CLOSE_SECONDS", 0.3)
    record = tmp_path / "server.json"
    with subprocess.Popen(
        [*PRETEND, "stubborn"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as stale:
        assert stale.stdin
        assert stale.stdout
        stale.stdin.write(b"\n")
        stale.stdin.flush()
        stale.stdout.readline()
        record.write_bytes(stale.stdout.readline())
        assert end_stale(record)
        assert stale.wait(SECONDS) == -signal.SIGKILL
    assert not end_stale(record)


def test_a_process_id_alone_ends_nobody(tmp_path: Path) -> None:
    record = tmp_path / "server.json"
    port = pretend.serve()
    known = shell.sidecar.instance_of(f"http://127.0.0.1:{port}")
    assert known == pretend.INSTANCE
    greeting = pretend.json.dumps(
        {
            "colibri_handshake": 1,
            "url": f"http://127.0.0.1:{port}",
            "port": port,
            "pid": os.getpid(),  # would end this very test
            "token": None,
            "version": "0",
            "instance": "another",
        }
    )
    record.write_text(greeting)
    assert not end_stale(record)
    kept = read_record(record)
    assert kept is not None
    write_record(tmp_path / "missing" / "deep" / "server.json", kept)


# ---- one app a person ----


def test_a_second_start_brings_the_first_to_the_front(tmp_path: Path) -> None:
    first = Instance(tmp_path / "app" / "lock", tmp_path / "app" / "running.json")
    assert first.acquire()
    asked: queue.Queue[bool] = queue.Queue()
    first.listen(lambda: asked.put(True))
    second = Instance(tmp_path / "app" / "lock", tmp_path / "app" / "running.json")
    assert not second.acquire()
    contact = tmp_path / "app" / "running.json"
    assert contact.stat().st_mode & 0o077 == 0
    assert focus_running(contact) == os.getpid()
    assert asked.get(timeout=SECONDS)
    forged = pretend.json.loads(contact.read_text())
    contact.write_text(pretend.json.dumps({**forged, "secret": "guess"}))
    assert focus_running(contact) is None
    assert asked.empty()
    first.release()
    assert second.acquire()
    second.release()
    assert focus_running(contact) is None


def test_the_lock_of_a_killed_app_holds_nobody_up(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from colibri_app.instance import Instance\n"
        "folder = Path(sys.argv[1])\n"
        "assert Instance(folder / 'lock', folder / 'c').acquire()\n"
        "print('held', flush=True); time.sleep(600)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        instance = Instance(tmp_path / "lock", tmp_path / "c")
        assert not instance.acquire()
        holder.kill()
        holder.wait(SECONDS)
        assert instance.acquire()
        instance.release()


def test_the_server_of_a_window_opens_no_window(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R208."""
    monkeypatch.setenv(CHILD_MARK, "1")
    assert shell.run(PRETEND, []) == 2
    assert "does not start" in capsys.readouterr().err
