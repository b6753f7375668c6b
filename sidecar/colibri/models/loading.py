"""Which model a running server answers with, and how another one takes its place.

    hold new requests -> wait for answers (or end them) -> close the old -> open the new -> release
                                                              `-- fails: open the old one again

For: the server; the dashboard and scripts ask for it over HTTP. Not for: finding models
(`models.shelf`), nor for the engine's process. While a model is being changed, requests wait as
they do for the first load, within the queue's limits; then they are answered by what is there.
Every load has a number: a prompt made for one load is never given to another one. Threads: any;
each change runs in a task's thread, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from colibri import paths, settings
from colibri.engine.client import EngineClient
from colibri.engine.protocol import Loading
from colibri.engine.seat import Seat
from colibri.engine.status import EngineError
from colibri.errors import (
    ColibriError,
    ConflictError,
    EngineFailure,
    ModelError,
    NoModelError,
    RequestError,
    UsageError,
    WorkerUnavailableError,
)
from colibri.models.model import ModelText, open_text
from colibri.models.served import ServedModel, from_text
from colibri.models.tasks import Cancelled, Job, Kind, Task, Tasks
from colibri.scheduler import Scheduler
from colibri.settings import Settings
from colibri.text.replay import Answers

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
_CHANGES: Final[tuple[Kind, ...]] = ("load", "unload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model that is loaded or being loaded. `number` tells its load from others, `name` is its
    folder's, `answers` are what it has said: tokens of its own vocabulary.
    """

    model: ServedModel
    settings: Settings
    folder: Path | None = None
    number: int = 0
    answers: Answers = field(default_factory=Answers)

    @property
    def name(self) -> str:
        return self.folder.name if self.folder else self.model.id


class Wishes(msgspec.Struct, kw_only=True):
    """How to load. None: as the server was started; `ctx` 0: what fits.

    `force` opens a model that the fit refuses, with the memory that it needs at least. `when` there
    are answers being given: `free` refuses, `idle` waits for them, `now` ends them.
    """

    ctx: int | None = None
    kv_slots: int | None = None
    force: bool = False
    when: Literal["free", "idle", "now"] = "free"


OpenEngine = Callable[[Settings, Path], EngineClient]


def _no_engines(_settings: Settings, _folder: Path) -> EngineClient:
    raise EngineFailure("this server cannot open other models.")


