"""One generation: what it asks, the engine's events for its one consumer, and where it stands.

For: `admission`, which makes one when a request's turn has come, and the API's handlers, which read
it. Not for: turns and queues. Threads: `take` is called by the transport's thread, `next_event` by
the consumer's, the rest by any.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from colibri.engine.answer import AnswerForm, Notice
from colibri.engine.client import EngineClient
from colibri.engine.protocol import (
    Accepted,
    Done,
    Failed,
    JobEvent,
    Phase,
    Progress,
    Submit,
    Tokens,
)
from colibri.logs import request_id
from colibri.scheduler.patience import Patience, warning

log = logging.getLogger(__name__)

# A speed over less is noise: what a step with drafts tells comes in one go.
_BEARING_SECONDS: Final = 0.2


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What every dialect's request comes down to. All defaults are resolved; lengths in tokens.

    `watch` is shown the events that the client gets, before it gets them and in its thread. `load`
    is the number of the load of the model that the prompt was made for (`Scheduler.switch`).
    `waited_seconds` is what it has waited for a model to be loaded, before it could ask.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stops: tuple[str, ...] = ()
    ignore_leading_stop: bool = False
    cache_slot: int | None = None
    answer: AnswerForm = AnswerForm()
    count_from: int | None = None
    watch: Callable[[JobEvent], None] | None = None
    load: int = 0
    waited_seconds: float = 0.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A running request as people want to see it.

    `prompt_fraction` is the share of the prompt's reading that is done, `eta_seconds` what is left
    of it; `layer` of `layers` and the bytes are those of `Progress`. `tokens_per_second` is that of
    the answer since its first token. `request` is the id that its HTTP answer carries.
    """

    id: str
    request: str
    phase: Phase
    prompt_tokens: int
    prompt_tokens_done: int
    generated_tokens: int
    running_seconds: float
    eta_seconds: float | None
    prompt_fraction: float
    layer: int
    layers: int
    bytes_read: int
    bytes_left: int
    cached_tokens: int
    max_tokens: int
    queue_wait_ms: int
    slot: int | None
    tokens_per_second: float | None


class Generation:
    """A job in the engine: its events, in order, for one consumer. Close it whatever happens."""

    def __init__(
        self,
        request: GenerationRequest,
        engine: EngineClient,
        queue_wait_ms: int,
        patience: Patience,
    ) -> None:
        self.request = request
        self.notice: Notice | None = None  # what the client should know before the answer comes
        self._patience = patience
        self.queue_wait_ms = queue_wait_ms
        self.slot = request.cache_slot  # an unpinned job's is known once it has been accepted
        self._engine = engine
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self._ended = False
        self.begun_answer = False
        self.request_id = request_id.get()
        self.first_token_ms: float | None = None  # since the job was handed to the engine
        self._started = time.monotonic()
        self._phase: Phase = "waiting"
        self._progress: Progress | None = None
        self._progress_at = 0.0
        self._done = 0
        self._generated = 0
        self._first_tokens = 0
        self._accepted: Accepted | None = None
        self._begun = threading.Event()

    def accepted(self, timeout: float) -> Accepted | None:
        """What the worker said when the job got its KV slot; None if it has not done so within
        `timeout` seconds, or the job has ended before. Takes no event away.
        """
        self._begun.wait(timeout)
        return self._accepted

    def next_event(self, timeout: float) -> JobEvent | None:
        """The next event, or None after `timeout` seconds."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if self.request.watch is not None:
            self.request.watch(event)
        return event

    def close(self) -> None:
        """Cancels the job unless it has ended."""
        if not self._ended:
            self._engine.cancel(self.request.id)

    def take(self, event: JobEvent) -> None:
        """Sink of the engine's events."""
        if isinstance(event, Accepted):
            self._phase = "prefill"
            self._accepted = event
            self.slot = event.slot
            self._done = event.cached
            self._judge(self._patience.estimate(event.prompt - event.cached))
        elif isinstance(event, Progress):
            self._done = event.done
            self._progress, self._progress_at = event, time.monotonic()
            self._phase = "decode" if event.done == event.total else "prefill"
            self._judge(event.eta_seconds)
        elif isinstance(event, Tokens):
            self._generated = event.generated
            if self.first_token_ms is None:
                self._first_tokens = event.generated
                self.first_token_ms = (time.monotonic() - self._started) * 1000
        elif isinstance(event, Done | Failed):
            self._ended = True
        self._begun.set()
        self._events.put(event)

    def _judge(self, seconds: float | None) -> None:
        """Reading the prompt is expected to take so long."""
        if self.notice is None:
            self.notice = warning(len(self.request.prompt), seconds)
            if self.notice is not None:
                log.warning("%s", self.notice.message)

    def activity(self) -> Activity:
        """Where the job stands, from the events so far."""
        now, progress = time.monotonic(), self._progress
        left = progress.eta_seconds if progress and self._phase == "prefill" else None
        return Activity(
            id=self.request.id,
            request=self.request_id,
            phase=self._phase,
            prompt_tokens=len(self.request.prompt),
            prompt_tokens_done=self._done,
            generated_tokens=self._generated,
            running_seconds=round(now - self._started, 1),
            eta_seconds=None
            if left is None
            else round(max(left - now + self._progress_at, 0.0), 1),
            prompt_fraction=round(progress.fraction, 4) if progress else 0.0,
            layer=progress.layer if progress else 0,
            layers=progress.layers if progress else 0,
            bytes_read=progress.bytes_read if progress else 0,
            bytes_left=progress.bytes_left if progress else 0,
            cached_tokens=self._accepted.cached if self._accepted else 0,
            max_tokens=self.request.max_tokens,
            queue_wait_ms=self.queue_wait_ms,
            slot=self.slot,
            tokens_per_second=self._speed(now),
        )

    def _speed(self, now: float) -> float | None:
        more = self._generated - self._first_tokens
        if self.first_token_ms is None or more <= 0:
            return None
        seconds = now - self._started - self.first_token_ms / 1000
        return round(more / seconds, 2) if seconds >= _BEARING_SECONDS else None


def request_command(request: GenerationRequest) -> Submit:
    """The engine's form of a request."""
    return Submit(
        job=request.id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stops=request.stops,
        ignore_leading_stop=request.ignore_leading_stop,
        cache_slot=request.cache_slot,
        answer=request.answer,
        count_from=request.count_from,
    )
