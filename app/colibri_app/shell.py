"""The desktop app: a window, the sidecar behind it, and what happens between them.

For: `entry` and `__main__`. Decides; the window (`window`) and the sidecar (`supervisor`) are only
told what to do. Imports no toolkit before it is known that there can be a window.

    start    lock -> sidecar -> window with a page of ours -> handshake -> the dashboard
    end      however it comes (window closed, signal, menu): sidecar ended first, then the process.
             If this process is killed, the sidecar sees its stdin end and leaves by itself.

Threads: handlers come from threads of the window and of the supervisor; what they share is guarded
by `_lock` or written once.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from colibri_app import geometry, ownpages, places, sidecar
from colibri_app.bridge import Said
from colibri_app.environment import CHILD_MARK, open_path
from colibri_app.instance import Instance, focus_running
from colibri_app.supervisor import State, Supervisor, end_stale
from colibri_app.watchdog import Verdict
from colibri_app.window import AppWindow, Handlers, Item, NoWindowError, toolkit
from colibri_app.words import language, words

__all__ = ["NoWindowError", "run"]

log = logging.getLogger(__name__)

_LOG_BYTES: Final = 5_000_000
_LOG_FILES: Final = 3
# The window gets this long to close by itself once it was told to; then the process ends anyway.
_CLOSE_SECONDS: Final = 1.5
# And this long at least after the sidecar has ended.
_SAVE_SECONDS: Final = 0.7
# Between looks at a model that is being loaded.
_TASK_SECONDS: Final = 0.5
# pywebview's names for the texts of its dialogs, and ours.
_DIALOGS: Final = {
    "global.saveFile": "save_file",
    "global.cancel": "cancel",
    "global.ok": "ok",
    "linux.openFile": "open_file",
    "linux.openFiles": "open_files",
    "linux.openFolder": "open_folder",
}


def run(command: Sequence[str], arguments: Sequence[str]) -> int:
    """Runs the app; `command` and `arguments` start its sidecar. Main thread only.

    Returns only when there was nothing to run: 0 when another app was brought to the front, 1 when
    it does not answer. Raises NoWindowError when there can be no window. Otherwise the process ends
    here, because a thread in an open dialog must not keep it.
    """
    if os.environ.get(CHILD_MARK):
        # A sidecar that would open windows would do so without end.
        print("Error: a window does not start from the server of a window.", file=sys.stderr)
        return 2
    gui = toolkit()
    instance = Instance(places.lock(), places.contact())
    if not instance.acquire():
        pid = focus_running(places.contact())
        if pid is None:
            print(
                "Error: Colibri runs already, but does not answer. End it first.", file=sys.stderr
            )
            return 1
        print(f"Colibri runs already (process {pid}); its window is brought to the front.")
        return 0
    _configure_log(places.log())
    try:
        end_stale(places.server())
        App(gui, instance, command, arguments).run()
    finally:
        instance.release()
    return _leave(0)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _configure_log(path: Path) -> None:
    """The window's log and the sidecar's, in one file. A disk that refuses costs the log only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
        )
    except OSError as error:
        handler = logging.NullHandler()
        print(f"Warning: {path} cannot be written: {error}", file=sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class App:
    """One run of the app. See the module's text."""

    def __init__(
        self,
        gui: str | None,
        instance: Instance,
        command: Sequence[str],
        arguments: Sequence[str],
    ) -> None:
        self._instance = instance
        self._words = words()
        self._language = language()
        self._given = tuple(arguments)
        self._choices = _read_choices(places.choices())
        self._dark = self._choices.get("dark") is True
        self._lock = threading.Lock()
        self._may_close = False
        self._asking = False
        self._quitting = threading.Event()
        self._opened = threading.Event()
        self._finished = threading.Event()
        self._shown: str | None = None  # address of the dashboard that the window shows
        self._notices: list[dict[str, Any]] = []
        self._supervisor = Supervisor(
            command,
            self._arguments(),
            on_change=self._on_state,
            record=places.server(),
            environ={**os.environ, CHILD_MARK: "1"},
        )
        self._window = AppWindow(
            gui,
            Handlers(
                opened=self._on_opened,
                said=self._on_said,
                foreign=self._open_outside,
                verdict=self._on_verdict,
                closing=self._on_closing,
                quit=self.quit,
            ),
            geometry=geometry.load(places.window()),
            storage=places.storage(),
        )

    # ---- main thread ----

    def run(self) -> None:
        """From the first process to the last."""
        self._supervisor.start()
        self._instance.listen(self._window.focus)
        try:
            self._window.run(
                ownpages.starting(self._words, self._language, dark=self._dark),
                dark=self._dark,
                menu=self._menu(),
                localization={name: self._words[word] for name, word in _DIALOGS.items()},
            )
        finally:
            self._supervisor.stop()
            try:
                geometry.save(places.window(), self._window.geometry)
            except OSError as error:
                log.warning("the window's place cannot be kept: %s", error)
            self._finished.set()

    def _menu(self) -> list[tuple[str, list[Item]]]:
        text = self._words

        def command(name: str) -> Item:
            return Item(text[name], lambda: self._window.tell({"kind": "command", "name": name}))

        return [
            (
                text["file"],
                [
                    command("new_chat"),
                    command("attach"),
                    Item(),
                    Item(text["open_model"], self._open_model),
                    Item(text["in_browser"], lambda: self._open_outside(self._page())),
                    Item(),
                    Item(text["quit"], self._close_politely),
                ],
            ),
            (
                text["view"],
                [
                    Item(text["reload"], self._reload),
                    Item(text["full_screen"], self._window.full_screen),
                ],
            ),
            (
                text["help"],
                [
                    command("welcome"),
                    Item(text["logs"], self._show_log),
                    Item(text["about"], self._about),
                ],
            ),
        ]

    # ---- the sidecar ----

    def _arguments(self) -> tuple[str, ...]:
        """What the sidecar is started with: what was given, and the model that was chosen here.

        A chosen folder that has vanished is asked for until the page has said so, and again once it
        is back: its drive may come and go.
        """
        model = self._choices.get("model")
        if "--model" in self._given or not isinstance(model, str):
            return self._given
        if self._choices.get("missed") == model and not _is_folder(model):
            return self._given
        return (*self._given, "--model", model)

    def _page(self) -> str:
        handshake = self._supervisor.state.handshake
        return f"{handshake.url}/app/" if handshake else ""

    def _on_state(self, state: State) -> None:
        log.info("the server is %s", state.name)
        if self._quitting.is_set() or not self._opened.is_set():
            return
        if state.name == "running" and state.handshake is not None:
            self._show_dashboard(state)
        elif state.name == "failed":
            self._shown = None
            self._window.show_html(self._trouble("failed", state.problem, state.last_words))
        elif self._shown is None and state.name in ("starting", "waiting"):
            again = state.name == "waiting"
            self._window.show_html(
                ownpages.starting(self._words, self._language, dark=self._dark, again=again)
            )
        # Else a page is there, which says by itself that it waits for its server: what is typed
        # into it must not be lost.

    def _show_dashboard(self, state: State) -> None:
        handshake = state.handshake
        assert handshake is not None  # noqa: S101 - of this state
        url = f"{handshake.url}/app/"
        self._notices = []
        if handshake.wanted_port is not None:
            values = {"wanted": handshake.wanted_port, "port": handshake.port}
            self._notices.append({"kind": "notice", "code": "port_taken", "values": values})
            self._window.title(f"Colibri (127.0.0.1:{handshake.port})")
        else:
            self._window.title("Colibri")
        if handshake.reused:
            values = {"port": handshake.port}
            self._notices.append({"kind": "notice", "code": "server_reused", "values": values})
        if url != self._shown:
            self._shown = url
            self._window.show_url(f"{url}?shell=1")

    def _trouble(self, kind: str, problem: str = "", last_words: Sequence[str] = ()) -> str:
        return ownpages.trouble(
            self._words,
            self._language,
            dark=self._dark,
            kind=kind,
            problem=problem,
            last_words=last_words,
            log=str(places.log()),
        )

    def _generating(self) -> bool:
        """Whether ending the sidecar now would end answers."""
        handshake = self._supervisor.state.handshake
        if handshake is None or handshake.reused:
            return False
        return sidecar.answers_in_work(handshake.url, handshake.token) > 0

    # ---- the window ----

    def _on_opened(self) -> None:
        self._opened.set()
        self._on_state(self._supervisor.state)

    def _on_verdict(self, verdict: Verdict) -> None:
        log.error("the page in the window is %s", verdict.value)
        if self._shown is None:
            # Not even our own page appears: the window cannot show anything.
            if self._window.confirm("Colibri", self._words["blank_question"]):
                self._open_outside(self._page())
            return
        self._shown = None
        self._window.show_html(self._trouble(verdict.value))

    def _on_closing(self) -> bool:
        """In the toolkit's thread, which must not wait: the question is asked in another one."""
        if self._may_close:
            return True
        threading.Thread(target=self._close_politely, daemon=True).start()
        return False

    def _close_politely(self) -> None:
        with self._lock:
            if self._asking:
                return
            self._asking = True
        try:
            text = self._words
            if not self._generating() or self._window.confirm(
                text["quit_title"], text["quit_text"]
            ):
                self.quit()
        finally:
            self._asking = False

    def quit(self) -> None:
        """Ends the app without a question, whatever is open."""
        if self._quitting.is_set():
            return
        self._quitting.set()
        self._may_close = True
        threading.Thread(target=self._window.close, daemon=True).start()
        ended = time.monotonic() + _CLOSE_SECONDS
        self._supervisor.stop()
        if not self._finished.wait(max(_SAVE_SECONDS, ended - time.monotonic())):
            # A dialog holds the toolkit's loop, and with it the main thread.
            log.warning("the window does not close by itself")
            self._instance.release()
            _leave(0)

    def _on_said(self, said: Said) -> None:
        actions = {
            "ready": self._on_ready,
            "retry": self._retry,
            "logs": self._show_log,
            "browser": lambda: self._open_outside(self._page()),
            "open_model": self._open_model,
        }
        if said.name in actions:
            actions[said.name]()
        elif said.name == "theme":
            self._choose("dark", said.args.get("dark") is True)
        elif said.name == "loading":
            self._keep_loaded(said.args.get("task"))
        elif said.name == "token":
            handshake = self._supervisor.state.handshake
            self._answer(said, handshake.token if handshake else None)
        elif said.name == "save":
            self._answer(said, self._save(said.args))
        else:
            log.warning("the page wants %r, which is unknown", said.name)

    def _answer(self, said: Said, value: Any) -> None:
        self._window.tell({"kind": "answer", "id": said.id, "value": value})

    def _on_ready(self) -> None:
        log.info("the page is there: %s", self._shown or "our own")
        if self._shown is None:
            return
        for notice in self._notices:
            self._window.tell(notice)
        self._note_missed()

    def _note_missed(self) -> None:
        """Keeps that the page has told of a chosen model that has vanished, or that it is back."""
        model = self._choices.get("model")
        missed = model if isinstance(model, str) and not _is_folder(model) else None
        if missed != self._choices.get("missed") and "--model" not in self._given:
            self._choose("missed", missed)

    def _retry(self) -> None:
        state = self._supervisor.state
        if state.name == "running":
            self._show_dashboard(state)
        else:
            self._supervisor.restart()

    def _reload(self) -> None:
        self._shown = None
        self._retry()

    def _save(self, args: dict[str, Any]) -> dict[str, str | None]:
        """Saves a text where the person wants it: {"path"} or {"problem"}; neither: cancelled."""
        name, text = args.get("name"), args.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            return {"path": None, "problem": "nothing to save"}
        path = self._window.choose_save(Path(name).name or "colibri.txt")
        own = self._words
        if path is not None and path.exists() and self._window.replaces_silently:
            question = own["replace_text"].format(path=path)
            if not self._window.confirm(own["replace_title"], question):
                path = None
        if path is None:
            return {"path": None, "problem": None}
        partial = path.with_name(f"{path.name}.part")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            return {"path": None, "problem": f"{path}: {error.strerror or error}"}
        return {"path": str(path), "problem": None}

    def _open_model(self) -> None:
        folder = self._window.choose_folder()
        if folder is None:
            return
        text = self._words
        if self._generating() and not self._window.confirm(
            text["restart_title"], text["restart_text"]
        ):
            return
        self._choose("model", str(folder))
        arguments = list(self._arguments())
        if "--model" in self._given:
            arguments[arguments.index("--model") + 1] = str(folder)
        self._supervisor.restart(arguments)

    def _keep_loaded(self, task: Any) -> None:
        """Waits for a load that the page in the window has begun; then its model is the chosen one.

        What other clients load chooses nothing, and a server that was there before the window has
        a model of its own.
        """
        while not self._quitting.wait(_TASK_SECONDS):
            handshake = self._supervisor.state.handshake
            if not isinstance(task, str) or handshake is None or handshake.reused:
                return
            ended = sidecar.load_ended(handshake.url, handshake.token, task)
            if ended is None:
                continue
            folder = sidecar.loaded_folder(handshake.url, handshake.token) if ended else None
            if folder is not None:
                self._choose("model", folder)
                if "--model" not in self._given:
                    # A server that ends unexpectedly comes back with it, too.
                    self._supervisor.arguments = self._arguments()
            return

    def _choose(self, name: str, value: Any) -> None:
        self._choices[name] = value
        self._dark = self._choices.get("dark") is True
        try:
            path = places.choices()
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_text(json.dumps(self._choices), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.warning("what was chosen cannot be kept: %s", error)

    def _show_log(self) -> None:
        path = places.log()
        if not open_path(path):
            self._window.inform(self._words["no_opener"].format(path=path))

    def _about(self) -> None:
        handshake = self._supervisor.state.handshake
        values = {
            "version": handshake.version if handshake else "-",
            "url": handshake.url if handshake else "-",
        }
        self._window.inform(self._words["about_text"].format(**values))

    @staticmethod
    def _open_outside(address: str) -> None:
        """Opens an address of the web in the default browser; nothing else."""
        if address.startswith(("http://", "https://", "mailto:")):
            webbrowser.open(address)


def _is_folder(path: str) -> bool:
    """False also for what may not be looked at, and for what is no path at all."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _read_choices(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
