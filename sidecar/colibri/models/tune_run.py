"""One run of `coli tune`: an engine process of its own does a fixed piece of work, and ends.

For: `coli tune`. It measures what a server would do: the same process, options and worker loop,
with nothing else in it. The work is a prompt of readable text and a greedy continuation; it grows
until a run lasts long enough to be timed. Every run gets the same memory budget, which is what was
free in the beginning less a little; when another program takes that memory, measuring ends with one
sentence instead of an overcommitted machine. Thread rule: one run at a time, from one thread.
"""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from colibri.engine.client import EngineClient
from colibri.engine.protocol import Done, EngineInfo, Failed, JobEvent, Submit, Tokens
from colibri.errors import EngineFailure, ResourceError, WorkerUnavailableError
from colibri.hardware import memory, processes
from colibri.models.tune import Changes, Measurement, MemoryTakenError
from colibri.text.tokenizer import Tokenizer

# What other programs may still take while tuning runs.
_SLACK: Final = 0.9
_POLL_SECONDS: Final = 0.25
# A run of less is mostly noise of clock and scheduler.
LONG_ENOUGH_SECONDS: Final = 2.0
_LARGEST: Final = (1024, 128)
_TEXT: Final = (
    "The valley woke slowly. Mist lay over the river, and on the far bank the first carts were "
    "already moving towards the market. A woman counted apples into a basket: three red ones, two "
    "green ones, and one that nobody would buy. In the workshop next door somebody was explaining "
    "how a pump works. Water rises because the air outside presses on it, he said, and not because "
    "the piston pulls; that is why no such pump lifts it more than ten metres. def area(width, "
    "height): return width * height. The list of rooms is: kitchen, hall, study, attic. "
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens of the prompt, and tokens to generate."""

    prompt: int = 16
    generated: int = 8

    def larger(self) -> Workload:
        """About twice the work, up to a bound."""
        return Workload(min(2 * self.prompt, _LARGEST[0]), min(2 * self.generated, _LARGEST[1]))


def prompt_ids(tokenizer: Tokenizer, count: int) -> list[int]:
    """Exactly `count` token ids of a readable text; paragraphs are numbered, so that none repeats
    word for word.
    """
    ids: list[int] = []
    for number in range(1, count + 1):
        ids += tokenizer.encode(f"{number}. {_TEXT}")
        if len(ids) >= count:
            break
    return ids[:count]


def memory_budget() -> int:
    """Bytes that every run may hold; 0 when nothing is known about the free memory."""
    return int(memory.budget() * _SLACK)


def check_memory(budget: int) -> None:
    """Raises MemoryTakenError if less than `budget` is free now."""
    free = memory.budget()
    if budget and 0 < free < budget:
        holders = ", ".join(map(str, processes.memory_holders())) or "no single program"
        raise MemoryTakenError(
            f"other programs took memory while measuring: {free / 1e9:.2f} GB are free, the runs "
            f"count on {budget / 1e9:.2f} GB. Most is held by {holders}.",
            where="memory",
            hint="Close what you do not need, or start again to tune for what is left.",
        )


class Runner:
    """Runs a workload with changed settings. `engine` makes an engine process for some changes."""

    def __init__(
        self,
        engine: Callable[[Changes], EngineClient],
        tokenizer: Tokenizer,
        budget: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._budget = budget
        self._work = Workload()
        self.info: EngineInfo | None = None
        self.wall_seconds = 0.0

    @property
    def work(self) -> Workload:
        """What a run does now."""
        return self._work

    def size_up(self, longest: float) -> Iterator[Workload]:
        """Makes the work larger until a run of the current settings lasts long enough.

        Yields before every run. Loading and work together are kept below `longest` seconds.
        """
        while True:
            yield self._work
            seconds = self({}).seconds
            grown = self._work.larger()
            room = self.info.context if self.info is not None else 0
            if (
                seconds >= LONG_ENOUGH_SECONDS
                or grown == self._work
                or grown.prompt + grown.generated > room
                or self.wall_seconds + seconds > longest
            ):
                return
            self._work = grown

    def __call__(self, changes: Changes) -> Measurement:
        """One run: starts an engine, works, ends it. Raises why it could not."""
        check_memory(self._budget)
        start = time.monotonic()
        client = self._engine(changes)
        client.start()
        try:
            self.info = _wait_ready(client)
            return self._job(client)
        finally:
            client.stop()
            self.wall_seconds = time.monotonic() - start

    def _job(self, client: EngineClient) -> Measurement:
        events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        command = Submit(
            job="tune",
            prompt=prompt_ids(self._tokenizer, self._work.prompt),
            max_tokens=self._work.generated,
            temperature=0.0,
            top_p=1.0,
            seed=1,
        )
        client.submit(command, events.put)
        answer = hashlib.sha256()
        while True:
            event = _next(events, client)
            if isinstance(event, Tokens):
                answer.update(event.text.encode("utf-8", "replace"))
            elif isinstance(event, Done):
                answer.update(f"\0{event.usage.completion} {event.finish_reason}".encode())
                seconds = (event.prefill_ms + event.decode_ms) / 1000
                return Measurement(max(seconds, 1e-6), answer.hexdigest())
            elif isinstance(event, Failed):
                kind = ResourceError if event.code == ResourceError.default_code else EngineFailure
                raise kind(event.message, hint=event.hint, code=event.code)


def _next(events: queue.SimpleQueue[JobEvent], client: EngineClient) -> JobEvent:
    """The next event. A worker that dies ends its jobs, so one always comes."""
    while True:
        try:
            return events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if client.status().state in ("failed", "stopped"):
                raise WorkerUnavailableError("the engine ended before its work.") from None


def _wait_ready(client: EngineClient) -> EngineInfo:
    """Waits for the model; a process that dies while loading is not started again and again."""
    while True:
        try:
            return client.wait_ready(_POLL_SECONDS)
        except WorkerUnavailableError:
            status = client.status()
            if status.state == "restarting":
                raise EngineFailure(
                    status.last_failure or "the engine process died while loading."
                ) from None
            if status.state != "loading":
                raise
