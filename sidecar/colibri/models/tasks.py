"""Work on models that takes a while: seen from outside, cancelled from outside.

For: verifying (`models.shelf`) and loading (`models.loading`), which run in threads of their own;
the dashboard shows them all in one list. Not for: requests, which the scheduler has. At most one
task of a group runs. Threads: any.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from colibri.errors import ColibriError, ConflictError
from colibri.findings import Finding

log = logging.getLogger(__name__)

_KEPT: Final = 20

Kind: TypeAlias = Literal["verify", "load", "unload"]
# Why a second one has to wait, by the kind that runs.
_BUSY: Final = {
    "verify": "another model is being verified.",
    "load": "another model is being loaded.",
    "unload": "the model is being unloaded.",
}


class Task(msgspec.Struct, kw_only=True):
    """Work that takes a while. `fraction` is 0 to 1; `phase` names the step of a load: waiting (for
    answers to end), closing, opening (`fraction` is the share of the weights that is read, 0 while
    that is not known), preparing, restoring. `running_seconds` is how long it has run, or ran.
    """

    id: str
    kind: Kind
    name: str
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    fraction: float = 0.0
    phase: str = ""
    running_seconds: float = 0.0
    message: str = ""
    findings: list[Finding] = []


class Cancelled(BaseException):
    """Ends a task's work; passes through everything that turns errors into findings."""


class Job:
    """What the work of a task may tell and ask. Belongs to the task's thread."""

    def __init__(self, task: Task, lock: threading.Lock) -> None:
        self.task = task
        self.began = time.monotonic()
        self.stop = threading.Event()
        self._lock = lock

    def tell(self, phase: str, fraction: float = 0.0) -> None:
        """Tells what is being done and how far it is."""
        with self._lock:
            self.task.phase, self.task.fraction = phase, round(min(max(fraction, 0.0), 1.0), 4)

    def show(self, phase: str, fraction: float = 0.0) -> None:
        """The same. Raises Cancelled when it shall end."""
        self.tell(phase, fraction)
        if self.stop.is_set():
            raise Cancelled

    def seen(self) -> Task:
        """A copy of the task as it is now. The lock is held."""
        seconds = self.task.running_seconds
        if self.task.state == "running":
            seconds = round(time.monotonic() - self.began, 1)
        return msgspec.structs.replace(self.task, running_seconds=seconds)

    def found(self, findings: list[Finding]) -> None:
        """What a verification has found."""
        with self._lock:
            self.task.findings = findings


class Tasks:
    """See the module's text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def begin(
        self, kind: Kind, name: str, work: Callable[[Job], str], group: tuple[Kind, ...]
    ) -> Task:
        """Starts `work` in a thread; what it returns is the task's last message.

        Raises ConflictError while a task of one of the kinds in `group` runs.
        """
        with self._lock:
            for job in self._jobs.values():
                if job.task.state == "running" and job.task.kind in group:
                    raise ConflictError(
                        _BUSY[job.task.kind], hint="Wait, or cancel it.", code="task_running"
                    )
            if self._closed:
                raise ConflictError("the server is being stopped.")
            job = Job(Task(id=secrets.token_hex(8), kind=kind, name=name), self._lock)
            self._jobs[job.task.id] = job
            for old in list(self._jobs.values())[:-_KEPT]:
                if old.task.state != "running":
                    del self._jobs[old.task.id]
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=self._run, args=(job, work), name=kind, daemon=True)
            self._threads.append(thread)
            thread.start()
            return msgspec.structs.replace(job.task)

    def all(self) -> list[Task]:
        """The last tasks, latest first."""
        with self._lock:
            return [job.seen() for job in reversed(self._jobs.values())]

    def cancel(self, task: str) -> None:
        """Ends a task soon; harmless when it has ended or is not known."""
        with self._lock:
            job = self._jobs.get(task)
        if job is not None:
            job.stop.set()

    @property
    def closed(self) -> bool:
        """Whether the server stops; a task that was cancelled need not tidy up for what follows."""
        return self._closed

    def close(self) -> None:
        """Ends every task and waits for it; none begins any more."""
        with self._lock:
            self._closed = True
            jobs, threads = list(self._jobs.values()), list(self._threads)
        for job in jobs:
            job.stop.set()
        for thread in threads:
            thread.join()

    def _run(self, job: Job, work: Callable[[Job], str]) -> None:
        task = job.task
        try:
            message = work(job)
        except Cancelled:
            self._end(job, "cancelled", "cancelled")
        except ColibriError as error:
            log.error("%s %s: %s", task.kind, task.name, error)
            self._end(job, "failed", f"{error}")
        except Exception as error:
            log.exception("%s %s failed", task.kind, task.name)
            self._end(job, "failed", f"{error}")
        else:
            self._end(job, "done", message)

    def _end(self, job: Job, state: Literal["done", "failed", "cancelled"], message: str) -> None:
        with self._lock:
            task = job.task
            task.running_seconds = job.seen().running_seconds
            task.state, task.message = state, message
            if state == "done":
                task.fraction = 1.0
