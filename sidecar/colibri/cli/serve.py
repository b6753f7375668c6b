"""`coli serve`: a model behind an OpenAI-compatible HTTP server, until it is told to stop.

For: people, `sidecar --no-window` and the desktop app, all of which call `run`. Not for: requests
(`api`) or the engine's process (`engine.process`); they are only put together and taken apart here.

    start  listen -> engine process -> the model's text -> HTTP -> engine ready: say so
    stop   SIGTERM or SIGINT -> take no more -> turn away who waits -> end the engine
           -> let answers finish -> leave

Heavy imports wait until the engine process has been started: both load side by side.
"""

from __future__ import annotations

import gc
import ipaddress
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from colibri import logs, paths, settings
from colibri.cli.options import settings_options
from colibri.engine.child import ChildSpec
from colibri.engine.client import EngineClient
from colibri.engine.process import ProcessEngine
from colibri.engine.protocol import EngineInfo
from colibri.engine.seat import Seat
from colibri.errors import (
    ColibriError,
    ModelError,
    ModelNotFoundError,
    NoModelError,
    UsageError,
    WorkerUnavailableError,
)
from colibri.settings import Settings

if TYPE_CHECKING:
    import socket

    from colibri.models.served import ServedModel

log = logging.getLogger(__name__)

# How long streams get to say goodbye after their engine has been stopped.
FAREWELL_SECONDS = 3.0
_POLL_SECONDS = 0.25
_FORCED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The program that has started this server as a part of itself.

    `listener` is where to serve (owned by `run` from then on), `token` counts as the API key,
    `stop` ends the server, and `opened` gets its URL and instance as soon as it answers HTTP, which
    is before the model is loaded.
    """

    listener: socket.socket
    token: str
    stop: threading.Event
    opened: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs, with the model that it was started with."""

    url: str
    instance: str
    model: ServedModel | None
    engine: EngineClient


@click.command()
@settings_options("model", "engine", "server", "log")
def serve(resolved: settings.Resolved) -> int:
    """Serve a model over HTTP, in OpenAI's and Anthropic's dialects."""
    return run(resolved.settings)


