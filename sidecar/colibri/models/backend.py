"""A model folder as the engine behind the worker: weights, context, end ids, text.

For: the engine process and one-shot commands; the factory `open_backend` is what a `ChildSpec`
names. Not for: the HTTP side, which needs only the text of the same model (`models.served`).
Threads: as `EngineBackend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from colibri.engine import ffi
from colibri.engine.backend import BackendSession, Counters, EngineBackend, TextStream
from colibri.engine.protocol import EngineInfo
from colibri.engine.status import EngineError, Status
from colibri.engine.table import EngineOptions, IoMode, Isa, Precision
from colibri.errors import ResourceError
from colibri.hardware import memory
from colibri.kv.disk import Disk
from colibri.models import mirror
from colibri.models.draft_choice import AUTO, NO_MTP_LAYER, costs_residence, drafts_wanted
from colibri.models.kv_disk import open_disk
from colibri.models.learning import Learning
from colibri.models.mirror import Place
from colibri.models.model import Model, open_model
from colibri.text.detok import Detokenizer
from colibri.text.stop import StopFilter
from colibri.text.tokenizer import Tokenizer

# No agent works with less; a machine that cannot give this much cannot serve the model.
LEAST_CONTEXT: Final = 4096
# Share of the memory left beside the weights that an unasked-for context may take.
_KV_SHARE: Final = 0.5
# The same of all memory when experts stream from disk: what is left is their cache.
_STREAMING_KV_SHARE: Final = 0.25


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to open and how. Context 0 = what fits; budget 0 = measured here."""

    folder: str
    context: int = 0
    precision: str = "fast"
    isa: str = "auto"
    threads: int = 0
    memory_budget: int = 0
    io_mode: str = "auto"
    mirrors: tuple[str, ...] = ()
    prefetch: str = "on"
    drafts: str = "auto"
    prefill_chunk: int = 0
    state_dir: str | None = None
    prefix_store_gb: float | None = 0
    trace: str | None = None


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes: all that may be held (0 = no limit), all weights; whether experts may stay on disk."""

    budget: int
    weights: int
    can_stream: bool


def choose_context(wanted: int, longest: int, kv_bytes_per_token: int, plan: MemoryPlan) -> int:
    """Tokens of context: the wanted number, or what fits; `longest` is the model's own limit.

    Raises ResourceError, with numbers, when not even the smallest sensible context fits. With
    experts that can stream, opening the engine decides that.
    """
    least = wanted or min(LEAST_CONTEXT, longest)
    if plan.budget == 0:
        return wanted or longest
    free, share = plan.budget - plan.weights, _KV_SHARE
    if least * kv_bytes_per_token > free:
        if not plan.can_stream:
            fits = max(free, 0) // max(kv_bytes_per_token, 1)
            raise ResourceError(
                f"a context of {least} tokens takes {least * kv_bytes_per_token / 1e9:.2f} GB; "
                f"beside the weights {max(free, 0) / 1e9:.2f} GB are free.",
                hint=f"Choose --ctx {fits} or less, or free some memory."
                if fits >= 1
                else "Free some memory, or choose a smaller model.",
            )
        free, share = plan.budget, _STREAMING_KV_SHARE
    return wanted or min(longest, max(int(free * share) // max(kv_bytes_per_token, 1), least))


class _Text:
    """Detokeniser and stop filter of one job."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ignore_leading: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._filter = StopFilter(stops, ignore_leading=ignore_leading)

    @property
    def stopped(self) -> bool:
        return self._filter.matched is not None

    def push(self, token: int) -> str:
        return self._filter.push(self._detokenizer.push((token,)))

    def flush(self) -> str:
        return self._filter.push(self._detokenizer.flush()) + self._filter.flush()


