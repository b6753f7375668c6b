"""Where real clients meet the server: two servers, folders for their files, and processes.

For: `tests.clients.run` and its steps. Not for: pytest. `real` is `coli serve` on SmolLM2;
`scripted` is the same HTTP server over the scripted engine, so that a step can say what the
model answers. Clients get a home of their own and an environment without the user's settings, and
are told not to speak to anyone else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from colibri.engine.fake import Script
from tests.clients import environments
from tests.support.fakeserver import FakeServer
from tests.support.serveprocess import ServeProcess

CLIENT_SECONDS = 600
MODEL = "local-model"
# What programs of this kind send elsewhere unless told not to, and where they look for colours.
QUIET = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "NO_PROXY": "127.0.0.1,localhost",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class StepError(Exception):
    """What a step saw and did not want to see."""


def need(condition: object, seen: object) -> None:
    """Raises StepError with what was seen unless the condition holds."""
    if not condition:
        raise StepError(str(seen)[-2000:])


@dataclass
class Output:
    """What a client's process left; `text` is stdout without colours."""

    code: int
    text: str
    errors: str

    @property
    def all(self) -> str:
        return f"{self.text}\n{self.errors}"


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Stage:
    """Servers and folders of one run."""

    def __init__(self, real: ServeProcess, folder: Path) -> None:
        self.real = real
        self.folder = folder

    def home(self, name: str) -> Path:
        """An empty folder for a client's own files."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def run(
        self,
        client: str,
        command: list[str],
        home: Path,
        environment: dict[str, str] | None = None,
        *,
        folder: Path | None = None,
        text: str = "",
        until: str = "",
    ) -> Output:
        """Runs a client's command; one that hangs is ended and a StepError. With `until` it is
        ended as soon as it has printed that.
        """
        values = {key: os.environ[key] for key in _KEPT if key in os.environ}
        values |= QUIET | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        values |= environment or {}
        bin_ = str(environments.Environment(client).bin)
        values["PATH"] = os.pathsep.join((bin_, values["PATH"]))
        process = subprocess.Popen(
            command,
            cwd=folder or home,
            env=environments.with_node(values),
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(CLIENT_SECONDS, _end, [process])
        timer.start()
        head = ""
        try:
            if until and process.stdout:
                for line in process.stdout:
                    head += line
                    if until in line:
                        _end(process)
                        break
            out, errors = process.communicate(text or None)
        finally:
            late = not timer.is_alive()
            timer.cancel()
        out = head + out
        need(not late, f"no end after {CLIENT_SECONDS} s: {out[-500:]} {errors[-500:]}")
        return Output(process.returncode, _COLOURS.sub("", out), _COLOURS.sub("", errors))

    @contextlib.contextmanager
    def scripted(
        self, *scripts: Script, context: int = 200_000, **settings: Any
    ) -> Iterator[FakeServer]:
        """A server whose model answers as written."""
        settings.setdefault("max_queue", 8)
        server = FakeServer(*scripts, context=context, **settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()

    @contextlib.contextmanager
    def busy(self) -> Iterator[FakeServer]:
        """A scripted server that is full until it has turned somebody away."""
        endless = Script(pieces=("busy ",), repeat=True, token_ms=20)
        with self.scripted(endless, max_queue=0, context=1_000_000) as server:
            leave = threading.Event()

            def occupy() -> None:
                body = {
                    "model": "x",
                    "messages": [{"role": "user", "content": "x"}],
                    "stream": True,
                }
                url = server.url + "/v1/chat/completions"
                with httpx.stream("POST", url, json=body, timeout=CLIENT_SECONDS) as response:
                    for _ in response.iter_bytes():
                        if leave.is_set():
                            return

            def watch() -> None:
                while not leave.is_set():
                    if server.scheduler.counters().rejected:
                        leave.set()
                    time.sleep(0.05)

            threads = [threading.Thread(target=occupy), threading.Thread(target=watch)]
            for thread in threads:
                thread.start()
            server.wait_for(active=1)
            try:
                yield server
            finally:
                leave.set()
                for thread in threads:
                    thread.join()
