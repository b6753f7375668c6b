"""The desktop app in a real window: painted, used, and ended in every way.

Run by `make test-app`. Covers R194, R196, R197, R198, R200, R201, R202.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.window.desk import (
    ENGINE,
    KEY,
    LEAVE_SECONDS,
    OWN_PAGE,
    ROOT,
    App,
    app,
    display,
    until,
)

pytestmark = pytest.mark.window


@pytest.fixture(scope="module")
def screen() -> Iterator[str]:
    with display() as name:
        yield name


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "window-home"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a figure also where the test passes."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    return line


STARTER = ROOT / "sidecar" / "colibri" / "builtin" / "colibri-starter"


def ask_for_a_story(running: App) -> None:
    """From the first steps into a chat; clicks into the field, types, and sends."""
    until("the model", running.ready)
    running.front()
    # Answers are drawn, and a drawn one may be over before it has been looked at.
    until("an answer's words", lambda: story_streams(running))


def story_streams(running: App) -> bool:
    """Whether a story that is asked for in a new chat can be watched."""
    ended = running.state()["scheduler"]["completed"]
    running.keys("ctrl+shift+o")
    running.click(0.6, 0.9)
    running.type("Write a very long story about a hummingbird")
    running.keys("Return")
    before = running.colours()

    def over() -> bool:
        return bool(running.state()["scheduler"]["completed"] > ended)

    until("an answer", lambda: running.generating() > 3 or over())
    # Words on the screen, not only tokens in the server.
    until("the answer's pixels", lambda: running.colours() > before + 200 or over())
    return not over()


def test_a_chat_in_the_window_from_start_to_close(
    screen: str, home: Path, say: Callable[[str], None]
) -> None:
    """With an API key that nobody types: the window logs in by itself."""
    with app(screen, home, "--port", "0", COLI_API_KEY=KEY) as running:
        running.painted(OWN_PAGE)
        say(f"first paint: {time.monotonic() - running.began:.1f} s")
        running.page_is_there()
        running.painted()
        say(f"the dashboard: {time.monotonic() - running.began:.1f} s")
        running.shot("start")

        # A second start brings this one to the front.
        with app(screen, home) as second:
            told, _ = second.process.communicate(timeout=60)
            assert second.process.returncode == 0
            assert "brought to the front" in told
            assert running.process.poll() is None
            second.home = Path("/nowhere")  # what is left belongs to the first

        ask_for_a_story(running)
        running.shot("streaming")
        # Somebody else's answer, lest ours be at its end before the window is closed.
        with running.talking():
            # The window manager's close asks while an answer is written; Return is OK.
            running.close()
            until("the question", lambda: len(running.windows()) > 1)
            running.shot("question")
            assert running.process.poll() is None
            running.keys("Tab", "Return")
            say(f"closed while streaming: nothing left after {running.gone():.1f} s")
        assert running.process.wait() == 0
    kept = json.loads((home / "state" / "app" / "window.json").read_text())
    assert kept["width"] > 400


def test_the_brain_flashes_while_tokens_stream_and_rests_afterwards(
    screen: str, home: Path
) -> None:
    with app(screen, home, "--port", "0", "--model", str(STARTER)) as running:
        running.page_is_there()
        until("the model", running.ready)
        running.find("Brain")

        def rests() -> bool:
            return running.changes(2, 1) == [0, 0]

        until("a page at rest", rests)
        with running.talking():
            # A cell has some 600 pixels; the small brain in a chat has 3,000 in all.
            until("flashes", lambda: min(running.changes(3, 0.5)) > 5000)
            running.shot("brain")
        until("the brain at rest", rests)
        running.close()
        running.gone()


def test_files_and_links_go_through_the_system(screen: str, home: Path, tmp_path: Path) -> None:
    """The dialog is the toolkit's, and what is opened outside gets no library of ours."""
    record = tmp_path / "opened.txt"
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$1 libraries=$LD_LIBRARY_PATH" >> "{record}"\n')
    opener.chmod(0o755)
    # Else the browser that is this machine's favourite would be started past it.
    (opener.parent / "xdg-settings").symlink_to("/bin/false")

    def opened() -> list[str]:
        return record.read_text().splitlines() if record.exists() else []

    def chats() -> list[str]:
        return [chat["id"] for chat in running.get("/api/chats").get("chats", [])]

    def sent_files() -> list[str]:
        trees = [running.get(f"/api/chats/{chat}") for chat in chats()]
        parts = [part for tree in trees for one in tree["messages"] for part in one["parts"]]
        return [part["name"] for part in parts if part["type"] == "file"]

    note = tmp_path / "note.txt"
    note.write_text("A hummingbird is a small bird.\n")
    path = f"{opener.parent}:{os.environ['PATH']}"
    arguments = ("--port", "0", "--model", str(STARTER))
    with app(screen, home, *arguments, PATH=path, BROWSER="") as running:
        running.page_is_there()
        until("the model", running.ready)
        # For later: an answer that is a link wherever one clicks into it.
        words = "link " * 300
        answer = {"role": "assistant", "parts": [{"type": "text", "text": f"[{words}]({LINK})"}]}
        with httpx.Client(base_url=running.url, timeout=30, trust_env=False) as client:
            chat = client.post("/api/chats", json={"title": "Far away"}).json()["id"]
            put = client.put(f"/api/chats/{chat}/messages/m1", json={**answer, "active": True})
            assert put.status_code == 201, put.text

        running.front()
        running.keys("ctrl+shift+o")
        # A file for a message, through the page's own dialog.
        running.menu(0, 1)
        running.choose("Select Files", note)
        running.click(0.6, 0.9)
        running.type("What is it?")
        running.keys("Return")
        until("the file in the message", lambda: sent_files() == ["note.txt"])

        def hit() -> list[str]:
            running.keys("Escape")
            running.find("Far away")
            time.sleep(1)
            running.click(0.6, 0.5)
            return opened()

        until("the link", hit)
        running.shot("link")
        assert opened()[0] == f"{LINK} libraries="
        assert running.log.count("the page is there: http") == 1

        running.menu(0, 3)
        until("the page's address", lambda: f"{running.url}/app/ libraries=" in opened())
        running.menu(2, 1)
        until("the log", lambda: [one for one in opened() if one.endswith("app.log libraries=")])
        running.close()
        running.gone()


