"""Whoever measures a prompt for `coli atlas run`: an engine of the command's own, or a server's.

For: `cli.atlas`. Both count the same: greedy, without drafts, and nothing is learnt from it. An own
engine starts its cache with what is known about the model and keeps what it learns in a folder that
is thrown away. Thread rule: one prompt at a time.
"""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.error import HTTPError

from colibri.cli import server
from colibri.cli.serve import engine_options
from colibri.engine.child import ChildSpec
from colibri.engine.client import EngineClient
from colibri.engine.process import ProcessEngine
from colibri.engine.protocol import Done, Failed, JobEvent, Submit
from colibri.errors import (
    ContextLengthError,
    EngineFailure,
    NetworkError,
    UsageError,
    WorkerUnavailableError,
)
from colibri.settings import Settings

if TYPE_CHECKING:
    from colibri.models.atlas.measure import Measured
    from colibri.models.served import ServedModel

_POLL_SECONDS: Final = 0.25
# Requests of others may come first, and a prompt of a streamed model takes minutes.
_SILENCE_SECONDS: Final = 3600.0


class Meter(Protocol):
    """Measures one prompt and an answer of at most `tokens` tokens."""

    def __call__(self, text: str, tokens: int) -> Measured: ...


class ServerMeter:
    """The engine of the server at `base`."""

    def __init__(self, base: str, chosen: Settings) -> None:
        self._base = base
        self._chosen = chosen

    def __call__(self, text: str, tokens: int) -> Measured:
        from colibri.models.atlas import measure  # noqa: PLC0415

        body = json.dumps({"text": text, "max_tokens": tokens}).encode()
        path = "/api/atlas/measure"
        try:
            with server.send(self._base, path, self._chosen, _SILENCE_SECONDS, body) as answer:
                return measure.from_wire(answer.read())
        except HTTPError as error:
            raise server.refusal(error, self._base) from None
        except (OSError, HTTPException, ValueError) as error:
            raise NetworkError(
                f"the connection was lost: {server.words(error)}.", where=self._base
            ) from error


class EngineMeter:
    """An engine process that has been started for this."""

    def __init__(self, engine: EngineClient, model: ServedModel) -> None:
        self._engine = engine
        self._model = model
        self._jobs = 0

    def __call__(self, text: str, tokens: int) -> Measured:
        from colibri.models.atlas import measure  # noqa: PLC0415

        prompt, first = measure.tokens_of(self._model, text)
        self._jobs += 1
        command = Submit(
            job=f"atlas{self._jobs}",
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            top_p=1.0,
            seed=1,
            stops=self._model.chat_stops,
            ignore_leading_stop=True,
            count_from=first,
        )
        events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self._engine.submit(command, events.put)
        while True:
            event = self._next(events)
            if isinstance(event, Done):
                return measure.measured(event.routing)
            if isinstance(event, Failed):
                long = event.code == ContextLengthError.default_code
                kind = UsageError if long else EngineFailure
                raise kind(event.message, hint=event.hint, where=repr(text[:60]), code=event.code)

    def _next(self, events: queue.SimpleQueue[JobEvent]) -> JobEvent:
        while True:
            try:
                return events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._engine.status().state in ("failed", "stopped"):
                    raise WorkerUnavailableError("the engine ended before its work.") from None


@contextmanager
def own_engine(chosen: Settings, folder: Path) -> Iterator[EngineMeter]:
    """An engine of our own for the model in a folder. Raises UsageError for a dense model, and what
    opening one raises.
    """
    from colibri.models import usage  # noqa: PLC0415 - only while measuring
    from colibri.models.model import open_text  # noqa: PLC0415
    from colibri.models.served import from_text  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="colibri-atlas-") as state:
        known = usage.place(folder, chosen.state_dir)
        if known.is_file():
            shutil.copyfile(known, Path(state) / usage.NAME)
        options: dict[str, Any] = {
            **engine_options(chosen, folder),
            "drafts": "0",
            "state_dir": state,
            "prefix_store_gb": 0,
            "trace": None,
            "slots": 1,
            "parallel": 1,
        }
        engine = ProcessEngine(
            ChildSpec(
                factory="colibri.models.backend:open_backend", options=options, log_level="error"
            )
        )
        engine.start()
        try:
            model = from_text(open_text(folder))
            if _wait_ready(engine) is None:
                raise UsageError("this model is dense: it has no experts.", where=str(folder))
            yield EngineMeter(engine, model)
        finally:
            engine.stop()


def _wait_ready(engine: EngineClient) -> Any:
    """The model's experts, once it is loaded."""
    while True:
        try:
            return engine.wait_ready(_POLL_SECONDS).experts
        except WorkerUnavailableError:
            if engine.status().state not in ("loading", "restarting"):
                raise
