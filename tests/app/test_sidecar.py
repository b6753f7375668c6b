"""The real sidecar as a window starts it: handshake, ports, key, and its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from colibri import __version__, cli
from colibri.cli import serve as serve_command
from colibri.cli import web
from colibri.errors import PortInUseError
from colibri.settings import Settings
from colibri_app import entry, serving, shell
from colibri_app.handshake import Handshake, Wishes, encode, is_handshake, parse_handshake
from tests.support.fakeserver import FakeServer

SECONDS = 90


@contextmanager
def running() -> Iterator[FakeServer]:
    server = FakeServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def child(*arguments: str, wishes: Wishes, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join(one for one in sys.path if one)
    with subprocess.Popen(
        [sys.executable, "-m", "colibri_app.entry", serving.APP_CHILD_FLAG, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **environ},
    ) as process:
        assert process.stdin
        process.stdin.write(encode(wishes))
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def greeting(process: subprocess.Popen[bytes]) -> Handshake:
    assert process.stdout
    assert process.stderr
    line = process.stdout.readline()
    assert is_handshake(line), process.stderr.read()
    return parse_handshake(line)


@pytest.mark.e2e
def test_a_sidecar_says_where_it_is_and_leaves_with_its_window(
    smollm2_folder: Path, free_port: int
) -> None:
    """Another program has its port, and the server has a key that the window does not know."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        arguments = ("--model", str(smollm2_folder), "--port", str(free_port))
        with child(*arguments, wishes=Wishes(reuse=True), COLI_API_KEY="secret") as process:
            found = greeting(process)
            assert found.wanted_port == free_port
            assert found.port != free_port
            assert found.version == __version__
            assert found.pid == process.pid
            url = f"{found.url}/api/state"
            assert httpx.get(url).status_code == 401
            bearer = {"Authorization": f"Bearer {found.token}"}
            assert httpx.get(url, headers=bearer).json()["scheduler"]["active"] == 0
            login = httpx.post(f"{found.url}/api/session", json={"key": found.token})
            assert login.json()["logged_in"] is True
            assert login.json()["instance"] == found.instance
            engine = psutil.Process(process.pid).children(recursive=True)
            assert engine
            assert process.stdin
            process.stdin.close()
            assert process.wait(SECONDS) == 0
            psutil.wait_procs(engine, SECONDS)
            assert not [one for one in engine if one.is_running()]


def test_a_server_of_ours_on_the_port_is_used_where_that_is_wished() -> None:
    with running() as server:
        port = str(server.port)
        with child("--port", port, wishes=Wishes(reuse=True)) as process:
            found = greeting(process)
            assert process.wait(SECONDS) == 0
        assert found.reused
        assert found.instance == httpx.get(f"{server.url}/api/session").json()["instance"]


def test_a_window_that_is_gone_before_it_says_anything_gets_no_server() -> None:
    with child(wishes=Wishes()) as process:
        pass
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-m", "colibri_app.entry", serving.APP_CHILD_FLAG],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert process.returncode != 0


def test_a_window_opens_without_any_model_too() -> None:
    with child("--no-model", "--port", "0", wishes=Wishes()) as process:
        found = greeting(process)
        models = httpx.get(f"{found.url}/api/models").json()["models"]
        assert process.stdin
        process.stdin.close()
        assert process.wait(SECONDS) == 0
    assert [model["name"] for model in models if model["loaded"]] == []


def test_a_model_that_does_not_open_leaves_a_server_that_says_so(tmp_path: Path) -> None:
    """A window that came up with a failure alone could not load another model."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"')
    (tmp_path / "nothing").mkdir()
    for given, words in (
        (tmp_path, "config.json"),
        (tmp_path / "nothing", "holds no config.json"),
        (tmp_path / "gone", f"{tmp_path / 'gone'}: there is no such folder"),
    ):
        with child("--model", str(given), "--port", "0", wishes=Wishes()) as process:
            found = greeting(process)
            bearer = {"Authorization": f"Bearer {found.token}"}
            engine = httpx.get(f"{found.url}/api/state", headers=bearer).json()["engine"]
            assert engine["state"] == "unloaded"
            assert words in engine["last_failure"]
            assert process.stdin
            process.stdin.close()
            process.wait(SECONDS)


# ---- without a window ----


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What would be served: whether a browser would be opened."""
    calls: list[bool] = []

    def run(_chosen: Settings, on_ready: object = None) -> int:
        calls.append(on_ready is not None)
        return 0

    monkeypatch.setattr(serve_command, "run", run)
    return calls


