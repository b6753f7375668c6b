"""What the worker needs from an engine: the seam between the loop and what computes.

For: `worker` calls it; `colibri.models.backend` implements it over the C engine and `fake` over a
script. Not for: anything else; HTTP code never sees it. Threads: one thread drives everything,
except `counters` and `expert_counts`, which any thread may call while the backend is open.
Failures are `colibri.engine.status.EngineError` with the engine's sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.answer import Notice, Part
from colibri.engine.heat import ExpertCounts
from colibri.engine.protocol import EngineInfo, MirrorReport, Submit
from colibri.engine.status import ChunkState, PrefillProgress
from colibri.engine.table import Sampling
from colibri.engine.work import Work
from colibri.kv.disk import Disk

# Hears how far an opening is: bytes of resident weights read, and bytes to read. Any thread calls.
Tell: TypeAlias = Callable[[int, int], None]


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
    cached_experts: int = 0
    work: Work = Work()


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
        """Copies KV block number `block` into `out`; the last one may be incomplete."""

    def import_block(self, tokens: Sequence[int], data: memoryview) -> None:
        """Appends a KV block's tokens, or the first of them, to whole blocks: the block was
        exported after exactly these.
        """

    @property
    def parked(self) -> int:
        """Tokens of a chunk that was broken off inside; a prefill that begins with them resumes."""

    def chunk(self) -> ChunkState:
        """What there is of an unfinished chunk, in progress or parked."""

    def pause(self, on: bool) -> None:
        """Whether prefill steps return early where the chunk's rows can be exported."""

    def chunk_bytes(self, piece: int) -> int:
        """Bytes of a piece of the chunk: what layer `piece` keeps, or ROWS."""

    def export_chunk(self, piece: int, out: memoryview) -> Any:
        """Copies a piece out: of a finished layer at any time, the rows only between two layers."""

    def import_chunk(self, tokens: Sequence[int], layers: int) -> None:
        """Makes room for a chunk with so many finished layers."""

    def fill_chunk(self, piece: int, data: memoryview) -> None:
        """Takes its pieces, 0, 1, ... and ROWS; with the last one the chunk is parked."""

    def draftless(self) -> int:
        """Tokens that came from blocks without what the MTP layer keeps, although it is loaded."""

    def count(self, first: int) -> None:
        """From now on counts which experts tokens at position `first` and behind it are routed to;
        negative = no longer.
        """

    def counts(self) -> NDArray[np.uint32]:
        """The counts so far, [layers, experts]; layers without experts and MTP layers hold 0."""

    def prefill_start(self, tokens: Sequence[int]) -> None: ...

    def prefill_step(self, max_ms: int) -> PrefillProgress: ...

    def sample_at(self, length: int, sampling: Sampling) -> int:
        """Draws the token after the first `length` ones, from the logits of the last step."""

    def draft(self, next_token: int, depth: int) -> list[int]:
        """Guesses up to `depth` tokens after the one about to be appended."""

    def close(self) -> None: ...


class AnswerReader(Protocol):
    """Turns one job's tokens into final parts, and says which tokens may come next.

    The loop asks for `forced`, else draws with `mask`, and pushes the token. The answer is over
    when `stopped` or `finished`, at an end token, and at its limit; then it is flushed unless a
    stop text has ended it.
    """

    @property
    def stopped(self) -> bool:
        """Whether a stop text has ended the answer; nothing more comes then."""

    @property
    def finished(self) -> bool:
        """Whether the answer has all that its grammar demands, so that only its end may follow."""

    @property
    def reasoning(self) -> bool:
        """Whether the next token would belong to the reasoning."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""

    @property
    def calls(self) -> int:
        """Tool calls that have been told."""

    @property
    def notice(self) -> Notice | None:
        """What the client should know of the answer so far."""

    def forced(self) -> int | None:
        """The token that comes next in place of a drawn one, None when one is to be drawn."""

    def mask(self) -> bytes:
        """Which tokens may be drawn, as `Sampling.mask`; empty = all."""

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, one after the other, may come next."""

    def push(self, token: int) -> list[Part]:
        """Takes the next token; returns what may go out now."""

    def flush(self) -> list[Part]:
        """What was held back; incomplete characters are dropped."""


class EngineBackend(Protocol):
    """A loaded engine and the text side of its model."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token id that ends a turn."""

    def session(self) -> BackendSession: ...

    def expert_counts(self) -> ExpertCounts | None:
        """Where each expert is and how often it was asked for; None for a dense model. Any
        thread.
        """

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

    def answer(self, command: Submit) -> AnswerReader:
        """Reads the answer to a job. Waits for the grammars to be ready if the job needs them."""

    def close(self) -> None: ...
