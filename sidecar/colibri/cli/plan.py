"""`coli plan`: where a model's memory would go and how fast it would be, before anything is loaded.

For: people about to download or start a model, and scripts (`--json`). Reads config.json and file
headers only, and asks the engine's own arithmetic, which opening uses too. Not for: measuring a
model (`coli tune`). Heavy imports wait until the command runs.
"""

from __future__ import annotations

import json
from typing import Any

import click

from colibri import paths, settings
from colibri.cli.options import Finite, settings_options
from colibri.errors import EngineFailure

_SCHEMA = 1
_GB = 1e9
# Memory that others hold from here on is worth a second plan without them.
_BUSY_SHARE = 0.1


@click.command()
@click.argument("name", metavar="[MODEL]", required=False)
@settings_options("model", "engine")
@click.option(
    "--disk-speed",
    type=Finite(0.001, 10_000),
    metavar="GB/S",
    help="Speed of the disk, instead of a short read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    resolved: settings.Resolved, name: str | None, disk_speed: float | None, as_json: bool
) -> None:
    """Say where the memory of MODEL (a name or a folder) would go, and how fast it would be."""
    from colibri.engine.status import EngineError  # noqa: PLC0415

    try:
        report = make_report(resolved.settings, name, disk_speed)
    except EngineError as error:
        raise EngineFailure(f"{error.message}.") from error
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))


def make_report(
    chosen: settings.Settings, name: str | None, disk_speed: float | None
) -> dict[str, Any]:
    """Everything the command prints, as plain data; sizes in bytes."""
    import dataclasses  # noqa: PLC0415

    from colibri import sizes  # noqa: PLC0415
    from colibri.cli.serve import check_slots, model_folder  # noqa: PLC0415
    from colibri.engine import ffi_plan  # noqa: PLC0415
    from colibri.hardware import bandwidth, cpu, memory, processes  # noqa: PLC0415
    from colibri.models import estimate, forecast, limits  # noqa: PLC0415
    from colibri.models.container import open_folder  # noqa: PLC0415

    check_slots(chosen)
    folder = model_folder(dataclasses.replace(chosen, model=name) if name else chosen)
    mirrors = [paths.given(item).absolute() for item in chosen.mirrors]
    files = open_folder(folder, mirrors=mirrors)
    trained = files.geometry.max_position
    geometry = limits.stretched(files.geometry, chosen.ctx or 0)
    planner = ffi_plan.Planner(geometry, files.tensors)
    tokenizer = forecast.tokenizer_bytes(folder)
    own = forecast.server_bytes(tokenizer)
    allowed = memory.allowance(sizes.parse(chosen.ram) if chosen.ram else None, (memory.rss(),))
    choice = forecast.choice(chosen, geometry, planner, allowed.bytes, own, tokenizer)
    counts = forecast.learnt(files, folder, chosen)
    disk = forecast.disk_speed(folder, files.paths, disk_speed)
    rate = bandwidth.measure(chosen.threads or cpu.usable_cores())
    embedding = forecast.embedding(files.tensors)
    undrafted = forecast.without_drafts(planner, choice)
    found = estimate.traffic(files.geometry, undrafted, embedding, counts)
    speed = estimate.speed(found, disk["bytes_per_second"], rate)
    total, available = memory.system_figures()
    report: dict[str, Any] = {
        "schema": _SCHEMA,
        "model": folder.name,
        "folder": str(folder.absolute()),
        "kind": files.kind,
        "budget": estimate.as_json(allowed),
        "plan": _plan_json(choice.plan),
        "drafts": {"most": choice.options.drafts, "reason": choice.reason},
        "tiers": _tiers(choice.plan, files),
        "kv_per_1000_tokens": 1000 * choice.plan.kv_bytes_per_token,
        "per_token": estimate.as_json(found),
        "tokens_per_second": estimate.as_json(speed),
        "assumptions": {"disk": disk, "memory_bytes_per_second": rate},
        "warnings": [
            *allowed.warnings,
            *_left_out(files),
            *filter(None, [limits.beyond_training(choice.plan.context, trained)]),
            *estimate.warnings(choice.plan, found, speed),
        ],
        "in_use": None,
        "whole_machine": None,
    }
    if total and available and total - available > _BUSY_SHARE * total and not chosen.ram:
        report["in_use"] = {
            "bytes": total - available,
            "total": total,
            "by": [estimate.as_json(holder) for holder in processes.memory_holders()],
        }
        most = memory.total() or total
        whole = forecast.choice(
            chosen, geometry, planner, most - memory.reserve(most), own, tokenizer
        )
        alone = estimate.traffic(
            files.geometry, forecast.without_drafts(planner, whole), embedding, counts
        )
        report["whole_machine"] = {
            "plan": _plan_json(whole.plan),
            "per_token": estimate.as_json(alone),
            "tokens_per_second": estimate.as_json(
                estimate.speed(alone, disk["bytes_per_second"], rate)
            ),
        }
    return report


