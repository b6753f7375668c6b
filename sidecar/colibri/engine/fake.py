"""A scripted engine behind the same interface as the real one.

For: tests of everything above the engine: worker, transports, scheduler, HTTP. Each job that
starts takes the next enqueued `Script`; without one the answer is "ok". Not for: numbers;
sampling parameters are only recorded.

Drafts: with `Options.drafts` a session foretells its script, rightly or wrongly as `Script.hits`
says.

Token ids and pieces of scripts: `fake_text`. Answers are read as those of a model of
`Options.dialect`. Under a mask a script is drawn byte by byte: its next token where that is
allowed, else one that is. Threads: as `EngineBackend`; `enqueue` and the recorded lists may be used
from any thread.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.backend import BackendSession, Counters, Tell
from colibri.engine.fake_text import (
    DIALECTS,
    END_IDS,
    FIRST_BYTE,
    FIRST_PIECE,
    FakeLetters,
    allows,
    control,
    control_id,
    encode,
    first_allowed,
    marked,
    spelled,
    tokenizer,
    tokens_of,
)
from colibri.engine.heat import ExpertCounts
from colibri.engine.protocol import EngineInfo, ExpertLayout, Submit
from colibri.engine.status import ChunkState, EngineError, PrefillProgress, Status
from colibri.engine.table import Sampling
from colibri.engine.work import Work
from colibri.kv.disk import Disk
from colibri.text.answer import Answer, Answers
from colibri.text.grammar import Masks
from colibri.text.reasoning import closing

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "END_IDS",
    "FakeBackend",
    "Options",
    "Script",
    "control",
    "encode",
    "marked",
    "open_backend",
    "tokenizer",
]

BLOCK_TOKENS = 16
BLOCK_BYTES = 256
_LOAD_STEPS = 4
_LOAD_STEP_BYTES = 1 << 20
_WRONG_DRAFT = 9  # a token that no script has


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Times in milliseconds, counts in tokens; -1 means never.

    A prompt becomes part of the session `chunk` tokens at a time (0: all at its end). `repeat`
    starts over instead of ending. `fail_at` raises a numeric error instead of sampling that token,
    `kill_at` ends the process with SIGKILL there, `hang_at` computes that token for ever; a step
    that has to compute token `break_at` fails. `fail_prefill` is the sentence with which reading
    the prompt fails; `stall_prefill` returns from each slice of it without having done anything, as
    when a read hangs.

    The draft of token i is right if `hits[i % len(hits)]`. A step takes `token_ms` and another
    `draft_ms`, and reads `token_bytes` and another `draft_bytes`, for every draft in it;
    `fail_draft` is the sentence with which drafting fails.
    """

    pieces: tuple[Any, ...] = ("ok",)  # str or bytes; control tokens by `control`
    end_id: int = 0
    repeat: bool = False
    prefill_ms: float = 0
    prefill_ms_per_token: float = 0
    chunk: int = 0
    token_ms: float = 0
    fail_at: int = -1
    kill_at: int = -1
    hang_at: int = -1
    break_at: int = -1
    fail_prefill: str = ""
    stall_prefill: bool = False
    hits: tuple[bool, ...] = (True,)
    draft_ms: float = 0
    token_bytes: int = 0
    draft_bytes: int = 0
    fail_draft: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a fake engine is opened with; travels to a child process as it is."""

    context: int = 4096
    scripts: tuple[Script, ...] = ()
    fail_load: str = ""
    load_ms: float = 0
    drafts: int = 0
    dialect: str = "hermes"
    experts: ExpertLayout | None = None


def _kv(tokens: Sequence[int], block: int) -> bytes:
    """KV of a block of a prefix: as in the real one, each position's depends on all up to it."""
    end = min(len(tokens), (block + 1) * BLOCK_TOKENS)
    size = BLOCK_BYTES // BLOCK_TOKENS
    return b"".join(
        hashlib.blake2b(repr(list(tokens[: at + 1])).encode(), digest_size=size).digest()
        for at in range(block * BLOCK_TOKENS, end)
    )


