"""The turns that have ended, and the rates that they showed.

For: the hub and the snapshots. A turn is one generation from admission to its end. No text is kept,
only numbers. Not for: requests that never ran (`api.ui.inspector`). Threads: `observe` is called by
the transport's thread, everything else from any.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from colibri.engine.protocol import Done, Failed, JobEvent, Progress, Tokens, per_second
from colibri.engine.work import Phases, Times, Work
from colibri.scheduler import Generation

_KEPT: Final = 200
# Of the last turns, for estimates: old ones say little about a cache that has warmed up.
_AVERAGED: Final = 8
# A shorter phase says nothing about speed.
_LEAST_TOKENS: Final = 8


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that has ended. `request` is the id that its HTTP answer carried."""

    id: str
    request: str
    ended_at_ms: int
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    max_tokens: int
    temperature: float
    slot: int | None
    load: int  # which load of a model it ran on (`Scheduler.switch`)
    queue_wait_ms: int
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    decode_tokens_per_second: float | None
    prefill_tokens_per_second: float | None
    work: Work


def breakdown(times: Times) -> dict[str, float]:
    """Milliseconds by kind, with their sum."""
    parts = {name: round(getattr(times, name), 2) for name in Times.__struct_fields__}
    return {"total_ms": round(times.total_ms, 2), **parts}


def both(work: Work) -> Times:
    """Prompt and answer together."""
    names = Times.__struct_fields__
    return Times(**{n: getattr(work.prefill.time, n) + getattr(work.decode.time, n) for n in names})


def lookups(work: Work) -> dict[str, Any]:
    """Where experts were found, by phase."""

    def of(phase: Phases) -> dict[str, int]:
        return msgspec.structs.asdict(phase.found)

    return {"prefill": of(work.prefill), "decode": of(work.decode)}


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn as the page gets it."""
    fields = msgspec.structs.asdict(turn)
    work: Work = fields.pop("work")
    del fields["load"]
    return {
        **fields,
        "bytes_read": work.bytes_read,
        "prefill": breakdown(work.prefill.time),
        "decode": breakdown(work.decode.time),
        "lookups": lookups(work),
    }


class TurnLog:
    """See the module's text. `changed` is called after each event that a display may show."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque(maxlen=_KEPT)
        self._counted: dict[str, tuple[float, int]] = {}  # job -> prompt tokens read, generated
        self._prompt = 0.0
        self._generated = 0
        self._load = 0

    def begin_load(self, load: int) -> None:
        """From now on averages are those of this load of a model."""
        self._load = load

    def observe(self, generation: Generation, event: JobEvent) -> None:
        """An observer of the scheduler."""
        job = generation.request.id
        with self._lock:
            prompt, generated = self._counted.get(job, (0.0, 0))
            if isinstance(event, Progress):
                prompt = self._read(prompt, event.fraction * (event.total - _cached(generation)))
            elif isinstance(event, Tokens):
                generated = self._made(generated, event.generated)
            elif isinstance(event, Done):
                self._read(prompt, event.usage.prompt - event.usage.cached)
                self._made(generated, event.usage.completion)
            if isinstance(event, Done | Failed):
                self._counted.pop(job, None)
                self._turns.append(_turn(generation, event))
            else:
                self._counted[job] = prompt, generated
        self._changed()

    def totals(self) -> tuple[float, int]:
        """Prompt tokens computed and tokens generated since the start; both only grow."""
        with self._lock:
            return self._prompt, self._generated

    def last(self, most: int = _KEPT) -> list[Turn]:
        """The turns that ended last, the latest first."""
        with self._lock:
            return list(self._turns)[: -most - 1 : -1]

    def averages(self) -> tuple[float | None, float | None]:
        """(decode, prefill) tokens per second of the last turns that were long enough, of the model
        that is loaded.
        """
        turns = [turn for turn in self.last() if turn.load == self._load]
        decode = [t for t in turns if t.completion_tokens >= _LEAST_TOKENS and t.decode_ms > 0]
        new = [t for t in turns if t.prompt_tokens - t.cached_tokens >= _LEAST_TOKENS]
        decode, new = decode[:_AVERAGED], new[:_AVERAGED]
        return (
            per_second(
                sum(t.completion_tokens - 1 for t in decode), sum(t.decode_ms for t in decode)
            ),
            per_second(
                sum(t.prompt_tokens - t.cached_tokens for t in new), sum(t.prefill_ms for t in new)
            ),
        )

    def _read(self, before: float, now: float) -> float:
        self._prompt += max(now - before, 0.0)
        return max(now, before)

    def _made(self, before: int, now: int) -> int:
        self._generated += max(now - before, 0)
        return max(now, before)


def _cached(generation: Generation) -> int:
    accepted = generation.accepted(0)
    return accepted.cached if accepted else 0


def _turn(generation: Generation, event: Done | Failed) -> Turn:
    request, accepted = generation.request, generation.accepted(0)
    done = event if isinstance(event, Done) else None
    usage = done.usage if done else None
    activity = generation.activity()
    prompt = len(request.prompt)
    cached = usage.cached if usage else (accepted.cached if accepted else 0)
    generated = usage.completion if usage else activity.generated_tokens
    first = generation.first_token_ms
    return Turn(
        id=request.id,
        request=generation.request_id,
        ended_at_ms=time.time_ns() // 1_000_000,
        outcome=event.finish_reason if isinstance(event, Done) else event.code,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=generated,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        slot=generation.slot,
        load=request.load,
        queue_wait_ms=generation.queue_wait_ms,
        prefill_ms=round(done.prefill_ms, 1) if done else 0.0,
        decode_ms=round(done.decode_ms, 1) if done else 0.0,
        ttft_ms=None if first is None else round(first + generation.queue_wait_ms, 1),
        decode_tokens_per_second=done.decode_per_second if done else None,
        prefill_tokens_per_second=done.prefill_per_second if done else None,
        work=done.work if done else Work(),
    )
