"""What the worker needs from an engine: the seam between the loop and what computes.

For: `worker` calls it; `colibri.models.backend` implements it over the C engine and `fake` over a
script. Not for: anything else; HTTP code never sees it. Threads: one thread drives everything,
except `EngineBackend.counters`, which any thread may call while the backend is open. Failures are
`colibri.engine.status.EngineError` with the engine's sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from colibri.engine.protocol import EngineInfo, MirrorReport
from colibri.engine.status import PrefillProgress
from colibri.engine.table import Sampling
from colibri.kv.disk import Disk


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's counters; `progress` grows with every layer computed. Sizes in bytes.

    The experts' are those of `ExpertState`.
    """

    progress: int
    prompt_tokens: int
    decoded_tokens: int
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int
    streaming: bool = False
    expert_slots: int = 0
    expert_lookups: int = 0
    expert_misses: int = 0
    expert_bytes_read: int = 0
    guessed_bytes: int = 0
    useful_bytes: int = 0
    wasted_bytes: int = 0
    disk_wait_ns: int = 0
    mirrors: tuple[MirrorReport, ...] = ()


class BackendSession(Protocol):
    """One token history with its keys and values, as in `colibri.h`."""

    def __len__(self) -> int: ...

    def truncate(self, length: int) -> None: ...

    def reusable(self, length: int) -> int:
        """The greatest length up to `length` to which the session can be truncated or forked."""

    def checkpoint(self) -> None:
        """Keeps the present length reusable."""

    def fork(self, length: int, into: Any) -> None:
        """Gives the empty session `into` (of the same backend) the first `length` tokens."""

    def export_block(self, block: int, out: memoryview) -> Any:
        """Copies complete KV block number `block` into `out`."""

    def import_block(self, tokens: Sequence[int], data: memoryview) -> None:
        """Appends a KV block that was exported after exactly these tokens."""

    def prefill_start(self, tokens: Sequence[int]) -> None: ...

    def prefill_step(self, max_ms: int) -> PrefillProgress: ...

    def sample_at(self, length: int, sampling: Sampling) -> int:
        """Draws the token after the first `length` ones, from the logits of the last step."""

    def draft(self, next_token: int, depth: int) -> list[int]:
        """Guesses up to `depth` tokens after the one about to be appended."""

    def close(self) -> None: ...


class TextStream(Protocol):
    """Turns one job's tokens into final text: detokenised, stop strings cut."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text; nothing more comes then."""

    def push(self, token: int) -> str:
        """Text that may go out now."""

    def flush(self) -> str:
        """What was held back, at an end without stop string; incomplete characters are dropped."""


class EngineBackend(Protocol):
    """A loaded engine and the text side of its model."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token id that ends a turn."""

    def session(self) -> BackendSession: ...

    def decode(self, sessions: Sequence[BackendSession], tokens: Sequence[Sequence[int]]) -> None:
        """Appends `tokens[i]`, one or more, to `sessions[i]`: all or nothing."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""

    @property
    def disk(self) -> Disk | None:
        """Where KV is kept over restarts; None = nowhere. The loop closes it."""

    def kv_room(self) -> int | None:
        """KV blocks that sessions may still take; None without a limit."""

    def counters(self) -> Counters: ...

    def idle(self, max_ms: int) -> bool:
        """Does what can wait while no job runs, for about `max_ms`; whether more is left to do."""

    def text(self, stops: Sequence[str], ignore_leading_stop: bool) -> TextStream: ...

    def close(self) -> None: ...
