"""The server's side of the app: the sidecar that a window has started, and servers without one.

For: `entry`. Not for: windows; nothing here may import one, so that a machine without a display
serves just as well.

`run_child` is the sidecar: it says in a handshake on stdout where it answers, and leaves when its
stdin ends, because then the window is gone, whatever has ended it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from dataclasses import replace
from typing import BinaryIO, Final

import click

from colibri import __version__, paths, settings
from colibri.cli.options import settings_options
from colibri.errors import PortInUseError
from colibri.settings import Settings
from colibri_app.handshake import LONGEST_LINE, Handshake, Wishes, encode, parse_wishes

log = logging.getLogger(__name__)

# The program's own first argument for the sidecar of a window.
APP_CHILD_FLAG: Final = "--app-child"
# Streams say goodbye in this time; then a sidecar without a window ends whatever it is doing.
_FAREWELL_SECONDS: Final = 4.0


def with_a_model(chosen: Settings) -> Settings:
    """The settings with a model where none was chosen: the smallest installed one, which answers
    soonest, else the starter model. Without any the server starts all the same, and the page tells
    how to get one.
    """
    if chosen.model is not None or chosen.no_model:
        return chosen
    from colibri.models import catalog  # noqa: PLC0415 - heavy

    usable = [model for model in catalog.installed() if not model.problem]
    if not usable:
        return replace(chosen, no_model=paths.starter_dir() is None)
    return replace(chosen, model=str(min(usable, key=lambda model: model.bytes).folder))


class _Window:
    """The two ends of the pipes to the window that started this process."""

    def __init__(self) -> None:
        self._input: BinaryIO = os.fdopen(os.dup(0), "rb", buffering=0)
        self._output: BinaryIO = os.fdopen(os.dup(1), "wb")
        # What any library prints or reads must not come between.
        os.dup2(2, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self.stop = threading.Event()
        self.wishes = Wishes()

    def read_wishes(self) -> None:
        """Waits for the first line; a window that is gone before it has no wishes."""
        line = b""
        while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            piece = self._input.read(1)
            if not piece:
                self.stop.set()
                return
            line += piece
        try:
            self.wishes = parse_wishes(line)
        except ValueError as error:
            log.warning("the window's wishes are not understood: %s", error)

    def watch(self) -> None:
        """Ends this process when the window is gone: gently, then at once."""

        def wait_for_the_end() -> None:
            try:
                while self._input.read(4096):
                    pass
            except OSError:
                log.debug("the pipe of the window broke")
            log.info("the window is gone")
            self.stop.set()
            timer = threading.Timer(_FAREWELL_SECONDS, os._exit, (1,))
            timer.daemon = True
            timer.start()

        threading.Thread(target=wait_for_the_end, name="window-gone", daemon=True).start()

    def greet(self, handshake: Handshake) -> None:
        """Sends the handshake; a window that is gone does not hear it."""
        try:
            self._output.write(encode(handshake))
            self._output.flush()
        except OSError:
            self.stop.set()


def _free_listener(chosen: Settings, ports: tuple[int, ...]) -> socket.socket:
    """A listener on the first of these ports that is free, or on any."""
    from colibri.api.server import listen  # noqa: PLC0415 - heavy

    for port in ports:
        try:
            return listen(chosen.host, port)
        except PortInUseError:
            continue
    return listen(chosen.host, 0)


def _serve_for(window: _Window, chosen: Settings) -> int:
    from colibri.api.server import listen  # noqa: PLC0415 - heavy
    from colibri.cli import serve  # noqa: PLC0415 - heavy
    from colibri_app import sidecar  # noqa: PLC0415 - an HTTP client

    wanted: int | None = None
    # Before a port is taken: what cannot be served is said without it.
    serve.check(chosen)
    try:
        # A port of no matter: that of the last time, because the page's storage belongs to it.
        ports = window.wishes.ports if chosen.port == 0 else ()
        listener = _free_listener(chosen, ports) if ports else listen(chosen.host, chosen.port)
    except PortInUseError as error:
        url = serve.local_url(chosen.host, chosen.port)
        if window.wishes.reuse and sidecar.version_of(url) == __version__:
            instance = sidecar.instance_of(url) or ""
            window.greet(Handshake(url, chosen.port, os.getpid(), None, __version__, instance))
            return 0
        log.warning("%s Another one is used.", error)
        listener = _free_listener(chosen, window.wishes.ports)
        wanted = chosen.port
    token = secrets.token_urlsafe(32)
    port = listener.getsockname()[1]

    def opened(url: str, instance: str) -> None:
        window.greet(Handshake(url, port, os.getpid(), token, __version__, instance, wanted))

    with listener:
        chosen = with_a_model(chosen)
        owner = serve.Owner(listener=listener, token=token, stop=window.stop, opened=opened)
        return serve.run(chosen, owner=owner)


def run_child(arguments: list[str]) -> int:
    """The sidecar of a window, from its arguments to its exit code. Main thread only."""
    from colibri import cli  # noqa: PLC0415 - other roles need none of it

    window = _Window()
    window.read_wishes()
    if window.stop.is_set():
        return 0
    window.watch()

    @click.command()
    @settings_options("app", "model", "engine", "server", "log")
    def serve_for_window(resolved: settings.Resolved) -> int:
        return _serve_for(window, resolved.settings)

    return cli.run(serve_for_window, "sidecar", arguments)
