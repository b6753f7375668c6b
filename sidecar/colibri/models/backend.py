"""A model folder as the engine behind the worker: weights, context, end ids, text.

For: the engine process and one-shot commands; the factory `open_backend` is what a `ChildSpec`
names. Not for: the HTTP side, which needs only the text of the same model (`models.served`).
Threads: as `EngineBackend`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri import sizes
from colibri.engine import experts, ffi, ffi_plan, work
from colibri.engine.backend import BackendSession, Counters, EngineBackend, Tell
from colibri.engine.heat import ExpertCounts
from colibri.engine.protocol import EngineInfo, ExpertLayout, MemoryInfo, Submit
from colibri.engine.status import EngineError, Status
from colibri.engine.table import EngineOptions, Geometry, IoMode, Isa, Precision
from colibri.errors import ResourceError
from colibri.hardware import memory
from colibri.kv.disk import Disk
from colibri.models import mirror
from colibri.models.answers import model_answers, prepare_masks
from colibri.models.budget import (
    Choice,
    choose,
    grammar_bytes,
    idle_slot_bytes,
    program_bytes,
    remedy,
    rounded_up,
    store_queue_bytes,
)
from colibri.models.draft_choice import AUTO, NO_MEMORY, NO_MTP_LAYER
from colibri.models.guard import MemoryGuard
from colibri.models.kv_disk import open_disk
from colibri.models.learning import Learning
from colibri.models.limits import beyond_training, stretched
from colibri.models.mirror import Place
from colibri.models.model import Model, open_model
from colibri.text.answer import Answer

log = logging.getLogger(__name__)

# Reading so many weights takes longer than preparing grammars beside it, which holds the
# interpreter up meanwhile. With a smaller model the first answer that needs one waits, which takes
# a fraction of a second for a vocabulary of its size.
_LONG_LOAD_BYTES = 2 << 30
_TELL_SECONDS = 0.25


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to open and how. Context 0 = what fits; `ram` as `--ram`, empty = measured here. With
    `force` a model that does not fit is opened all the same, with the least memory that it needs.

    `parallel` sessions may have a full context at once; further ones, up to `slots`, share what is
    left. `server` is the process that holds the same model's text beside this one, 0 = none.
    """

    folder: str
    context: int = 0
    precision: str = "fast"
    isa: str = "auto"
    threads: int = 0
    ram: str = ""
    force: bool = False
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


