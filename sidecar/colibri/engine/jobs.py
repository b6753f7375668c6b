"""The jobs of the engine loop: those that wait, those that run, and how one ends.

For: `worker`, which starts jobs and reads their prompts, and `decoding`, which generates. Every job
that is handed in ends here, with exactly one Done or Failed. Not for: what is drawn, or said by it
(`EngineBackend.answer`). Threads: `add`, `cancel`, `states` and `any` from any thread,
under `wake`; everything else is the loop's. `emit` is called from both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from colibri.engine.answer import Notice, Part
from colibri.engine.backend import AnswerReader, EngineBackend
from colibri.engine.drafting import JobDrafts
from colibri.engine.eta import eta_seconds
from colibri.engine.persist import Persist, Restore
from colibri.engine.protocol import (
    Done,
    Event,
    Failed,
    FinishReason,
    JobState,
    Phase,
    Progress,
    Routing,
    Submit,
    Tokens,
    Usage,
)
from colibri.engine.slots import Slot, Slots
from colibri.engine.status import EngineError, PrefillProgress, Status
from colibri.engine.table import Sampling
from colibri.engine.work import Work

log = logging.getLogger(__name__)


class Job:
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
        self.prompt_counts: NDArray[np.uint32] | None = None  # of a measurement, when it is read
        self.before: Work | None = None  # what the engine had done when the job began to run

    def work(self, now: Work) -> Work:
        """What the engine has done while the job ran."""
        return now.since(self.before) if self.before is not None else Work()

    def state(self, now: Work) -> JobState:
        return JobState(
            job=self.command.job,
            phase=self.phase,
            prompt_done=self.prompt_done,
            prompt_total=len(self.command.prompt),
            generated=len(self.generated),
            drafts_proposed=self.drafts.proposed,
            drafts_accepted=self.drafts.accepted,
            work=self.work(now),
        )

    def progress(self, progress: PrefillProgress, now: float) -> Progress:
        return Progress(
            job=self.command.job,
            done=self.prompt_done,
            total=len(self.command.prompt),
            fraction=progress.fraction,
            layer=progress.layer,
            layers=progress.n_layers,
            bytes_read=progress.bytes_read,
            bytes_left=progress.bytes_left,
            eta_seconds=eta_seconds(
                now - self.prefill_started, progress.resumed, progress.fraction
            ),
        )

    def done(
        self,
        reason: FinishReason,
        *,
        reasoning: int = 0,
        notice: Notice | None = None,
        work: Work | None = None,
        routing: Routing | None = None,
    ) -> Done:
        """Its end, now. `reasoning` counts tokens of the answer."""
        now = time.monotonic()
        first = self.first_sample or now
        return Done(
            job=self.command.job,
            finish_reason=reason,
            usage=Usage(
                prompt=len(self.command.prompt),
                cached=self.cached,
                completion=len(self.generated),
                reasoning=reasoning,
            ),
            prefill_ms=(first - self.started) * 1000,
            decode_ms=(now - first) * 1000,
            notice=notice,
            generated=tuple(self.generated) if reason == "tool_calls" else (),
            work=work or Work(),
            routing=routing,
        )


class Running:
    """A job with the slot that it holds and its answer.

    `drawn`: the last generated token has been told and is to be appended by the next step.
    `restore`: blocks of the prompt that are being read from disk before the rest is computed.
    `begun`: the engine has the prompt.
    """

    def __init__(self, job: Job, slot: Slot, answer: AnswerReader) -> None:
        self.job = job
        self.slot = slot
        self.answer = answer
        self.drawn = False
        self.restore: Restore | None = None
        self.begun = False
        self.slices = 0


class Jobs:
    """See the module's text. `wake` guards `waiting` and `running`, and tells of new work."""

    def __init__(
        self,
        backend: EngineBackend,
        slots: Slots,
        persist: Persist,
        emit: Callable[[Event], None],
        wake: threading.Condition,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._persist = persist
        self.emit = emit
        self._wake = wake
        self.waiting: deque[Job] = deque()
        self.running: list[Running] = []

    # ---- any thread, under `wake` ----

    def add(self, command: Submit) -> None:
        self.waiting.append(Job(command))

    def cancel(self, name: str) -> None:
        for job in (*self.waiting, *(running.job for running in self.running)):
            if job.command.job == name:
                job.cancelled = True

    def states(self, now: Work) -> tuple[JobState, ...]:
        """`now`: what the engine has done so far."""
        jobs = [running.job for running in self.running] + list(self.waiting)
        return tuple(job.state(now) for job in jobs)

    @property
    def any(self) -> bool:
        return bool(self.waiting or self.running)

    # ---- the loop ----

    def drop_cancelled(self) -> list[Job]:
        """Ends those that were cancelled while they waited; returns the others."""
        with self._wake:
            dropped = [job for job in self.waiting if job.cancelled]
            for job in dropped:
                self.waiting.remove(job)
            waiting = list(self.waiting)
        for job in dropped:
            self.emit(job.done("cancelled"))
        return waiting

    def take(self, job: Job) -> None:
        """The job waits no longer."""
        with self._wake:
            self.waiting.remove(job)

    def refuse(self, job: Job, code: str, message: str) -> None:
        """Ends a job that does not run."""
        self.emit(Failed(job=job.command.job, code=code, message=message))

    def start(self, job: Job, slot: Slot) -> Running | None:
        """The job has the slot from now on; None when it could not be begun and has ended."""
        try:
            answer = self._backend.answer(job.command)
        except Exception:
            log.exception("job %s cannot be begun", job.command.job)
            self.refuse(job, "internal_error", "the answer could not be begun")
            return None
        slot.busy = True
        job.before = self._backend.counters().work
        running = Running(job, slot, answer)
        with self._wake:
            self.running.append(running)
        return running

    def make_room(self, tokens: int) -> bool:
        """Room in KV for so many new tokens of one job, and for what the others append meanwhile:
        a block each that is new, and one each that is shared and must be copied. False while it is
        still being made.
        """
        blocks = -(-tokens // self._backend.block_tokens)
        return self._slots.make_room(blocks + 2 * len(self.running))

    def is_decoding(self) -> bool:
        return any(running.job.phase == "decode" for running in self.running)

    def tell(self, job: Job, parts: Sequence[Part]) -> None:
        """Tells what the latest tokens say, if that can be told already."""
        if parts:
            self.emit(Tokens(job=job.command.job, parts=tuple(parts), generated=len(job.generated)))

    def finish(self, running: Running, reason: FinishReason, *, flush: bool = False) -> None:
        """Ends a job as it should end; `flush` tells what its answer holds back."""
        job, answer = running.job, running.answer
        inside = answer.reasoning
        if flush:
            self.tell(job, answer.flush())
            if answer.stopped:
                # A stop text that only the end of the text decided.
                reason = "stop"
        if reason == "stop" and answer.calls:
            reason = "tool_calls"
        notice = answer.notice
        if inside and not answer.calls and reason == "length":
            notice = Notice(
                code="reasoning_cut",
                message=f"The answer reached its limit of {job.limit} tokens inside the reasoning.",
            )
        elif inside and not answer.calls and reason == "stop":
            notice = Notice(
                code="reasoning_only",
                message="The model ended its turn inside the reasoning; nothing is visible.",
            )
        work = job.work(self._backend.counters().work)
        routing = self._routing(running)
        self._release(running)
        self.emit(
            job.done(
                reason,
                reasoning=answer.reasoning_tokens,
                notice=notice,
                work=work,
                routing=routing,
            )
        )

    def _routing(self, running: Running) -> Routing | None:
        """What a measurement has counted; None for all other jobs, and for one that was cancelled
        before its prompt was read.
        """
        prompt, layout = running.job.prompt_counts, self._backend.info.experts
        if prompt is None or layout is None:
            return None
        rows = list(layout.layers)
        answer = running.slot.session.counts() - prompt
        return Routing(
            layers=layout.layers,
            cols=layout.cols,
            per_token=layout.per_token,
            prompt=prompt[rows].astype("<u4").tobytes(),
            answer=answer[rows].astype("<u4").tobytes(),
        )

    def fail_with(self, running: Running, error: EngineError) -> None:
        """Ends a job with the engine's words."""
        # After a failure a session is as it was before the step, but what was not finite may lie in
        # its KV behind the end, where even a masked position would pass it on.
        if error.code == Status.NUMERIC:
            self._slots.empty(running.slot)
        self.fail(running, f"engine_{error.code.name.lower()}", error.message)

    def fail(self, running: Running, code: str, message: str) -> None:
        self._release(running)
        self.refuse(running.job, code, message)

    def fail_all(self, code: str, message: str, *, empty: bool = False) -> None:
        """Ends what runs; `empty`: what its sessions hold is not to be trusted."""
        for running in tuple(self.running):
            if empty:
                self._slots.empty(running.slot)
            self.fail(running, code, message)

    def _release(self, running: Running) -> None:
        """Frees the slot; what its session holds stays for the next prompt."""
        slot = running.slot
        with self._wake:
            self.running.remove(running)
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
            if running.job.command.count_from is not None:
                # A measurement leaves nothing behind.
                slot.session.count(-1)
                self._slots.cut(slot, 0)
        except EngineError as error:
            log.warning("the slot could not be kept after a job: %s", error.message)
            self._slots.renew(slot)
        self._persist.note(slot, ended=True)
        slot.busy = False