class _FakeSession:
    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._tokens: list[int] = []
        self._pending: list[int] = []
        self._checkpoints: list[int] = []
        self._spent_ms = 0.0
        self._counted = -1  # first position that counts
        self._moved = 0  # pending tokens that the session holds already
        self._script = Script()
        self._start = 0  # tokens before the answer
        self._spelled: list[int] | None = None  # the script's tokens, once there was a mask

    def __len__(self) -> int:
        return len(self._tokens)

    def truncate(self, length: int) -> None:
        if length > len(self._tokens) or self.reusable(length) != length:
            raise EngineError(Status.INVALID, f"cannot truncate {len(self._tokens)} to {length}")
        del self._tokens[length:]
        self._pending = []

    def reusable(self, length: int) -> int:
        window = self._backend.window
        if not window or length > len(self._tokens) - window:
            return length
        return max((n for n in self._checkpoints if n <= length), default=0)

    def checkpoint(self) -> None:
        self._checkpoints.append(len(self._tokens))

    def fork(self, length: int, into: _FakeSession) -> None:
        if length > len(self._tokens) or into._tokens or self.reusable(length) != length:
            raise EngineError(Status.INVALID, f"cannot share {length} of {len(self._tokens)}")
        into._tokens = self._tokens[:length]

    def export_block(self, block: int, out: memoryview) -> None:
        if block * BLOCK_TOKENS >= len(self._tokens):
            raise EngineError(Status.INVALID, f"there is no block {block}")
        out[:] = _kv(self._tokens, block).ljust(BLOCK_BYTES, b"?")

    def import_block(self, tokens: Sequence[int], data: memoryview) -> None:
        held, block = [*self._tokens, *tokens], len(self._tokens) // BLOCK_TOKENS
        if len(self._tokens) % BLOCK_TOKENS or self._pending:
            raise EngineError(Status.INVALID, "not at a block's border")
        if not bytes(data).startswith(_kv(held, block)):
            raise AssertionError("this is the KV of other tokens")
        self._tokens = held
        self._backend.imported += 1

    def draftless(self) -> int:
        return 0

    @property
    def parked(self) -> int:
        return 0

    def chunk(self) -> ChunkState:
        """Prompts of scripts are not read in layers."""
        return ChunkState(len(self._tokens), 0, 0, False)

    def pause(self, on: bool) -> None: ...

    def chunk_bytes(self, piece: int) -> int:
        return 0

    def export_chunk(self, piece: int, out: memoryview) -> None:
        raise EngineError(Status.INVALID, "there is no chunk")

    def import_chunk(self, tokens: Sequence[int], layers: int) -> None:
        raise EngineError(Status.INVALID, "there are no chunks")

    def fill_chunk(self, piece: int, data: memoryview) -> None:
        raise EngineError(Status.INVALID, "there is no chunk")

    def count(self, first: int) -> None:
        if first >= 0 and self._backend.info.experts is None:
            raise EngineError(Status.INVALID, "counting needs a model with routed experts")
        self._counted = first

    def counts(self) -> NDArray[np.uint32]:
        """Token t is routed to expert t modulo their number, in every layer."""
        layout = self._backend.info.experts
        if layout is None or self._counted < 0:
            raise EngineError(Status.INVALID, "the session does not count")
        chosen = np.array(self._tokens[self._counted :], np.int64) % layout.cols
        row = np.bincount(chosen, minlength=layout.cols).astype(np.uint32)
        return np.tile(row, (max(layout.layers) + 1, 1))

    def prefill_start(self, tokens: Sequence[int]) -> None:
        self._pending = list(tokens)
        self._spent_ms = 0.0
        self._moved = 0
        self._start = len(self._tokens) + len(tokens)
        self._script = self._backend.next_script()
        self._spelled = None

    def prefill_step(self, max_ms: int) -> PrefillProgress:
        script, total = self._script, len(self._pending)
        if script.fail_prefill:
            raise EngineError(Status.IO, script.fail_prefill)
        if script.stall_prefill:
            time.sleep(max_ms / 1000)
            return PrefillProgress(False, 0, total, 0, 1, 0.0)
        need_ms = script.prefill_ms + script.prefill_ms_per_token * total
        step_ms = min(need_ms - self._spent_ms, max_ms or need_ms)
        time.sleep(step_ms / 1000)
        self._spent_ms += step_ms
        self._backend.progress += 1
        finished = self._spent_ms >= need_ms
        done = total if finished else int(total * self._spent_ms / need_ms)
        if finished:
            self._tokens += self._pending[self._moved :]
            self._pending = []
        elif script.chunk:
            whole = done // script.chunk * script.chunk
            self._tokens += self._pending[self._moved : whole]
            self._moved = whole
        fraction = 1.0 if finished else self._spent_ms / need_ms
        return PrefillProgress(finished, done, total, int(finished), 1, fraction)

    def sample_at(self, length: int, sampling: Sampling) -> int:
        self._backend.samplings.append(sampling)
        script, at = self._script, length - self._start
        if not 0 <= at <= len(self._tokens) - self._start:
            raise EngineError(Status.INVALID, f"the session has no logits at length {length}")
        if at == script.fail_at:
            raise EngineError(Status.NUMERIC, f"logits are not finite at position {length}")
        if at == script.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        while at == script.hang_at:
            time.sleep(1)
        if not sampling.mask:
            return self._answer(at)
        if self._spelled is None:
            self._spelled = self._backend.spelled(script.pieces)
        token = self._answer(at)
        token = token if allows(sampling.mask, token) else first_allowed(sampling.mask)
        if token < 0:
            raise EngineError(Status.INVALID, "the mask allows no token")
        return token

    def draft(self, next_token: int, depth: int) -> list[int]:
        script, at = self._script, len(self._tokens) + 1 - self._start
        if script.fail_draft:
            raise EngineError(Status.NUMERIC, script.fail_draft)
        room = self._backend.info.context - len(self._tokens) - 1
        places = range(at, at + min(depth, self._backend.info.drafts, room))
        return [
            self._answer(i) if script.hits[i % len(script.hits)] else _WRONG_DRAFT for i in places
        ]

    def check(self, tokens: Sequence[int]) -> None:
        """Raises what a step with these tokens fails with; nothing has changed then."""
        length, script = len(self._tokens), self._script
        if length + len(tokens) > self._backend.info.context:
            raise EngineError(Status.CONTEXT, "the session is full")
        if 0 <= script.break_at - (length - self._start) < len(tokens):
            position = self._start + script.break_at
            raise EngineError(
                Status.NUMERIC, f"layer 1 gave non-finite values at position {position}"
            )

    def append(self, tokens: Sequence[int]) -> tuple[float, int]:
        """One decode step; returns the milliseconds and the bytes that it takes."""
        self._tokens += tokens
        script, drafts = self._script, len(tokens) - 1
        return (
            script.token_ms + drafts * script.draft_ms,
            script.token_bytes + drafts * script.draft_bytes,
        )

    def _answer(self, at: int) -> int:
        tokens: Sequence[Any] = self._script.pieces if self._spelled is None else self._spelled
        if at >= len(tokens) and not self._script.repeat:
            return self._script.end_id
        found = tokens[at % len(tokens)]
        return self._backend.piece_id(found) if self._spelled is None else int(found)

    def close(self) -> None:
        self._tokens = []
        self._backend.open_sessions -= 1