LINK = "https://example.com/colibri"


def test_a_model_that_cannot_be_read_is_told_and_another_one_chosen(
    screen: str, home: Path, tmp_path: Path
) -> None:
    """The one that was opened last time, whose files have been damaged since."""
    choices = home / "state" / "app" / "choices.json"
    broken, whole = tmp_path / "broken-model", tmp_path / "other-model"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"')
    shutil.copytree(STARTER, whole)
    choices.parent.mkdir(parents=True)
    choices.write_text(json.dumps({"model": str(broken)}))

    def trouble() -> str:
        return running.state().get("engine", {}).get("last_failure") or ""

    def served() -> list[str]:
        return [model["id"] for model in running.get("/v1/models").get("data", [])]

    with app(screen, home, "--port", "0") as running:
        running.page_is_there()
        running.painted()
        assert "config.json" in until("what is wrong", trouble)
        running.shot("unreadable")
        running.menu(0, 2)
        running.choose("Open folder", whole)
        until("the other model", lambda: served() == ["other-model"])
        # R196: a thread waits for a dialog, and the app is ended all the same.
        running.menu(0, 2)
        until("a dialog", lambda: any("Open folder" in line for line in running.windows()))
        os.kill(running.process.pid, signal.SIGTERM)
        running.gone()
    assert json.loads(choices.read_text())["model"] == str(whole)


def test_the_page_keeps_its_settings_and_the_window_its_place(
    screen: str, home: Path, free_port: int
) -> None:
    """R202. The page says which theme it has: the second time only its own storage can know."""
    choices = home / "state" / "app" / "choices.json"

    def dark() -> bool:
        return choices.exists() and json.loads(choices.read_text()).get("dark") is True

    places = []
    for start in range(2):
        choices.unlink(missing_ok=True)
        with app(screen, home, "--port", str(free_port), "--no-model") as running:
            running.page_is_there()
            running.painted()
            if start == 0:
                running.front()
                running.press("ctrl+shift+y", dark)
            until("a dark page", dark)
            running.shot("dark")
            running.close()
            running.gone()
            assert running.process.wait() == 0
        places.append((home / "state" / "app" / "window.json").read_text())
    assert places[0] == places[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(
    screen: str, home: Path, number: signal.Signals, say: Callable[[str], None]
) -> None:
    """R197: in the middle of an answer, with another program on the port; also after kill -9."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        with app(screen, home, "--port", str(port)) as running:
            running.page_is_there()
            until("the title", lambda: [one for one in running.windows() if "127.0.0.1:" in one])
            running.painted()
            assert f":{port}" not in running.url
            until("the model", running.ready)
            if number == signal.SIGTERM:
                running.shot("port-taken")
            body = {"prompt": "Once upon a time", "max_tokens": 4000, "stream": True}
            with httpx.stream(
                "POST", f"{running.url}/v1/completions", json=body, timeout=60, trust_env=False
            ) as answer:
                next(answer.iter_lines())
                os.kill(running.process.pid, number)
                say(f"{number.name}: nothing left after {running.gone():.1f} s")
            code = running.process.wait()
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    record = json.loads((home / "state" / "app" / "server.json").read_text())
    assert record["port"] != port


def test_the_window_outlives_its_engine_and_its_server(
    screen: str, home: Path, say: Callable[[str], None]
) -> None:
    """kill -9 of the engine process, then of the sidecar, both in the middle of an answer; then it
    is closed as always.
    """
    with app(screen, home, "--port", "0") as running:
        running.page_is_there()
        until("the model", running.ready)
        with running.talking():
            engine = until("the engine", lambda: running.named(ENGINE))
            until("an answer", lambda: running.generating() > 3)
            engine.kill()
            until("another engine", lambda: running.ready() and not engine.is_running())
            until("an answer", lambda: running.generating() > 3)
            url, server = running.url, until("the sidecar", lambda: running.named("--app-child"))
            second = until("the engine", lambda: running.named(ENGINE))
            server.kill()
            until("the end of its engine", lambda: not second.is_running(), LEAVE_SECONDS)
            running.logged("the server is running", 2)
        # At the same address, so the page that is there finds it again by itself.
        until("the model", running.ready)
        assert running.url == url
        assert running.log.count("the page is there: http") == 1
        running.close()
        say(f"closed after kills: nothing left after {running.gone():.1f} s")
        assert running.process.wait() == 0


def test_a_server_that_does_not_start_is_shown_with_its_last_words(screen: str, home: Path) -> None:
    with app(screen, home, "--parallel", "3", "--kv-slots", "1") as running:
        running.logged("the server is failed")
        running.painted(OWN_PAGE)
        running.shot("failed")
        running.close()
        running.gone()
        assert running.process.wait() == 0
    assert "KV slots" in running.log
