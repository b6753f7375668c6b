"""How much memory one model, with all its processes, may take.

For: opening an engine, `coli plan` and `coli doctor`, which must agree. Not for: sharing it out
(`models.budget`). The smaller of what the system says is available and what is left of the control
groups' limits, minus a reserve for everyone else, plus what our own processes hold already. A probe
that fails or says nothing is never taken for a fact: it is warned about and the next one is asked;
without any answer there is no limit but a warning. Thread rule: pure functions over the system's
files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from colibri.sizes import Size

log = logging.getLogger(__name__)

# For everyone else: this much, or a part of what there is where that is less.
RESERVE_BYTES: Final = 512 << 20
_RESERVE_PART: Final = 16
# Larger numbers are how control groups write "no limit".
_UNLIMITED: Final = 1 << 60
_CGROUP_FILES: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP_LISTING: Final = Path("/proc/self/cgroup")
# Page cache in a group's usage: it gives way when the group's programs need memory.
_CGROUP_CACHE: Final = frozenset(
    {"active_file", "inactive_file", "total_active_file", "total_inactive_file"}
)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes for all processes of one model together, 0 = no limit, and where the figure came from.

    `origin` is flag, available, cgroup or unknown; `available` is what could be had at most, None
    when nobody says.
    """

    bytes: int
    origin: str
    available: int | None = None
    warnings: tuple[str, ...] = ()


def reserve(size: int) -> int:
    """What is left to everyone else of so much memory."""
    return min(RESERVE_BYTES, size // _RESERVE_PART)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() else None


def _own_groups(root: Path, listing: Path) -> list[Path]:
    """Folders of this process's control group and its parents, which all limit it."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [root]
    folders = {root}
    for line in lines:
        if line.count(":") < 2:  # noqa: PLR2004 - number:controllers:path
            continue
        _, controllers, path = line.split(":", 2)
        # Version 1 has a tree of its own for memory.
        bases = [root] if controllers != "memory" else [root / "memory"]
        for base in bases:
            folder = base / path.strip("/")
            folders.add(folder)
            folders.update(parent for parent in folder.parents if parent.is_relative_to(root))
    return sorted(folders)


def _reclaimable(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    pairs = [line.split() for line in lines]
    found = {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdecimal()}  # noqa: PLR2004
    totals = any(name.startswith("total_") for name in found)
    return sum(
        size
        for name, size in found.items()
        if name in _CGROUP_CACHE and name.startswith("total_") == totals
    )


def _limits(root: Path, listing: Path) -> list[tuple[int, int]]:
    """(limit, left of it) of every control group of ours that has a limit."""
    found = []
    for folder in _own_groups(root, listing):
        for limit_name, usage_name in _CGROUP_FILES:
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and limit < _UNLIMITED:
                used = max((usage or 0) - _reclaimable((folder / usage_name).parent), 0)
                found.append((limit, max(limit - used, 0)))
    return found


def cgroup_left(root: Path = _CGROUP_ROOT, listing: Path = _CGROUP_LISTING) -> int | None:
    """Bytes left of the tightest memory limit of our control groups; None without a limit."""
    return min((left for _, left in _limits(root, listing)), default=None)


def _psutil_figures() -> tuple[int, int]:
    """(all, available); 0 where psutil does not know."""
    try:
        found = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError) as error:
        log.warning("the available memory cannot be read (%s)", error)
        return 0, 0
    return found.total, found.available


def meminfo(path: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """(all, available) as the kernel writes it; 0 where it does not."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0, 0
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    free = found.get("MemFree", 0) + found.get("Cached", 0)
    return found.get("MemTotal", 0), found.get("MemAvailable", free)


def _sysconf_figures() -> tuple[int, int]:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_PHYS_PAGES") * page, 0
    except (AttributeError, ValueError, OSError):
        return 0, 0


def system_figures() -> tuple[int | None, int | None]:
    """(all, available) bytes by the first probe that knows; None is what no probe can tell."""
    total = available = 0
    for probe in (_psutil_figures, meminfo, _sysconf_figures):
        found_total, found_available = probe()
        if not found_available and not available:
            log.warning(
                "%s reports no available memory; asking another way",
                probe.__name__.strip("_").removesuffix("_figures"),
            )
        total, available = total or found_total, available or found_available
        if total and available:
            break
    return total or None, available or None


def _system_available() -> int | None:
    total, available = system_figures()
    if available is None and total is not None:
        log.warning(
            "no probe tells the available memory: half of all, %.1f GB, is taken", total / 2e9
        )
        # What a busy system leaves.
        return total // 2
    return available


def rss(pid: int | None = None) -> int:
    """Resident bytes of a process, ours without a pid; 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def total() -> int | None:
    """All memory there is for us: the machine's or the tightest control group's."""
    limits = [limit for limit, _ in _limits(_CGROUP_ROOT, _CGROUP_LISTING)]
    return min([size for size in (system_figures()[0], *limits) if size], default=None)


def allowance(wanted: Size | None = None, held: Iterable[int] = ()) -> Budget:
    """The budget: `wanted` if given, else measured. `held` is what our own processes hold already,
    which the system no longer counts as available.
    """
    own = sum(held)
    figures = {"available": _system_available(), "cgroup": cgroup_left()}
    known = {name: size for name, size in figures.items() if size is not None}
    origin = min(known, key=lambda name: known[name]) if known else "unknown"
    most = known[origin] + own if known else None
    if wanted is not None:
        size = wanted.of(total() or most or 0)
        warnings: tuple[str, ...] = ()
        if most is not None and size > most:
            warnings = (
                f"--ram asks for {size / 1e9:.2f} GB, but only {most / 1e9:.2f} GB can be had now: "
                "the system may swap or end the program.",
            )
        return Budget(bytes=size, origin="flag", available=most, warnings=warnings)
    if most is None:
        log.warning("the free memory is unknown: no limit is kept; choose --ctx with care")
        return Budget(
            bytes=0,
            origin="unknown",
            warnings=("the free memory is unknown: no limit is kept; set --ram.",),
        )
    return Budget(bytes=max(most - reserve(most), 1), origin=origin, available=most)


def budget() -> int:
    """Bytes that a model started now may hold; 0 when nothing could be found out: no limit."""
    return allowance().bytes
