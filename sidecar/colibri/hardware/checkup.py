"""What this machine offers a model, as facts and as findings.

For: `coli doctor`. The memory figures are those that opening a model uses (`memory.budget`), so
that doctor and server never disagree. Not for: the model's own files (`colibri.models.doctor`).
Thread rule: one call at a time.
"""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from colibri import findings, sizes
from colibri.engine import ffi
from colibri.engine.table import Isa
from colibri.findings import Finding
from colibri.hardware import cpu, disk, gpu, memory, processes
from colibri.hardware.disk import ReadFailure, Speed

_GB: Final = 1e9
# Below this many bytes per second a disk is what limits every streamed model most.
_SLOW_DISK: Final = 0.5e9
_BUSY_SHARE: Final = 0.5
_LITTLE_MEMORY: Final = 2 << 30
_LITTLE_SPACE: Final = 2 << 30
_COMMON_CPU: Final = "x86-64-v2"


def processor() -> tuple[dict[str, Any], list[Finding]]:
    """Name, cores, instruction set."""
    facts = cpu.probe()
    best = ffi.isa_name(ffi.best_isa())
    sets = [isa.name.lower() for isa in Isa if isa != Isa.AUTO and ffi.has_isa(isa)]
    found = [
        findings.ok(
            "machine",
            f"{facts.name}: {facts.usable} of {facts.threads} hardware threads usable, "
            f"{facts.cores} cores, kernels for {best}.",
            "processor",
        )
    ]
    if best == "baseline":
        what = f"the processor has no AVX2: the portable {_COMMON_CPU} kernels are several times"
        fix = "Run on a newer processor if speed matters; results are as good."
        found.append(findings.warning("machine", f"{what} slower.", "processor", fix))
    if facts.quota is not None and facts.quota < facts.usable:
        what = (
            f"a control group grants {facts.quota:g} cores, {facts.usable} are visible: threads "
            "wait for each other."
        )
        fix = f"Set --threads {max(1, int(facts.quota))}, or raise the limit of the container."
        found.append(findings.warning("machine", what, "processor", fix))
    return {**msgspec.to_builtins(facts), "isa": best, "isas": sets}, found


def ram(wanted: str | None = None) -> tuple[dict[str, Any], list[Finding]]:
    """Memory: in all, free, granted, and what a model may take of it; `wanted` is `--ram`."""
    total, available = memory.system_figures()
    left = memory.cgroup_left()
    asked = memory.allowance(sizes.parse(wanted)) if wanted else None
    budget = asked.bytes if asked is not None else memory.budget()
    facts = {
        "total": total,
        "available": available,
        "cgroup_left": left,
        "budget": budget or None,
        "reserve": memory.reserve(min(size for size in (available, left, total) if size))
        if budget
        else None,
    }
    found: list[Finding] = []
    if not budget:
        what = "the free memory cannot be found out, so no limit is kept."
        fix = "Choose --ctx with care, and watch the memory while the model loads."
        found.append(findings.warning("machine", what, "memory", fix))
    else:
        limit = f", {left / _GB:.1f} GB left of a control group's limit" if left is not None else ""
        shown = f"{available / _GB:.1f} of {total / _GB:.1f} GB free" if total and available else ""
        what = f"{shown or 'free memory is not reported'}{limit}; a model may take "
        found.append(findings.ok("machine", f"{what}{budget / _GB:.1f} GB.", "memory"))
        if budget < _LITTLE_MEMORY:
            what = f"only {budget / _GB:.2f} GB are left for a model."
            fix = "Close other programs; `coli plan MODEL` says what a model needs."
            found.append(findings.warning("machine", what, "memory", fix))
    for sentence in asked.warnings if asked is not None else ():
        fix = "Set engine.ram (COLI_RAM) lower, or free memory before the model is started."
        found.append(findings.warning("machine", sentence, "memory", fix))
    if budget and not available:
        what = "the system does not report its available memory; half of all is assumed free."
        fix = "Set --ctx yourself if that is wrong."
        found.append(findings.warning("machine", what, "memory", fix))
    if total and available and available < (1 - _BUSY_SHARE) * total:
        found.append(in_use(total, available))
    return facts, found


