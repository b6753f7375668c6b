"""An engine worker in a thread and its events in one queue, for tests that drive it directly.

Threads: `on_event` runs in the loop's thread, between two tokens of one step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from colibri.engine.answer import Part
from colibri.engine.backend import EngineBackend
from colibri.engine.draft_policy import DraftPolicy, StepCost
from colibri.engine.protocol import Done, Event, Failed, Stop, Submit, Tokens
from colibri.engine.worker import Worker
from colibri.text.parts import joined

TIMEOUT = 60


class Fixed(DraftPolicy):
    """Always the greatest depth; `costs` holds what it was told."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.depth = self.wanted = most
        self.costs: list[StepCost | None] = []

    def note(self, cost: StepCost | None) -> None:
        self.costs.append(cost)


class EngineLoop:
    """A worker over `backend`, which it does not close."""

    def __init__(
        self,
        backend: EngineBackend,
        parallel: int = 1,
        policy: Callable[[int], DraftPolicy] = Fixed,
        clock: Callable[[], float] = time.perf_counter,
        slots: int = 0,
    ) -> None:
        self.on_event: Callable[[Event], None] = lambda event: None
        self.events: queue.Queue[Event] = queue.Queue()
        self.worker = Worker(
            backend, self._emit, slots=slots, parallel=parallel, policy=policy, clock=clock
        )
        self.thread = threading.Thread(target=self.worker.run, daemon=True)
        self.thread.start()
        self._jobs = 0

    def _emit(self, event: Event) -> None:
        self.on_event(event)
        self.events.put(event)

    def submit(self, prompt: Sequence[int], **fields: object) -> str:
        self._jobs += 1
        job = f"job{self._jobs}"
        values: dict[str, object] = {
            "max_tokens": 1000,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 1,
            **fields,
        }
        self.worker.handle(Submit(job=job, prompt=list(prompt), **values))
        return job

    def ends(self, *jobs: str) -> dict[str, list[Event]]:
        """All events of these jobs, until each has ended."""
        seen: dict[str, list[Event]] = {job: [] for job in jobs}
        while not all(seen[job] and isinstance(seen[job][-1], Done | Failed) for job in jobs):
            event = self.events.get(timeout=TIMEOUT)
            seen[getattr(event, "job", "")].append(event)
        return seen

    def answer(self, prompt: Sequence[int], **fields: object) -> tuple[str, Done]:
        job = self.submit(prompt, **fields)
        events = self.ends(job)[job]
        done = events[-1]
        assert isinstance(done, Done), done
        return text_of(events), done

    def close(self) -> None:
        self.worker.handle(Stop())
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


def text_of(events: Sequence[Event]) -> str:
    """The visible text of a job's events."""
    return "".join(event.text for event in events if isinstance(event, Tokens))


def parts_of(events: Sequence[Event]) -> list[Part]:
    """What a job's events tell, neighbours joined."""
    return joined(part for event in events if isinstance(event, Tokens) for part in event.parts)
