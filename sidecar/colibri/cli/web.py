"""`coli web`: the server, and the dashboard in the default web browser.

For: people without the desktop app. The same as `coli serve` in all else; where a server of ours
answers already on that port, the browser is opened on it and nothing is started.
"""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException

import click

from colibri import settings
from colibri.cli.browser import open_browser
from colibri.cli.options import settings_options
from colibri.cli.serve import local_url, run
from colibri.errors import PortInUseError

_SECONDS = 2.0


@click.command()
@settings_options("model", "engine", "server", "log", names=("no_browser",))
def web(resolved: settings.Resolved) -> int:
    """Serve a model, and open the dashboard in the web browser."""
    chosen = resolved.settings

    def show(url: str) -> None:
        if not chosen.no_browser:
            open_browser(f"{url}/app/")

    try:
        return run(chosen, show)
    except PortInUseError:
        url = local_url(chosen.host, chosen.port)
        if not is_ours(url):
            raise
        click.echo(f"Colibri runs already at {url}.")
        show(url)
        return 0


def is_ours(url: str) -> bool:
    """Whether a server of ours answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/session", timeout=_SECONDS) as reply:
            told = json.loads(reply.read(65_536))
    except (OSError, ValueError, HTTPException):
        return False
    return isinstance(told, dict) and {"instance", "version"} <= told.keys()
