"""`coli cache warm`: reads a saved request ahead of time, so that the first real one is short.

For: agents whose tools and system text take minutes to read, before they are started. With a
server it is an ordinary request for one token; without one an engine of our own reads the prompt
and leaves when all of it is on disk. Not for: answers, which are thrown away.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError

import click

from colibri import errors, settings
from colibri.cli import saved_request, server
from colibri.cli.options import settings_options
from colibri.cli.saved_request import SavedRequest
from colibri.errors import NetworkError, ResourceError, UsageError
from colibri.settings import Settings

if TYPE_CHECKING:
    from colibri.api.services import Services
    from colibri.kv.disk import Disk
    from colibri.scheduler import GenerationRequest

_SCHEMA: Final = 1
# A server sends something every 5 seconds while it reads a prompt; queued requests wait longer.
_SILENCE_SECONDS: Final = 3600.0
_POLL_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 5.0
# A disk that takes nothing for so long will not.
_STORE_SECONDS: Final = 60.0


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@settings_options("model", "engine")
@click.option("--url", metavar="URL", help="Server to use, instead of the configured address.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def warm(
    file: str, resolved: settings.Resolved, url: str | None, quiet: bool, as_json: bool
) -> None:
    """Read the prompt of a saved request body (JSON) ahead of time.

    A server on the configured address does it if it serves the model; else an engine of this
    command's own, which stores the prompt on disk.
    """
    chosen = resolved.settings
    saved = saved_request.load(file)
    progress = _Progress(quiet)
    started = time.monotonic()
    if url is not None and chosen.model is not None:
        raise UsageError("a server has its own model; give --model or --url.", where="--url")
    base = server.find(chosen, url)
    with progress:
        found = (
            _by_server(base, chosen, saved, progress) if base else _here(chosen, saved, progress)
        )
    found = {"schema": _SCHEMA, **found, "seconds": round(time.monotonic() - started, 3)}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    prompt, cached = found["prompt_tokens"], found["cached_tokens"]
    stored = found["stored_tokens"]
    where = f"by {found['server']}" if stored is None else f"{stored:,} are on disk"
    click.echo(
        f"{prompt:,} tokens: {cached:,} were known, {prompt - cached:,} were read "
        f"in {found['seconds']:.1f} s; {where}"
    )


class _Progress:
    """Tokens done, total and time left, on stderr: one line again and again, or one now and then.

    Threads: `show` from any one at a time.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._next = 0.0
        self._open = False

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        if self._open:
            click.echo(err=True)

    def show(self, done: int, total: int, eta: float | None) -> None:
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_POLL_SECONDS if self._terminal else _LINE_SECONDS)
        left = "" if eta is None else f", {_duration(eta)} left"
        text = f"{done:,} of {total:,} tokens{left}"
        if self._terminal:
            click.echo(f"\r{text:60}", err=True, nl=False)
            self._open = True
        else:
            click.echo(text, err=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min"  # noqa: PLR2004


# ---- with a server -------------------------------------------------------------------------------


def _by_server(
    base: str, chosen: Settings, saved: SavedRequest, progress: _Progress
) -> dict[str, Any]:
    data = json.dumps(saved.body).encode()
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(base, chosen, done, progress), name="progress", daemon=True
    )
    watcher.start()
    usage: dict[str, Any] | None = None
    try:
        with server.send(base, saved.route, chosen, _SILENCE_SECONDS, data) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                if "error" in chunk:
                    raise errors.EngineFailure(str(chunk["error"].get("message")), where=base)
                usage = chunk.get("usage") or usage
    except HTTPError as error:
        raise server.refusal(error, base) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NetworkError(
            f"the connection was lost: {server.words(error)}.", where=base
        ) from error
    finally:
        done.set()
        watcher.join()
    if usage is None:
        raise NetworkError("the answer ended before it was complete.", where=base)
    prompt, cached = saved.prompt_tokens(usage)
    return {
        "server": base,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "stored_tokens": None,
    }


def _watch(base: str, chosen: Settings, done: threading.Event, progress: _Progress) -> None:
    """Shows how far the one request is that reads a prompt; our own, unless others read too."""
    while not done.wait(_POLL_SECONDS):
        try:
            active = server.ask(base, "/health", chosen).get("requests", [])
        except (OSError, HTTPException, ValueError, AttributeError):
            continue
        reading = [one for one in active if one.get("phase") == "prefill"]
        if len(reading) == 1:
            one = reading[0]
            progress.show(one["prompt_tokens_done"], one["prompt_tokens"], one["eta_seconds"])


