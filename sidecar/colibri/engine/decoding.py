"""The decode steps of the engine loop: drafts, one step for all jobs, then what each draws from it.

For: `worker`, between two slices of prompts. Not for: starting jobs, or what their tokens say
(`EngineBackend.answer`). A token is drawn with the mask of its answer at that place, whether its
logits come from a step of its own or from a draft, so masks and drafts know nothing of each other:
a draft that the mask forbids is not drawn, hence not kept. Threads: the loop's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from colibri.engine.backend import EngineBackend
from colibri.engine.drafting import Drafting, Step
from colibri.engine.jobs import Jobs, Running
from colibri.engine.status import EngineError

log = logging.getLogger(__name__)


class Decoding:
    """See the module's text. `draws` counts the tokens of all answers."""

    def __init__(self, backend: EngineBackend, jobs: Jobs, drafting: Drafting) -> None:
        self._backend = backend
        self._jobs = jobs
        self._drafting = drafting
        self.draws = 0

    def run(self, seconds: float) -> bool:
        """At least one step for all that generate, and more for about so long; False when there
        was nothing to step, or no room.
        """
        end = time.monotonic() + seconds
        stepped = False
        while self._once():
            stepped = True
            if time.monotonic() >= end:
                break
        return stepped

    def _once(self) -> bool:
        """Draws for every job with fresh logits, then computes one step for those that go on; False
        when none was computed.
        """
        for running in tuple(self._jobs.running):
            if running.job.phase != "decode":
                continue
            if running.job.cancelled:
                self._jobs.finish(running, "cancelled")
            elif not running.drawn:
                self._draw(running, ())
        batch = [running for running in self._jobs.running if running.drawn]
        return bool(batch) and self._step(batch)

    def _draw(self, running: Running, drafts: Sequence[int]) -> int:
        """Draws tokens for as long as `drafts`, which the session already holds, foretold them;
        the last one drawn is appended by the next step. Returns how many drafts were kept.
        """
        job, slot, kept = running.job, running.slot, 0
        running.drawn = False
        try:
            while True:
                if job.cancelled:
                    self._jobs.finish(running, "cancelled")
                    return kept
                token = self._next(running)
                if token is None:
                    return kept
                if kept == len(drafts) or token != drafts[kept]:
                    break
                slot.history.append(token)
                kept += 1
            if kept < len(drafts):
                slot.session.truncate(len(slot.history))
        except EngineError as error:
            self._jobs.fail_with(running, error)
            return kept
        except Exception:
            # A fault of ours in reading one answer is no reason to end the others.
            if running not in self._jobs.running:
                raise
            log.exception("job %s: the answer cannot be read", job.command.job)
            self._jobs.fail(running, "internal_error", "the answer could not be read")
            return kept
        running.drawn = True
        return kept

    def _next(self, running: Running) -> int | None:
        """The next token of an answer, after it was told; None when the job has ended."""
        answer = running.answer
        token = answer.forced()
        if token is None:
            token = self._sample(running)
            if token in self._backend.end_ids:
                self._jobs.finish(running, "stop", flush=True)
                return None
        self.draws += 1
        running.job.generated.append(token)
        self._jobs.tell(running.job, answer.push(token))
        if answer.stopped:
            self._jobs.finish(running, "stop")
        elif answer.finished:
            self._jobs.finish(running, "stop", flush=True)
        elif len(running.job.generated) >= running.job.limit:
            self._jobs.finish(running, "length", flush=True)
        else:
            return token
        return None

    def _sample(self, running: Running) -> int:
        slot, sampling = running.slot, running.job.sampling
        mask = running.answer.mask()
        if mask:
            sampling = msgspec.structs.replace(sampling, mask=mask)
        return slot.session.sample_at(len(slot.history), sampling)

    def _step(self, batch: list[Running]) -> bool:
        """One step for all jobs, then what they draw from it; False while there is no room for it,
        which another conversation will give.
        """
        if not self._jobs.make_room(0):
            return False
        ready = [
            running.job.command.count_from is None  # rejected drafts would be counted
            and running.slot.lag.ready(len(running.slot.history))
            for running in batch
        ]
        step = self._drafting.begin(ready)
        tokens = [
            [running.job.generated[-1], *(self._guess(running, step) if fit else ())]
            for running, fit in zip(batch, ready, strict=True)
        ]
        results: list[tuple[int, int]] = []
        whole = self._append(batch, tokens, results)
        self._drafting.end(step, results, whole=whole)
        return True

    def _guess(self, running: Running, step: Step) -> list[int]:
        """Drafts for a job: none that could go beyond its last token, or that its mask forbids."""
        job, slot = running.job, running.slot
        depth = job.drafts.depth(step.depth) if step.free else step.depth
        depth = min(depth, job.limit - len(job.generated) - 1)
        if depth < 1:
            return []
        try:
            drafts = slot.session.draft(job.generated[-1], depth)
            return drafts[: running.answer.allowed(drafts)]
        except EngineError as error:
            self._drafting.fail(step, error.message)
            return []

    def _append(
        self,
        batch: Sequence[Running],
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
                self._jobs.fail_with(batch[0], error)
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