class FakeBackend:
    """See the module's text. `samplings` holds the parameters of every draw, `steps` the tokens of
    each job in every step, `longest` the longest that a session ever was. `room` is what `kv_room`
    says; with a `window` a session cannot go back further, except to a checkpoint. `chores` is how
    often `idle` has something left to do, `idled` how often it was called. `experts` and `work` are
    what is told of experts and times.
    """

    def __init__(self, options: Options | None = None, tell: Tell | None = None) -> None:
        options = options or Options()
        for step in range(_LOAD_STEPS):
            if tell is not None and options.load_ms > 0:
                tell(step * _LOAD_STEP_BYTES, _LOAD_STEPS * _LOAD_STEP_BYTES)
            time.sleep(options.load_ms / _LOAD_STEPS / 1000)
        if options.fail_load:
            raise EngineError(Status.FORMAT, options.fail_load)
        self.info = EngineInfo(
            context=options.context,
            vocab=FIRST_PIECE,
            isa="fake",
            precision="fast",
            threads=1,
            weight_bytes=0,
            kv_bytes_per_token=0,
            memory_budget=0,
            experts=options.experts,
            drafts=options.drafts,
            drafts_reason="" if options.drafts else "no MTP layer",
        )
        self.end_ids = END_IDS
        self.progress = 0
        self.decoded = 0
        self.bytes_read = 0
        self.step_ms = 0.0  # all steps so far, by their scripts
        self.wait_ms = 0.0
        self.longest = 0
        self.open_sessions = 0
        self.room: int | None = None
        self.chores = 0
        self.idled = 0
        self.window = 0
        self.disk: Disk | None = None
        self.experts: ExpertCounts | None = None
        self.work = Work()
        self.imported = 0
        self.steps: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []
        self._scripts = deque(options.scripts)
        self._ids: dict[bytes, int] = {}
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._dialect = dialect = DIALECTS[options.dialect]
        marks = tokens_of(dialect)
        self._masks: Masks | None = None
        self._answers = Answers(
            dialect,
            marks,
            lambda parse: FakeLetters(self.piece, marks.values() if parse else ()),
            lambda: closing(dialect, tokenizer(dialect.name)),
            self._prepared,
        )

    def _prepared(self) -> Masks:
        if self._masks is None:
            self._masks = Masks(tokenizer(self._dialect.name), FIRST_PIECE, END_IDS)
        return self._masks

    def enqueue(self, *scripts: Script) -> None:
        """Adds answers for the jobs to come."""
        with self._lock:
            self._scripts.extend(scripts)

    def next_script(self) -> Script:
        with self._lock:
            return self._scripts.popleft() if self._scripts else Script()

    def piece_id(self, piece: str | bytes) -> int:
        found = control_id(piece)
        if found is not None:
            return found
        data = piece.encode() if isinstance(piece, str) else piece
        token = self._ids.setdefault(data, FIRST_PIECE + len(self._ids))
        self._pieces[token] = data
        return token

    def spelled(self, pieces: Sequence[str | bytes]) -> list[int]:
        return spelled(pieces, tokens_of(self._dialect))

    def piece(self, token: int) -> bytes:
        """Bytes of a token that is no control token; none of an unknown one."""
        byte = token - FIRST_BYTE
        return bytes([byte]) if 0 <= byte < 256 else self._pieces.get(token, b"")  # noqa: PLR2004

    def session(self) -> BackendSession:
        self.open_sessions += 1
        return _FakeSession(self)

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def kv_room(self) -> int | None:
        return self.room

    def decode(self, sessions: Sequence[BackendSession], tokens: Sequence[Sequence[int]]) -> None:
        parts = [
            (session, part)
            for session, part in zip(sessions, tokens, strict=True)
            if isinstance(session, _FakeSession)
        ]
        for session, part in parts:
            session.check(part)
        costs = [session.append(part) for session, part in parts]
        time.sleep(max((ms for ms, _ in costs), default=0.0) / 1000)
        self.progress += 1
        self.decoded += sum(len(part) for part in tokens)
        read = sum(read for _, read in costs)
        self.bytes_read += read
        took = max((ms for ms, _ in costs), default=0.0)
        self.step_ms += took
        # A script that reads does nothing else meanwhile.
        self.wait_ms += took if read else 0.0
        self.longest = max(self.longest, *(len(session) for session in sessions))
        self.steps.append(tuple(len(part) for part in tokens))

    def counters(self) -> Counters:
        return Counters(
            progress=self.progress,
            prompt_tokens=0,
            decoded_tokens=self.decoded,
            weight_bytes=0,
            kv_bytes=0,
            scratch_bytes=0,
            streaming=self.bytes_read > 0,
            expert_bytes_read=self.bytes_read,
            disk_wait_ns=int(self.wait_ms * 1e6),
            work=self.work,
        )

    def expert_counts(self) -> ExpertCounts | None:
        return self.experts

    def idle(self, max_ms: int) -> bool:
        self.idled += 1
        if self.chores == 0:
            return False
        time.sleep(max_ms / 1000)
        self.chores -= 1
        return self.chores > 0

    def answer(self, command: Submit) -> Answer:
        return self._answers.begin(command)

    def close(self) -> None:
        self._scripts.clear()


def open_backend(options: dict[str, Any], tell: Tell | None = None) -> FakeBackend:
    """Factory for a child process; `options` are those of `Options` as plain data."""
    return FakeBackend(msgspec.convert(options, Options), tell)
