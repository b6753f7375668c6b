"""The window itself, as little of it as can be: the only module that imports a window toolkit.

For: `shell`, which decides everything; here it becomes calls of pywebview. Toolkits: GTK with the
system's WebKitGTK, Qt with PySide6 (never PyQt: another licence), WebView2, WKWebView.

    main thread     `run`: the toolkit's loop, until the window is closed
    page thread     looks at the page four times a second (`bridge`), feeds the watchdog
    any thread      everything else; dialogs block their caller until the person has answered

Importing this module imports no toolkit; `toolkit` does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from colibri_app import bridge
from colibri_app.geometry import MIN_HEIGHT, MIN_WIDTH, Geometry, Rect, fit
from colibri_app.watchdog import Verdict, Watchdog

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
LIGHT: Final = "#f6faf8"
DARK: Final = "#101716"


class NoWindowError(Exception):
    """There can be no window here; says why, and what to install."""


def toolkit(environ: Mapping[str, str] | None = None) -> str | None:
    """The toolkit to use, as pywebview names it; None where it decides itself (Windows, macOS).

    Imports it. Raises NoWindowError when there is none, or no display that answers.
    """
    environ = os.environ if environ is None else environ
    if importlib.util.find_spec("webview") is None:
        raise NoWindowError("There is no window: the Python package pywebview is not installed.")
    if os.name == "nt" or sys.platform == "darwin":
        return None
    found = [name for name, there in (("gtk", _has_gtk), ("qt", _has_qt)) if there()]
    if not found:
        raise NoWindowError(
            "There is no window: neither WebKitGTK (Debian: gir1.2-webkit2-4.1, python3-gi) nor "
            "PySide6 is installed for this Python."
        )
    wish = environ.get("PYWEBVIEW_GUI", "qt" if "KDE_FULL_SESSION" in environ else "gtk")
    chosen = wish if wish in found else found[0]
    if chosen == "qt":
        os.environ["QT_API"] = "pyside6"
    return chosen


def _has_gtk() -> bool:
    try:
        import gi  # noqa: PLC0415 - only where a window is wanted

        gi.require_version("Gtk", "3.0")
        try:
            gi.require_version("WebKit2", "4.1")
        except ValueError:
            gi.require_version("WebKit2", "4.0")
        from gi.repository import Gtk  # noqa: PLC0415
    except (ImportError, ValueError):
        return False
    if not Gtk.init_check(None)[0]:
        raise NoWindowError("There is no window: the display does not answer.")
    return True


def _has_qt() -> bool:
    return importlib.util.find_spec("PySide6") is not None and (
        importlib.util.find_spec("qtpy") is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What happens in the window, for whoever decides. Called from threads of their own, except
    `closing`, which is called in the toolkit's thread and says at once whether to close now.
    """

    opened: Callable[[], None]
    said: Callable[[bridge.Said], None]
    foreign: Callable[[str], None]
    verdict: Callable[[Verdict], None]
    closing: Callable[[], bool]
    quit: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the menu; `run` is called in a thread of its own. No title: a line."""

    title: str = ""
    run: Callable[[], None] = field(default=lambda: None)


class AppWindow:
    """See the module's text. One a process."""

    def __init__(
        self,
        gui: str | None,
        handlers: Handlers,
        *,
        geometry: Geometry,
        storage: Path,
        icon: Path | None = None,
    ) -> None:
        self._gui = gui
        self._handlers = handlers
        self._wanted = geometry
        self._storage = storage
        self._icon = icon
        self._window: Any = None
        self._application: Any = None  # Qt's, which must not be collected
        self._home: str | None = None
        self._watchdog = Watchdog()
        self._watching = threading.Lock()
        self._closed = threading.Event()
        self._disturbed = threading.Event()  # moved or resized, and not measured since
        self.geometry = geometry

    # ---- main thread ----

    def run(
        self,
        html: str,
        *,
        dark: bool,
        menu: Sequence[tuple[str, Sequence[Item]]] = (),
        localization: Mapping[str, str],
    ) -> None:
        """Shows the window with a page of ours, until it is closed. Raises NoWindowError."""
        import webview  # noqa: PLC0415 - see the module's text
        from webview.menu import Menu, MenuAction, MenuSeparator  # noqa: PLC0415

        webview.settings["ALLOW_DOWNLOADS"] = True
        webview.settings["OPEN_EXTERNAL_LINKS_IN_BROWSER"] = True
        webview.settings["ALLOW_FILE_URLS"] = False
        place = self.geometry = fit(self._wanted, self._screens(webview))
        self._watchdog.loading(time.monotonic())
        window = webview.create_window(
            "Colibri",
            html=html,
            width=place.width,
            height=place.height,
            x=place.x,
            y=place.y,
            maximized=place.maximized,
            min_size=(MIN_WIDTH, MIN_HEIGHT),
            background_color=DARK if dark else LIGHT,
            text_select=True,
            zoomable=True,
            draggable=True,
        )
        self._window = window
        window.events.closing += self._handlers.closing
        window.events.closed += self._closed.set
        window.events.resized += self._disturbed.set
        window.events.moved += self._disturbed.set
        window.events.maximized += self._maximized
        window.events.restored += self._restored
        self._storage.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._spawn(self._handlers.quit))
        webview.start(
            self._started,
            gui=self._gui,
            private_mode=False,
            storage_path=str(self._storage),
            icon=str(self._icon) if self._icon else None,
            localization=dict(localization),
            menu=[
                Menu(
                    title,
                    [
                        MenuAction(item.title, item.run) if item.title else MenuSeparator()
                        for item in items
                    ],
                )
                for title, items in menu
            ],
        )
        self._closed.set()

    def _screens(self, webview: Any) -> list[Rect]:
        """The screens. Where the toolkit is known it is asked itself: pywebview would make the
        application before it knows that there is a menu, and where the page's storage lies.
        """
        if self._gui == "gtk":
            from gi.repository import Gdk  # noqa: PLC0415

            display = Gdk.Display.get_default()
            areas = [display.get_monitor(i).get_workarea() for i in range(display.get_n_monitors())]
            return [Rect(area.x, area.y, area.width, area.height) for area in areas]
        if self._gui == "qt":
            # In this order: the web engine refuses an application that is there already.
            from qtpy import QtWebEngineWidgets  # noqa: F401, PLC0415
            from qtpy.QtWidgets import QApplication  # noqa: PLC0415

            self._application = QApplication.instance() or QApplication(sys.argv)
            areas = [screen.availableGeometry() for screen in self._application.screens()]
            return [Rect(area.x(), area.y(), area.width(), area.height()) for area in areas]
        try:
            screens = webview.screens
        except webview.WebViewException as error:
            raise NoWindowError(f"There is no window: {error}") from error
        return [Rect(int(s.x), int(s.y), int(s.width), int(s.height)) for s in screens]

    # ---- any thread ----

    @staticmethod
    def _spawn(run: Callable[[], None]) -> None:
        threading.Thread(target=run, daemon=True).start()

    def show_url(self, url: str) -> None:
        """Loads a page of the server at `url`, which is home from now on."""
        self._home = url
        with self._watching:
            self._watchdog.loading(time.monotonic())
        self._call(lambda: self._window.load_url(url))

    def show_html(self, html: str) -> None:
        """Shows a page of ours. If even that does not appear, the watchdog says so again."""
        with self._watching:
            self._watchdog.loading(time.monotonic())
        self._call(lambda: self._window.load_html(html, ""))

    @property
    def ready(self) -> bool:
        """Whether the page that was loaded last has appeared."""
        return self._watchdog.ready

    def tell(self, message: dict[str, Any]) -> None:
        """Hands a message to the page, if there is one."""
        self._call(lambda: self._window.run_js(bridge.tell(message)))

    def title(self, text: str) -> None:
        """Sets the window's title."""
        self._call(lambda: self._window.set_title(text))

    def focus(self) -> None:
        """Brings the window to the front."""

        def present() -> None:
            self._window.restore()
            self._window.show()

        self._call(present)

    def full_screen(self) -> None:
        """Into full screen or out of it."""
        self._call(lambda: self._window.toggle_fullscreen())  # noqa: PLW0108 - may be None

    def confirm(self, title: str, text: str) -> bool:
        """Asks; False also when the window goes away meanwhile."""
        if self._gui == "gtk":
            text = f"{title}\n\n{text}"  # its dialogs show no title
        return self._call(lambda: self._window.create_confirmation_dialog(title, text)) is True

    def inform(self, text: str) -> None:
        """Tells something in a native dialog."""
        self._call(lambda: self._window.run_js(f"alert({json.dumps(text)})"))

    def choose_folder(self) -> Path | None:
        """The native dialog for a folder; None: cancelled."""
        from webview import FileDialog  # noqa: PLC0415

        found = self._call(
            lambda: self._window.create_file_dialog(FileDialog.FOLDER, directory=str(Path.home()))
        )
        return Path(found[0]) if found else None

    @property
    def replaces_silently(self) -> bool:
        """Whether the dialog for saving does not ask before it names a file that exists."""
        return self._gui == "gtk"

    def choose_save(self, name: str) -> Path | None:
        """The native dialog for where to save; None: cancelled."""
        from webview import FileDialog  # noqa: PLC0415

        downloads = Path.home() / "Downloads"
        found = self._call(
            lambda: self._window.create_file_dialog(
                FileDialog.SAVE,
                directory=str(downloads if downloads.is_dir() else Path.home()),
                save_filename=name,
            )
        )
        if not found:
            return None
        return Path(found if isinstance(found, str) else found[0])

    def close(self) -> None:
        """Closes the window without any question; `run` returns then."""
        self._call(lambda: self._window.destroy())  # noqa: PLW0108 - may be None

    def _call(self, run: Callable[[], Any]) -> Any:
        """A call into the toolkit; one that comes too late, or too early, is none."""
        if self._window is None or self._closed.is_set():
            return None
        try:
            return run()
        except Exception:
            log.exception("the window did not take a call")
            return None

    # ---- events of the toolkit ----

    def _started(self) -> None:
        if self._gui == "gtk":
            self._adapt_gtk()
        threading.Thread(target=self._watch_page, name="page", daemon=True).start()
        threading.Thread(target=self._watch_silence, name="watchdog", daemon=True).start()
        self._handlers.opened()

    def _adapt_gtk(self) -> None:
        """What pywebview has no call for: signals while GTK's loop runs, and the context menu with
        copy and paste, which it switches off.
        """
        from gi.repository import GLib, GObject  # noqa: PLC0415

        def leave() -> bool:
            self._spawn(self._handlers.quit)
            return True

        for number in (signal.SIGTERM, signal.SIGINT):
            GLib.unix_signal_add(GLib.PRIORITY_HIGH, number, leave)

        def bring_back_menu() -> bool:
            from gi.repository import WebKit2  # noqa: PLC0415
            from webview.platforms.gtk import BrowserView  # noqa: PLC0415

            with contextlib.suppress(Exception):
                (view,) = (one.webview for one in BrowserView.instances.values())
                handler = GObject.signal_handler_find(
                    view,
                    GObject.SignalMatchType.ID,
                    GObject.signal_lookup("context-menu", WebKit2.WebView),
                    0,
                    None,
                    None,
                    None,
                )
                if handler:
                    GObject.signal_handler_disconnect(view, handler)
            return False

        GLib.idle_add(bring_back_menu)

    def _maximized(self) -> None:
        self.geometry = replace(self.geometry, maximized=True)

    def _restored(self) -> None:
        self.geometry = replace(self.geometry, maximized=False)

    def _measure(self) -> None:
        """Remembers size and place as the toolkit takes them again; those that events bring are
        without the frame, and the window would wander with each start.
        """
        window = self._window
        found = self._call(lambda: (window.width, window.height, window.x, window.y))
        if found and not self.geometry.maximized:
            width, height, x, y = map(int, found)
            self.geometry = Geometry(width, height, x, y)

    # ---- the page thread and the watchdog's ----

    def _watch_page(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            if self._disturbed.is_set():
                self._disturbed.clear()
                self._measure()
            look = bridge.parse(self._call(lambda: self._window.run_js(bridge.TAKE)))
            if look is None:
                continue
            if not bridge.is_own(look.at, self._home):
                # A link that led away: it belongs into the browser, and the page back here.
                home = self._home
                self._handlers.foreign(look.at)
                if home is not None:
                    self.show_url(home)
                continue
            if look.said is None:
                continue
            with self._watching:
                # A script that runs is no page yet: it has to say that something stands there.
                now = time.monotonic()
                if self._watchdog.ready or any(one.name == "ready" for one in look.said):
                    self._watchdog.heard(now)
                else:
                    self._watchdog.begun(now)
            for one in look.said:
                self._spawn(lambda one=one: self._handlers.said(one))  # type: ignore[misc]

    def _watch_silence(self) -> None:
        while not self._closed.wait(1.0):
            with self._watching:
                verdict = self._watchdog.look(time.monotonic())
            if verdict is not Verdict.FINE:
                self._spawn(lambda verdict=verdict: self._handlers.verdict(verdict))  # type: ignore[misc]
