"""`coli serve`: one model behind an OpenAI-compatible HTTP server, until it is told to stop.

For: people, `sidecar --no-window` and the desktop app, all of which call `run`. Not for: requests
(`api`) or the engine's process (`engine.process`); they are only put together and taken apart here.

    start  listen -> engine process -> the model's text -> HTTP -> engine ready: say so
    stop   SIGTERM or SIGINT -> take no more -> turn away who waits -> end the engine
           -> let answers finish -> leave

Heavy imports wait until the engine process has been started: both load side by side.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from colibri import logs, paths, settings
from colibri.cli.options import settings_options
from colibri.engine.child import ChildSpec
from colibri.engine.client import EngineClient
from colibri.engine.process import ProcessEngine
from colibri.engine.protocol import EngineInfo
from colibri.errors import ModelNotFoundError, UsageError, WorkerUnavailableError
from colibri.settings import Settings

log = logging.getLogger(__name__)

# How long streams get to say goodbye after their engine has been stopped.
FAREWELL_SECONDS = 3.0
_POLL_SECONDS = 0.25
_FORCED = 130


@click.command()
@settings_options("model", "engine", "server", "log")
def serve(resolved: settings.Resolved) -> int:
    """Serve a model over HTTP (OpenAI-compatible)."""
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


def model_folder(chosen: Settings) -> Path:
    """The folder to serve: what --model says, or the only installed model."""
    from colibri.models import catalog  # noqa: PLC0415 - heavy

    if chosen.model is not None:
        return catalog.resolve(chosen.model)
    models = catalog.installed()
    if len(models) == 1:
        return models[0].folder
    names = ", ".join(model.name for model in models)
    raise ModelNotFoundError(
        f"several models are installed: {names}." if models else "no model is installed.",
        where="--model",
        hint="Choose one with --model NAME."
        if models
        else "`make model` installs a small one; --model also takes a folder.",
    )


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


def run(chosen: Settings, on_ready: Callable[[str], None] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Main thread only.

    `on_ready` gets the URL once the model answers. Raises ColibriError for what keeps it from
    serving: settings, port, model, engine.
    """
    _configure_logs(chosen)
    check_bind(chosen)
    check_slots(chosen)
    stop = _stop_signal()
    from colibri.api.server import HttpServer, listen  # noqa: PLC0415 - see the module's text

    with listen(chosen.host, chosen.port) as listener:
        folder = model_folder(chosen)
        engine = engine_process(chosen, folder)
        engine.start()
        try:
            from colibri.api.app import create_app  # noqa: PLC0415
            from colibri.api.services import Services  # noqa: PLC0415
            from colibri.models.model import open_text  # noqa: PLC0415
            from colibri.models.served import from_text  # noqa: PLC0415
            from colibri.scheduler import Scheduler  # noqa: PLC0415

            scheduler = Scheduler(
                engine,
                max_queue=chosen.max_queue,
                queue_timeout=chosen.queue_timeout,
                parallel=chosen.parallel,
            )
            services = Services(
                settings=chosen,
                model=from_text(open_text(folder), chosen.model_id),
                engine=engine,
                scheduler=scheduler,
            )
            server = HttpServer(create_app(services), listener)
            thread = threading.Thread(target=server.serve, name="http", daemon=True)
            thread.start()
            try:
                info = _wait_ready(engine, stop)
                if info is not None:
                    _announce(server.url, services.model.id, info, chosen)
                    if on_ready is not None:
                        on_ready(server.url)
                    stop.wait()
            finally:
                log.info("stopping")
                server.stop()
                scheduler.close()
                engine.stop()
                server.wait_idle(FAREWELL_SECONDS)
        finally:
            engine.stop()
    return 0


def _configure_logs(chosen: Settings) -> None:
    try:
        logs.configure(chosen.log_level, Path(chosen.log_file) if chosen.log_file else None)
    except OSError as error:
        raise UsageError(
            f"the log file cannot be written: {error.strerror or error}.", where="--log-file"
        ) from error


def _stop_signal() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second one ends the process at once."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(_FORCED)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _wait_ready(engine: EngineClient, stop: threading.Event) -> EngineInfo | None:
    """Waits for the model; None when told to stop. Raises what makes the engine give up."""
    while not stop.is_set():
        try:
            return engine.wait_ready(_POLL_SECONDS)
        except WorkerUnavailableError:
            if engine.status().state not in ("loading", "restarting"):
                raise
    return None


def _announce(url: str, model_id: str, info: EngineInfo, chosen: Settings) -> None:
    """Says on stdout where the server is and how to ask it something."""
    key = " -H 'Authorization: Bearer '\"$COLI_API_KEY\"" if chosen.api_key else ""
    body = json.dumps({"model": model_id, "messages": [{"role": "user", "content": "Hello"}]})
    click.echo(
        f"Colibri serves {model_id} at {url} "
        f"(context {info.context} tokens, {info.isa}, {info.threads} threads)\n"
        f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    )
    if chosen.insecure_bind and not chosen.api_key:
        click.echo("Warning: everyone who can reach this address can use the server.", err=True)
