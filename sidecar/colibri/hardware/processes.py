"""Which programs hold this machine's memory.

For: saying by whom memory is used before a plan or a test blames the machine. Not for: ending
anything. Thread rule: pure functions over the system's tables.
"""

from __future__ import annotations

import os

import msgspec
import psutil


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its resident bytes, and `ours` for Colibri's own engine or server."""

    pid: int
    name: str
    bytes: int
    ours: bool

    def __str__(self) -> str:
        whose = "Colibri" if self.ours else self.name
        return f"{whose} (process {self.pid}) {self.bytes / 1e9:.1f} GB"


def memory_holders(count: int = 3, least: int = 256 << 20) -> list[Holder]:
    """The largest other processes with at least `least` resident bytes, largest first."""
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is None or memory.rss < least or process.info["pid"] == os.getpid():
            continue
        found.append((memory.rss, process))
    found.sort(key=lambda item: -item[0])
    return [
        Holder(
            pid=process.info["pid"],
            name=process.info["name"] or "unknown",
            bytes=size,
            ours=_is_ours(process),
        )
        for size, process in found[:count]
    ]


def _is_ours(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return False
    return "colibri.engine.child" in line or "--engine-child" in line or "coli serve" in line
