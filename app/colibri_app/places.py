"""Files that the window keeps, in the folders that all of Colibri uses.

For: the modules of the window. Not for: anything the server keeps. Nothing is created here.
"""

from __future__ import annotations

from pathlib import Path

from colibri import paths


def folder() -> Path:
    """Folder of everything below; only its owner has business in it."""
    return paths.state_dir() / "app"


def lock() -> Path:
    """Locked by the running app for as long as it lives."""
    return folder() / "lock"


def contact() -> Path:
    """How a second start reaches the running app."""
    return folder() / "running.json"


def server() -> Path:
    """The server that the app has started last: for whoever finds it still running."""
    return folder() / "server.json"


def window() -> Path:
    """Where the window was."""
    return folder() / "window.json"


def choices() -> Path:
    """What was chosen in the window: the model (opened or loaded last), and whether it is dark."""
    return folder() / "choices.json"


def storage() -> Path:
    """What the web view keeps: cookies and the page's local storage."""
    return folder() / "web"


def log() -> Path:
    """The log of the window and of the sidecar that it started."""
    return paths.log_dir() / "app.log"