class Loader:
    """See the module's text. `open_engine` makes an engine that is not started yet; `held` tells
    the bytes that our processes hold; `changed` is called after every change.
    """

    def __init__(
        self,
        chosen: Settings,
        seat: Seat,
        scheduler: Scheduler,
        first: Loaded | None,
        *,
        open_engine: OpenEngine = _no_engines,
        read_text: Callable[[Path], ModelText] = open_text,
        tasks: Tasks | None = None,
    ) -> None:
        self.tasks = tasks or Tasks()
        self.changed: Callable[[], None] = lambda: None
        self.held: Callable[[], int] = lambda: 0
        self._chosen, self._seat, self._scheduler = chosen, seat, scheduler
        self._open_engine, self._read_text = open_engine, read_text
        self._first = first.folder if first else None
        self._loaded = first
        self._number = first.number if first else 0
        self._lock = threading.Lock()
        self._changing = False
        self._opening = False
        self._in_use: frozenset[Path] = frozenset()

    # ---- what is there ----

    @property
    def loaded(self) -> Loaded | None:
        """The model that is loaded, or is being loaded (the seat's state tells which)."""
        return self._loaded

    @property
    def opening(self) -> bool:
        """Whether `loaded` is not there yet, because a change is just opening it."""
        return self._opening

    @property
    def changing(self) -> bool:
        """Whether a change is going on, and requests wait."""
        return self._changing

    def require(self) -> Loaded:
        """The loaded model. Raises NoModelError without one."""
        loaded = self._loaded
        if loaded is None:
            raise self._missing()
        return loaded

    def uses(self, folder: Path) -> bool:
        """Whether the model in a folder is loaded or takes part in a change."""
        loaded = self._loaded
        own = {loaded.folder.resolve()} if loaded and loaded.folder else set()
        return folder.resolve() in own | self._in_use

    def settings_for(self, folder: Path, wishes: Wishes | None = None) -> Settings:
        """The settings to open a folder with: those of the start, but what was said of the first
        model only, and the wishes. Raises RequestError for a wish out of range.
        """
        # Force is a wish of its own each time.
        chosen, wishes = replace(self._chosen, force=False), wishes or Wishes()
        if self._first is None or folder.resolve() != self._first.resolve():
            state = chosen.state_dir
            if state is not None:
                # What is kept of one model must not displace what is kept of another.
                state = str(paths.given(state) / paths.model_state_dir(folder).name)
            chosen = replace(
                chosen, model=None, model_id=None, mirrors=(), trace=None, state_dir=state
            )
        if wishes.ctx is not None:
            chosen = replace(chosen, ctx=_checked("ctx", wishes.ctx) if wishes.ctx else None)
        if wishes.kv_slots is not None:
            slots = _checked("kv_slots", wishes.kv_slots)
            chosen = replace(chosen, kv_slots=slots, parallel=min(chosen.parallel, slots))
        return chosen

    # ---- changes ----

    def load(self, folder: Path, wishes: Wishes) -> Task:
        """Begins to load the model of a folder in place of what is loaded.

        Raises RequestError for a wish out of range; ConflictError for a model that does not fit
        or cannot be read, while another change goes on, and while answers are given (`when`).
        """
        chosen = self.settings_for(folder, wishes)
        chosen = self._fitting(folder, chosen, force=wishes.force)
        return self._begin(
            "load",
            folder.name,
            wishes.when,
            lambda job: self._exchange(job, wishes.when, folder, chosen),
            frozenset({folder.resolve()}),
        )

    def unload(self, when: Literal["free", "idle", "now"]) -> Task:
        """Begins to unload. Raises ConflictError as `load` does, and if nothing is loaded."""
        loaded = self._loaded
        if loaded is None and not self._changing:
            raise ConflictError("no model is loaded.", code="no_model_loaded")
        name = loaded.name if loaded else ""
        return self._begin("unload", name, when, lambda job: self._empty(job, when), frozenset())

    def _begin(
        self,
        kind: Kind,
        name: str,
        when: str,
        work: Callable[[Job], str],
        folders: frozenset[Path],
    ) -> Task:
        with self._lock:
            if self._changing:
                raise ConflictError(
                    "another model is being loaded or unloaded.",
                    hint="Wait for it, or cancel its task.",
                    code="task_running",
                )
            self._changing = True
            loaded = self._loaded
            mine = {loaded.folder.resolve()} if loaded and loaded.folder else set()
            self._in_use = folders | mine
        self._scheduler.hold()

        def changing(job: Job) -> str:
            try:
                return work(job)
            finally:
                self._finish()

        try:
            if when == "free":
                self._refuse_busy()
            return self.tasks.begin(kind, name, changing, _CHANGES)
        except BaseException:
            self._finish()
            raise

    def _finish(self) -> None:
        with self._lock:
            self._changing = False
            self._in_use = frozenset()
        self._scheduler.release()
        self.changed()

    def _refuse_busy(self) -> None:
        running, counters = self._scheduler.activities(), self._scheduler.counters()
        waiting = counters.active + counters.queued - len(running)
        if not running and counters.active + counters.queued == 0:
            return
        names = ", ".join(activity.id for activity in running[:5])
        raise ConflictError(
            f"{len(running)} answers are being given{f' ({names})' if names else ''} and "
            f"{max(waiting, 0)} requests wait.",
            hint='Send "when": "idle" to wait for them, or "when": "now" to end them.',
            code="model_busy",
        )

    def _fitting(self, folder: Path, chosen: Settings, *, force: bool) -> Settings:
        """The settings to open with."""
        from colibri.models import estimate, forecast  # noqa: PLC0415 - heavy

        try:
            budget = forecast.allowance(chosen, (self.held(),))
            plan = forecast.planned(chosen, folder, budget).choice.plan
            if plan.fits:
                return chosen
            if not force:
                raise ConflictError(
                    estimate.no_fit(plan),
                    hint='"force": true loads it all the same; the system may then swap or end it.',
                    code="does_not_fit",
                )
            return replace(chosen, force=True)
        except EngineError as error:
            raise unusable(f"{error.message}.", folder) from error
        except UsageError as error:
            raise RequestError(error.message, param=error.where, hint=error.hint) from error
        except (ModelError, OSError) as error:
            raise unusable(f"{error}", folder) from error

    # ---- in the task's thread ----

    def _exchange(self, job: Job, when: str, folder: Path, chosen: Settings) -> str:
        # Nothing has happened yet if the text cannot be read.
        model = from_text(self._read_text(folder), chosen.model_id)
        self._wait_idle(job, when, chosen.parallel)
        before = self._loaded
        fresh = Loaded(model=model, settings=chosen, folder=folder, number=self._number)
        self._close(job)
        try:
            self._open(fresh, lambda loading: job.show(*_step(loading)))
        except (ColibriError, Cancelled) as error:
            self._restore(before, fresh, error, job)
            raise
        return f"{fresh.model.id} is loaded"

    def _empty(self, job: Job, when: str) -> str:
        name = self.require().model.id
        self._wait_idle(job, when, self._chosen.parallel)
        self._close(job)
        self._seat.take()
        return f"{name} is unloaded"

    def _wait_idle(self, job: Job, when: str, parallel: int) -> None:
        """Numbers the next load as soon as nothing runs and nothing waits for its turn."""
        job.show("waiting")
        while not self._scheduler.switch(self._number + 1, parallel):
            job.show("waiting")
            if when == "now":
                self._scheduler.abort(
                    WorkerUnavailableError(
                        "The model is being changed on this server.",
                        hint="Send the request again.",
                        code="model_changed",
                    )
                )
            time.sleep(_POLL_SECONDS / 4)
        self._number += 1

    def _close(self, job: Job) -> None:
        """Ends the engine that is there; what it has to keep is on disk then."""
        job.tell("closing")
        engine = self._seat.take(between=True)
        self._loaded = None
        if engine is not None:
            engine.stop()

    def _open(self, loaded: Loaded, progress: Callable[[Loading | None], None]) -> None:
        """Seats the engine of a model; `progress` hears how far it is and may end it.

        Raises what makes the engine fail, and what `progress` raises.
        """
        assert loaded.folder is not None  # noqa: S101 - only models in folders are opened here
        log.info("loading %s from %s", loaded.model.id, loaded.folder)
        engine = self._open_engine(loaded.settings, loaded.folder)
        engine.start()
        self._opening = True
        self._loaded = loaded
        self._seat.put(engine)
        self.changed()
        try:
            _wait_open(engine, progress)
        except BaseException:
            self._loaded = None
            self._seat.take(between=True)
            engine.stop()
            raise
        finally:
            self._opening = False

    def _restore(
        self, before: Loaded | None, failed: Loaded, error: BaseException, job: Job
    ) -> None:
        """Opens the model again that was there. Raises EngineFailure with what became of it."""
        why = f"{failed.name} could not be loaded: {error}" if str(error) else "loading was ended."
        if before is None or before.folder is None or self.tasks.closed:
            self._seat.take(reason=why)
            return
        job.tell("restoring")
        again = replace(before, number=self._number)
        self._scheduler.switch(self._number, before.settings.parallel)

        def progress(_loading: Loading | None) -> None:
            if self.tasks.closed:
                raise Cancelled

        try:
            self._open(again, progress)
        except Cancelled:
            self._seat.take(reason=why)
            return
        except ColibriError as second:
            reason = f"{why} {before.name} could not be loaded again: {second}"
            self._seat.take(reason=reason)
            raise EngineFailure(reason) from error
        if isinstance(error, Cancelled):
            return
        raise EngineFailure(f"{why} {before.name} is loaded again.") from error

    def _missing(self) -> ColibriError:
        if self._changing:
            return WorkerUnavailableError(
                "The model is still being loaded.", hint="Try again in a moment."
            )
        missing = self._seat.missing()
        return missing if isinstance(missing, NoModelError) else NoModelError()


