"""How much memory the engine may take.

For: opening an engine. Not for: measuring what it took (the supervisor does).
The smaller of what the system says is available and what is left of the control groups' limits,
minus a reserve for everyone else. A probe that fails or says nothing is never taken for a fact:
the next one is asked, and without any answer there is no limit but a warning. Thread rule: pure
functions over the system's files.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import psutil

log = logging.getLogger(__name__)

RESERVE_BYTES: Final = 512 << 20
# Larger numbers are how control groups write "no limit".
_UNLIMITED: Final = 1 << 60
_CGROUP_FILES: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


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
    names = [line.split(":", 2)[2].strip("/") for line in lines if line.count(":") >= 2]  # noqa: PLR2004
    folders = {root}
    for name in names:
        folder = root / name
        folders.add(folder)
        folders.update(parent for parent in folder.parents if parent.is_relative_to(root))
    return sorted(folders)


def cgroup_left(
    root: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes left of the tightest memory limit of our control groups; None without a limit."""
    left = []
    for folder in _own_groups(root, listing):
        for limit_name, usage_name in _CGROUP_FILES:
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and limit < _UNLIMITED:
                left.append(limit - (usage or 0))
    return max(0, min(left)) if left else None


def _system_available() -> int | None:
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError) as error:
        log.warning("the available memory cannot be read (%s)", error)
        return None
    # Some systems report no "available"; half of all memory is what a busy one leaves.
    return memory.available or memory.total // 2 or None


def budget() -> int:
    """Bytes that the engine may hold; 0 when nothing could be found out, which means no limit."""
    known = [size for size in (_system_available(), cgroup_left()) if size is not None]
    if not known:
        log.warning("the free memory is unknown: no limit is kept; choose --ctx with care")
        return 0
    return max(min(known) - RESERVE_BYTES, 1)