def in_use(total: int, available: int) -> Finding:
    """By whom memory is used when much of it is."""
    holders = processes.memory_holders()
    names = ", ".join(map(str, holders)) or "no single program"
    what = f"{(total - available) / _GB:.1f} of {total / _GB:.1f} GB are in use, most by {names}."
    fix = "Close what you do not need: the model gets what is free when it is loaded."
    if any(holder.ours for holder in holders):
        fix = "A model is running already: figures here are those beside it. Stop it to see all."
    return findings.note("machine", what, "memory", fix)


def graphics() -> tuple[list[dict[str, Any]], list[Finding]]:
    """GPUs; none is no problem, because nothing runs on them yet."""
    seen = gpu.probe()
    facts = [msgspec.to_builtins(item) for item in seen.gpus]
    if seen.problem:
        fix = "Models run without it. Restart the machine or install the driver again to see it."
        return facts, [findings.warning("machine", f"{seen.problem}.", "GPU", fix)]
    if not seen.gpus:
        what = "no NVIDIA GPU is seen; models run on the processor."
        return facts, [findings.note("machine", what, "GPU")]
    names = ", ".join(
        item.name + (f" ({item.memory_total / _GB:.0f} GB)" if item.memory_total else "")
        for item in seen.gpus
    )
    what = f"{names}; not used: models run on the processor."
    return facts, [findings.note("machine", what, "GPU")]


def port(host: str, number: int) -> Finding:
    """Whether a server could listen there now."""
    where = f"{host}:{number}"
    if number == 0:
        return findings.ok("machine", "the system chooses a free port.", where)
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as failure:
        if failure.errno == errno.EADDRINUSE:
            what = f"port {number} is in use, perhaps by a server of ours."
            fix = "Stop the program that listens there, or choose another port with --port."
            return findings.warning("machine", what, where, fix)
        what = f"the server cannot listen there: {failure.strerror or failure}."
        fix = "Choose another --host or --port."
        return findings.error("settings", what, where, fix)
    return findings.ok("machine", "the port is free.", where)


def storage(paths: Sequence[Path], folder: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Speed of reading the given files, or of the folder's disk where there are none."""
    where = str(folder)
    try:
        speed = disk.measure(paths) if paths else disk.measure_folder(folder)
    except ReadFailure as failure:
        what = f"{failure}."
        if findings.is_device_error(failure):
            found = findings.error("device", what, str(failure.path), findings.KEEP_FILES)
        else:
            found = findings.error("machine", what, str(failure.path), "Check the disk.")
        return None, [found]
    except OSError as failure:
        return None, [findings.from_os_error(failure, where)]
    if speed is None:
        what = "too little to read for measuring the disk's speed."
        return None, [findings.note("machine", what, where)]
    return _speed_facts(speed), _speed_findings(speed, where)


def space(folder: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    """How much room is left on the disk behind a folder."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as failure:
        return None, [findings.from_os_error(failure, str(folder))]
    what = f"{usage.free / _GB:.1f} of {usage.total / _GB:.1f} GB are free on its disk."
    facts = {"total": usage.total, "free": usage.free}
    if usage.free < _LITTLE_SPACE:
        fix = "Free some: conversations that are kept on disk, logs and downloads need room."
        return facts, [findings.warning("machine", what, str(folder), fix)]
    return facts, [findings.ok("machine", what, str(folder))]


def _speed_facts(speed: Speed) -> dict[str, Any]:
    return {
        "bytes_per_second": round(speed.bytes_per_second),
        "bytes": speed.bytes,
        "seconds": round(speed.seconds, 3),
        "direct": speed.direct,
    }


def _speed_findings(speed: Speed, where: str) -> list[Finding]:
    way = "direct reads" if speed.direct else "reads through the page cache, so perhaps less"
    rate = speed.bytes_per_second / _GB
    found = [findings.ok("machine", f"the disk delivers {rate:.2f} GB/s ({way}).", where)]
    if speed.bytes_per_second < _SLOW_DISK:
        what = f"{rate:.2f} GB/s are little for experts that are read from disk."
        fix = "Move the model to a faster drive; `coli plan MODEL` says what to expect here."
        found.append(findings.warning("machine", what, where, fix))
    if not speed.direct:
        what = "this file system has no direct reads: experts pass through the page cache."
        found.append(findings.note("machine", what, where, "Prefer ext4, XFS, APFS or NTFS."))
    return found
