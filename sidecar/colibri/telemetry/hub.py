"""Looks at the running server and tells whoever watches.

    engine snapshot, scheduler, turns, hardware --look--> sections --> watchers, each at its pace

The state consists of sections. Each look makes all of them anew; one whose text has changed gets
the number of this look, and a watcher is sent the sections that are newer than what it has. So a
slow watcher misses looks, never news, and nobody waits for it. While something runs it is looked at
five times a second if somebody watches and once a second if not (for the trend); idle, every two
seconds, and only if somebody watches. An event of a job wakes the looking at once.

For: the WebSocket and the snapshots. Not for: what a section holds (`state`) or bytes on the wire.
Threads: any; the looking has its own, which `stop` ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from colibri import __version__
from colibri.engine.client import EngineClient
from colibri.engine.protocol import EngineInfo, EngineSnapshot, ExpertMap
from colibri.engine.work import Work
from colibri.hardware.monitor import Monitor
from colibri.models.served import ServedModel
from colibri.scheduler import Scheduler
from colibri.settings import Settings
from colibri.telemetry import state
from colibri.telemetry.bottleneck import judge
from colibri.telemetry.turns import TurnLog, lookups, turn_json

log = logging.getLogger(__name__)

BUSY_SECONDS: Final = 0.2
UNWATCHED_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 2.0
TREND_POINTS: Final = 300
_POINT_SECONDS: Final = 1.0
# Rates are taken over so long: steady enough to read, quick enough to believe.
_RATE_SECONDS: Final = 2.0
# The worker answers in well under a millisecond; one that hangs must not hang the display.
_ANSWER_SECONDS: Final = 0.5


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at one moment (monotonic seconds)."""

    at: float
    prompt: float
    generated: int
    work: Work


def rates(samples: deque[Sample]) -> tuple[float, float, float, float | None]:
    """(generated tokens, prompt tokens, bytes) per second and the share of time spent waiting for
    the disk, over the samples.
    """
    if len(samples) < 2:  # noqa: PLR2004 - a rate needs two
        return 0.0, 0.0, 0.0, None
    first, last = samples[0], samples[-1]
    seconds = max(last.at - first.at, 1e-6)
    work = last.work.since(first.work)
    times = (work.prefill.time, work.decode.time)
    busy = sum(part.total_ms for part in times)
    wait = sum(part.disk_ms for part in times) / busy if busy > 0 else None
    return (
        (last.generated - first.generated) / seconds,
        (last.prompt - first.prompt) / seconds,
        work.bytes_read / seconds,
        wait,
    )