def _plan_json(plan: Any) -> dict[str, Any]:
    from colibri.models import estimate  # noqa: PLC0415

    found: dict[str, Any] = estimate.as_json(plan)
    return {**found, "fits": bool(plan.fits), "streaming": bool(plan.streaming)}


def _left_out(files: Any) -> list[str]:
    """Mirrors and copies that opening would leave out."""
    return [
        f"{place.folder / shard.name} is left out: {shard.reason.removesuffix('?')}."
        for place in files.places
        for shard in place.bad
    ]


def _tiers(plan: Any, files: Any) -> dict[str, Any]:
    from colibri.hardware import gpu  # noqa: PLC0415

    seen = gpu.probe()
    why = seen.problem or ("models run on the processor" if seen.gpus else "no NVIDIA GPU is seen")
    return {
        "vram": {"bytes": 0, "why": why},
        "ram": {"bytes": plan.total_bytes, "experts": sum(c.slots for c in plan.classes)},
        "disk": {
            "bytes": sum(t.bytes + t.scale_bytes for t in files.tensors),
            "experts": sum(c.experts for c in plan.classes),
        },
    }


def _gb(size: float) -> str:
    return f"{size / _GB:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.2f} MB"  # noqa: PLR2004


def _rate(tokens: float) -> str:
    """Tokens per second with two digits that count."""
    return f"{tokens:,.0f}" if tokens >= 10 else f"{tokens:.2g}"  # noqa: PLR2004


def _lines(report: dict[str, Any]) -> list[str]:
    plan, tiers, token = report["plan"], report["tiers"], report["per_token"]
    budget, speed, disk = (
        report["budget"],
        report["tokens_per_second"],
        report["assumptions"]["disk"],
    )
    experts = "cache of experts" if plan["streaming"] else "experts"
    limit = _gb(budget["bytes"]) if budget["bytes"] else "no limit"
    rows = [
        ("weights that stay", plan["dense_bytes"]),
        (experts, plan["cache_bytes"] if plan["streaming"] else plan["expert_bytes"]),
        (f"{plan['sessions']} x {plan['context']:,} tokens of context", plan["sessions_bytes"]),
        (f"prompts, {plan['prefill_chunk']:,} tokens at a time", plan["prefill_bytes"]),
        ("reads in flight", plan["staging_bytes"]),
        ("work buffers and lists", plan["work_bytes"] + plan["table_bytes"]),
        ("the program itself", plan["caller_bytes"]),
        ("together", plan["total_bytes"]),
    ]
    how = "streams its experts from disk" if plan["streaming"] else "is resident"
    lines = [
        f"{report['model']} ({report['kind']}) {how if plan['fits'] else 'does not fit'}.",
        f"Budget: {limit} ({budget['origin']}).",
        f"VRAM: 0 ({tiers['vram']['why']}). Disk: {_gb(tiers['disk']['bytes'])}.",
        *(f"  {label:34} {_gb(size):>12}" for label, size in rows if size),
    ]
    for kind in plan["classes"]:
        held = f"{kind['slots']:,} of {kind['experts']:,} in memory"
        lines.append(f"Experts of {kind['slot_bytes']:,} bytes: {held}.")
    lines.append(f"KV: {report['kv_per_1000_tokens'] / 1e6:,.2f} MB per 1,000 tokens.")
    if token["cold"]:
        learnt = token["read_learnt"]
        more = "" if learnt is None else f", {_gb(learnt)} with what was learnt"
        lines.append(
            f"Experts per token: {_gb(token['cold'])}; read from disk {_gb(token['read_uniform'])} "
            f"with even routing{more}."
        )
    lines.append(
        f"Expected: {_rate(speed['low'])} to {_rate(speed['high'])} tok/s, from disk "
        f"{disk['bytes_per_second'] / _GB:.2f} GB/s ({disk['source']}) and memory "
        f"{report['assumptions']['memory_bytes_per_second'] / _GB:.0f} GB/s (measured)."
    )
    drafts = report["drafts"]
    lines.append(
        f"Drafts: up to {drafts['most']}."
        if drafts["most"]
        else f"Drafts: off, {drafts['reason']}."
    )
    lines += _beside(report)
    return lines + [f"Warning: {text}" for text in report["warnings"]]


def _beside(report: dict[str, Any]) -> list[str]:
    """Who holds memory now, and what the machine would give without them."""
    used, whole = report["in_use"], report["whole_machine"]
    if used is None:
        return []
    names = ", ".join(
        f"{'Colibri' if item['ours'] else item['name']} (process {item['pid']}) "
        f"{_gb(item['bytes'])}"
        for item in used["by"]
    )
    alone = whole["tokens_per_second"]
    how = "streaming" if whole["plan"]["streaming"] else "resident"
    return [
        f"In use now: {_gb(used['bytes'])} of {_gb(used['total'])}"
        + (f", most by {names}." if names else "."),
        f"With the whole machine: {_gb(whole['plan']['budget'])}, {how}, "
        f"{_gb(whole['per_token']['read_uniform'])} read per token, "
        f"{_rate(alone['low'])} to {_rate(alone['high'])} tok/s.",
    ]
