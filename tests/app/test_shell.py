"""What the app decides, with a window and a sidecar that only write down what they are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri_app import places, shell
from colibri_app.bridge import Said
from colibri_app.handshake import Handshake
from colibri_app.instance import Instance
from colibri_app.shell import App
from colibri_app.supervisor import State
from colibri_app.watchdog import Verdict

HANDSHAKE = Handshake("http://127.0.0.1:8000", 8000, 42, "token", "1.0", "abc")


class Window:
    """Writes down the calls; dialogs answer what the test has put there."""

    replaces_silently = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[bool] = []
        self.save_at: Path | None = None
        self.folder: Path | None = None

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def confirm(self, _title: str, text: str) -> bool:
        self.calls.append(("confirm", text))
        return self.answers.pop(0)

    def choose_save(self, name: str) -> Path | None:
        self.calls.append(("choose_save", name))
        return self.save_at

    def choose_folder(self) -> Path | None:
        return self.folder

    def told(self, name: str) -> list[Any]:
        return [call[1] if len(call) > 1 else None for call in self.calls if call[0] == name]


class Sidecar:
    """A supervisor that starts nothing."""

    def __init__(self) -> None:
        self.state = State("running", HANDSHAKE)
        self.restarted: list[list[str] | None] = []
        self.arguments: tuple[str, ...] = ()

    def restart(self, arguments: list[str] | None = None) -> None:
        self.restarted.append(arguments)

    def stop(self) -> None:
        self.restarted.clear()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> tuple[App, Window, Sidecar]:
    return make_app(monkeypatch)


def make_app(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[App, Window, Sidecar]:
    monkeypatch.setenv("LC_ALL", "C")
    app = App(None, Instance(places.lock(), places.contact()), [sys.executable], arguments)
    window, sidecar = Window(), Sidecar()
    app._window = window  # type: ignore[assignment]
    app._supervisor = sidecar  # type: ignore[assignment]
    app._on_opened()
    return app, window, sidecar


def test_the_dashboard_is_loaded_once_and_not_again_by_a_restart_at_the_same_address(
    desk: tuple[App, Window, Sidecar],
) -> None:
    app, window, _ = desk
    assert window.told("show_url") == ["http://127.0.0.1:8000/app/?shell=1"]
    for state in (State("waiting"), State("starting"), State("running", HANDSHAKE)):
        app._on_state(state)
    assert len(window.told("show_url")) == 1
    assert window.told("show_html") == []
    moved = Handshake("http://127.0.0.1:9", 9, 42, "token", "1.0", "abc", wanted_port=8000)
    app._on_state(State("running", moved))
    assert window.told("show_url")[-1] == "http://127.0.0.1:9/app/?shell=1"
    assert window.told("title")[-1] == "Colibri (127.0.0.1:9)"
    app._on_said(Said(0, "ready", {}))
    (notice,) = window.told("tell")
    assert notice["code"] == "port_taken"
    assert notice["values"] == {"wanted": 8000, "port": 9}


def test_a_server_that_failed_and_an_empty_page_are_shown_with_ways_on(
    desk: tuple[App, Window, Sidecar],
) -> None:
    app, window, sidecar = desk
    app._on_state(State("failed", problem="exit code 2", last_words=("no such option",)))
    assert "no such option" in window.told("show_html")[-1]
    app._on_said(Said(0, "retry", {}))
    assert window.told("show_url")[-1].endswith("?shell=1")
    app._on_verdict(Verdict.EMPTY)
    assert "does not appear" in window.told("show_html")[-1]
    # Not even that page appears: a native dialog is all that is left.
    window.answers = [False]
    app._on_verdict(Verdict.EMPTY)
    assert window.told("confirm")
    sidecar.state = State("failed")
    app._on_said(Said(0, "retry", {}))
    assert sidecar.restarted == [None]


def test_closing_asks_only_while_an_answer_is_written(
    desk: tuple[App, Window, Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, window, _ = desk
    ended: list[bool] = []
    monkeypatch.setattr(app, "quit", lambda: ended.append(True))
    busy = {"http://127.0.0.1:8000": 1}
    monkeypatch.setattr(shell.sidecar, "answers_in_work", lambda url, _: busy.get(url, 0))
    window.answers = [False, True]
    app._close_politely()
    assert ended == []
    app._close_politely()
    assert ended == [True]
    busy.clear()
    app._close_politely()
    assert ended == [True, True]
    assert len(window.told("confirm")) == 2


def test_a_text_is_saved_whole_and_replaces_nothing_unasked(
    desk: tuple[App, Window, Sidecar], tmp_path: Path
) -> None:
    app, window, _ = desk
    wish = Said(7, "save", {"name": "../../chat.md", "text": "new"})

    def answer() -> dict[str, Any]:
        app._on_said(wish)
        message: dict[str, Any] = window.told("tell")[-1]
        assert (message["kind"], message["id"]) == ("answer", 7)
        return dict(message["value"])

    assert answer() == {"path": None, "problem": None}  # cancelled
    assert window.told("choose_save") == ["chat.md"]
    window.save_at = tmp_path / "chat.md"
    assert answer() == {"path": str(window.save_at), "problem": None}
    assert window.save_at.read_text() == "new"
    window.save_at.write_text("precious")
    window.answers = [False, True]
    assert answer() == {"path": None, "problem": None}
    assert window.save_at.read_text() == "precious"
    assert answer()["path"]
    assert window.save_at.read_text() == "new"
    window.save_at = tmp_path / "no" / "such" / "folder.md"
    assert "folder.md" in answer()["problem"]
    assert [item.name for item in tmp_path.iterdir() if item.suffix == ".part"] == []


def test_a_page_gets_the_token_and_nothing_for_what_it_should_not_want(
    desk: tuple[App, Window, Sidecar],
) -> None:
    app, window, _ = desk
    app._on_said(Said(1, "token", {}))
    assert window.told("tell") == [{"kind": "answer", "id": 1, "value": "token"}]
    before = len(window.calls)
    app._on_said(Said(2, "__class__", {}))
    app._on_said(Said(3, "quit", {}))
    assert len(window.calls) == before


def test_a_model_chosen_in_the_window_is_served_now_and_next_time(
    desk: tuple[App, Window, Sidecar], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app, window, sidecar = desk
    monkeypatch.setattr(shell.sidecar, "answers_in_work", lambda *_: 0)
    app._on_said(Said(0, "open_model", {}))  # cancelled
    assert sidecar.restarted == []
    window.folder = tmp_path
    app._on_said(Said(0, "open_model", {}))
    assert sidecar.restarted == [["--model", str(tmp_path)]]
    assert json.loads(places.choices().read_text())["model"] == str(tmp_path)
    again, _, _ = make_app(monkeypatch, "--port", "5")
    assert again._arguments() == ("--port", "5", "--model", str(tmp_path))
    given, window, sidecar = make_app(monkeypatch, "--model", "other")
    assert given._arguments() == ("--model", "other")
    window.folder = tmp_path
    given._on_said(Said(0, "open_model", {}))
    assert sidecar.restarted == [["--model", str(tmp_path)]]


def answer_as(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]]) -> list[str]:
    """The server answers these, one after the other; what was asked is written down."""
    asked: list[str] = []

    def ask(url: str, token: str | None = None, _seconds: float = 0) -> Any:
        assert token == HANDSHAKE.token
        route = url.removeprefix(HANDSHAKE.url)
        asked.append(route)
        return answers[route].pop(0)

    monkeypatch.setattr(shell.sidecar, "ask", ask)
    monkeypatch.setattr(shell, "_TASK_SECONDS", 0)
    return asked


def load(state: str) -> dict[str, Any]:
    other = {"id": "t0", "kind": "load", "state": "done"}
    return {"tasks": [other, {"id": "t1", "kind": "load", "name": "b", "state": state}]}


def test_a_model_loaded_by_the_page_is_served_next_time_too(
    desk: tuple[App, Window, Sidecar], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app, _, sidecar = desk
    models = [{"folder": "/m/a", "loaded": False}, {"folder": str(tmp_path), "loaded": True}]
    answers = {
        "/api/tasks": [load("running"), None, load("done")],
        "/api/models": [{"models": models}],
    }
    asked = answer_as(monkeypatch, answers)
    app._on_said(Said(0, "loading", {"task": "t1"}))
    assert asked == ["/api/tasks"] * 3 + ["/api/models"]
    assert json.loads(places.choices().read_text())["model"] == str(tmp_path)
    # A server that ends unexpectedly comes back with it; nothing is restarted for it.
    assert sidecar.arguments == ("--model", str(tmp_path))
    assert sidecar.restarted == []
    again, _, _ = make_app(monkeypatch)
    assert again._arguments() == ("--model", str(tmp_path))


@pytest.mark.parametrize(
    ("task", "tasks"),
    [
        ("t1", load("failed")),
        ("t1", load("cancelled")),
        ("t9", load("done")),
        ("t1", {"tasks": [{"id": "t1", "kind": "verify", "state": "done"}, 5]}),
        ("t1", []),
        (None, load("done")),
    ],
)
def test_what_was_not_loaded_by_the_page_chooses_nothing(
    desk: tuple[App, Window, Sidecar], monkeypatch: pytest.MonkeyPatch, task: Any, tasks: Any
) -> None:
    app, _, _ = desk
    answer_as(monkeypatch, {"/api/tasks": [tasks]})
    app._on_said(Said(0, "loading", {"task": task}))
    assert not places.choices().exists()


def test_a_load_in_a_server_that_was_there_before_the_window_chooses_nothing(
    desk: tuple[App, Window, Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _, sidecar = desk
    sidecar.state = State("running", Handshake("http://127.0.0.1:8000", 8000, 1, None, "1", "i"))
    assert answer_as(monkeypatch, {}) == []
    app._on_said(Said(0, "loading", {"task": "t1"}))
    assert not places.choices().exists()


@pytest.mark.parametrize("name", ["glm", "a" * 300])
def test_a_chosen_model_that_has_vanished_is_asked_for_until_the_page_has_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The sidecar then says that it is not there, where it would serve another one unasked."""
    gone = tmp_path / "drive" / name
    asked = ("--model", str(gone))
    places.choices().parent.mkdir(parents=True)
    places.choices().write_text(json.dumps({"model": str(gone)}))
    for said in (False, True):
        app, _, _ = make_app(monkeypatch)
        assert app._arguments() == asked
        if said:
            app._on_said(Said(0, "ready", {}))
    app, _, _ = make_app(monkeypatch)
    assert app._arguments() == ()
    assert json.loads(places.choices().read_text())["model"] == str(gone)


def test_a_chosen_model_that_comes_back_is_served_and_missed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drive = tmp_path / "drive"
    asked = ("--model", str(drive))
    places.choices().parent.mkdir(parents=True)
    places.choices().write_text(json.dumps({"model": str(drive)}))
    found = []
    for there in (False, False, True, False, False):
        if there:
            drive.mkdir()
        elif drive.exists():
            drive.rmdir()
        app, _, _ = make_app(monkeypatch)
        found.append(app._arguments())
        app._on_said(Said(0, "ready", {}))
    assert found == [asked, (), asked, asked, ()]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model": 5, "dark": "yes"}', "[" * 100_000])
def test_damaged_choices_choose_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    places.choices().parent.mkdir(parents=True)
    places.choices().write_text(text)
    app, _, _ = make_app(monkeypatch)
    assert app._arguments() == ()
    assert not app._dark


def test_only_addresses_of_the_web_are_opened_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(shell.webbrowser, "open", opened.append)
    for address in ("https://example.com", "file:///etc/passwd", "javascript:alert(1)", ""):
        App._open_outside(address)
    assert opened == ["https://example.com"]