def test_without_a_display_the_server_runs_alone(
    served: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R204."""
    monkeypatch.setattr(entry, "has_display", lambda: False)
    assert cli.run(entry.sidecar, "sidecar", []) == 0
    assert served == [False]
    assert "no display" in capsys.readouterr().err


def test_without_a_toolkit_the_browser_is_used(
    served: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R204."""

    def refuse(*_arguments: object) -> int:
        raise shell.NoWindowError("There is no window: nothing is installed.")

    monkeypatch.setattr(entry, "has_display", lambda: True)
    monkeypatch.setattr(shell, "run", refuse)
    assert cli.run(entry.sidecar, "sidecar", []) == 0
    assert cli.run(entry.sidecar, "sidecar", ["--no-browser"]) == 0
    assert cli.run(entry.sidecar, "sidecar", ["--no-window"]) == 0
    assert served == [True, False, False]
    assert "nothing is installed. The web browser is used" in capsys.readouterr().err


def test_a_server_without_a_window_imports_no_toolkit() -> None:
    code = (
        "import sys; from colibri_app import entry; from colibri.cli import serve\n"
        "toolkits = {'webview', 'gi', 'PySide6', 'PyQt6', 'tkinter', 'colibri_app.window'}\n"
        "serve.run = lambda *_: print(sorted(toolkits & set(sys.modules)))\n"
        "sys.argv = ['sidecar', *sys.argv[1:]]; entry.main()"
    )
    path = os.pathsep.join(one for one in sys.path if one)
    environ = {**os.environ, "PYTHONPATH": path}
    environ.pop("DISPLAY", None)
    environ.pop("WAYLAND_DISPLAY", None)
    for arguments in (["--no-window"], []):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env=environ,
            timeout=SECONDS,
            check=False,
        )
        assert done.stdout.strip() == "[]", done.stderr


def test_a_server_answers_before_anything_is_imported_that_only_some_pages_need() -> None:
    """Its start is mostly imports: what makes the app must not bring these along."""
    code = (
        "import sys; from colibri.cli import serve; from colibri_app import entry, serving\n"
        "from colibri.api import app, server, services\n"
        "from colibri.models import catalog, loading, served\n"
        "heavy = {'numpy', 'asyncio', 'filelock', 'simple_websocket', 'colibri.engine.backend',\n"
        "         'colibri.models.forecast', 'colibri.models.verify', 'colibri.kv.store'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_smallest_model_answers_where_none_was_chosen(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = isolated_home / "data" / "models"
    monkeypatch.setattr(
        "colibri.models.catalog.installed",
        lambda: [
            _installed(models / "broken", 1, "is damaged"),
            _installed(models / "large", 900),
            _installed(models / "small", 20),
        ],
    )
    assert serving.with_a_model(Settings()).model == str(models / "small")
    assert serving.with_a_model(Settings(model="large")).model == "large"
    monkeypatch.setattr("colibri.models.catalog.installed", list)
    assert serving.with_a_model(Settings()).no_model
    monkeypatch.setattr("colibri.paths.starter_dir", lambda: models / "starter")
    # Then `model_folder` finds it, as for `coli serve`.
    assert serving.with_a_model(Settings()) == Settings()


def _installed(folder: Path, size: int, problem: str = "") -> object:
    from colibri.models.catalog import Installed

    return Installed(folder.name, folder, bytes=size, problem=problem)


def test_coli_web_opens_the_browser_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(web, "open_browser", opened.append)

    def ready(_chosen: Settings, on_ready: object) -> int:
        on_ready("http://127.0.0.1:5")  # type: ignore[operator]
        return 0

    monkeypatch.setattr(web, "run", ready)
    assert cli.run(cli.coli, "coli", ["web", "--no-browser"]) == 0
    assert opened == []
    assert cli.run(cli.coli, "coli", ["web"]) == 0
    assert opened == ["http://127.0.0.1:5/app/"]


def test_coli_web_uses_the_server_that_runs_already_and_no_other(
    monkeypatch: pytest.MonkeyPatch, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(web, "open_browser", opened.append)

    def taken(chosen: Settings, *_: object) -> int:
        raise PortInUseError(f"port {chosen.port} is in use.")

    monkeypatch.setattr(web, "run", taken)
    with running() as server:
        port = server.port
        assert cli.run(cli.coli, "coli", ["web", "--port", str(port)]) == 0
        assert opened == [f"http://127.0.0.1:{port}/app/"]
        assert "runs already" in capsys.readouterr().out
    assert cli.run(cli.coli, "coli", ["web", "--port", str(free_port)]) == 5
    assert len(opened) == 1