@contextmanager
def _telling(loading: ffi.Loading, tell: Tell | None) -> Iterator[None]:
    """Tells how far the opening inside is, some times a second and at its end."""
    if tell is None:
        yield
        return
    ended = threading.Event()

    def run() -> None:
        seen = (0, 0)
        while True:
            over = ended.wait(_TELL_SECONDS)
            now = loading.look()
            if now != seen:
                seen = now
                tell(*now)
            if over:
                return

    thread = threading.Thread(target=run, name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _open(
    model: Model, base: EngineOptions, options: Options, tell: Tell | None
) -> tuple[ffi.Engine, Choice]:
    """The engine with the wanted context and drafts, or with what fits."""
    planner = ffi_plan.Planner(model.geometry, model.tensors)

    def chosen(drafts: str) -> Choice:
        return choose(model.geometry, planner.plan, base, context=options.context, drafts=drafts)

    def opened(options: EngineOptions) -> ffi.Engine:
        files, loading = model.files, ffi.Loading()
        with _telling(loading, tell):
            return ffi.Engine(
                files.own_paths,
                model.geometry,
                files.tensors,
                options,
                files.mirror_paths,
                loading,
            )

    choice = chosen(options.drafts)
    if options.force and not choice.plan.fits:
        least = choice.plan.least_budget
        log.warning(
            "the model is opened by force: it needs %s GB, the budget is %s GB",
            rounded_up(least),
            rounded_up(base.memory_budget),
        )
        base = msgspec.structs.replace(base, memory_budget=least)
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
    """The C engine with one model. Raises what opening a model or an engine raises; `tell` hears
    meanwhile how far it is.
    """

    def __init__(self, options: Options, tell: Tell | None = None) -> None:
        model = open_model(Path(options.folder), [Path(name) for name in options.mirrors])
        trained = model.geometry.max_position
        model = replace(model, geometry=stretched(model.geometry, options.context))
        places = 1 + len(options.mirrors)
        mirror.allow_open_files(2 * places * len(model.files.paths))
        own, server = memory.rss(), memory.rss(options.server) if options.server else 0
        self._budget = memory.allowance(
            sizes.parse(options.ram) if options.ram else None, (own, server)
        )
        for warning in self._budget.warnings:
            log.warning("%s", warning)
        self._server = options.server
        queue = store_queue_bytes(options.prefix_store_gb, model.geometry, options.prefill_chunk)
        base = EngineOptions(
            precision=Precision[options.precision.upper()],
            isa=Isa[options.isa.upper()],
            threads=options.threads,
            memory_budget=self._budget.bytes,
            caller_bytes=program_bytes(own, server if options.server else None)
            + idle_slot_bytes(model.geometry, options.slots - options.parallel)
            + grammar_bytes(model.tokenizer.source_bytes)
            + queue,
            sessions=options.parallel,
            io_mode=IoMode[options.io_mode.upper()],
            no_prefetch=options.prefetch == "off",
            prefill_chunk=options.prefill_chunk,
        )
        masks = prepare_masks(model.text)
        if sum(tensor.bytes for tensor in model.tensors) >= _LONG_LOAD_BYTES:
            masks.start()
        self._engine, choice = _open(model, base, options, tell)
        if choice.options.memory_budget != self._budget.bytes:  # by force
            forced = choice.options.memory_budget
            self._budget = msgspec.structs.replace(self._budget, bytes=forced, origin="flag")
        self._guard = MemoryGuard(
            self._budget.bytes,
            lambda: memory.rss() + (memory.rss(options.server) if options.server else 0),
            self._cache_bytes,
            self._engine.shrink,
        )
        self._places = model.files.places or (Place(model.files.folder, model.files.paths),)
        self.end_ids = model.text.end_ids
        self._answers = model_answers(model.text, masks)
        self._rows: NDArray[np.intp] | None = None  # layers that have experts
        self.info = self._describe(model, choice, trained)
        beyond = beyond_training(self.info.context, trained)
        if beyond is not None:
            log.warning("%s", beyond)
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

    def _describe(self, model: Model, choice: Choice, trained: int) -> EngineInfo:
        plan = choice.plan
        snapshot = self._engine.snapshot()
        return EngineInfo(
            experts=self._layout(model.geometry, plan),
            context=snapshot.context,
            trained_context=trained,
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
            cached_experts=snapshot.cached_experts,
            work=work.from_counters(snapshot.time_ns, snapshot.found, snapshot.expert_bytes_read),
        )

    def expert_counts(self) -> ExpertCounts | None:
        if self._rows is None or self._learning is None:
            return None
        tiers, asked = experts.places(self._engine, *self._learning.learnt.shape)
        rows = self._rows
        return ExpertCounts(
            tiers=tiers[rows], asked=asked[rows], learnt=self._learning.learnt[rows]
        )

    def _layout(self, geometry: Geometry, plan: ffi_plan.Plan) -> ExpertLayout | None:
        """Which layers have experts; the engine knows best."""
        layers = geometry.n_layers + geometry.n_mtp_layers
        if geometry.n_experts == 0:
            return None
        tiers, _ = experts.places(self._engine, layers, geometry.n_experts)
        rows = np.flatnonzero(tiers[:, 0] != experts.NO_EXPERT)
        self._rows = rows
        return ExpertLayout(
            layers=tuple(int(row) for row in rows),
            cols=geometry.n_experts,
            bytes=sum(kind.slot_bytes * kind.experts for kind in plan.classes),
            per_token=geometry.experts_per_token,
            draft_layers=int(np.count_nonzero(rows >= geometry.n_layers)),
        )

    def answer(self, command: Submit) -> Answer:
        return self._answers.begin(command)

    def close(self) -> None:
        if self._learning is not None and not self._engine.closed:
            self._learning.close()
        self._engine.close()


def open_backend(options: dict[str, Any], tell: Tell | None = None) -> EngineBackend:
    """Factory for the engine process; `options` are those of `Options` as plain data."""
    return NativeBackend(msgspec.convert(options, Options), tell)
