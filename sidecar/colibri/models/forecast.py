"""What opening a model on this machine would choose, and how fast it would be, without opening it.

For: `coli plan` and the dashboard's list of models, which must agree with opening
(`models.backend`). Reads headers, asks the engine's own arithmetic and measures disk and memory for
a moment. Not for: what the figures mean (`models.estimate`). Threads: any; the planner belongs to
one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri import sizes
from colibri.engine import ffi_plan
from colibri.engine.table import EngineOptions, Geometry, Isa, Precision, Tensor
from colibri.hardware import disk, memory
from colibri.models import estimate, limits, usage
from colibri.models.budget import (
    Choice,
    choose,
    grammar_bytes,
    idle_slot_bytes,
    program_bytes,
    store_queue_bytes,
)
from colibri.models.container import ModelFiles, open_folder
from colibri.settings import Settings

_GB: Final = 1e9
# Assumed where the disk cannot be measured: a plain SATA drive or a busy cloud disk.
_ASSUMED_DISK: Final = 1e9
_DISK_SECONDS: Final = 0.5
_TOKENIZER_FACTOR: Final = 6
_ROUND: Final = 32 << 20


def tokenizer_bytes(folder: Path) -> int:
    """Size of the tokenizer's file, 0 without one."""
    path = folder / "tokenizer.json"
    return path.stat().st_size if path.is_file() else 0


def server_bytes(tokenizer: int) -> int:
    """What a server with a tokenizer of that size will hold. It will not be of exactly this size;
    what is planned must hold there too.
    """
    own = memory.rss() + _TOKENIZER_FACTOR * tokenizer
    return -(-(own + _ROUND // 4) // _ROUND) * _ROUND


def choice(
    chosen: Settings,
    geometry: Geometry,
    planner: ffi_plan.Planner,
    budget: int,
    own: int,
    tokenizer: int,
) -> Choice:
    """What opening would choose with a budget, as `models.backend` does; `tokenizer` is the size of
    the file.
    """
    base = EngineOptions(
        precision=Precision[chosen.precision.upper()],
        isa=Isa[chosen.isa.upper()],
        threads=chosen.threads,
        memory_budget=budget,
        caller_bytes=program_bytes(own, own)
        + idle_slot_bytes(geometry, chosen.kv_slots - chosen.parallel)
        + store_queue_bytes(chosen.prefix_store_gb, geometry, chosen.prefill_chunk)
        + grammar_bytes(tokenizer),
        sessions=chosen.parallel,
        prefill_chunk=chosen.prefill_chunk,
    )
    return choose(geometry, planner.plan, base, context=chosen.ctx or 0, drafts=chosen.drafts)


def without_drafts(planner: ffi_plan.Planner, choice: Choice) -> ffi_plan.Plan:
    """The same plan over the trunk alone, whose experts every token reads."""
    if choice.options.drafts == 0:
        return choice.plan
    return planner.plan(msgspec.structs.replace(choice.options, drafts=0))


def embedding(tensors: Sequence[Tensor]) -> int:
    """Bytes of the embedding where it is no head too: a token reads one row of it."""
    found = {
        t.name: t.bytes + t.scale_bytes for t in tensors if not t.name.startswith("model.layers")
    }
    return found.get("model.embed_tokens.weight", 0) if "lm_head.weight" in found else 0


def learnt(files: ModelFiles, folder: Path, chosen: Settings) -> NDArray[np.int64] | None:
    """Use counts of the trunk's experts, None for a dense model."""
    geometry = files.geometry
    if not geometry.n_experts:
        return None
    shape = usage.ModelShape(
        family=files.family.name,
        layers=geometry.n_layers,
        mtp=geometry.n_mtp_layers,
        experts=geometry.n_experts,
    )
    place = usage.place(folder, chosen.state_dir)
    counts = usage.load(folder, place, shape, only_look=True).counts
    return counts[: geometry.n_layers]


def disk_speed(folder: Path, paths: Sequence[Path], given: float | None = None) -> dict[str, Any]:
    """Speed of the disk and where the figure comes from."""
    if given is not None:
        return {"bytes_per_second": given * _GB, "source": "given"}
    there = [path for path in paths if path.stat().st_blocks * 512 >= path.stat().st_size]
    try:
        measured = disk.measure(there, _DISK_SECONDS) if there else None
    except (disk.ReadFailure, OSError):
        measured = None
    if measured is None:
        return {"bytes_per_second": _ASSUMED_DISK, "source": "assumed"}
    source = "measured" if measured.direct else "measured through the page cache"
    return {"bytes_per_second": measured.bytes_per_second, "source": source}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a folder would choose, and from what."""

    files: ModelFiles
    geometry: Geometry
    planner: ffi_plan.Planner
    choice: Choice


def planned(chosen: Settings, folder: Path, budget: int) -> Planned:
    """What opening would choose with a budget of bytes (0 = no limit); measures nothing.

    Raises ModelError or OSError for files that cannot be read, UsageError for settings that do not
    suit the model, and EngineError for what the engine refuses.
    """
    files = open_folder(folder)
    geometry = limits.stretched(files.geometry, chosen.ctx or 0)
    planner = ffi_plan.Planner(geometry, files.tensors)
    tokenizer = tokenizer_bytes(folder)
    found = choice(chosen, geometry, planner, budget, server_bytes(tokenizer), tokenizer)
    return Planned(files=files, geometry=geometry, planner=planner, choice=found)


def fit(chosen: Settings, folder: Path, budget: int, memory_speed: float) -> dict[str, Any]:
    """How a model would fit into a budget of bytes (0 = no limit), and its speed as a range. Raises
    as `planned`.
    """
    found = planned(chosen, folder, budget)
    files, plan = found.files, found.choice.plan
    traffic = estimate.traffic(
        found.geometry,
        without_drafts(found.planner, found.choice),
        embedding(files.tensors),
        learnt(files, folder, chosen),
    )
    speed = disk_speed(folder, files.paths)
    rate = estimate.speed(traffic, speed["bytes_per_second"], memory_speed)
    experts = sum(kind.experts for kind in plan.classes)
    in_ram = sum(kind.slots for kind in plan.classes)
    drafts = found.geometry.n_mtp_layers if found.choice.options.drafts else 0
    total = sum(t.bytes + t.scale_bytes for t in files.tensors)
    return {
        "fits": bool(plan.fits),
        "resident": bool(plan.fits) and not plan.streaming,
        "budget_bytes": budget,
        "tiers": {"vram_bytes": 0, "ram_bytes": plan.total_bytes, "disk_bytes": total},
        "experts": experts,
        "draft_experts": drafts * found.geometry.n_experts,
        "experts_in_ram": in_ram if plan.streaming else experts,
        "context": plan.context,
        "tokens_per_second": estimate.as_json(rate) if plan.fits else None,
        "disk": speed,
        "warnings": estimate.warnings(plan, traffic, rate),
    }


def allowance(chosen: Settings, held: Sequence[int]) -> int:
    """The budget of a server that would be started now; `held` is what our processes hold."""
    return memory.allowance(sizes.parse(chosen.ram) if chosen.ram else None, held).bytes
