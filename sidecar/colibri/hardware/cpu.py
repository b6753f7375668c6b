"""What the processor is and how much of it this process may use.

For: `coli doctor` and `coli tune`. Not for: choosing kernels, which the engine does itself. Thread
rule: pure functions over the system's files.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import msgspec
import psutil

_CPUINFO: Final = Path("/proc/cpuinfo")
_NAME_KEYS: Final = ("model name", "Model", "Hardware", "cpu model")


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the processor. `quota` is the number of cores a control group grants, None: all."""

    name: str
    architecture: str
    cores: int
    threads: int
    usable: int
    quota: float | None


def name(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's own name, else what Python says."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields = dict(reversed([_pair(line) for line in text.splitlines() if ":" in line]))
    found = next((fields[key] for key in _NAME_KEYS if fields.get(key)), "")
    return found or platform.processor() or platform.machine() or "unknown"


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def usable_cores() -> int:
    """Hardware threads that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(
    root: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Cores that the tightest control group grants; None without a limit."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    folders = {root, root / "cpu"}
    for line in lines:
        inner = line.split(":", 2)[-1].strip("/")
        for base in (root, root / "cpu"):
            folder = base / inner
            folders.update(p for p in (folder, *folder.parents) if p.is_relative_to(root))
    found = [grant for folder in folders if (grant := _grant(folder)) is not None]
    return min(found, default=None)


def _grant(folder: Path) -> float | None:
    try:
        words = (folder / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        try:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [(folder / item).read_text(encoding="ascii").strip() for item in names]
        except (OSError, UnicodeDecodeError):
            return None
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):  # noqa: PLR2004
        return None
    return int(words[0]) / int(words[1])


def probe() -> Cpu:
    """The facts of this machine; a count that cannot be read is that of the usable threads."""
    usable = usable_cores()
    try:
        cores = psutil.cpu_count(logical=False) or usable
    except (OSError, psutil.Error):
        cores = usable
    return Cpu(
        name=name(),
        architecture=platform.machine() or "unknown",
        cores=cores,
        threads=os.cpu_count() or usable,
        usable=usable,
        quota=quota(),
    )
