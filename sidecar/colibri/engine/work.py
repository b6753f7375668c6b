"""What an engine's steps cost and where experts were found: the numbers behind every display.

For: the worker, which counts them for each job, the telemetry and its readers. Not for: measuring;
the engine does (`native/src/clock.h`, `store.c`). Thread rule: immutable values, pure functions.

Time is that of the engine's steps, by what they were busy with; what a job's own numbers hold was
spent while it ran, steps of jobs beside it included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a phase's steps: waiting for the disk, experts' matrices, attention, logits,
    and all the rest.
    """

    disk_ms: float = 0.0
    experts_ms: float = 0.0
    attention_ms: float = 0.0
    head_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.disk_ms + self.experts_ms + self.attention_ms + self.head_ms + self.other_ms


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Where experts were when they were asked for: always in memory; loaded in advance because
    often used; left from earlier; read on a guess; nowhere but on disk. A GPU holds none yet.
    """

    resident: int = 0
    warm: int = 0
    cache: int = 0
    guess: int = 0
    disk: int = 0
    vram: int = 0


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Times and finds of one phase."""

    time: Times = Times()
    found: Found = Found()


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What was done since the engine was opened, or during one job."""

    prefill: Phases = Phases()
    decode: Phases = Phases()
    bytes_read: int = 0

    def since(self, before: Work) -> Work:
        """The part of this that came after `before`."""
        return Work(
            prefill=_phase_since(self.prefill, before.prefill),
            decode=_phase_since(self.decode, before.decode),
            bytes_read=max(self.bytes_read - before.bytes_read, 0),
        )


def _phase_since(now: Phases, before: Phases) -> Phases:
    return Phases(
        time=_since(now.time, before.time, Times), found=_since(now.found, before.found, Found)
    )


def _since(now: T, before: T, kind: type[T]) -> T:
    names = kind.__struct_fields__
    return kind(**{name: max(getattr(now, name) - getattr(before, name), 0) for name in names})


def from_counters(time_ns: Sequence[int], found: Sequence[int], bytes_read: int) -> Work:
    """The engine's arrays as they are in a snapshot: [phase][kind], prefill first."""
    times, finds = Times.__struct_fields__, Found.__struct_fields__
    kinds, places = len(times), len(finds) - 1

    def phase(number: int) -> Phases:
        spent = time_ns[number * kinds : (number + 1) * kinds]
        counts = found[number * places : (number + 1) * places]
        return Phases(
            time=Times(**{name: ns / 1e6 for name, ns in zip(times, spent, strict=True)}),
            found=Found(**dict(zip(finds, counts, strict=False))),
        )

    return Work(prefill=phase(0), decode=phase(1), bytes_read=bytes_read)