def check_bind(chosen: Settings) -> None:
    """Raises UsageError for an address beyond this machine that nobody protects."""
    if chosen.api_key or chosen.insecure_bind or chosen.host == "localhost":
        return
    try:
        local = ipaddress.ip_address(chosen.host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise UsageError(
            f"{chosen.host} can be reached from other machines, and no API key is set.",
            where="--host",
            hint="Set COLI_API_KEY, or allow it with --insecure-bind.",
        )


def check_slots(chosen: Settings) -> None:
    """Raises UsageError for more requests at once than there are slots for them."""
    if chosen.parallel > chosen.kv_slots:
        raise UsageError(
            f"{chosen.parallel} requests at once need as many KV slots; there "
            f"{'is' if chosen.kv_slots == 1 else 'are'} {chosen.kv_slots}.",
            where="--parallel",
            hint=f"Add --kv-slots {chosen.parallel}, or lower --parallel.",
        )


def check(chosen: Settings) -> None:
    """Raises UsageError for settings that cannot be served together."""
    check_bind(chosen)
    check_slots(chosen)


def model_folder(chosen: Settings) -> Path:
    """The folder to serve: what --model says, else the starter model. In a source tree without
    that, the only installed model.
    """
    from colibri.models import catalog  # noqa: PLC0415 - heavy

    if chosen.model is not None:
        return catalog.resolve(chosen.model)
    starter = paths.starter_dir()
    if starter is not None:
        return starter
    models = catalog.installed()
    if len(models) == 1:
        return models[0].folder
    if models:
        names = ", ".join(model.name for model in models)
        what, hint = f"several models are installed: {names}.", "Choose one with --model NAME."
    else:
        what, hint = "no model is installed.", "--model also takes a folder."
        if paths.in_source_tree():
            hint = "`make model` installs a small one; --model also takes a folder."
    raise ModelNotFoundError(what, where="--model", hint=hint)


def engine_options(chosen: Settings, folder: Path) -> dict[str, Any]:
    """What the engine process is told: the fields of `models.backend.Options`."""
    return {
        "folder": str(folder.absolute()),
        "context": chosen.ctx or 0,
        "precision": chosen.precision,
        "isa": chosen.isa,
        "threads": chosen.threads,
        "io_mode": chosen.io_mode,
        "mirrors": [str(paths.given(name).absolute()) for name in chosen.mirrors],
        "prefetch": chosen.prefetch,
        "drafts": chosen.drafts,
        "prefill_chunk": chosen.prefill_chunk,
        "state_dir": chosen.state_dir,
        "prefix_store_gb": chosen.prefix_store_gb,
        "trace": chosen.trace and str(Path(chosen.trace).absolute()),
        "ram": chosen.ram or "",
        "force": chosen.force,
        "slots": chosen.kv_slots,
        "parallel": chosen.parallel,
        "server": os.getpid(),
    }


def engine_process(chosen: Settings, folder: Path) -> ProcessEngine:
    """The engine process for a model folder, not started yet."""
    return ProcessEngine(
        ChildSpec(
            factory="colibri.models.backend:open_backend",
            options=engine_options(chosen, folder),
            slots=chosen.kv_slots,
            parallel=chosen.parallel,
            log_level=chosen.log_level,
        )
    )


def local_url(host: str, port: int) -> str:
    """Where a client on this machine finds a server that listens on that address."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


@contextmanager
def serving(
    chosen: Settings,
    folder: Path | None,
    listener: socket.socket,
    token: str | None = None,
    *,
    missing: str = "",
    go_on: bool = False,
) -> Iterator[Serving]:
    """A server for the model in a folder, or without one, as long as the context is open; the
    engine may still be loading. `token` counts as the API key, `missing` says why there is no
    folder. Raises ColibriError for what keeps it from serving; with `go_on` a model that does not
    open does not: the server says what is wrong with it, and loads another one.
    """
    from colibri.api.front import Limits  # noqa: PLC0415
    from colibri.api.server import HttpServer  # noqa: PLC0415 - see the module's text

    engine = Seat(None if folder is None else engine_process(chosen, folder))
    engine.start()
    if missing:
        _give_up(engine, missing)
    # Hundreds of modules follow, and nothing of them is ever garbage.
    gc.disable()
    try:
        from colibri.api.app import create_app  # noqa: PLC0415
        from colibri.api.services import Services  # noqa: PLC0415
        from colibri.models.loading import Loaded, Loader  # noqa: PLC0415
        from colibri.models.model import open_text  # noqa: PLC0415
        from colibri.models.served import from_text  # noqa: PLC0415
        from colibri.scheduler import Scheduler  # noqa: PLC0415
        from colibri.telemetry import LogRing  # noqa: PLC0415

        scheduler = Scheduler(
            engine,
            max_queue=chosen.max_queue,
            queue_timeout=chosen.queue_timeout,
            parallel=chosen.parallel,
        )
        first = None
        if folder is not None:
            try:
                model = from_text(open_text(folder), chosen.model_id)
                first = Loaded(model=model, settings=chosen, folder=folder)
            except ModelError as error:
                if not go_on:
                    raise
                _give_up(engine, f"{folder.name} could not be loaded: {error}")
        services = Services(
            settings=chosen,
            engine=engine,
            scheduler=scheduler,
            loader=Loader(chosen, engine, scheduler, first, open_engine=engine_process),
            token=token,
            ring=logs.add(LogRing()),
        )
        app = create_app(services)
        server = HttpServer(
            app,
            listener,
            refuses=app.extensions["colibri_guard"].refuses,
            # Everyone in the queue has a thread; the others need some as well.
            limits=Limits(handlers=Limits().handlers + chosen.max_queue + chosen.parallel),
        )
        threading.Thread(target=server.serve, name="http", daemon=True).start()
        services.hub.url = server.url
        services.hub.start()
        gc.enable()
        try:
            yield Serving(server.url, services.instance, first.model if first else None, engine)
        finally:
            log.info("stopping")
            services.close()
            server.stop()
            scheduler.close()
            engine.stop()
            server.wait_idle(FAREWELL_SECONDS)
    finally:
        gc.enable()
        engine.stop()


def _give_up(seat: Seat, reason: str) -> None:
    """Goes on without the engine of a model that does not open."""
    log.error("%s", reason)
    if (engine := seat.take(reason=reason)) is not None:
        engine.stop()


def run(
    chosen: Settings,
    on_ready: Callable[[str], None] | None = None,
    owner: Owner | None = None,
) -> int:
    """Serves until SIGTERM, SIGINT or its owner's wish; returns the exit code. Main thread only.

    `on_ready` gets the URL once the model answers. Raises ColibriError for what keeps it from
    serving: settings, port, model, engine. With an owner it goes on without a model that
    is not there or does not open: its window says so, and another one can be loaded.
    """
    _configure_logs(chosen)
    check(chosen)
    stop = _stop_signal(owner.stop if owner else threading.Event())
    from colibri.api.server import listen  # noqa: PLC0415 - see the module's text

    with owner.listener if owner else listen(chosen.host, chosen.port) as listener:
        folder, missing = None, ""
        try:
            folder = None if chosen.no_model else model_folder(chosen)
        except ModelNotFoundError as error:
            if owner is None:
                raise
            missing = str(error)
        token, go_on = (owner.token, True) if owner else (None, False)
        opened = serving(chosen, folder, listener, token, missing=missing, go_on=go_on)
        with opened as running:
            if owner is not None:
                owner.opened(running.url, running.instance)
            info = wait_ready(running.engine, stop, go_on=owner is not None)
            if not stop.is_set():
                _announce(running.url, running.model, info, chosen)
                if on_ready is not None:
                    on_ready(running.url)
                stop.wait()
    return 0


def _configure_logs(chosen: Settings) -> None:
    try:
        logs.configure(chosen.log_level, Path(chosen.log_file) if chosen.log_file else None)
    except OSError as error:
        raise UsageError(
            f"the log file cannot be written: {error.strerror or error}.", where="--log-file"
        ) from error


def _stop_signal(stop: threading.Event) -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second one ends the process at once."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(_FORCED)
        stop.set()

    # On Windows Ctrl-Break is what another program can send, and SIGTERM is not.
    numbers = [signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT)]
    for number in numbers:
        signal.signal(number, on_signal)
    return stop


def wait_ready(
    engine: EngineClient, stop: threading.Event, *, go_on: bool = False
) -> EngineInfo | None:
    """Waits for the model; None when told to stop and without a model. What makes the engine give
    up is raised, unless the server is to go on: a window shows it, and loads another model.
    """
    while not stop.is_set():
        try:
            return engine.wait_ready(_POLL_SECONDS)
        except NoModelError:
            return None
        except ColibriError as error:
            waiting = isinstance(error, WorkerUnavailableError)
            if waiting and engine.status().state in ("loading", "restarting"):
                continue
            if not go_on:
                raise
            log.error("%s", error)
            return None
    return None


def _announce(
    url: str, model: ServedModel | None, info: EngineInfo | None, chosen: Settings
) -> None:
    """Says on stdout where the server is and how to ask it something."""
    if chosen.insecure_bind and not chosen.api_key:
        click.echo("Warning: everyone who can reach this address can use the server.", err=True)
    if model is None or info is None:
        click.echo(
            f"Colibri listens at {url} without a model.\n"
            f"Load one at {url}/app/models, or with POST /api/models/NAME/load."
        )
        return
    from colibri.models.about import About  # noqa: PLC0415 - heavy
    from colibri.models.limits import beyond_training  # noqa: PLC0415

    about = model.about or About()
    ask = about.examples[0] if about.examples else "Hello"
    key = " -H 'Authorization: Bearer '\"$COLI_API_KEY\"" if chosen.api_key else ""
    body = json.dumps({"model": model.id, "messages": [{"role": "user", "content": ask}]})
    click.echo(
        f"Colibri serves {model.id} at {url} "
        f"(context {info.context} tokens, {info.isa}, {info.threads} threads)\n"
        f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    )
    if about.note:
        click.echo(about.note)
    if about.from_source:
        click.echo("One that chats: make run MODEL=smollm2-135m-instruct")
    elif about.starter:
        click.echo(f"Another one: coli serve --model FOLDER, or {url}/app/models")
    beyond = beyond_training(info.context, info.trained_context)
    if beyond is not None:
        click.echo(f"Warning: {beyond}", err=True)
