"""The loop that owns the engine and drives it in bounded steps.

For: the transports, which start `Worker.run` in a thread or in a child process's main thread and
pass commands to `Worker.handle` from another one. Not for: HTTP, queues of clients, restarts.

    reader thread --handle--> inbox --+                               +--> emit(event)
                      |               v                               |
                      |        run: [admit] -> [a prefill slice] -> [drafts, steps for all]
                      |                                         -> [draw, parts, stop]
                      +--snapshot answered here, at once

Jobs and their ends are in `jobs`, steps and drawing in `decoding`; here jobs are admitted and their
prompts read. Between two steps the loop looks at its inbox, so a cancel takes effect within one
slice or one decode step. What sessions hold after a job stays (`slots`): the next prompt is
compared with all of them and only what is new is computed. A step may carry drafts (`drafting`);
those that equal what is drawn at their place are kept, so the text is the one without drafts. Every
job ends in exactly one Done or Failed, whatever the engine does. Threads: `handle` from any thread,
`run` once. `emit` is called from both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from colibri.engine.backend import EngineBackend
from colibri.engine.decoding import Decoding
from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.drafting import Drafting
from colibri.engine.heat import ExpertMaps
from colibri.engine.jobs import Job, Jobs, Running
from colibri.engine.persist import Persist, Restore
from colibri.engine.protocol import (
    Accepted,
    Cancel,
    Command,
    EngineSnapshot,
    Event,
    Experts,
    ExpertState,
    KvState,
    Stop,
    Submit,
    TakeExperts,
    TakeSnapshot,
    Telemetry,
)
from colibri.engine.slots import Slot, Slots
from colibri.engine.status import EngineError

log = logging.getLogger(__name__)

# Longest time between two looks at the inbox while a prompt is read. A layer of a streamed model
# may take longer than this by itself; a resident one never does.
SLICE_MS = 200
# The same while others generate: as long as they then wait for their next token.
SHORT_SLICE_MS = 100
# The same while idle: a request that arrives waits no longer than this and one read from disk.
IDLE_MS = 20
# How often it looks whether room in KV has been made that all jobs wait for.
ROOM_MS = 10
# A progress event per slice would be noise on a fast model.
PROGRESS_SECONDS = 0.25


class Worker:
    """See the module's text. `parallel` jobs run at once in `slots` slots (0 = as many); `policy`
    makes what decides over drafts, from their greatest depth, and `clock` measures steps for it.
    """

    def __init__(
        self,
        backend: EngineBackend,
        emit: Callable[[Event], None],
        *,
        slots: int = 0,
        parallel: int = 1,
        policy: Callable[[int], DraftPolicy] = DraftPolicy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._emit = emit
        self._slots = Slots(backend, max(slots, parallel), parallel)
        self._wake = threading.Condition()
        self._stopping = False
        self._prompt_tokens = self._cached_tokens = 0
        self._chores = True
        info = backend.info
        self._persist = Persist(backend, self._slots, self._more_chores)
        self._jobs = Jobs(backend, self._slots, self._persist, emit, self._wake)
        self._drafting = Drafting(info.drafts, info.drafts_reason, backend.counters, policy, clock)
        self._decoding = Decoding(backend, self._jobs, self._drafting)
        self._maps = ExpertMaps(backend)

    # ---- any thread ----

    def handle(self, command: Command) -> None:
        """Takes a command; snapshots are answered before this returns."""
        if isinstance(command, TakeSnapshot):
            self._emit(Telemetry(serial=command.serial, snapshot=self.snapshot()))
            return
        if isinstance(command, TakeExperts):
            self._emit(Experts(serial=command.serial, map=self._maps.take()))
            return
        with self._wake:
            if isinstance(command, Submit):
                self._jobs.add(command)
            elif isinstance(command, Cancel):
                self._jobs.cancel(command.job)
            elif isinstance(command, Stop):
                self._stopping = True
            self._wake.notify()

    def snapshot(self) -> EngineSnapshot:
        """Counters and job states now, without waiting for the loop."""
        counters = self._backend.counters()
        with self._wake:
            jobs = self._jobs.states(counters.work)
        return EngineSnapshot(
            progress=counters.progress + counters.expert_bytes_read + self._moves(),
            prompt_tokens=counters.prompt_tokens,
            decoded_tokens=counters.decoded_tokens,
            weight_bytes=counters.weight_bytes,
            kv_bytes=counters.kv_bytes,
            scratch_bytes=counters.scratch_bytes,
            jobs=jobs,
            experts=ExpertState(
                streaming=counters.streaming,
                slots=counters.expert_slots,
                cached=counters.cached_experts,
                lookups=counters.expert_lookups,
                misses=counters.expert_misses,
                bytes_read=counters.expert_bytes_read,
                guessed_bytes=counters.guessed_bytes,
                useful_bytes=counters.useful_bytes,
                wasted_bytes=counters.wasted_bytes,
                disk_wait_ms=counters.disk_wait_ns / 1e6,
                mirrors=counters.mirrors,
            ),
            drafts=self._drafting.state,
            kv=KvState(
                slots=self._slots.states(),
                kept_sessions=self._slots.kept,
                dropped_sessions=self._slots.dropped,
                block_tokens=self._backend.block_tokens,
                room_blocks=self._backend.kv_room(),
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                store=self._persist.state(),
            ),
            work=counters.work,
        )

    def _moves(self) -> int:
        """What the loop has done that the engine does not count. A turn of the loop is no progress:
        it turns also while a read hangs.
        """
        return self._decoding.draws + self._persist.read_blocks + self._persist.rescued_blocks

    # ---- the loop's thread ----

    def run(self) -> None:
        """Serves jobs until Stop. The backend stays open; its owner closes it."""
        while self._wait():
            try:
                self._slots.stalled = False
                self._admit()
                begun = time.monotonic()
                self._prefill()
                # Reading prompts takes no more of the time than generating: a running stream
                # keeps half its rate.
                stepped = self._decoding.run(time.monotonic() - begun)
                self._persist.between_steps(decoding=self._jobs.is_decoding())
                if self._slots.stalled and not stepped:
                    with self._wake:
                        self._wake.wait(ROOM_MS / 1000)
            except Exception:
                # A fault of ours must not leave clients waiting for ever, nor end the worker.
                log.exception("the engine loop failed; its jobs are ended")
                self._jobs.fail_all(
                    "internal_error", "the engine loop met an internal error", empty=True
                )
            self._chores = True
        stopped = ("engine_stopped", "the engine is being stopped")
        self._jobs.fail_all(*stopped)
        for job in self._jobs.drop_cancelled():
            self._jobs.take(job)
            self._jobs.refuse(job, *stopped)
        self._persist.close()
        self._slots.close()

    def _more_chores(self) -> None:
        with self._wake:
            self._chores = True
            self._wake.notify()

    def _wait(self) -> bool:
        """Waits for work, doing what the backend has put off meanwhile; False = stop."""
        while True:
            with self._wake:
                if not (self._stopping or self._jobs.any or self._chores):
                    self._wake.wait()
                if self._stopping:
                    return False
                if self._jobs.any:
                    return True
            try:
                self._chores = False
                for do in (self._backend.idle, self._persist.save):
                    self._chores |= do(IDLE_MS)
            except Exception:
                log.exception("what was to be done while idle is left undone")
                self._chores = False

    def _admit(self) -> None:
        while True:
            waiting = self._jobs.drop_cancelled()
            # One that waits for its own slot does not hold up those behind it.
            pins = {job.command.cache_slot for job in waiting if job.command.cache_slot is not None}
            choices = (
                (job, self._slots.choose(job.command.prompt, job.command.cache_slot, pins))
                for job in waiting
            )
            chosen = next(((job, slot) for job, slot in choices if slot is not None), None)
            if chosen is None:
                return
            self._jobs.take(chosen[0])
            self._start(*chosen)

    def _start(self, job: Job, slot: Slot) -> None:
        prompt, context = job.command.prompt, self._backend.info.context
        if not prompt or len(prompt) >= context:
            self._jobs.refuse(
                job,
                "context_length_exceeded",
                f"the prompt has {len(prompt)} tokens; 1 to {context - 1} fit",
            )
            return
        job.limit = max(1, min(job.command.max_tokens, context - len(prompt)))
        self._maps.begin_turn()
        running = self._jobs.start(job, slot)
        if running is None:
            return
        try:
            job.cached = self._slots.prepare(slot, prompt)
            job.phase = "prefill"
            if job.command.count_from is None:
                running.restore = self._persist.plan(slot, prompt, job.cached)
            else:
                job.cached = self._count(slot, job.cached, job.command.count_from)
            if running.restore is None:
                self._start_prefill(running)
        except EngineError as error:
            self._jobs.fail_with(running, error)

    def _count(self, slot: Slot, known: int, first: int) -> int:
        """Has the slot's session count from position `first` on, which must then be computed;
        returns how many tokens are left in it.
        """
        known = slot.session.reusable(min(known, first))
        self._slots.cut(slot, known)
        slot.session.count(first)
        return known

    def _start_prefill(self, running: Running) -> None:
        job, slot = running.job, running.slot
        prompt = job.command.prompt
        if not self._jobs.make_room(len(prompt) - job.cached):
            return  # the next slice tries again
        running.begun = True
        slot.session.prefill_start(prompt[job.cached :])
        slot.holding.begun = []
        job.prompt_done = job.cached
        job.prefill_started = time.monotonic()
        self._prompt_tokens += len(prompt)
        self._cached_tokens += job.cached
        self._emit(
            Accepted(job=job.command.job, prompt=len(prompt), cached=job.cached, slot=slot.index)
        )

    def _restore(self, running: Running, restore: Restore, max_ms: int) -> None:
        """Takes what the disk has of the prompt, then reads the rest."""
        if self._persist.step(restore, max_ms):
            running.restore = None
            running.job.cached = self._persist.finish(restore)
            self._start_prefill(running)

    def _prefill(self) -> None:
        """One slice for one of the jobs that still read their prompts; they take turns."""
        reading = [running for running in self._jobs.running if running.job.phase == "prefill"]
        for running in reading:
            if running.job.cancelled:
                self._jobs.finish(running, "cancelled")
        reading = [running for running in reading if not running.job.cancelled]
        if not reading:
            return
        running = min(reading, key=lambda one: one.slices)
        running.slices = 1 + max(one.slices for one in reading)
        try:
            self._slice(running, SHORT_SLICE_MS if self._jobs.is_decoding() else SLICE_MS)
        except EngineError as error:
            self._jobs.fail_with(running, error)

    def _slice(self, running: Running, max_ms: int) -> None:
        job, slot = running.job, running.slot
        if running.restore is not None:
            self._restore(running, running.restore, max_ms)
            return
        if not running.begun:
            self._start_prefill(running)
            return
        # Again and again: it is taken bit by bit, and others take some meanwhile.
        if not self._jobs.make_room(len(job.command.prompt) - len(slot.session)):
            return
        progress = slot.session.prefill_step(max_ms)
        if job.command.count_from is None:
            self._persist.slice(slot, job.command.prompt)
        held = len(slot.session)
        if held > len(slot.history):
            slot.history = job.command.prompt[:held]
            if job.command.count_from is None:
                self._persist.note(slot, ended=False)
        job.prompt_done = job.cached + progress.tokens_done
        now = time.monotonic()
        if progress.finished:
            job.phase = "decode"
            job.first_sample = now
            if job.command.count_from is not None:
                job.prompt_counts = slot.session.counts()
            # A client's next turn often differs from here on: it writes the answer its own way.
            slot.session.checkpoint()
        if progress.finished or now - job.last_progress >= PROGRESS_SECONDS:
            job.last_progress = now
            self._emit(job.progress(progress, now))
