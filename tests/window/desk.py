"""A display of its own with a window manager, and the app on it as a person uses it.

For: the tests of this folder (`make test-app`). What belongs to one app is known by its
COLIBRI_HOME: every process of it has inherited that, also those that lost their parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.conftest import SMOLLM2_FOLDER

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / "build" / "window-gtk" / "bin" / "python"
# A frozen program to use instead of the sources (`make release`).
PROGRAM = os.environ.get("COLIBRI_TEST_PROGRAM", "")
ENGINE = "--engine-child" if PROGRAM else "colibri.engine.child"
SECONDS = 120
# Whatever has ended the app, this long afterwards nothing of it may be left.
LEAVE_SECONDS = 5
# What a stroke of a key does is seen within this, however busy the machine is.
LOST_SECONDS = 20
KEY = "secret"
# The dashboard has about 1,500 colours, a page of the window itself 700, an empty window a few
# dozen, for its menu.
DASHBOARD = 1000
OWN_PAGE = 450
T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], seconds: float = SECONDS) -> T:
    """The first value that is none of None, False and empty. Fails saying what never came."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
    return found


@contextmanager
def display() -> Iterator[str]:
    """A display of 1280 x 800 with openbox; its name."""
    read, write = os.pipe()
    xvfb = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "1280x800x24", "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as told:
        name = f":{told.readline().strip()}"
    environ = {**os.environ, "DISPLAY": name}
    manager: list[subprocess.Popen[bytes]] = []

    def managed() -> bool:
        """A display that has just told its name may still turn its first guests away."""
        if not manager or manager[-1].poll() is not None:
            command = ["openbox"]
            manager.append(subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL))
        asked = subprocess.run(["wmctrl", "-m"], env=environ, capture_output=True, check=False)
        return asked.returncode == 0

    try:
        until("the window manager", managed)
        yield name
    finally:
        for process in (*manager, xvfb):
            process.terminate()
            process.wait(SECONDS)


