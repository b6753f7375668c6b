"""The state of the server in sections, as plain data for JSON.

For: the hub, `/health` and the snapshots, which all show the same numbers under the same names.
Not for: when to look; the hub decides. docs/dashboard.md describes every field. Thread rule: pure
functions over what they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from colibri.engine.client import EngineStatus
from colibri.engine.protocol import EngineInfo, EngineSnapshot, JobState
from colibri.engine.work import Work
from colibri.models.served import ServedModel
from colibri.scheduler import Activity, Scheduler
from colibri.settings import Settings
from colibri.telemetry.turns import both, breakdown

VRAM_NOTE: Final = "This version computes on the processor; no expert is in GPU memory."


def model_section(
    model: ServedModel, settings: Settings, context: int | None, warnings: Sequence[str]
) -> dict[str, Any]:
    """What is served, and the defaults and limits of its answers."""
    limits = [limit for limit in (context, settings.max_tokens) if limit is not None]
    temperature = settings.temperature if settings.temperature is not None else model.temperature
    return {
        "id": model.id,
        "family": model.family,
        "context_length": context,
        "max_output_tokens": min(limits, default=None),
        "temperature": temperature,
        "top_p": settings.top_p if settings.top_p is not None else model.top_p,
        "chat": model.render is not None,
        "warnings": list(warnings),
    }


def loading_section(status: EngineStatus) -> dict[str, int] | None:
    """How far the opening of a model is; null while none is opened, or before it is known."""
    loading = status.loading
    if loading is None or loading.bytes_total <= 0:
        return None
    return {"bytes_read": loading.bytes_read, "bytes_total": loading.bytes_total}


def engine_section(status: EngineStatus, snapshot: EngineSnapshot | None) -> dict[str, Any]:
    """The engine's process, what it was opened with, drafts and kept context."""
    info = status.info
    facts: dict[str, Any] = {"isa": None, "precision": None, "threads": None, "memory": None}
    if info is not None:
        facts = {name: msgspec.to_builtins(getattr(info, name)) for name in facts}
    return {
        "state": status.state,
        "restarts": status.restarts,
        "last_failure": status.last_failure,
        "pid": status.pid,
        "rss_bytes": status.rss_bytes,
        "loading": loading_section(status),
        **facts,
        "drafts": msgspec.to_builtins(snapshot.drafts) if snapshot else None,
        "kv": msgspec.to_builtins(snapshot.kv) if snapshot else None,
    }


def scheduler_section(scheduler: Scheduler, settings: Settings) -> dict[str, Any]:
    """Counters of requests, and the limits that they meet."""
    return {
        **msgspec.structs.asdict(scheduler.counters()),
        "parallel": scheduler.parallel,
        "kv_slots": settings.kv_slots,
        "max_queue": scheduler.max_queue,
        "queue_timeout_seconds": scheduler.queue_timeout,
    }


def request_entry(activity: Activity, job: JobState | None) -> dict[str, Any]:
    """A running request, with what the worker knows of its job."""
    return {
        **msgspec.structs.asdict(activity),
        "drafts_proposed": job.drafts_proposed if job else 0,
        "drafts_accepted": job.drafts_accepted if job else 0,
        "time": breakdown(both(job.work if job else Work())),
    }


def tiers_section(info: EngineInfo | None, snapshot: EngineSnapshot | None) -> dict[str, Any]:
    """How many experts are where, and the bytes that they take there; `draft_experts` of them are
    those of the MTP layer. A dense model has none, and its weights count as what lies in RAM.
    """
    layout = info.experts if info else None
    total = len(layout.layers) * layout.cols if layout else 0
    size = layout.bytes if layout else 0
    in_ram, note = total, ""
    ram_bytes = size if layout else (info.weight_bytes if info else 0)
    if layout and snapshot and snapshot.experts.streaming:
        in_ram = min(snapshot.experts.cached, total)
        ram_bytes = size * in_ram // max(total, 1)
        note = f"The cache has room for {snapshot.experts.slots:,}."
    elif layout:
        note = "All experts fit in memory."
    on_disk = total - in_ram
    return {
        "experts": total,
        "draft_experts": layout.draft_layers * layout.cols if layout else 0,
        "tiers": [
            {"name": "vram", "experts": 0, "bytes": 0, "note": VRAM_NOTE},
            {"name": "ram", "experts": in_ram, "bytes": ram_bytes, "note": note},
            {
                "name": "disk",
                "experts": on_disk,
                "bytes": size - ram_bytes if layout else 0,
                "note": "",
            },
        ],
    }


def disk_section(
    snapshot: EngineSnapshot | None, rate: float, wait: float | None
) -> dict[str, Any]:
    """Reading experts: `rate` in bytes per second now, `wait` the share of time spent waiting."""
    experts = snapshot.experts if snapshot else None
    return {
        "bytes_per_second": round(rate),
        "wait_share": None if wait is None else round(wait, 3),
        "bytes_read": experts.bytes_read if experts else 0,
        "guessed_bytes": experts.guessed_bytes if experts else 0,
        "useful_bytes": experts.useful_bytes if experts else 0,
        "wasted_bytes": experts.wasted_bytes if experts else 0,
        "places": [
            {
                "folder": place.folder,
                "bytes_per_second": place.bytes_per_second,
                "failed": place.failed,
                "bytes_read": place.bytes_read,
                "failures": place.failures,
            }
            for place in (experts.mirrors if experts else ())
        ],
    }
