"""What opening a model would hold, from the engine's own arithmetic and without reading any data.

For: whoever chooses options or says whether a model fits: `models.budget`, `models.forecast`, `coli
plan`. Not for: opening (`ffi.Engine`), which refuses what a plan says does not fit. Threads: a
`Planner` belongs to one at a time; `plan` may be called from any.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from colibri.engine.cvalues import Call, Inputs, ffi, lib
from colibri.engine.table import EngineOptions, Geometry, Tensor


class ExpertClass(msgspec.Struct, frozen=True):
    """Experts of one size (`colibri_plan_class`)."""

    slot_bytes: int
    experts: int
    slots: int


class Plan(msgspec.Struct, frozen=True):
    """Where an engine's memory goes (`colibri_plan`); `classes` lists at most eight sizes."""

    fits: int
    streaming: int
    context: int
    sessions: int
    threads: int
    prefill_chunk: int
    n_classes: int
    budget: int
    caller_bytes: int
    dense_bytes: int
    expert_bytes: int
    cache_bytes: int
    staging_bytes: int
    table_bytes: int
    sessions_bytes: int
    prefill_bytes: int
    work_bytes: int
    total_bytes: int
    kv_bytes_per_token: int
    session_bytes: int
    largest_expert: int
    least_budget: int
    resident_budget: int
    largest_context: int
    most_sessions: int
    classes: tuple[ExpertClass, ...] = ()


class Planner:
    """Plans for one model, whose table is turned into C once. One thread."""

    def __init__(self, geometry: Geometry, tensors: Sequence[Tensor]) -> None:
        self._inputs = Inputs(geometry, tensors, EngineOptions())

    def plan(self, options: EngineOptions) -> Plan:
        """What opening would hold, without reading any data.

        Options that do not fit are no error: see `Plan.fits` and the fields behind it.
        """
        self._inputs.set_options(options)
        return _plan(self._inputs)


def plan(
    geometry: Geometry, tensors: Sequence[Tensor], options: EngineOptions | None = None
) -> Plan:
    """`Planner.plan` for once. Any thread."""
    return Planner(geometry, tensors).plan(options or EngineOptions())


def _plan(inputs: Inputs) -> Plan:
    raw = ffi.new("colibri_plan *")
    raw.struct_size = ffi.sizeof("colibri_plan")
    call = Call()
    call.check(
        lib.colibri_engine_plan(
            inputs.options,
            inputs.geometry,
            inputs.tensors,
            inputs.n_tensors,
            raw,
            call.text,
            call.len,
        )
    )
    listed = range(min(raw.n_classes, len(raw.classes)))
    numbers = {name: getattr(raw, name) for name in Plan.__struct_fields__ if name != "classes"}
    classes = tuple(
        ExpertClass(raw.classes[i].slot_bytes, raw.classes[i].experts, raw.classes[i].slots)
        for i in listed
    )
    return Plan(**numbers, classes=classes)
