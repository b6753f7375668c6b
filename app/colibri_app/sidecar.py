"""The few questions that the window asks the sidecar over HTTP.

For: `supervisor` and `shell`. Uses the standard library alone, never a proxy: the server is on this
machine. Nothing here raises; a server that does not answer properly answers None.
"""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any, Final

_MOST_BYTES: Final = 16 << 20
_SECONDS: Final = 2.0
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, token: str | None = None, seconds: float = _SECONDS) -> Any:
    """The JSON that a GET of `url` is answered with, None for anything else."""
    request = urllib.request.Request(url)  # noqa: S310 - our own server's address
    request.add_header("Accept", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _OPENER.open(request, timeout=seconds) as reply:
            return json.loads(reply.read(_MOST_BYTES))
    except (OSError, ValueError, HTTPException):
        return None


def instance_of(url: str) -> str | None:
    """Which run of which server answers there; None when it is none of ours, or nothing."""
    session = ask(f"{url}/api/session")
    instance = session.get("instance") if isinstance(session, dict) else None
    return instance if isinstance(instance, str) else None


def version_of(url: str) -> str | None:
    """The version of the server of ours that answers there."""
    session = ask(f"{url}/api/session")
    version = session.get("version") if isinstance(session, dict) else None
    return version if isinstance(version, str) else None


def load_ended(url: str, token: str | None, task: str) -> bool | None:
    """Whether a load is done (True) or was of no avail (False); None while that is not told."""
    found = ask(f"{url}/api/tasks", token)
    if found is None:
        return None
    tasks = found.get("tasks") if isinstance(found, dict) else None
    for item in tasks if isinstance(tasks, list) else ():
        if isinstance(item, dict) and (item.get("id"), item.get("kind")) == (task, "load"):
            return None if item.get("state") == "running" else item.get("state") == "done"
    return False


def loaded_folder(url: str, token: str | None) -> str | None:
    """The folder of the model that is loaded."""
    # With many models there are many files to look at.
    found = ask(f"{url}/api/models", token, 10 * _SECONDS)
    models = found.get("models") if isinstance(found, dict) else None
    for item in models if isinstance(models, list) else ():
        if isinstance(item, dict) and item.get("loaded") is True:
            folder = item.get("folder")
            return folder if isinstance(folder, str) else None
    return None


def answers_in_work(url: str, token: str | None) -> int:
    """How many requests run or wait; 0 where that is not told."""
    state = ask(f"{url}/api/state", token)
    queue = state.get("scheduler") if isinstance(state, dict) else None
    if not isinstance(queue, dict):
        return 0
    counts = (queue.get("active"), queue.get("queued"))
    return sum(count for count in counts if isinstance(count, int))
