"""`coli chat` over a pipe and on a terminal, with a scripted server and with one of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from colibri import paths
from colibri.cli.chat import Talk
from colibri.cli.chat_client import Client, Model, Piece
from colibri.engine.fake import Script
from colibri.errors import NetworkError, RequestError, UsageError
from colibri.models.about import About
from colibri.settings import Settings
from tests.support.fakeserver import FakeServer, served_model

CHAT = [sys.executable, "-m", "colibri.cli", "chat"]
# Makes the terminal that it is given the controlling one, so that Ctrl-C becomes a signal, which
# background jobs of a shell, and what they start, would ignore.
ON_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
TIMEOUT = 20
ABOUT = About("A note.", ("What is a dog?", "Who are you?"))


def environment() -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "TERM": "dumb"}


@contextmanager
def serving(*scripts: Script, about: About = ABOUT, **options: object) -> Iterator[FakeServer]:
    server = FakeServer(*scripts, model=served_model(about=about), **options)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()


def piped(url: str, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHAT, "--url", url, *arguments],
        input=typed,
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT,
        env=environment(),
    )


class Terminal:
    """`coli chat` on a terminal of its own; a context that leaves no process behind."""

    def __init__(self, *arguments: str) -> None:
        self._fd, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *CHAT, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment(),
            start_new_session=True,
        )
        os.close(inner)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> str:
        """What was shown up to the text, which must come."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.seen:
            ready, _, _ = select.select([self._fd], [], [], 0.1)
            if ready:
                try:
                    self.seen += os.read(self._fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
            if time.monotonic() > deadline:
                break
        before, found, self.seen = self.seen.partition(text)
        assert found, f"{text!r} was not shown, only {before!r}"
        return before

    def end(self) -> int:
        """Waits until it has ended by itself."""
        return self._process.wait(TIMEOUT)


def test_every_line_of_a_pipe_is_a_turn_and_stdout_has_the_answers_alone() -> None:
    with serving(Script(pieces=("One.",)), Script(pieces=("Two.",))) as server:
        result = piped(server.url, "first\n\nsecond\n")
        assert (result.returncode, result.stdout, result.stderr) == (0, "One.\nTwo.\n", "")
        result = piped(server.url, "from the pipe", "say:", "-")
        assert (result.returncode, result.stdout.count("\n")) == (0, 1)


def test_a_failed_answer_ends_a_pipe_with_an_error() -> None:
    with serving(Script(pieces=("a", "b"), fail_at=1)) as server:
        result = piped(server.url, "first\nsecond\n")
    assert result.returncode != 0
    assert result.stderr.startswith("Error: ")


def test_no_server_at_the_address_is_told() -> None:
    result = piped("http://127.0.0.1:9", "hi")
    assert result.returncode == NetworkError.exit_code
    assert "127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:b", "http://[", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Client(url)


def test_an_answer_cannot_move_the_cursor() -> None:
    with serving(Script(pieces=("a\x1b[2J", "\x07b\u202ec\n\td"))) as server:
        assert piped(server.url, "hi").stdout == "a[2Jbc\n\td\n"


def test_a_terminal_shows_examples_streams_and_ends_with_ctrl_d() -> None:
    script = Script(pieces=("Hello", " there."))
    with serving(script, script) as server, Terminal("--url", server.url) as terminal:
        terminal.wait_for("A note.")
        terminal.wait_for("What is a dog?")
        terminal.wait_for("> ")
        terminal.type("hi\r")
        terminal.wait_for("Hello there.")
        terminal.wait_for("> ")
        terminal.type("/nonsense\r")
        terminal.wait_for("/help lists them")
        terminal.type("/help\r")
        terminal.wait_for("/new")
        terminal.type('"""one\rtwo"""\r')
        terminal.wait_for("Hello there.")
        terminal.wait_for("> ")
        terminal.type("/model other\r")
        terminal.wait_for("keeps its model")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.end() == 0


def test_the_starter_model_names_a_way_to_chat_that_works_where_the_program_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(about=About("A note.", starter=True)) as server:
        starter = Client(server.url).model()
    said = []
    for model, source in ((starter, True), (starter, False), (Model("mine", "A note."), True)):
        monkeypatch.setattr(paths, "in_source_tree", lambda here=source: here)
        talk = Talk(Settings(), ExitStack())
        talk.model = model
        talk.greet()
        said.append(capsys.readouterr().err)
    assert "make model" in said[0]
    assert "coli chat --model FOLDER" in said[1]
    assert "make" not in said[1]
    assert "chats" not in said[2]


def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    script = Script(pieces=("on and ",), repeat=True, token_ms=5)
    with serving(script, context=100_000) as server, Terminal("--url", server.url) as terminal:
        terminal.wait_for("> ")
        terminal.type("go\r")
        terminal.wait_for("on and on")
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("/quit")
        terminal.wait_for("> ")
        terminal.type("/quit\r")
        assert terminal.end() == 0


def test_the_client_tells_refusals_from_broken_answers() -> None:
    with serving(Script(pieces=("x",)), context=64) as server:
        client = Client(server.url)
        assert client.model().examples == ABOUT.examples
        long = [{"role": "user", "content": "word " * 400}]
        with pytest.raises(RequestError):
            list(client.answer("m", long, thinking=False))
        pieces = list(client.answer("m", [{"role": "user", "content": "hi"}], thinking=False))
        assert pieces[0] == Piece("text", "x")
        assert pieces[-1] == Piece("end", finish="stop")


def test_the_key_of_a_protected_server_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Script(pieces=("yes",)), api_key="secret") as server:
        assert piped(server.url, "hi").returncode != 0
        monkeypatch.setenv("COLI_API_KEY", "secret")
        assert piped(server.url, "hi").stdout == "yes\n"


def test_without_a_server_one_is_started_and_ends_with_the_chat(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`no_leaked_processes` looks that nothing of it is left."""
    from tests.support import draftmodel

    folder = draftmodel.make(tmp_path / "tiny")
    monkeypatch.setenv("COLI_PORT", str(free_port))
    result = subprocess.run(
        [*CHAT, "--model", str(folder), "--ctx", "256", "hi"],
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT,
        env=environment(),
    )
    assert result.returncode == 0, result.stderr
    assert "Loading tiny" in result.stderr
