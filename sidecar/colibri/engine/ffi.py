"""Thin typed wrapper over the compiled engine (`native/include/colibri.h`).

For: the engine worker, one-shot commands and tests. It turns immutable Python values into C
structs, status codes into `EngineError`, and owns the handles. Not for: policy. No scheduling, no
retries, no text; HTTP code never imports it.

Ownership: an `Engine` owns its sessions and closes them when it is closed. Both are context
managers; an engine that is dropped unclosed is closed with a `ResourceWarning`. Use after close
raises `EngineError` (INVALID). The engine copies everything it is given, except the logits buffer
of `Session.prefill_start`, which the session keeps alive until the prefill ends.

Threads: as in the header, one thread at a time drives an engine and its sessions; `Session.cancel`
and `Engine.snapshot` may be called from any thread, also while `close` runs elsewhere. Every call
releases the interpreter lock while the engine computes.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.cvalues import (
    Buffer,
    Call,
    Floats,
    Inputs,
    Tokens,
    c_path,
    closed_error,
    ffi,
    fill,
    float_buffer,
    int32_array,
    lib,
)
from colibri.engine.ffi_chunk import ChunkCalls
from colibri.engine.ffi_routed import RoutedCalls
from colibri.engine.status import EngineCancelled, EngineError, PrefillProgress, Status
from colibri.engine.table import EngineOptions, Geometry, Isa, MirrorCounters, Sampling, Tensor

__all__ = [
    "Engine",
    "EngineCancelled",
    "EngineError",
    "Loading",
    "PrefillProgress",
    "Session",
    "Snapshot",
    "Status",
    "best_isa",
    "has_isa",
    "isa_name",
    "version",
]


class Snapshot(msgspec.Struct, frozen=True):
    """Counters of an engine (`colibri_engine_snapshot_t`): sizes in bytes, the rest counts; the
    last three by phase and kind, as there.
    """

    isa: int
    precision: int
    kv_type: int
    threads: int
    context: int
    sparse_attention: int
    has_mtp: int
    sessions: int
    weight_bytes: int
    expert_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    scratch_bytes: int
    progress: int
    prompt_tokens: int
    decoded_tokens: int
    expert_lookups: int
    expert_misses: int
    expert_bytes_read: int
    streaming: int
    expert_slots: int
    guessed_bytes: int
    useful_bytes: int
    wasted_bytes: int
    disk_wait_ns: int
    cached_experts: int
    time_ns: tuple[int, ...]
    found: tuple[int, ...]
    step_ns: tuple[int, ...]


class Loading:
    """How far the opening of an `Engine` that was given this is. Any thread may look."""

    def __init__(self) -> None:
        self.raw = ffi.new("colibri_loading *")

    def look(self) -> tuple[int, int]:
        """(bytes of resident weights read, bytes to read); (0, 0) before reading begins."""
        out = ffi.new("colibri_loading *")
        lib.colibri_loading_look(self.raw, out)
        return out.done, out.total


class Engine:
    """A loaded model. See the module's text for ownership and threads.

    Opening reads every resident weight; it raises `EngineError` with the file or tensor at fault.
    """

    def __init__(
        self,
        paths: Sequence[str | Path | None],
        geometry: Geometry,
        tensors: Sequence[Tensor],
        options: EngineOptions | None = None,
        mirrors: Sequence[Sequence[str | Path | None]] = (),
        loading: Loading | None = None,
    ) -> None:
        """`mirrors` hold copies: one path per file each, None = not there. So may `paths`, where
        a mirror has the file. `loading` is told how far it is.
        """
        self._handle: Any = ffi.NULL
        self._lock = threading.Lock()  # guards the life of every handle, not the engine's work
        self._sessions: set[Session] = set()
        self.vocab = geometry.vocab
        self.expert_shape = (geometry.n_layers + geometry.n_mtp_layers, geometry.n_experts)
        inputs = Inputs(geometry, tensors, options or EngineOptions())
        encoded = [c_path(path) for path in paths]
        copies = [c_path(path) for mirror in mirrors for path in mirror]
        if len(copies) != len(mirrors) * len(encoded):
            raise EngineError(Status.INVALID, "a mirror must name a path or None for every file")
        mirror_paths = ffi.new("const char *[]", copies)
        inputs.options.mirror_paths = mirror_paths
        inputs.options.n_mirrors = len(mirrors)
        inputs.options.loading = loading.raw if loading else ffi.NULL
        out = ffi.new("colibri_engine **")
        call = Call()
        call.check(
            lib.colibri_engine_open(
                inputs.options,
                inputs.geometry,
                ffi.new("const char *[]", encoded),
                len(encoded),
                inputs.tensors,
                inputs.n_tensors,
                out,
                call.text,
                call.len,
            )
        )
        self._handle = out[0]

    @property
    def closed(self) -> bool:
        return bool(self._handle == ffi.NULL)

    def _alive(self) -> Any:
        if self._handle == ffi.NULL:
            raise closed_error("engine")
        return self._handle

    def session(self) -> Session:
        """A new, empty session."""
        out = ffi.new("colibri_session **")
        call = Call()
        call.check(lib.colibri_session_create(self._alive(), out, call.text, call.len))
        session = Session(self, out[0])
        self._sessions.add(session)
        return session

    def decode(self, sessions: Sequence[Session], tokens: Tokens) -> None:
        """Appends `tokens[i]` to `sessions[i]` and computes each one's logits: all or nothing."""
        ids = int32_array(tokens)
        if len(sessions) != len(ids):
            raise EngineError(
                Status.INVALID,
                f"decode got {len(sessions)} sessions and {len(ids)} tokens; give one token each",
            )
        self._alive()
        if any(session.engine is not self for session in sessions):
            raise EngineError(Status.INVALID, "a session belongs to another engine")
        handles = ffi.new("colibri_session *[]", [session._alive() for session in sessions])
        call = Call()
        call.check(
            lib.colibri_decode(
                handles, ffi.from_buffer("int32_t[]", ids), len(ids), call.text, call.len
            )
        )

    def decode_many(self, sessions: Sequence[Session], tokens: Sequence[Tokens]) -> None:
        """Like `decode`, with several tokens per session; their logits stay readable by length
        (`Session.sample_at`), also after a truncation inside the step."""
        parts = [int32_array(part) for part in tokens]
        if len(sessions) != len(parts):
            raise EngineError(
                Status.INVALID,
                f"decode_many got {len(sessions)} sessions and {len(parts)} token lists; "
                "give one list each",
            )
        self._alive()
        if any(session.engine is not self for session in sessions):
            raise EngineError(Status.INVALID, "a session belongs to another engine")
        handles = ffi.new("colibri_session *[]", [session._alive() for session in sessions])
        ids = np.concatenate(parts) if parts else np.empty(0, np.int32)
        counts = np.array([len(part) for part in parts], dtype=np.int32)
        call = Call()
        call.check(
            lib.colibri_decode_many(
                handles,
                ffi.from_buffer("int32_t[]", ids),
                ffi.from_buffer("int32_t[]", counts),
                len(parts),
                call.text,
                call.len,
            )
        )

    @property
    def block_tokens(self) -> int:
        """Positions of a KV block."""
        return int(lib.colibri_engine_block_tokens(self._alive()))

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block outside the engine."""
        return int(lib.colibri_engine_block_bytes(self._alive()))

    def kv_room(self) -> int | None:
        """KV blocks that sessions may still take inside the budget; None without a limit."""
        room = int(lib.colibri_engine_kv_room(self._alive()))
        return None if room < 0 else room

    def kv_layout(self) -> str:
        """Equal for two engines exactly when they can exchange KV blocks, given equal weights."""
        size = int(lib.colibri_engine_kv_layout(self._alive(), ffi.new("char[]", 1), 1)) + 1
        text = ffi.new("char[]", size)
        lib.colibri_engine_kv_layout(self._alive(), text, size)
        return bytes(ffi.string(text)).decode()

    def shrink(self, expert_bytes: int) -> None:
        """Makes the expert cache of a streaming engine smaller, for good. Between steps."""
        call = Call()
        call.check(lib.colibri_engine_shrink(self._alive(), expert_bytes, call.text, call.len))

    def snapshot(self) -> Snapshot:
        """Counters now. Any thread."""
        raw = ffi.new("colibri_engine_snapshot_t *")
        raw.struct_size = ffi.sizeof("colibri_engine_snapshot_t")
        with self._lock:
            lib.colibri_engine_snapshot(self._alive(), raw)
        values = {name: getattr(raw, name) for name in Snapshot.__struct_fields__}
        values |= {name: tuple(getattr(raw, name)) for name in ("time_ns", "found", "step_ns")}
        return Snapshot(**values)

    def mirrors(self) -> tuple[MirrorCounters, ...]:
        """The model's own files first, then the mirrors; empty when all experts are in memory.
        Any thread.
        """
        with self._lock:
            count = lib.colibri_engine_mirrors(self._alive(), ffi.NULL, 0)
            raw = ffi.new("colibri_mirror_t[]", max(count, 1))
            raw[0].struct_size = ffi.sizeof("colibri_mirror_t")
            lib.colibri_engine_mirrors(self._alive(), raw, count)
        names = MirrorCounters.__struct_fields__
        return tuple(
            MirrorCounters(*(getattr(raw[row], name) for name in names)) for row in range(count)
        )

    def close(self) -> None:
        """Closes the sessions, then frees the model. Calling it again does nothing."""
        for session in tuple(self._sessions):
            session.close()
        with self._lock:
            handle, self._handle = self._handle, ffi.NULL
            lib.colibri_engine_close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_why: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", ffi.NULL) != ffi.NULL:
            warnings.warn("an engine was dropped without close()", ResourceWarning, stacklevel=2)
            self.close()


class Session(ChunkCalls, RoutedCalls):
    """One token history with its keys and values; made by `Engine.session`."""

    def __init__(self, engine: Engine, handle: Any) -> None:
        self.engine = engine
        self._handle = handle
        self._logits: Floats | None = None  # written by the engine until the prefill ends

    @property
    def closed(self) -> bool:
        return bool(self._handle == ffi.NULL)

    def _alive(self) -> Any:
        if self._handle == ffi.NULL:
            raise closed_error("session")
        return self._handle

    def __len__(self) -> int:
        """Tokens held."""
        return int(lib.colibri_session_length(self._alive()))

    def tokens(self) -> NDArray[np.int32]:
        """A copy of the token history, int32 [length]."""
        out = np.empty(len(self), dtype=np.int32)
        copied = lib.colibri_session_tokens(
            self._alive(), ffi.from_buffer("int32_t[]", out), len(out)
        )
        return out[:copied]

    @property
    def parked(self) -> int:
        """Tokens of a chunk that was cancelled inside; a prefill that begins with them resumes."""
        return int(lib.colibri_session_parked(self._alive()))

    def truncate(self, length: int) -> None:
        """Drops everything from position `length` on and any unfinished prefill.

        With exactly the length held, nothing is dropped and an unfinished prefill is parked.
        """
        call = Call()
        call.check(lib.colibri_session_truncate(self._alive(), length, call.text, call.len))
        self._logits = None

    def fork(self, length: int, into: Session) -> None:
        """Gives the empty session `into` the first `length` tokens, sharing their KV."""
        call = Call()
        call.check(
            lib.colibri_session_fork(self._alive(), length, into._alive(), call.text, call.len)
        )

    def reusable(self, length: int) -> int:
        """The greatest length up to `length` to which the session can be truncated or forked."""
        return int(lib.colibri_session_reusable(self._alive(), length))

    def checkpoint(self) -> None:
        """Keeps the present length reusable."""
        lib.colibri_session_checkpoint(self._alive())

    def export_block(self, block: int, out: Buffer | None = None) -> Buffer:
        """A copy of KV block `block` (`Engine.block_bytes` long), in `out` if given."""
        if out is None:
            out = bytearray(self.engine.block_bytes)
        target = ffi.from_buffer(out, require_writable=True)
        call = Call()
        call.check(
            lib.colibri_session_export_block(
                self._alive(), block, target, len(target), call.text, call.len
            )
        )
        return out

    def import_block(self, tokens: Tokens, data: Buffer) -> None:
        """Appends the tokens of a KV block, or the first of them: it was exported after exactly
        these.
        """
        ids = int32_array(tokens)
        source = ffi.from_buffer(data)
        call = Call()
        call.check(
            lib.colibri_session_import_block(
                self._alive(),
                ffi.from_buffer("int32_t[]", ids),
                len(ids),
                source,
                len(source),
                call.text,
                call.len,
            )
        )

    def draftless(self) -> int:
        """Tokens whose blocks came without the MTP layer's part, although that layer is loaded."""
        return int(lib.colibri_session_draftless(self._alive()))

    def prefill_start(self, tokens: Tokens, logits: Floats | None = None) -> None:
        """Announces tokens to append.

        `logits`, if given, is a float32 array [n, vocab] that receives the logits of every token;
        it is complete when `prefill_step` reports `finished`.
        """
        ids = int32_array(tokens)
        target = ffi.NULL
        if logits is not None:
            target = float_buffer(logits, (len(ids), self.engine.vocab), "logits")
        call = Call()
        call.check(
            lib.colibri_prefill_start(
                self._alive(),
                ffi.from_buffer("int32_t[]", ids),
                len(ids),
                target,
                call.text,
                call.len,
            )
        )
        self._logits = logits

    def prefill_step(self, max_ms: int = 0) -> PrefillProgress:
        """Works for about `max_ms`, or to the end when 0; negative = one small slice (tests).

        Raises `EngineCancelled`, with the progress kept, if the session was cancelled.
        """
        raw = ffi.new("colibri_prefill_progress *")
        call = Call()
        status = lib.colibri_prefill_step(self._alive(), max_ms, raw, call.text, call.len)
        if status not in (Status.OK, Status.CANCELLED):
            self._logits = None
            call.check(status)
        progress = PrefillProgress(
            bool(raw.finished),
            *(getattr(raw, name) for name in PrefillProgress.__struct_fields__[1:]),
        )
        if status == Status.CANCELLED:
            self._logits = None
            raise EngineCancelled(call.message(), progress)
        if progress.finished:
            self._logits = None
        return progress

    def prefill(self, tokens: Tokens, logits: Floats | None = None) -> None:
        """Appends all tokens in one go."""
        self.prefill_start(tokens, logits)
        while not self.prefill_step().finished:
            pass

    def sample(self, sampling: Sampling | None = None) -> int:
        """Draws a token from the current logits; does not append it."""
        return self.sample_at(len(self), sampling)

    def sample_at(self, length: int, sampling: Sampling | None = None) -> int:
        """Draws the token after the first `length` ones, from the logits of the last step."""
        sampling = sampling or Sampling()
        raw = fill(ffi.new("colibri_sampling *"), sampling, frozenset({"mask"}))
        mask = None
        if sampling.mask:
            words = (self.engine.vocab + 31) // 32
            if len(sampling.mask) != 4 * words:
                raise EngineError(
                    Status.INVALID,
                    f"the mask has {len(sampling.mask)} bytes; this vocabulary needs {4 * words}",
                )
            mask = np.frombuffer(sampling.mask, dtype="<u4").astype(np.uint32)
            raw.mask = ffi.from_buffer("uint32_t[]", mask)
        token = ffi.new("int32_t *")
        call = Call()
        call.check(
            lib.colibri_session_sample_at(self._alive(), length, raw, token, call.text, call.len)
        )
        return int(token[0])

    def draft(self, next_token: int, depth: int) -> list[int]:
        """Guesses up to `depth` tokens after `next_token`, the token about to be appended."""
        out, count = ffi.new("int32_t[]", max(depth, 1)), ffi.new("int32_t *")
        call = Call()
        call.check(
            lib.colibri_session_draft(
                self._alive(), next_token, depth, out, count, call.text, call.len
            )
        )
        return list(out[0 : count[0]])

    def logits(self, out: Floats | None = None) -> Floats:
        """The current logits, float32 [vocab], written into `out` if given."""
        if out is None:
            out = np.empty(self.engine.vocab, dtype=np.float32)
        target = float_buffer(out, (self.engine.vocab,), "out")
        call = Call()
        call.check(lib.colibri_session_logits(self._alive(), target, len(out), call.text, call.len))
        return out

    def cancel(self) -> None:
        """Makes the running or next prefill step stop. Any thread; does nothing once closed."""
        with self.engine._lock:
            if self._handle != ffi.NULL:
                lib.colibri_session_cancel(self._handle)

    def close(self) -> None:
        """Frees the session. Calling it again does nothing."""
        with self.engine._lock:
            handle, self._handle = self._handle, ffi.NULL
            if handle != ffi.NULL:
                lib.colibri_session_close(handle)
        self._logits = None
        self.engine._sessions.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_why: object) -> None:
        self.close()


# ---- pure functions (any thread) -----------------------------------------------------------------


def version() -> str:
    """Version of the compiled engine."""
    return bytes(ffi.string(lib.colibri_version())).decode()


def best_isa() -> Isa:
    """The fastest instruction set that this processor and this build have."""
    return Isa(lib.colibri_cpu_best_isa())


def has_isa(isa: int) -> bool:
    """Whether this processor and this build can run `isa`."""
    return bool(lib.colibri_cpu_has_isa(isa))


def isa_name(isa: int) -> str:
    return bytes(ffi.string(lib.colibri_isa_name(isa))).decode()
