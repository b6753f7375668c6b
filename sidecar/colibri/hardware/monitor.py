"""The machine's load, looked at in the background so that nobody who asks ever waits.

For: the dashboard. Processor and memory every two seconds, GPUs every ten, because that may start
a program of the driver. While nobody asks nothing is looked at. A driver that hangs or answers
nonsense costs its own line only: `stale` numbers stay, with the reason (`nvml`, `gpu.probe`). Not
for: deciding how much memory to use (`memory.allowance`). Threads: any; one thread of its own,
which ends soon after the last question.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import psutil

from colibri.hardware import cpu, gpu, memory, nvml

EVERY_SECONDS: Final = 2.0
_GPU_EVERY_SECONDS: Final = 10.0
# Looking stops when nobody has asked for so long.
_LINGER_SECONDS: Final = 15.0


def _share(percent: Callable[[], float]) -> float | None:
    try:
        value = percent()
    except (OSError, psutil.Error, ValueError):
        return None
    return round(min(max(value / 100, 0.0), 1.0), 3) if math.isfinite(value) else None


class Monitor:
    """See the module's text. `own` gives the bytes that our processes hold."""

    def __init__(
        self,
        own: Callable[[], int] = memory.rss,
        *,
        probe_gpus: Callable[[], gpu.Gpus] | None = None,
        load: Callable[[], float] = psutil.cpu_percent,
        figures: Callable[[], tuple[int | None, int | None]] = memory.system_figures,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._own, self._load = own, load
        self._probe_gpus = probe_gpus or nvml.Probe()
        self._figures, self._every = figures, every
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._asked = 0.0
        self._stop = threading.Event()
        self._facts: cpu.Cpu | None = None
        self._now: dict[str, Any] = {"load": None, "total": None, "available": None, "ours": 0}
        self._gpus = gpu.Gpus()
        self._gpus_known = False

    def look(self) -> dict[str, Any]:
        """The latest numbers, at once; what is not known yet is null."""
        with self._lock:
            self._asked = time.monotonic()
            if not self._stop.is_set():
                for name, work, every in (
                    ("hardware", self._measure, self._every),
                    ("gpus", self._measure_gpus, self._every * _GPU_EVERY_SECONDS / EVERY_SECONDS),
                ):
                    if name not in self._threads:
                        self._threads[name] = threading.Thread(
                            target=self._run, args=(name, work, every), name=name, daemon=True
                        )
                        self._threads[name].start()
            facts, now, gpus = self._facts, dict(self._now), self._gpus
            note = "" if self._gpus_known else "GPUs are being looked for."
        described = (
            msgspec.structs.asdict(facts) if facts else dict.fromkeys(cpu.Cpu.__struct_fields__)
        )
        return {
            "cpu": {**described, "load": now["load"]},
            "ram": {
                "total_bytes": now["total"],
                "available_bytes": now["available"],
                "ours_bytes": now["ours"],
            },
            "gpus": [
                {
                    "index": one.index,
                    "name": one.name,
                    "driver": one.driver,
                    "memory_total_bytes": one.memory_total,
                    "memory_used_bytes": one.memory_used,
                    "memory_free_bytes": one.memory_free,
                    "load": one.load,
                    "experts": 0,
                }
                for one in gpus.gpus
            ],
            "gpu_problem": gpus.problem,
            "note": note,
        }

    def stop(self) -> None:
        """Ends the threads; one that hangs in a driver ends with the process."""
        self._stop.set()

    def _run(self, name: str, work: Callable[[], None], every: float) -> None:
        while not self._stop.is_set():
            work()
            self._stop.wait(every)
            with self._lock:
                if time.monotonic() - self._asked > _LINGER_SECONDS:
                    del self._threads[name]
                    return

    def _measure(self) -> None:
        facts = self._facts or _facts()
        total, available = self._figures()
        load, ours = _share(self._load), self._own()
        with self._lock:
            self._facts = facts
            self._now = {"load": load, "total": total, "available": available, "ours": ours}

    def _measure_gpus(self) -> None:
        found = self._probe_gpus()
        with self._lock:
            # What was seen before a driver fell silent is still there.
            kept = found.gpus or (self._gpus.gpus if found.problem else ())
            self._gpus = gpu.Gpus(gpus=kept, problem=found.problem)
            self._gpus_known = True


def _facts() -> cpu.Cpu | None:
    try:
        return cpu.probe()
    except OSError:
        return None