def _open(model: Model, base: EngineOptions, wanted: int) -> ffi.Engine:
    """The engine with the wanted context, or with the longest that it accepts."""
    plan = ffi.plan(model.geometry, model.files.tensors, base)
    longest = model.geometry.max_position
    memory_plan = MemoryPlan(
        budget=base.memory_budget,
        weights=plan.weight_bytes,
        can_stream=model.geometry.n_experts > 0,
    )
    context = choose_context(wanted, longest, plan.kv_bytes_per_token, memory_plan)
    while True:
        options = msgspec.structs.replace(base, context=context)
        try:
            return ffi.Engine(
                model.files.own_paths,
                model.geometry,
                model.files.tensors,
                options,
                model.files.mirror_paths,
            )
        except EngineError as error:
            # Only a choice of ours is reconsidered, and refusing costs no reading.
            if wanted or error.code != Status.MEMORY or context <= min(LEAST_CONTEXT, longest):
                raise
            context = max(context // 2, min(LEAST_CONTEXT, longest))


def _open_with_drafts(
    model: Model, base: EngineOptions, options: Options
) -> tuple[ffi.Engine, int, str]:
    """The engine, its most drafts per step, and the reason if there are none."""
    most, reason = drafts_wanted(options.drafts, model.geometry.n_mtp_layers)
    if most == 0:
        return _open(model, base, options.context), 0, reason
    drafting = msgspec.structs.replace(base, drafts=most)
    asked = options.drafts != AUTO
    if not asked:
        tokens = options.context or min(LEAST_CONTEXT, model.geometry.max_position)
        plans = (ffi.plan(model.geometry, model.files.tensors, o) for o in (base, drafting))
        plain, larger = (p.weight_bytes + tokens * p.kv_bytes_per_token for p in plans)
        if costs_residence(base.memory_budget, plain, larger):
            return (
                _open(model, base, options.context),
                0,
                "the experts would not fit beside the MTP layer",
            )
    try:
        engine = _open(model, drafting, options.context)
    except (EngineError, ResourceError) as error:
        if asked or (isinstance(error, EngineError) and error.code != Status.MEMORY):
            raise
        return _open(model, base, options.context), 0, "no memory for the MTP layer"
    if engine.snapshot().has_mtp:
        return engine, most, ""
    return engine, 0, NO_MTP_LAYER


class NativeBackend:
    """The C engine with one model. Raises what opening a model or an engine raises."""

    def __init__(self, options: Options) -> None:
        model = open_model(Path(options.folder), [Path(name) for name in options.mirrors])
        budget = options.memory_budget or memory.budget()
        base = EngineOptions(
            precision=Precision[options.precision.upper()],
            isa=Isa[options.isa.upper()],
            threads=options.threads,
            memory_budget=budget,
            io_mode=IoMode[options.io_mode.upper()],
            no_prefetch=options.prefetch == "off",
            prefill_chunk=options.prefill_chunk,
        )
        self._engine, self._drafts, self._drafts_reason = _open_with_drafts(model, base, options)
        self._places = model.files.places or (Place(model.files.folder, model.files.paths),)
        self._tokenizer = model.text.tokenizer
        self.end_ids = model.text.end_ids
        self.info = self._describe(model, budget)
        self.disk: Disk | None = open_disk(
            self._engine, model.files, options.state_dir, options.prefix_store_gb
        )
        self._learning: Learning | None = None
        if model.geometry.n_experts > 0:
            try:
                self._learning = Learning(
                    self._engine,
                    model,
                    Path(options.folder),
                    state_dir=options.state_dir,
                    trace=options.trace,
                )
            except BaseException:
                self._engine.close()
                raise

    def _describe(self, model: Model, budget: int) -> EngineInfo:
        snapshot = self._engine.snapshot()
        return EngineInfo(
            context=snapshot.context,
            vocab=model.geometry.vocab,
            isa=ffi.isa_name(snapshot.isa),
            precision=Precision(snapshot.precision).name.lower(),
            threads=snapshot.threads,
            weight_bytes=snapshot.weight_bytes,
            kv_bytes_per_token=snapshot.kv_bytes_per_token,
            memory_budget=budget,
            drafts=self._drafts,
            drafts_reason=self._drafts_reason,
        )

    def session(self) -> BackendSession:
        return self._engine.session()

    def decode(self, sessions: Sequence[BackendSession], tokens: Sequence[Sequence[int]]) -> None:
        # Every session of this backend is one of its engine's.
        self._engine.decode_many(cast(Sequence[ffi.Session], sessions), tokens)
        if self._learning is not None:
            self._learning.after_step()

    def idle(self, max_ms: int) -> bool:
        return self._learning is not None and self._learning.idle(max_ms)

    @property
    def block_tokens(self) -> int:
        return self._engine.block_tokens

    def kv_room(self) -> int | None:
        return self._engine.kv_room()

    def counters(self) -> Counters:
        snapshot = self._engine.snapshot()
        return Counters(
            progress=snapshot.progress,
            prompt_tokens=snapshot.prompt_tokens,
            decoded_tokens=snapshot.decoded_tokens,
            weight_bytes=snapshot.weight_bytes,
            kv_bytes=snapshot.kv_bytes,
            scratch_bytes=snapshot.scratch_bytes,
            streaming=bool(snapshot.streaming),
            expert_slots=snapshot.expert_slots,
            expert_lookups=snapshot.expert_lookups,
            expert_misses=snapshot.expert_misses,
            expert_bytes_read=snapshot.expert_bytes_read,
            guessed_bytes=snapshot.guessed_bytes,
            useful_bytes=snapshot.useful_bytes,
            wasted_bytes=snapshot.wasted_bytes,
            disk_wait_ns=snapshot.disk_wait_ns,
            mirrors=mirror.reports(self._places, self._engine.mirrors()),
        )

    def text(self, stops: Sequence[str], ignore_leading_stop: bool) -> TextStream:
        return _Text(self._tokenizer, stops, ignore_leading_stop)

    def close(self) -> None:
        if self._learning is not None and not self._engine.closed:
            self._learning.close()
        self._engine.close()


def open_backend(options: dict[str, Any]) -> EngineBackend:
    """Factory for the engine process; `options` are those of `Options` as plain data."""
    return NativeBackend(msgspec.convert(options, Options))