@dataclass
class App:
    """One app, started. `home` is its COLIBRI_HOME."""

    display: str
    home: Path
    process: subprocess.Popen[str]
    environ: dict[str, str] = field(repr=False)
    began: float = field(default_factory=time.monotonic)

    # ---- processes ----

    def all(self) -> list[psutil.Process]:
        """Every living process of the app, whoever its parent is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                ours = process.environ().get("COLIBRI_HOME") == str(self.home)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return [one for one in found if one.pid != os.getpid()]

    def named(self, word: str) -> psutil.Process | None:
        """The process with that word on its command line."""
        for process in self.all():
            with suppress(psutil.Error):
                if word in process.cmdline():
                    return process
        return None

    def gone(self) -> float:
        """Waits until nothing of it is left, as long as that may take at most; says how long it was
        from the call on.
        """
        began = time.monotonic()
        until("the last process", lambda: not self.all(), LEAVE_SECONDS)
        return time.monotonic() - began

    # ---- what it tells ----

    @property
    def log(self) -> str:
        path = self.home / "state" / "logs" / "app.log"
        return path.read_text() if path.exists() else ""

    def logged(self, text: str, times: int = 1) -> None:
        until(f"{text!r} in the log", lambda: self.log.count(text) >= times)

    def page_is_there(self) -> None:
        """Waits for the dashboard. Where the machine is so busy that the app believes the page is
        empty, it does what the app then offers first: it tries again.
        """
        tries = 0

        def there() -> bool:
            nonlocal tries
            if self.log.count("the page in the window is empty") > tries:
                tries += 1
                self.front()
                self.keys("Return")
            return "the page is there: http" in self.log

        until("the page", there)

    @property
    def url(self) -> str:
        line = next(line for line in self.log.splitlines() if "the page is there: http" in line)
        return line.rpartition("there: ")[2].removesuffix("/app/")

    def get(self, path: str) -> dict[str, Any]:
        """What the server answers; empty while it does not."""
        headers = {"x-api-key": KEY}
        try:
            reply = httpx.get(f"{self.url}{path}", headers=headers, timeout=5, trust_env=False)
        except httpx.HTTPError:
            return {}
        return dict(reply.json()) if reply.status_code == 200 else {}

    def state(self) -> dict[str, Any]:
        return self.get("/api/state")

    def ready(self) -> bool:
        return self.state().get("engine", {}).get("state") == "ready"

    def generating(self) -> int:
        """Tokens of the answer that is being written."""
        requests = self.state().get("requests") or [{}]
        return int(requests[0].get("generated_tokens", 0))

    @contextmanager
    def talking(self) -> Iterator[None]:
        """One answer after the other is written, for a client that is not the window."""
        enough = threading.Event()

        def talk() -> None:
            body = {"prompt": "A story:", "max_tokens": 400, "stream": True}
            with httpx.Client(headers={"x-api-key": KEY}, timeout=60, trust_env=False) as client:
                while not enough.is_set():
                    with (
                        suppress(httpx.HTTPError),
                        client.stream("POST", f"{url}/v1/completions", json=body) as answer,
                    ):
                        for _ in answer.iter_lines():
                            if enough.is_set():
                                break
                    enough.wait(0.02)

        url = self.url
        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()

    # ---- what a person sees and does ----

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        return done.stdout

    def windows(self) -> list[str]:
        """One line a window: id, desktop, machine, title."""
        return self.run("wmctrl", "-l").splitlines()

    def window(self) -> str:
        lines = until("the window", lambda: [one for one in self.windows() if "Colibri" in one])
        return lines[0].split()[0]

    def colours(self, window: str = "") -> int:
        """How many colours a window (else the app's) shows: what is painted, whatever its scripts
        believe.
        """
        shown = window or self.window()
        told = self.run("import", "-window", shown, "-format", "%k", "info:-")
        return int(told or 0)

    def painted(self, colours: int = DASHBOARD) -> None:
        until("pixels in the window", lambda: self.colours() > colours)

    def changes(self, times: int, seconds: float, window: str = "") -> list[int]:
        """How many pixels of a window (else the app's) change, from look to look."""
        before, after = (self.home.parent / f"{name}.png" for name in ("before", "after"))
        shown = window or self.window()
        self.run("import", "-window", shown, str(before))
        counts = []
        for _ in range(times):
            time.sleep(seconds)
            self.run("import", "-window", shown, str(after))
            # The count is all that it says, and it says it as an error.
            command = ["compare", "-metric", "AE", str(before), str(after), "null:"]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
            counts.append(int(float(told.stderr)))
            after.replace(before)
        return counts

    def shot(self, name: str) -> None:
        """A picture of the screen in build/window-shots/, for people to look at."""
        folder = ROOT / "build" / "window-shots"
        folder.mkdir(parents=True, exist_ok=True)
        self.run("import", "-window", "root", str(folder / f"{name}.png"))

    def keys(self, *keys: str) -> None:
        self.run("xdotool", "key", "--delay", "50", *keys)

    def press(self, keys: str, seen: Callable[[], T | None]) -> None:
        """Presses keys until what they do is seen. The next stroke waits until the one before must
        have been lost: a late one of two would undo what the other has switched.
        """

        def pressed() -> bool:
            self.keys(keys)
            with suppress(AssertionError):
                until(keys, seen, LOST_SECONDS)
            return bool(seen())

        until(keys, pressed)

    def type(self, text: str) -> None:
        self.run("xdotool", "type", "--delay", "20", text)

    def front(self) -> None:
        """Gives the window the keyboard."""
        self.run("wmctrl", "-i", "-a", self.window())

    def click(self, across: float, down: float) -> None:
        """Clicks into the window at these shares of its width and height."""
        place = self.run("xdotool", "getwindowgeometry", "--shell", self.window())
        sizes = dict(line.split("=") for line in place.splitlines() if "=" in line)
        x, y = int(int(sizes["WIDTH"]) * across), int(int(sizes["HEIGHT"]) * down)
        to = ["--window", self.window(), str(x), str(y)]
        self.run("xdotool", "mousemove", *to, "click", "1")

    def menu(self, menu: int, entry: int) -> None:
        """Chooses an entry of the menu; both counted from 0, lines not counted."""
        self.front()
        self.keys("F10", *["Right"] * menu, *["Down"] * (entry + 1), "Return")

    def find(self, words: str) -> None:
        """Goes to a page or a chat of the dashboard by its name."""
        self.front()
        self.keys("ctrl+k")
        self.type(words)
        self.keys("Return")

    def choose(self, title: str, path: Path) -> None:
        """Types a path into the file dialog with that title, once it is there."""

        def dialog() -> str:
            lines = [line for line in self.windows() if title in line]
            return lines[0].split()[0] if lines else ""

        found = until(f"the dialog {title!r}", dialog)
        self.run("wmctrl", "-i", "-a", found)
        active = ["xdotool", "getactivewindow"]
        until("the dialog's keyboard", lambda: self.run(*active).strip() == str(int(found, 16)))
        until("the dialog at rest", lambda: self.changes(1, 0.5, found) == [0])
        # The first stroke opens the field for a path; what came before it was there would be lost.
        before = self.colours(found)
        until("the field", lambda: self.keys("slash") or self.colours(found) != before)
        self.type(str(path)[1:])
        self.shot(f"dialog-{title.rsplit(maxsplit=1)[-1].lower()}")
        self.keys("Return")
        until(f"the end of the dialog {title!r}", lambda: not dialog())

    def close(self) -> None:
        """As a person does with the button of the window manager."""
        self.run("wmctrl", "-i", "-c", self.window())


@contextmanager
def app(display: str, home: Path, *arguments: str, **environ: str) -> Iterator[App]:
    """Starts the app; whatever is left of it at the end is killed."""
    full = {
        **os.environ,
        "DISPLAY": display,
        "COLIBRI_HOME": str(home),
        "COLIBRI_MODELS_DIR": str(SMOLLM2_FOLDER.parent),
        "COLI_STATE_DIR": str(home / "learnt"),
        "PYWEBVIEW_GUI": "gtk",
        "LC_ALL": "C.UTF-8",
        "NO_AT_BRIDGE": "1",
        **environ,
    }
    command: list[str | Path] = [PROGRAM]
    if not PROGRAM:
        full["PYTHONPATH"] = f"{ROOT / 'app'}:{ROOT / 'sidecar'}"
        sidecar = Path(sys.executable).with_name("sidecar")
        command = [PYTHON, "-m", "colibri_app", "--sidecar", sidecar]
    process = subprocess.Popen(
        [*command, *arguments],
        env=full,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # In the background SIGINT may be ignored; in a person's shell it is not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    started = App(display, home, process, full)
    try:
        yield started
    except BaseException:
        started.shot("failure")
        raise
    finally:
        for left in started.all():
            with suppress(psutil.Error):
                left.kill()
        process.wait(SECONDS)
        assert process.stdout
        process.stdout.close()
