"""A model folder as the engine behind the worker: weights, context, end ids, text.

For: the engine process and one-shot commands; the factory `open_backend` is what a `ChildSpec`
names. Not for: the HTTP side, which needs only the text of the same model (`models.served`).
Threads: as `EngineBackend`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from colibri import sizes
from colibri.engine import ffi
from colibri.engine.backend import BackendSession, Counters, EngineBackend, TextStream
from colibri.engine.protocol import EngineInfo, MemoryInfo
from colibri.engine.status import EngineError, Status
from colibri.engine.table import EngineOptions, IoMode, Isa, Precision
from colibri.errors import ResourceError
from colibri.hardware import memory
from colibri.kv.disk import Disk
from colibri.models import mirror
from colibri.models.budget import (
    Choice,
    choose,
    idle_slot_bytes,
    program_bytes,
    remedy,
    store_queue_bytes,
)
from colibri.models.draft_choice import AUTO, NO_MEMORY, NO_MTP_LAYER
from colibri.models.guard import MemoryGuard
from colibri.models.kv_disk import open_disk
from colibri.models.learning import Learning
from colibri.models.mirror import Place
from colibri.models.model import Model, open_model
from colibri.text.detok import Detokenizer
from colibri.text.stop import StopFilter
from colibri.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to open and how. Context 0 = what fits; `ram` as `--ram`, empty = measured here.

    `parallel` sessions may have a full context at once; further ones, up to `slots`, share what is
    left. `server` is the process that holds the same model's text beside this one, 0 = none.
    """

    folder: str
    context: int = 0
    precision: str = "fast"
    isa: str = "auto"
    threads: int = 0
    ram: str = ""
    slots: int = 1
    parallel: int = 1
    server: int = 0
    io_mode: str = "auto"
    mirrors: tuple[str, ...] = ()
    prefetch: str = "on"
    drafts: str = "auto"
    prefill_chunk: int = 0
    state_dir: str | None = None
    prefix_store_gb: float | None = 0
    trace: str | None = None


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


def _open(model: Model, base: EngineOptions, options: Options) -> tuple[ffi.Engine, Choice]:
    """The engine with the wanted context and drafts, or with what fits."""
    planner = ffi.Planner(model.geometry, model.tensors)

    def chosen(drafts: str) -> Choice:
        return choose(model.geometry, planner.plan, base, context=options.context, drafts=drafts)

    def opened(options: EngineOptions) -> ffi.Engine:
        files = model.files
        return ffi.Engine(
            files.own_paths, model.geometry, files.tensors, options, files.mirror_paths
        )

    choice = chosen(options.drafts)
    try:
        try:
            engine = opened(choice.options)
        except EngineError as error:
            unasked = options.drafts == AUTO and choice.options.drafts
            if error.code != Status.MEMORY or not unasked:
                raise
            choice = msgspec.structs.replace(chosen("0"), reason=NO_MEMORY)
            engine = opened(choice.options)
    except EngineError as error:
        if error.code != Status.MEMORY:
            raise
        raise ResourceError(error.message + ".", hint=remedy(choice.plan)) from error
    if choice.options.drafts and not engine.snapshot().has_mtp:
        without = msgspec.structs.replace(choice.options, drafts=0)
        choice = msgspec.structs.replace(choice, options=without, reason=NO_MTP_LAYER)
    return engine, choice


class NativeBackend:
    """The C engine with one model. Raises what opening a model or an engine raises."""

    def __init__(self, options: Options) -> None:
        model = open_model(Path(options.folder), [Path(name) for name in options.mirrors])
        places = 1 + len(options.mirrors)
        mirror.allow_open_files(2 * places * len(model.files.paths))
        own, server = memory.rss(), memory.rss(options.server) if options.server else 0
        self._budget = memory.allowance(
            sizes.parse(options.ram) if options.ram else None, (own, server)
        )
        for warning in self._budget.warnings:
            log.warning("%s", warning)
        self._server = options.server
        queue = store_queue_bytes(options.prefix_store_gb)
        base = EngineOptions(
            precision=Precision[options.precision.upper()],
            isa=Isa[options.isa.upper()],
            threads=options.threads,
            memory_budget=self._budget.bytes,
            caller_bytes=program_bytes(own, server if options.server else None)
            + idle_slot_bytes(model.geometry, options.slots - options.parallel)
            + queue,
            sessions=options.parallel,
            io_mode=IoMode[options.io_mode.upper()],
            no_prefetch=options.prefetch == "off",
            prefill_chunk=options.prefill_chunk,
        )
        self._engine, choice = _open(model, base, options)
        self._guard = MemoryGuard(
            self._budget.bytes,
            lambda: memory.rss() + (memory.rss(options.server) if options.server else 0),
            self._cache_bytes,
            self._engine.shrink,
        )
        self._places = model.files.places or (Place(model.files.folder, model.files.paths),)
        self._tokenizer = model.text.tokenizer
        self.end_ids = model.text.end_ids
        self.info = self._describe(model, choice)
        self.disk: Disk | None = open_disk(
            self._engine, model.files, options.state_dir, options.prefix_store_gb, queue
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

    def _describe(self, model: Model, choice: Choice) -> EngineInfo:
        plan = choice.plan
        snapshot = self._engine.snapshot()
        return EngineInfo(
            context=snapshot.context,
            vocab=model.geometry.vocab,
            isa=ffi.isa_name(snapshot.isa),
            precision=Precision(snapshot.precision).name.lower(),
            threads=snapshot.threads,
            weight_bytes=snapshot.weight_bytes,
            kv_bytes_per_token=snapshot.kv_bytes_per_token,
            drafts=choice.options.drafts,
            drafts_reason=choice.reason,
            memory_budget=self._budget.bytes,
            memory=MemoryInfo(
                budget=self._budget.bytes or None,
                origin=self._budget.origin,
                available=self._budget.available,
                program=plan.caller_bytes,
                weights=plan.dense_bytes,
                experts=plan.cache_bytes if plan.streaming else plan.expert_bytes,
                kv=plan.sessions_bytes,
                scratch=plan.prefill_bytes
                + plan.work_bytes
                + plan.staging_bytes
                + plan.table_bytes,
                prefill_chunk=plan.prefill_chunk,
            ),
        )

    def session(self) -> BackendSession:
        return self._engine.session()

    def decode(self, sessions: Sequence[BackendSession], tokens: Sequence[Sequence[int]]) -> None:
        # Every session of this backend is one of its engine's.
        self._engine.decode_many(cast(Sequence[ffi.Session], sessions), tokens)
        if self._learning is not None:
            self._learning.after_step()
        self._guard.after_step()

    def _cache_bytes(self) -> int:
        snapshot = self._engine.snapshot()
        return snapshot.expert_bytes if snapshot.streaming else 0

    def idle(self, max_ms: int) -> bool:
        self._guard.after_step()
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
