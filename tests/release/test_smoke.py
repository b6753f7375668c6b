"""The smoke test itself: each of its steps can fail, and says what is wrong."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from smoke import steps
from smoke.__main__ import releases
from smoke.program import Program, Server, SmokeError

PAGE = b'<script src="/app/assets/a.js"></script><link href="/app/assets/a.css">'
LICENCES = b"Licences"


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers from a table of path to content type and body; a chat from one of events."""

    pages: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def do_GET(self) -> None:
        kind, body = self.pages.get(self.path, ("text/html", PAGE))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that passes; tests break one thing of it."""
    pages = {
        "/app/assets/a.js": ("text/javascript", b"1"),
        "/app/assets/a.css": ("text/css", b"a{}"),
        "/app/third-party.txt": ("text/plain; charset=utf-8", LICENCES),
        "/v1/models": ("application/json", json.dumps({"data": [{"id": "m"}]}).encode()),
        "/v1/chat/completions": ("text/event-stream", events("Hello", "stop")),
    }
    monkeypatch.setattr(Answers, "pages", pages)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = Server.__new__(Server)
        found.url = f"http://127.0.0.1:{listener.server_address[1]}"
        yield found
        listener.shutdown()
        thread.join()


def events(text: str, reason: str) -> bytes:
    choices = [{"delta": {"content": text}}, {"delta": {}, "finish_reason": reason}]
    lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    return ("".join(lines) + "data: [DONE]\n\n").encode()


def test_a_whole_server_passes(server: Server) -> None:
    steps.dashboard(server)
    steps.chat(server)


@pytest.mark.parametrize(
    ("path", "kind", "body", "words"),
    [
        ("/app/assets/a.js", "text/html", PAGE, "a.js was answered"),  # R193: the page instead
        ("/app/assets/a.css", "text/css", b"", "a.css was answered"),
        ("/app/", "text/html", b"<p>not built</p>", "names no .js"),
        ("/app/third-party.txt", "text/html", PAGE, "licences is missing"),
    ],
)
def test_a_broken_dashboard_is_found(
    server: Server, path: str, kind: str, body: bytes, words: str
) -> None:
    Answers.pages[path] = (kind, body)
    with pytest.raises(SmokeError, match=words):
        steps.dashboard(server)


@pytest.mark.parametrize(
    ("text", "reason", "words"), [("", "stop", "empty"), ("Hi", "error", "ended with 'error'")]
)
def test_a_broken_answer_is_found(server: Server, text: str, reason: str, words: str) -> None:
    Answers.pages["/v1/chat/completions"] = ("text/event-stream", events(text, reason))
    with pytest.raises(SmokeError, match=words):
        steps.chat(server)


def program(folder: Path, script: str) -> Program:
    for name in ("coli", "sidecar"):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return Program(str(folder), str(folder))


def test_a_command_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(SmokeError, match=r"coli --version ended with 3: no engine"):
        steps.version(program(tmp_path, "echo no engine >&2; exit 3"))


def test_commands_of_two_versions_are_found(tmp_path: Path) -> None:
    script = 'test "$(basename $0)" = coli && echo coli, version 1 || echo sidecar, version 2'
    with pytest.raises(SmokeError, match=r"versions \['1', '2'\]"):
        steps.version(program(tmp_path, script))


def test_a_server_that_ends_at_once_is_told_with_its_words(tmp_path: Path) -> None:
    broken = program(tmp_path, "echo the engine is missing; exit 4")
    with (
        pytest.raises(SmokeError, match="ended with 4: the engine is missing"),
        broken.serve(tmp_path / "log"),
    ):
        pass


def test_a_program_that_writes_beside_itself_is_found(tmp_path: Path) -> None:
    tried = program(tmp_path, "true")
    before = steps.listing(tried)
    steps.untouched(tried, before)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(SmokeError, match=r"settings\.json"):
        steps.untouched(tried, before)


def test_the_program_sees_nothing_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "PYTHONPATH", "LD_LIBRARY_PATH", "COLI_MODEL"):
        monkeypatch.setenv(name, "x")
    assert set(Program("/p", "/h").variables()) <= {"PATH", "LANG", "HOME", "USERPROFILE"}


def test_a_folder_stands_for_the_releases_in_it(tmp_path: Path) -> None:
    for name in ("b.deb", "a.tar.gz", "c.cdx.json", "SHA256SUMS"):
        (tmp_path / name).touch()
    assert [path.name for path in releases([tmp_path])] == ["a.tar.gz", "b.deb"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SmokeError, match="no release"):
        releases([tmp_path / "empty"])