def _wait_open(engine: EngineClient, progress: Callable[[Loading | None], None]) -> None:
    """Until it is ready. A process that dies while it loads would do so again."""
    while True:
        status = engine.status()
        if status.restarts:
            raise EngineFailure(status.last_failure or "the engine process ended")
        progress(status.loading)
        try:
            engine.wait_ready(_POLL_SECONDS)
            return
        except ColibriError:
            if engine.status().state not in ("loading", "restarting"):
                raise


def _step(loading: Loading | None) -> tuple[str, float]:
    """Phase of a task and its fraction: what is not measured has none."""
    if loading is None or loading.bytes_total <= 0:
        return "opening", 0.0
    if loading.bytes_read >= loading.bytes_total:
        return "preparing", 0.0
    return "opening", loading.bytes_read / loading.bytes_total


def _checked(name: str, value: int) -> Any:
    (row,) = [row for row in settings.TABLE if row.name == name]
    problem = row.check(value) if row.check else None
    if problem:
        raise RequestError(f"'{name}' {problem}, not {value}.", param=name)
    return value


def unusable(message: str, folder: Path) -> ConflictError:
    """A model whose files are no good is no fault of the server."""
    where = "" if str(folder) in message else f"{folder}: "
    return ConflictError(f"{where}{message}", code="model_invalid")
