"""Opening the default web browser, where there can be one.

For: `coli web` and the app. Not for: deciding whether to.
"""

from __future__ import annotations

import os
import sys
import webbrowser

import click


def has_display() -> bool:
    """Whether a window or a browser could appear; elsewhere one might take over the terminal."""
    if os.name == "nt" or sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(url: str) -> None:
    """Opens the default browser, or says on stderr what to open by hand."""
    if not has_display() or not webbrowser.open(url):
        click.echo(f"Open {url} in a web browser.", err=True)
