"""A program under test: how its commands are run, and the server while it runs.

For: `smoke.steps`. With a `root` everything runs inside that folder (chroot), where there may be no
display, no Python and no shell tools; HTTP reaches it all the same.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND_SECONDS = 120.0
START_SECONDS = 60.0
STOP_SECONDS = 5.0
_READY = re.compile(r"at (http://[\w.:\[\]]+)")


class SmokeError(Exception):
    """A step of the smoke test failed; the message says which and how."""


@dataclass
class Program:
    """`folder` holds `sidecar` and `coli`, as seen from inside; `home` gets all the program writes.
    `model` is what `--model` says, empty for the program's own.
    """

    folder: str
    home: str
    root: Path | None = None
    model: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, name: str, *arguments: str) -> list[str]:
        program = f"{self.folder}/{name}"
        if os.name == "nt":
            return [f"{program}.exe", *arguments]
        # By its full path: the program's own environment has no folder of administrators' commands.
        chroot = [shutil.which("chroot") or "/usr/sbin/chroot", str(self.root)]
        return [*(chroot if self.root else []), program, *arguments]

    def variables(self) -> dict[str, str]:
        """An environment that has nothing of ours: no display, no Python, a home of its own."""
        kept = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        if os.name == "nt":
            kept = {name: os.environ[name] for name in ("SYSTEMROOT", "PATH") if name in os.environ}
        return {**kept, "HOME": self.home, "USERPROFILE": self.home, **self.environment}

    def run(self, name: str, *arguments: str) -> str:
        """What a command prints. Raises SmokeError unless it ends with 0."""
        result = subprocess.run(  # noqa: S603 - the program under test
            self.command(name, *arguments),
            env=self.variables(),
            cwd="/" if self.root else None,
            capture_output=True,
            encoding="utf-8",
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if result.returncode:
            words = (result.stdout + result.stderr)[-2000:]
            line = " ".join((name, *arguments))
            raise SmokeError(f"{line} ended with {result.returncode}: {words}")
        return result.stdout

    def serve(self, log: Path) -> Server:
        return Server(self, log)

    def left_running(self) -> list[int]:
        """Processes whose program lies in our folder; Linux only, elsewhere empty."""
        inside = Path(self.folder)
        place = (self.root / inside.relative_to("/") if self.root else inside).resolve()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "exe").resolve().is_relative_to(place):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


class Server:
    """`sidecar --no-window` while it runs. A context manager; leaves nothing running."""

    def __init__(self, program: Program, log: Path) -> None:
        self._program = program
        self._log = log
        self.url = ""
        self.http_seconds = self.ready_seconds = 0.0

    def __enter__(self) -> Server:
        began = time.monotonic()
        arguments = ["--no-window", "--port", str(free_port())]
        if self._program.model:
            arguments += ["--model", self._program.model]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program under test
                self._program.command("sidecar", *arguments),
                env=self._program.variables(),
                cwd="/" if self._program.root else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name == "posix",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        self.url = f"http://127.0.0.1:{arguments[2]}"
        try:
            self._wait(began)
        except BaseException:
            self._kill()
            raise
        return self

    def _wait(self, began: float) -> None:
        deadline = began + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                code = self._process.returncode
                raise SmokeError(f"the server ended with {code}: {self.words()}")
            if not self.http_seconds and self._answers():
                self.http_seconds = time.monotonic() - began
            if _READY.search(self.words()):
                self.ready_seconds = time.monotonic() - began
                self.http_seconds = self.http_seconds or self.ready_seconds
                return
            time.sleep(0.02)
        raise SmokeError(f"the server was not ready after {START_SECONDS:g} s: {self.words()}")

    def _answers(self) -> bool:
        try:
            return get(f"{self.url}/health", seconds=1)[0] < http.client.INTERNAL_SERVER_ERROR
        except (OSError, http.client.HTTPException):
            return False

    def words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def stop(self) -> tuple[int, float]:
        """Asks it to stop; returns exit code and seconds. Raises SmokeError when it stays."""
        began = time.monotonic()
        # Windows knows no SIGTERM: there a console's Ctrl-Break asks.
        self._process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise SmokeError(f"the server ran on after SIGTERM: {self.words()}") from None
        return code, time.monotonic() - began

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    import socket  # noqa: PLC0415 - only here

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open(url: str, seconds: float) -> tuple[http.client.HTTPConnection, str]:
    host, _, path = url.removeprefix("http://").partition("/")
    return http.client.HTTPConnection(host, timeout=seconds), f"/{path}"


def get(url: str, seconds: float = 10) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of a GET that a browser would send."""
    connection, path = _open(url, seconds)
    try:
        connection.request("GET", path, headers={"Accept": "text/html,*/*"})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def stream(url: str, body: Mapping[str, Any], seconds: float = 60) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer."""
    connection, path = _open(url, seconds)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise SmokeError(f"{path} was answered {answer.status}: {answer.read()[:500]!r}")
        for line in answer:
            text = line.decode("utf-8").strip()
            if text.startswith("data: ") and text != "data: [DONE]":
                yield json.loads(text.removeprefix("data: "))
    finally:
        connection.close()


def copy_tree(source: Path, target: Path) -> None:
    """Copies a model folder to where the program can see it."""
    shutil.copytree(source, target, symlinks=True)