class Hub:
    """See the module's text. `model` (None without one) and its `settings` are those of the moment;
    `chat_changes` grows when a chat has changed; `warnings` and `context` are the model's.
    """

    def __init__(  # noqa: PLR0913 - everything that can be seen
        self,
        *,
        settings: Callable[[], Settings],
        model: Callable[[], ServedModel | None],
        engine: EngineClient,
        scheduler: Scheduler,
        instance: str,
        monitor: Monitor,
        context: Callable[[], int | None],
        warnings: Callable[[], list[str]],
        chat_changes: Callable[[], int],
    ) -> None:
        self.turns = TurnLog(self.wake)
        self.url: str | None = None
        self._settings, self._model = settings, model
        self._engine, self._scheduler = engine, scheduler
        self._instance, self._monitor = instance, monitor
        self._context, self._warnings, self._chat_changes = context, warnings, chat_changes
        self._started_ms = time.time_ns() // 1_000_000
        self._changed = threading.Condition()
        self._woken = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._watchers = 0
        self._looks = 0
        self._sections: dict[str, tuple[int, bytes]] = {}
        self._samples: deque[Sample] = deque()
        self._trend: deque[dict[str, Any]] = deque(maxlen=TREND_POINTS)
        self._points = 0
        self._pointed_at = 0.0
        self._looking = threading.Lock()
        self._map_lock = threading.Lock()
        self._map: ExpertMap | None = None
        self._map_seq = 0
        self._map_at = 0.0
        scheduler.observe(self.turns.observe)

    # ---- watching ----

    def watch(self) -> None:
        """Somebody watches from now on; looking begins."""
        with self._changed:
            self._watchers += 1
            self._start()
        self.wake()

    def unwatch(self) -> None:
        """One watcher less."""
        with self._changed:
            self._watchers -= 1

    def start(self) -> None:
        """Collects the trend although nobody watches."""
        with self._changed:
            self._start()

    def stop(self) -> None:
        """Ends the looking; whoever waits returns."""
        self._monitor.stop()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def wake(self) -> None:
        """Something has happened that a watcher wants to see."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def model_changed(self, load: int) -> None:
        """Another model is there, or none; `load` numbers it. What was measured is not its own."""
        self.turns.begin_load(load)
        with self._looking:
            self._samples.clear()
        self.wake()

    def wait(self, seen: int, timeout: float) -> bool:
        """Waits for a look after number `seen`; False when there was none within `timeout` s."""
        with self._changed:
            self._changed.wait_for(lambda: self._looks > seen or self._stopped, timeout)
            return self._looks > seen

    def since(self, seen: int) -> tuple[int, dict[str, msgspec.Raw]]:
        """The number of the last look and the sections that have changed after look `seen`."""
        with self._changed:
            fresh = {
                name: msgspec.Raw(text)
                for name, (number, text) in self._sections.items()
                if number > seen
            }
            return self._looks, fresh

    def trend(self, after: int = 0) -> tuple[int, list[dict[str, Any]]]:
        """Number of the last point of the trend, and the points after number `after`."""
        with self._changed:
            new = min(self._points - after, len(self._trend))
            return self._points, list(self._trend)[len(self._trend) - new :] if new > 0 else []

    def look_now(self) -> dict[str, msgspec.Raw]:
        """All sections, looked at now."""
        self._look()
        return self.since(0)[1]

    def greeting(self) -> dict[str, Any]:
        """What tells this run of the server from others."""
        return {"instance": self._instance, "now_ms": time.time_ns() // 1_000_000}

    @property
    def busy(self) -> bool:
        """Whether something runs or waits, or the engine is on its way."""
        counters = self._scheduler.counters()
        state_now = self._engine.status().state
        return bool(counters.active or counters.queued) or state_now in ("loading", "restarting")

    # ---- maps ----

    def shape(self) -> tuple[int, int, tuple[int, ...]]:
        """Rows, columns and the model's layers of the map; (0, 0, ()) for a dense model."""
        info = self._engine.status().info
        layout = info.experts if info else None
        return (len(layout.layers), layout.cols, layout.layers) if layout else (0, 0, ())

    def map(self, max_age: float) -> tuple[int, ExpertMap | None]:
        """The map with its number, not older than so many seconds; None without one."""
        with self._map_lock:
            now = time.monotonic()
            if self._map is None or now - self._map_at >= max_age:
                found = self._engine.experts(_ANSWER_SECONDS)
                if found is not None and found != self._map:
                    self._map_seq += 1
                self._map, self._map_at = found, now
            return self._map_seq, self._map

    # ---- looking ----

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            try:
                if self._watchers or self.busy:
                    self._look()
            except Exception:
                log.exception("looking at the server failed")
            busy = self.busy
            with self._changed:
                every = BUSY_SECONDS if self._watchers else UNWATCHED_SECONDS
                # An event wakes an idle hub at once; a busy one keeps its pace.
                if not busy:
                    self._changed.wait_for(lambda: self._woken or self._stopped, IDLE_SECONDS)
                self._woken = False
                if busy:
                    self._changed.wait_for(lambda: self._stopped, every)

    def _look(self) -> None:
        with self._looking:
            snapshot = self._engine.snapshot(_ANSWER_SECONDS)
            sections = {
                name: msgspec.json.encode(value) for name, value in self._make(snapshot).items()
            }
            with self._changed:
                self._looks += 1
                for name, text in sections.items():
                    if name not in self._sections or self._sections[name][1] != text:
                        self._sections[name] = self._looks, text
                self._changed.notify_all()

    def _sample(self, snapshot: EngineSnapshot | None) -> None:
        now = time.monotonic()
        prompt, generated = self.turns.totals()
        work = snapshot.work if snapshot else Work()
        if self._samples and work.bytes_read < self._samples[-1].work.bytes_read:
            self._samples.clear()  # the engine was restarted
        self._samples.append(Sample(at=now, prompt=prompt, generated=generated, work=work))
        while len(self._samples) > 2 and now - self._samples[1].at >= _RATE_SECONDS:  # noqa: PLR2004
            self._samples.popleft()

    def _make(self, snapshot: EngineSnapshot | None) -> dict[str, Any]:
        status = self._engine.status()
        model, settings = self._model(), self._settings()
        self._sample(snapshot)
        generated, prompt, read, wait = rates(self._samples)
        active = self._scheduler.counters().active
        recent = self._samples[-1].work.since(self._samples[0].work)
        last = self.turns.last(1)
        jobs = {job.job: job for job in snapshot.jobs} if snapshot else {}
        decode_average, prefill_average = self.turns.averages()
        self._point(active, generated, prompt, read)
        return {
            "server": {
                "version": __version__,
                "instance": self._instance,
                "started_at_ms": self._started_ms,
                "url": self.url,
            },
            "model": model
            and state.model_section(model, settings, self._context(), self._warnings()),
            "engine": state.engine_section(status, snapshot),
            "scheduler": state.scheduler_section(self._scheduler, settings),
            "requests": [
                state.request_entry(activity, jobs.get(activity.id))
                for activity in self._scheduler.activities()
            ],
            "speed": {
                "decode_tokens_per_second": round(generated, 2) if active else None,
                "prefill_tokens_per_second": round(prompt, 2) if active else None,
                "disk_bytes_per_second": round(read),
                "decode_average": decode_average,
                "prefill_average": prefill_average,
            },
            "turn": turn_json(last[0]) if last else None,
            "tiers": state.tiers_section(status.info, snapshot),
            "lookups": lookups(snapshot.work if snapshot else Work()),
            "disk": state.disk_section(snapshot, read, wait),
            "hardware": self._monitor.look(),
            "bottleneck": judge(status.state, active, recent, last[0].work if last else None),
            "experts": self._experts(status.info),
            "chats": {"seq": self._chat_changes()},
        }

    def _experts(self, info: EngineInfo | None) -> dict[str, Any]:
        layout = info.experts if info else None
        return {
            "rows": len(layout.layers) if layout else 0,
            "cols": layout.cols if layout else 0,
            "layers": list(layout.layers) if layout else [],
            "seq": self._map_seq,
            "turn": self._map.turn if self._map else 0,
        }

    def _point(self, active: int, generated: float, prompt: float, read: float) -> None:
        now = time.monotonic()
        if not active or now - self._pointed_at < _POINT_SECONDS:
            return
        self._pointed_at = now
        with self._changed:
            self._points += 1
            self._trend.append(
                {
                    "at_ms": time.time_ns() // 1_000_000,
                    "decode_tokens_per_second": round(generated, 2),
                    "prefill_tokens_per_second": round(prompt, 2),
                    "disk_bytes_per_second": round(read),
                }
            )
