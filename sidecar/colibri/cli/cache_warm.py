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
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import click

from colibri import errors, settings
from colibri.cli.options import settings_options
from colibri.errors import NetworkError, ResourceError, UsageError
from colibri.settings import Settings

if TYPE_CHECKING:
    from colibri.kv.disk import Disk

_SCHEMA: Final = 1
_MAX_FILE_BYTES: Final = 32 << 20
_KNOCK_SECONDS: Final = 3.0
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
    body = _body(file)
    progress = _Progress(quiet)
    started = time.monotonic()
    server = _server(chosen, url)
    with progress:
        found = (
            _by_server(server, chosen, body, progress) if server else _here(chosen, body, progress)
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


def _body(file: str) -> dict[str, Any]:
    """The request, changed so that it reads the prompt and does little else."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise UsageError(f"it is larger than {_MAX_FILE_BYTES >> 20} MB.", where=file)
        body = json.loads(data)
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror or error}.", where=file) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"it is not JSON: {error}.", where=file) from error
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise UsageError(
            "it holds no request.",
            where=file,
            hint="Save the JSON body of a request to /v1/chat/completions or /v1/completions.",
        )
    body.pop("max_completion_tokens", None)
    return {
        **body,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


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


def _server(chosen: Settings, url: str | None) -> str | None:
    """Base URL of the server to use; None if an engine of our own has to do it."""
    if url is not None and chosen.model is not None:
        raise UsageError("a server has its own model; give --model or --url.", where="--url")
    host = "127.0.0.1" if chosen.host in ("0.0.0.0", "") else chosen.host  # noqa: S104
    address = f"[{host}]" if ":" in host else host
    base = (url or f"http://{address}:{chosen.port}").rstrip("/").removesuffix("/v1")
    if url is None and not chosen.port:
        return None
    served = _served(base, chosen, named=url is not None)
    if served is None or (url is None and not _is_wanted(served, chosen)):
        return None
    return base


def _served(base: str, chosen: Settings, *, named: bool) -> str | None:
    """Id of the model that a Colibri at this address serves; None if there is none.

    Raises NetworkError instead if somebody has `named` the address.
    """
    try:
        if _json(base, "/", chosen)["name"] == "colibri":
            return str(_json(base, "/v1/models", chosen)["data"][0]["id"])
        reason = "another program does"
    except HTTPError as error:
        error.close()
        reason = f"status {error.code}"
    except (OSError, HTTPException) as error:
        reason = _words(error)
    except (ValueError, LookupError, TypeError):
        reason = "no such server is there"
    if not named:
        return None
    raise NetworkError(
        f"no Colibri server answers: {reason}.",
        where=base,
        hint="Check the address, and COLI_API_KEY if the server wants a key.",
    )


def _is_wanted(served: str, chosen: Settings) -> bool:
    """Whether a server on the configured address has the model that is asked for."""
    if chosen.model is None:
        return True
    from colibri.models import catalog  # noqa: PLC0415
    from colibri.models.model import open_text  # noqa: PLC0415

    return served in (chosen.model_id, open_text(catalog.resolve(chosen.model)).model_id)


def _open(
    base: str, path: str, chosen: Settings, timeout: float, body: bytes | None = None
) -> HTTPResponse:
    """Sends a request past all proxies. Raises HTTPError for a status of 400 and above; OSError,
    HTTPException or ValueError for what is no HTTP.
    """
    if not base.startswith(("http://", "https://")):
        raise ValueError("not a URL")
    headers = {"Content-Type": "application/json"}
    if chosen.api_key:
        headers["Authorization"] = f"Bearer {chosen.api_key}"
    request = Request(base + path, body, headers)  # noqa: S310 - checked above
    return cast(HTTPResponse, build_opener(ProxyHandler({})).open(request, timeout=timeout))


def _json(base: str, path: str, chosen: Settings) -> Any:
    with _open(base, path, chosen, _KNOCK_SECONDS) as answer:
        return json.loads(answer.read(_MAX_FILE_BYTES))


def _words(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _by_server(
    base: str, chosen: Settings, body: dict[str, Any], progress: _Progress
) -> dict[str, Any]:
    route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(base, chosen, done, progress), name="progress", daemon=True
    )
    watcher.start()
    usage: dict[str, Any] | None = None
    try:
        with _open(base, route, chosen, _SILENCE_SECONDS, json.dumps(body).encode()) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                if "error" in chunk:
                    raise errors.EngineFailure(str(chunk["error"].get("message")), where=base)
                usage = chunk.get("usage") or usage
    except HTTPError as error:
        raise _refusal(error, base) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NetworkError(f"the connection was lost: {_words(error)}.", where=base) from error
    finally:
        done.set()
        watcher.join()
    if usage is None:
        raise NetworkError("the answer ended before it was complete.", where=base)
    return {
        "server": base,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "stored_tokens": None,
    }


def _watch(base: str, chosen: Settings, done: threading.Event, progress: _Progress) -> None:
    """Shows how far the one request is that reads a prompt; our own, unless others read too."""
    while not done.wait(_POLL_SECONDS):
        try:
            active = _json(base, "/health", chosen).get("requests", [])
        except (OSError, HTTPException, ValueError, AttributeError):
            continue
        reading = [one for one in active if one.get("phase") == "prefill"]
        if len(reading) == 1:
            one = reading[0]
            progress.show(one["prompt_tokens_done"], one["prompt_tokens"], one["eta_seconds"])


def _refusal(answer: HTTPError, base: str) -> errors.ColibriError:
    try:
        message = str(json.loads(answer.read())["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError):
        message = f"the server answers with status {answer.code}."
    finally:
        answer.close()
    code = answer.code
    if code in (401, 403):
        return errors.AuthenticationError(message, where=base, hint="Set COLI_API_KEY.")
    if code == 429:  # noqa: PLR2004
        return ResourceError(message, where=base)
    if code < 500:  # noqa: PLR2004
        return errors.RequestError(message, where=base)
    return errors.EngineFailure(message, where=base)


# ---- with an engine of our own -------------------------------------------------------------------


def _here(chosen: Settings, body: dict[str, Any], progress: _Progress) -> dict[str, Any]:
    from colibri.api.openai import handler  # noqa: PLC0415
    from colibri.api.services import Services  # noqa: PLC0415
    from colibri.cli.serve import engine_options, model_folder  # noqa: PLC0415
    from colibri.engine.backend import EngineBackend  # noqa: PLC0415
    from colibri.engine.protocol import Done, Failed, Progress  # noqa: PLC0415
    from colibri.engine.thread import ThreadEngine  # noqa: PLC0415
    from colibri.models.backend import open_backend  # noqa: PLC0415
    from colibri.models.model import open_text  # noqa: PLC0415
    from colibri.models.served import from_text  # noqa: PLC0415
    from colibri.scheduler import Scheduler  # noqa: PLC0415

    folder = model_folder(chosen)
    opened: list[EngineBackend] = []

    def factory() -> EngineBackend:
        # The engine lives in this process, which then counts once.
        opened.append(open_backend({**engine_options(chosen, folder), "server": 0}))
        return opened[-1]

    engine = ThreadEngine(factory)
    scheduler = Scheduler(engine, max_queue=1, queue_timeout=chosen.queue_timeout)
    engine.start()
    try:
        engine.wait_ready()
        disk = _usable(opened[-1].disk, folder)
        services = Services(
            settings=chosen, model=from_text(open_text(folder)), engine=engine, scheduler=scheduler
        )
        prepare = handler.prepare_chat if "messages" in body else handler.prepare_completion
        request = prepare(json.dumps(body).encode(), services).generation
        generation = scheduler.admit(request, lambda: False)
        while not isinstance(event := generation.next_event(_POLL_SECONDS), Done):
            if isinstance(event, Failed):
                raise errors.EngineFailure(event.message, hint=event.hint, code=event.code)
            if isinstance(event, Progress):
                progress.show(event.done, event.total, event.eta_seconds)
        stored = _wait_stored(disk, request.prompt, opened[-1].block_tokens)
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


def _wait_stored(disk: Disk, prompt: Sequence[int], block: int) -> int:
    """Waits for the writer; returns how many tokens of the prompt are on disk."""
    whole = len(prompt) // block
    stored, moved = -1, time.monotonic()
    while time.monotonic() - moved < _STORE_SECONDS:
        now = len(disk.store.match(prompt[: whole * block]))
        if now >= whole:
            return now * block
        if now > stored:
            stored, moved = now, time.monotonic()
        time.sleep(_POLL_SECONDS / 10)
    raise ResourceError(
        f"only {stored * block:,} of {len(prompt):,} tokens could be stored.",
        where=str(disk.store.folder),
        hint="Check the disk's free room and --prefix-store-gb.",
    )
