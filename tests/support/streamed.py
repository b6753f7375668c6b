"""The real engine on a small GLM model whose experts do not all fit, with its loop and its disk.

For: tests of context that is kept. 16-bit KV, fast path, experts read from disk through a few
slots. `open_backend` is the factory that an engine process calls. Threads: as `engineloop`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from colibri.engine import parking, worker
from colibri.engine.backend import Tell
from colibri.engine.protocol import Done
from colibri.engine.table import EngineOptions
from colibri.models import backend as opening
from colibri.models.backend import NativeBackend, Options
from tests.support.engineloop import EngineLoop

EXPERT_SLOTS = 5  # of 32 experts of the trunk, and of 16 of the MTP layer


def open_backend(options: dict[str, Any], tell: Tell | None = None) -> NativeBackend:
    """As `colibri.models.backend.open_backend`, with engine options that users do not have:
    `expert_slots` and `fault`.
    """
    own = {name: options[name] for name in ("expert_slots", "fault") if name in options}
    rest = {name: value for name, value in options.items() if name not in own}
    patched = functools.partial(EngineOptions, **{"expert_slots": EXPERT_SLOTS, **own})
    with mock.patch.object(opening, "EngineOptions", patched):
        return NativeBackend(Options(**rest), tell)


def open_on_slow_disk(options: dict[str, Any], tell: Tell | None = None) -> NativeBackend:
    """The same, with a disk that takes four blocks a second."""
    backend = open_backend(options, tell)
    assert backend.disk is not None
    put = backend.disk.store.put

    def slow(*arguments: Any) -> Any:
        time.sleep(0.25)
        return put(*arguments)

    backend.disk.store.put = slow  # type: ignore[method-assign]
    return backend


def open_that_saves_chunks(options: dict[str, Any], tell: Tell | None = None) -> NativeBackend:
    """The same, reading prompts in small slices and saving unfinished chunks as often as it can."""
    worker.SLICE_MS = -1  # type: ignore[misc]
    parking.SECONDS = 0.0  # type: ignore[misc]
    return open_backend(options, tell)


def options(folder: Path, state: Path | None = None, **other: Any) -> dict[str, Any]:
    """Options of a model folder; with a state directory what is computed is kept there."""
    kept = {"state_dir": str(state), "prefix_store_gb": 0.1} if state is not None else {}
    return {"folder": str(folder), "context": 4096, "drafts": "0", "threads": 2, **kept, **other}


class Answer:
    """What a job gave: ids of the answer without its last token, text, the logits that the last
    token was drawn from, and what was cached.
    """

    def __init__(self, ids: Sequence[int], text: str, logits: bytes, done: Done) -> None:
        self.ids = list(ids)
        self.text = text
        self.logits = logits
        self.cached = done.usage.cached
        self.prompt = done.usage.prompt
        self.work = done.work

    @property
    def same(self) -> tuple[list[int], str, bytes]:
        """What must not depend on where the context came from."""
        return self.ids, self.text, self.logits


class Streamed:
    """An open backend and its loop. `stop` leaves the disk as a server that was told to stop."""

    def __init__(self, folder: Path, state: Path | None = None, **other: Any) -> None:
        self.backend = open_backend(options(folder, state, **other))
        self.loop = EngineLoop(
            self.backend, parallel=other.get("parallel", 1), slots=other.get("slots", 1)
        )

    def answer(self, prompt: Sequence[int], slot: int = 0, **fields: object) -> Answer:
        values = {"max_tokens": 24, "cache_slot": slot, **fields}
        text, done = self.loop.answer(prompt, **values)
        held = self.slot(slot)
        logits = held.session.logits().tobytes() if text else b""
        return Answer(held.history[len(prompt) :], text, logits, done)

    def slot(self, index: int = 0) -> Any:
        return self.loop.worker._slots.slots[index]

    def kv(self, tokens: int, slot: int = 0) -> list[bytes]:
        """KV of the whole blocks of the first `tokens` tokens of a slot."""
        size = self.backend.block_tokens
        session = self.slot(slot).session
        return [bytes(session.export_block(block)) for block in range(tokens // size)]

    def stop(self) -> None:
        self.loop.close()
        self.backend.close()


@contextlib.contextmanager
def streamed(folder: Path, state: Path | None = None, **other: Any) -> Iterator[Streamed]:
    server = Streamed(folder, state, **other)
    try:
        yield server
    finally:
        server.stop()
