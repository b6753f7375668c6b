"""The loop that owns the engine and drives it in bounded steps.

For: the transports, which start `Worker.run` in a thread or in a child process's main thread and
pass commands to `Worker.handle` from another one. Not for: HTTP, queues of clients, restarts.

    reader thread --handle--> inbox --+                               +--> emit(event)
                      |               v                               |
                      |        run: [admit] -> [a prefill slice] -> [drafts, steps for all]
                      |                                         -> [draw, text, stop]
                      +--snapshot answered here, at once

Between two steps the loop looks at its inbox, so a cancel takes effect within one slice or one
decode step. What sessions hold after a job stays (`slots`): the next prompt is compared with all of
them and only what is new is computed. A step may carry drafts (`drafting`); those that equal what
is drawn at their place are kept, so the text is the one without drafts. Every job ends in exactly
one Done or Failed, whatever the engine does. Threads: `handle` from any thread, `run` once. `emit`
is called from both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from colibri.engine.backend import EngineBackend
from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.drafting import Drafting, JobDrafts, Step
from colibri.engine.eta import eta_seconds
from colibri.engine.persist import Persist, Restore
from colibri.engine.protocol import (
    Accepted,
    Cancel,
    Command,
    Done,
    EngineSnapshot,
    Event,
    ExpertState,
    Failed,
    FinishReason,
    JobState,
    KvState,
    Part,
    Phase,
    Progress,
    Stop,
    Submit,
    TakeSnapshot,
    Telemetry,
    Tokens,
    Usage,
)
from colibri.engine.slots import Slot, Slots
from colibri.engine.status import EngineError, PrefillProgress, Status
from colibri.engine.table import Sampling

log = logging.getLogger(__name__)

# Longest time between two looks at the inbox while a prompt is read. A layer of a streamed model
# may take longer than this by itself; a resident one never does.
SLICE_MS = 200
# The same while others generate: as long as they then wait for their next token.
SHORT_SLICE_MS = 100
# The same while idle: a request that arrives waits no longer than this and one read from disk.
IDLE_MS = 20
# A progress event per slice would be noise on a fast model.
PROGRESS_SECONDS = 0.25


class _Job:
    """One generation on its way through the loop."""

    def __init__(self, command: Submit) -> None:
        self.command = command
        self.cancelled = False
        self.phase: Phase = "waiting"
        self.cached = 0
        self.prompt_done = 0
        self.generated: list[int] = []
        self.drafts = JobDrafts()
        self.limit = command.max_tokens
        self.sampling = Sampling(
            temperature=command.temperature, top_p=command.top_p, seed=command.seed
        )
        self.started = time.monotonic()
        self.prefill_started = 0.0
        self.first_sample = 0.0
        self.last_progress = 0.0

    def state(self) -> JobState:
        return JobState(
            job=self.command.job,
            phase=self.phase,
            prompt_done=self.prompt_done,
            prompt_total=len(self.command.prompt),
            generated=len(self.generated),
            drafts_proposed=self.drafts.proposed,
            drafts_accepted=self.drafts.accepted,
        )


def _progress_event(job: _Job, progress: PrefillProgress, now: float) -> Progress:
    return Progress(
        job=job.command.job,
        done=job.prompt_done,
        total=len(job.command.prompt),
        fraction=progress.fraction,
        layer=progress.layer,
        layers=progress.n_layers,
        bytes_read=progress.bytes_read,
        bytes_left=progress.bytes_left,
        eta_seconds=eta_seconds(now - job.prefill_started, progress.resumed, progress.fraction),
    )


class _Running:
    """A job with the slot and the text stream it holds.

    `drawn`: the last generated token has been told and is to be appended by the next step.
    `restore`: blocks of the prompt that are being read from disk before the rest is computed.
    """

    def __init__(self, job: _Job, slot: Slot, backend: EngineBackend) -> None:
        self.job = job
        self.slot = slot
        self.text = backend.text(job.command.stops, job.command.ignore_leading_stop)
        self.drawn = False
        self.restore: Restore | None = None
        self.slices = 0


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
        self._waiting: deque[_Job] = deque()
        self._running: list[_Running] = []
        self._stopping = False
        self._draws = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._chores = True
        info = backend.info
        self._persist = Persist(backend, self._slots, self._more_chores)
        self._drafting = Drafting(info.drafts, info.drafts_reason, backend.counters, policy, clock)

    # ---- any thread ----

    def handle(self, command: Command) -> None:
        """Takes a command; snapshots are answered before this returns."""
        if isinstance(command, TakeSnapshot):
            self._emit(Telemetry(serial=command.serial, snapshot=self.snapshot()))
            return
        with self._wake:
            if isinstance(command, Submit):
                self._waiting.append(_Job(command))
            elif isinstance(command, Cancel):
                for job in (*self._waiting, *(running.job for running in self._running)):
                    if job.command.job == command.job:
                        job.cancelled = True
            elif isinstance(command, Stop):
                self._stopping = True
            self._wake.notify()

    def snapshot(self) -> EngineSnapshot:
        """Counters and job states now, without waiting for the loop."""
        counters = self._backend.counters()
        with self._wake:
            jobs = [running.job for running in self._running] + list(self._waiting)
        return EngineSnapshot(
            progress=counters.progress + counters.expert_bytes_read + self._moves(),
            prompt_tokens=counters.prompt_tokens,
            decoded_tokens=counters.decoded_tokens,
            weight_bytes=counters.weight_bytes,
            kv_bytes=counters.kv_bytes,
            scratch_bytes=counters.scratch_bytes,
            jobs=tuple(job.state() for job in jobs),
            experts=ExpertState(
                streaming=counters.streaming,
                slots=counters.expert_slots,
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
        )

    def _moves(self) -> int:
        """What the loop has done that the engine does not count. A turn of the loop is no progress:
        it turns also while a read hangs.
        """
        return self._draws + self._persist.read_blocks

    # ---- the loop's thread ----

    def run(self) -> None:
        """Serves jobs until Stop. The backend stays open; its owner closes it."""
        while self._wait():
            try:
                self._admit()
                begun = time.monotonic()
                self._prefill()
                # Reading prompts takes no more of the time than generating: a running stream
                # keeps half its rate.
                self._decode(time.monotonic() - begun)
                self._persist.between_steps(decoding=self._is_decoding())
            except Exception:
                # A fault of ours must not leave clients waiting for ever, nor end the worker.
                log.exception("the engine loop failed; its jobs are ended")
                for running in tuple(self._running):
                    self._slots.empty(running.slot)
                    self._fail(running, "internal_error", "the engine loop met an internal error")
            self._chores = True
        for running in tuple(self._running):
            self._fail(running, "engine_stopped", "the engine is being stopped")
        with self._wake:
            left = list(self._waiting)
            self._waiting.clear()
        for job in left:
            self._emit(
                Failed(
                    job=job.command.job,
                    code="engine_stopped",
                    message="the engine is being stopped",
                )
            )
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
                if not (self._stopping or self._waiting or self._running or self._chores):
                    self._wake.wait()
                if self._stopping:
                    return False
                if self._waiting or self._running:
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
            with self._wake:
                cancelled = [waiting for waiting in self._waiting if waiting.cancelled]
                for dropped in cancelled:
                    self._waiting.remove(dropped)
                waiting = list(self._waiting)
            for dropped in cancelled:
                self._emit_done(dropped, "cancelled")
            # One that waits for its own slot does not hold up those behind it.
            choices = (
                (job, self._slots.choose(job.command.prompt, job.command.cache_slot))
                for job in waiting
            )
            chosen = next(((job, slot) for job, slot in choices if slot is not None), None)
            if chosen is None:
                return
            with self._wake:
                self._waiting.remove(chosen[0])
            self._start(*chosen)

    def _start(self, job: _Job, slot: Slot) -> None:
        prompt, context = job.command.prompt, self._backend.info.context
        if not prompt or len(prompt) >= context:
            self._emit(
                Failed(
                    job=job.command.job,
                    code="context_length_exceeded",
                    message=f"the prompt has {len(prompt)} tokens; 1 to {context - 1} fit",
                )
            )
            return
        job.limit = max(1, min(job.command.max_tokens, context - len(prompt)))
        slot.busy = True
        running = _Running(job, slot, self._backend)
        with self._wake:
            self._running.append(running)
        try:
            job.cached = self._slots.prepare(slot, prompt)
            job.phase = "prefill"
            running.restore = self._persist.plan(slot, prompt, job.cached)
            if running.restore is None:
                self._start_prefill(running)
        except EngineError as error:
            self._fail_with(running, error)

    def _start_prefill(self, running: _Running) -> None:
        job, slot = running.job, running.slot
        prompt = job.command.prompt
        self._make_room(len(prompt) - job.cached)
        slot.session.prefill_start(prompt[job.cached :])
        slot.holding.begun = []
        job.prompt_done = job.cached
        job.prefill_started = time.monotonic()
        self._prompt_tokens += len(prompt)
        self._cached_tokens += job.cached
        self._emit(
            Accepted(job=job.command.job, prompt=len(prompt), cached=job.cached, slot=slot.index)
        )

    def _restore(self, running: _Running, restore: Restore, max_ms: int) -> None:
        """Takes what the disk has of the prompt, then reads the rest."""
        if self._persist.step(restore, max_ms):
            running.restore = None
            running.job.cached = self._persist.finish(restore)
            self._start_prefill(running)

    def _make_room(self, tokens: int) -> None:
        """Room in KV for so many new tokens of one job, and for what the others append meanwhile:
        a block each that is new, and one each that is shared and must be copied.
        """
        blocks = -(-tokens // self._backend.block_tokens)
        self._slots.make_room(blocks + 2 * len(self._running))

    def _is_decoding(self) -> bool:
        return any(running.job.phase == "decode" for running in self._running)

    def _prefill(self) -> None:
        """One slice for one of the jobs that still read their prompts; they take turns."""
        reading = [running for running in self._running if running.job.phase == "prefill"]
        for running in reading:
            if running.job.cancelled:
                self._finish(running, "cancelled")
        reading = [running for running in reading if not running.job.cancelled]
        if not reading:
            return
        running = min(reading, key=lambda one: one.slices)
        running.slices = 1 + max(one.slices for one in reading)
        try:
            self._slice(running, SHORT_SLICE_MS if self._is_decoding() else SLICE_MS)
        except EngineError as error:
            self._fail_with(running, error)

    def _slice(self, running: _Running, max_ms: int) -> None:
        job, slot = running.job, running.slot
        if running.restore is not None:
            self._restore(running, running.restore, max_ms)
            return
        # Again and again: it is taken bit by bit, and others take some meanwhile.
        self._make_room(len(job.command.prompt) - len(slot.session))
        progress = slot.session.prefill_step(max_ms)
        held = len(slot.session)
        if held > len(slot.history):
            slot.history = job.command.prompt[:held]
            self._persist.note(slot)
        job.prompt_done = job.cached + progress.tokens_done
        now = time.monotonic()
        if progress.finished:
            job.phase = "decode"
            job.first_sample = now
            # A client's next turn often differs from here on: it writes the answer its own way.
            slot.session.checkpoint()
        if progress.finished or now - job.last_progress >= PROGRESS_SECONDS:
            job.last_progress = now
            self._emit(_progress_event(job, progress, now))

    def _decode(self, seconds: float) -> None:
        """At least one step for all that generate, and more for about so long."""
        end = time.monotonic() + seconds
        while self._decode_once() and time.monotonic() < end:
            pass

    def _decode_once(self) -> bool:
        """Draws for every job with fresh logits, then computes one step for those that go on; False
        when there is none.
        """
        for running in tuple(self._running):
            if running.job.phase != "decode":
                continue
            if running.job.cancelled:
                self._finish(running, "cancelled")
            elif not running.drawn:
                self._draw(running, ())
        batch = [running for running in self._running if running.drawn]
        if batch:
            self._step(batch)
        return bool(batch)

    def _draw(self, running: _Running, drafts: Sequence[int]) -> int:
        """Draws tokens for as long as `drafts`, which the session already holds, foretold them;
        the last one drawn is appended by the next step. Returns how many drafts were kept.
        """
        job, slot, kept = running.job, running.slot, 0
        running.drawn = False
        try:
            while True:
                if job.cancelled:
                    self._finish(running, "cancelled")
                    return kept
                token = slot.session.sample_at(len(slot.history), job.sampling)
                self._draws += 1
                if not self._consume(running, token):
                    return kept
                if kept == len(drafts) or token != drafts[kept]:
                    break
                slot.history.append(token)
                kept += 1
            if kept < len(drafts):
                slot.session.truncate(len(slot.history))
        except EngineError as error:
            self._fail_with(running, error)
            return kept
        running.drawn = True
        return kept

    def _consume(self, running: _Running, token: int) -> bool:
        """Turns a sampled token into text; returns whether the job wants another one."""
        job = running.job
        if token in self._backend.end_ids:
            self._finish(running, "stop", flush=True)
            return False
        job.generated.append(token)
        text = running.text.push(token)
        if text:
            self._emit_text(job, text)
        if running.text.stopped:
            self._finish(running, "stop")
            return False
        if len(job.generated) >= job.limit:
            self._finish(running, "length", flush=True)
            return False
        return True

    def _step(self, batch: list[_Running]) -> None:
        """One step for all jobs, then what they draw from it."""
        self._make_room(0)
        ready = [running.slot.lag.ready(len(running.slot.history)) for running in batch]
        step = self._drafting.begin(ready)
        tokens = [
            [running.job.generated[-1], *(self._guess(running, step) if fit else ())]
            for running, fit in zip(batch, ready, strict=True)
        ]
        results: list[tuple[int, int]] = []
        whole = self._append(batch, tokens, results)
        self._drafting.end(step, results, whole=whole)

    def _guess(self, running: _Running, step: Step) -> list[int]:
        """Drafts for a job: none that could go beyond its last token."""
        job, slot = running.job, running.slot
        depth = job.drafts.depth(step.depth) if step.free else step.depth
        depth = min(depth, job.limit - len(job.generated) - 1)
        if depth < 1:
            return []
        try:
            return slot.session.draft(job.generated[-1], depth)
        except EngineError as error:
            self._drafting.fail(step, error.message)
            return []

    def _append(
        self,
        batch: Sequence[_Running],
        tokens: Sequence[Sequence[int]],
        results: list[tuple[int, int]],
    ) -> bool:
        """Computes a step of a token and its drafts for every job, and draws from it; `results`
        gets (proposed, kept) of those that were computed. False if it had to be done in parts.
        """
        try:
            self._backend.decode([running.slot.session for running in batch], tokens)
        except EngineError as error:
            if len(batch) == 1 and len(tokens[0]) == 1:
                self._fail_with(batch[0], error)
                return False
            # All or nothing: nothing was appended. One by one and without drafts, which the text
            # does not need, only the culprit fails.
            for running, part in zip(batch, tokens, strict=True):
                self._append([running], [part[:1]], results)
            return False
        for running, appended in zip(batch, tokens, strict=True):
            slot, drafts = running.slot, appended[1:]
            slot.history.append(appended[0])
            kept = self._draw(running, drafts)
            slot.lag.step(len(slot.history), 1 + kept, drafted=bool(drafts))
            running.job.drafts.note(len(drafts), kept)
            results.append((len(drafts), kept))
        return True

    # ---- ends ----

    def _emit_text(self, job: _Job, text: str) -> None:
        part = Part("text", text)
        self._emit(Tokens(job=job.command.job, parts=(part,), generated=len(job.generated)))

    def _emit_done(self, job: _Job, reason: FinishReason) -> None:
        now = time.monotonic()
        first = job.first_sample or now
        self._emit(
            Done(
                job=job.command.job,
                finish_reason=reason,
                usage=Usage(
                    prompt=len(job.command.prompt),
                    cached=job.cached,
                    completion=len(job.generated),
                ),
                prefill_ms=(first - job.started) * 1000,
                decode_ms=(now - first) * 1000,
            )
        )

    def _release(self, running: _Running) -> None:
        """Frees the slot; what its session holds stays for the next prompt."""
        slot = running.slot
        with self._wake:
            self._running.remove(running)
        if running.restore is not None:
            self._persist.give_up(running.restore)
        try:
            held = len(slot.session)
            if running.job.phase == "prefill":
                # Parks what it has begun: a retry goes on there.
                slot.session.truncate(held)
                slot.history = running.job.command.prompt[:held]
                slot.holding.begun = running.job.command.prompt[held:]
            elif held > len(slot.history):
                # Drafts behind the end of the text.
                slot.session.truncate(len(slot.history))
            slot.history = slot.history[:held]
        except EngineError as error:
            log.warning("the slot could not be kept after a job: %s", error.message)
            self._slots.renew(slot)
        self._persist.note(slot)
        slot.busy = False

    def _finish(self, running: _Running, reason: FinishReason, *, flush: bool = False) -> None:
        if flush:
            tail = running.text.flush()
            if tail:
                self._emit_text(running.job, tail)
            if running.text.stopped:
                # A stop string that only the end of the text decided.
                reason = "stop"
        self._release(running)
        self._emit_done(running.job, reason)

    def _fail_with(self, running: _Running, error: EngineError) -> None:
        # After a failure a session is as it was before the step, but what was not finite may lie in
        # its KV behind the end, where even a masked position would pass it on.
        if error.code == Status.NUMERIC:
            self._slots.empty(running.slot)
        self._fail(running, f"engine_{error.code.name.lower()}", error.message)

    def _fail(self, running: _Running, code: str, message: str) -> None:
        self._release(running)
        self._emit(Failed(job=running.job.command.job, code=code, message=message))
