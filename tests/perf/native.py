"""The native bench programs: probes of the machine's limits and the bare kernels.

For: `run.py`. Each program prints JSON lines with `--json` (see `native/bench`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.perf.rows import json_lines

GIGA = 1e9
PROGRAMS = ("bench_linear", "bench_attention")


class Native:
    """Programs below a CMake build folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def probe(self, threads: int) -> dict[str, float]:
        """Bytes/s read in 2 MB pages, int8 operations/s and bf16 flop/s of `threads` together."""
        rates = {
            str(line["name"]): float(line["value"]) * GIGA
            for line in self._lines("bench_probes", "--threads", str(threads))
        }
        missing = [name for name in ("read", "vnni", "bf16") if not rates.get(name)]
        if missing:
            raise RuntimeError(f"bench_probes has no figure for {', '.join(missing)}")
        return rates

    def kernels(self, quick: bool) -> list[dict[str, Any]]:
        """Measurements of the bare kernels."""
        extra = ["--quick"] if quick else []
        lines = [line for program in PROGRAMS for line in self._lines(program, *extra)]
        # Their own probes are inside the limits already.
        return [line for line in lines if not str(line["name"]).startswith("probe_")]

    def _lines(self, program: str, *arguments: str) -> list[dict[str, Any]]:
        path = next(self._folder.rglob(program), None)
        if path is None:
            raise RuntimeError(f"{program} is not built below {self._folder}; run `make bench`")
        done = subprocess.run(
            [str(path), "--json", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed ({done.returncode}): {done.stderr[-500:]}")
        return json_lines(done.stdout)
