"""Typed wrappers over the engine's expert cache: use counts, warm-up, traces, and the simulator.

For: the model's backend, benchmarks and tests. Not for: deciding anything; which expert is kept is
the engine's own policy (`native/src/policy.h`), and the text never depends on it. Threads: `usage`,
`places` and `replay` from any thread, the rest as `ffi.Engine` itself.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine import ffi as binding
from colibri.engine.cvalues import Call, ffi, lib
from colibri.engine.status import EngineError, Status

# `colibri_tier` of an expert that does not exist: a dense layer, or one that is not loaded.
NO_EXPERT = 255
Counts = NDArray[np.int64]
Records = NDArray[np.int32]


class Policy(IntEnum):
    """Cache policies of the simulator (`colibri_policy_kind`)."""

    OURS = 0
    LRU = 1
    LFU = 2
    DECAYED_LFU = 3
    BELADY = 4


class Replay(msgspec.Struct, frozen=True):
    """What a replay counted (`colibri_replay_result`)."""

    lookups: int
    hits: int
    guesses: int
    guesses_useful: int
    demand_evictions: int

    @property
    def rate(self) -> float:
        """Share of lookups that were hits, 0 without lookups."""
        return self.hits / self.lookups if self.lookups else 0.0


def usage(engine: binding.Engine, layers: int, experts: int) -> Counts:
    """Decode steps that asked for each expert since opening, int64 [layers, experts]; `layers`
    counts the MTP layers too. Any thread.
    """
    counts = np.zeros((layers, experts), np.int64)
    call = Call()
    with engine._lock:
        status = lib.colibri_engine_usage(
            engine._alive(), ffi.from_buffer("int64_t[]", counts), counts.size, call.text, call.len
        )
    call.check(status)
    return counts


def places(
    engine: binding.Engine, layers: int, experts: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Where each expert is (`colibri_tier`) and how many requests asked for it, both [layers,
    experts] as `usage`. Any thread.
    """
    tiers = np.empty((layers, experts), np.uint8)
    asked = np.empty((layers, experts), np.uint32)
    call = Call()
    with engine._lock:
        status = lib.colibri_engine_experts(
            engine._alive(),
            ffi.from_buffer("uint8_t[]", tiers),
            ffi.from_buffer("uint32_t[]", asked),
            tiers.size,
            call.text,
            call.len,
        )
    call.check(status)
    return tiers, asked


def set_usage(engine: binding.Engine, counts: Counts) -> None:
    """Tells the cache what was learnt before; shape as `usage` gives it."""
    counts = np.ascontiguousarray(counts, np.int64)
    call = Call()
    call.check(
        lib.colibri_engine_set_usage(
            engine._alive(), ffi.from_buffer("int64_t[]", counts), counts.size, call.text, call.len
        )
    )


def warm(engine: binding.Engine, max_ms: int) -> bool:
    """Loads the hottest experts into free slots for about `max_ms`; True = nothing left to do."""
    done = ffi.new("int32_t *")
    call = Call()
    call.check(lib.colibri_engine_warm(engine._alive(), max_ms, done, call.text, call.len))
    return bool(done[0])


def shrink(engine: binding.Engine, expert_bytes: int) -> None:
    """Gives up cached experts, for good, until they take no more than `expert_bytes`."""
    call = Call()
    call.check(lib.colibri_engine_shrink(engine._alive(), expert_bytes, call.text, call.len))


def record(engine: binding.Engine, words: int) -> None:
    """Starts recording routed experts into a ring of so many int32 words; 0 stops it."""
    call = Call()
    call.check(lib.colibri_engine_trace(engine._alive(), words, call.text, call.len))


def recorded(engine: binding.Engine, room: int) -> tuple[Records, int]:
    """Takes what was recorded, at most `room` words; and how many records were lost so far."""
    out = np.empty(room, np.int32)
    n, lost = ffi.new("int64_t *"), ffi.new("int64_t *")
    call = Call()
    call.check(
        lib.colibri_engine_trace_read(
            engine._alive(), ffi.from_buffer("int32_t[]", out), room, n, lost, call.text, call.len
        )
    )
    return out[: n[0]].copy(), int(lost[0])


def replay(
    records: Records,
    *,
    layers: int,
    experts: int,
    slots: int,
    policy: Policy = Policy.OURS,
    half_life: float = 0.0,
    guess_share: float = 0.0,
    fault: int = 0,
) -> Replay:
    """Runs a trace through a cache of `slots` experts, without any engine. Any thread.

    `half_life` (steps) belongs to DECAYED_LFU. With `guess_share` above 0 the next request is
    guessed, and that share of it rightly. Raises EngineError for a trace that contradicts itself.
    """
    records = np.ascontiguousarray(records, np.int32)
    options = ffi.new("colibri_replay_options *")
    result: Any = ffi.new("colibri_replay_result *")
    values = {
        "struct_size": ffi.sizeof("colibri_replay_options"),
        "kind": int(policy),
        "n_layers": layers,
        "n_experts": experts,
        "slots": slots,
        "half_life": half_life,
        "guess_share": guess_share,
        "fault": fault,
    }
    for name, value in values.items():
        try:
            setattr(options, name, value)
        except (OverflowError, TypeError) as error:
            raise EngineError(Status.INVALID, f"replay: {name}: {error}") from None
    result.struct_size = ffi.sizeof("colibri_replay_result")
    call = Call()
    call.check(
        lib.colibri_policy_replay(
            options,
            ffi.from_buffer("int32_t[]", records),
            records.size,
            result,
            call.text,
            call.len,
        )
    )
    return Replay(*(int(getattr(result, name)) for name in Replay.__struct_fields__))