# ---- with an engine of our own -------------------------------------------------------------------


def _here(chosen: Settings, saved: SavedRequest, progress: _Progress) -> dict[str, Any]:
    from colibri.api.services import Services  # noqa: PLC0415
    from colibri.cli.serve import engine_options, model_folder  # noqa: PLC0415
    from colibri.engine.backend import EngineBackend  # noqa: PLC0415
    from colibri.engine.protocol import Done, Failed, Progress  # noqa: PLC0415
    from colibri.engine.seat import Seat  # noqa: PLC0415
    from colibri.engine.thread import ThreadEngine  # noqa: PLC0415
    from colibri.models.backend import open_backend  # noqa: PLC0415
    from colibri.models.loading import Loaded, Loader  # noqa: PLC0415
    from colibri.models.model import open_text  # noqa: PLC0415
    from colibri.models.served import from_text  # noqa: PLC0415
    from colibri.scheduler import Scheduler  # noqa: PLC0415

    folder = model_folder(chosen)
    opened: list[EngineBackend] = []

    def factory() -> EngineBackend:
        # The engine lives in this process, which then counts once.
        opened.append(open_backend({**engine_options(chosen, folder), "server": 0}))
        return opened[-1]

    engine = Seat(ThreadEngine(factory))
    scheduler = Scheduler(engine, max_queue=1, queue_timeout=chosen.queue_timeout)
    engine.start()
    try:
        engine.wait_ready()
        disk = _usable(opened[-1].disk, folder)
        loaded = Loaded(model=from_text(open_text(folder)), settings=chosen, folder=folder)
        services = Services(
            settings=chosen,
            engine=engine,
            scheduler=scheduler,
            loader=Loader(chosen, engine, scheduler, loaded),
        )
        request = _generation(saved, services)
        generation = scheduler.admit(request, lambda: False)
        while not isinstance(event := generation.next_event(_POLL_SECONDS), Done):
            if isinstance(event, Failed):
                raise errors.EngineFailure(event.message, hint=event.hint, code=event.code)
            if isinstance(event, Progress):
                progress.show(event.done, event.total, event.eta_seconds)
        stored = _wait_stored(disk, request.prompt)
    finally:
        # What is finished when somebody interrupts this is stored too.
        scheduler.close()
        engine.stop()
    return {
        "server": None,
        "prompt_tokens": event.usage.prompt,
        "cached_tokens": event.usage.cached,
        "stored_tokens": stored,
    }


def _generation(saved: SavedRequest, services: Services) -> GenerationRequest:
    """What a server would make of the request."""
    from colibri.api.anthropic import handler as anthropic  # noqa: PLC0415
    from colibri.api.openai import handler as openai  # noqa: PLC0415

    data = json.dumps(saved.body).encode()
    if saved.kind == "messages":
        return anthropic.prepare(data, services).generation
    prepare = openai.prepare_chat if saved.kind == "chat" else openai.prepare_completion
    return prepare(data, services).generation


def _usable(disk: Disk | None, folder: Path) -> Disk:
    """The disk; raises what keeps a prompt from being stored there."""
    if disk is None:
        raise UsageError(
            "nothing is kept on disk, so reading ahead would be for nothing.",
            where="--prefix-store-gb",
            hint="Leave the setting out, or start a server and give its --url.",
        )
    if disk.store.state != "ready":
        raise ResourceError(
            f"the stored context cannot be written: {disk.store.note}.",
            where=str(folder),
            hint="If a server uses it, give its --url.",
        )
    return disk


def _wait_stored(disk: Disk, prompt: Sequence[int]) -> int:
    """Waits for the writer; returns how many tokens of the prompt are on disk."""
    stored, moved = -1, time.monotonic()
    while time.monotonic() - moved < _STORE_SECONDS:
        now = sum(used for _, used in disk.store.find(prompt))
        if now > len(prompt) - disk.store.least_tail:
            return now
        if now > stored:
            stored, moved = now, time.monotonic()
        time.sleep(_POLL_SECONDS / 10)
    raise ResourceError(
        f"only {stored:,} of {len(prompt):,} tokens could be stored.",
        where=str(disk.store.folder),
        hint="Check the disk's free room and --prefix-store-gb.",
    )
