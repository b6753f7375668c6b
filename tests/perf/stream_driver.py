"""Our engine under test on a model larger than its memory; see `stream.py`, which starts
    python -m tests.perf.stream_driver MODEL BUDGET CONTEXT SESSIONS THREADS CGROUP

CGROUP is the `cgroup.procs` file of a memory cgroup that this process enters before it loads
anything, or "-". Commands and answers as in `driver_loop.py`; every answer carries the differences
of the engine's counters and the process's memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNTERS = (
    "expert_lookups",
    "expert_misses",
    "expert_bytes_read",
    "guessed_bytes",
    "useful_bytes",
    "wasted_bytes",
    "disk_wait_ns",
)


def memory() -> dict[str, int]:
    """Bytes resident now and at most so far, of the whole process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")}


def main() -> None:
    model_path, budget, context, sessions, threads, cgroup = sys.argv[1:7]
    if cgroup != "-":
        Path(cgroup).write_text(str(os.getpid()), encoding="ascii")

    from colibri.engine.ffi import Engine
    from colibri.engine.table import EngineOptions
    from colibri.models.model import open_model
    from tests.perf.driver_loop import fixed_ids, serve, timed

    model = open_model(Path(model_path))
    before = memory()
    options = EngineOptions(
        memory_budget=int(budget),
        context=int(context),
        sessions=int(sessions),
        threads=int(threads),
        io_mode=int(os.environ.get("COLI_BENCH_IO_MODE", "0")),
        no_prefetch=os.environ.get("COLI_BENCH_NO_PREFETCH") == "1",
    )
    engine = Engine(model.paths, model.geometry, model.tensors, options)
    session = engine.session()

    def counted(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        start = engine.snapshot()
        answer = work()
        end = engine.snapshot()
        counters = {name: getattr(end, name) - getattr(start, name) for name in COUNTERS}
        return {**answer, **counters, **memory()}

    def prefill(command: dict[str, Any]) -> dict[str, Any]:
        ids = fixed_ids(command["tokens"], engine.vocab, command["seed"])
        session.truncate(0)
        return counted(lambda: timed(len(ids), lambda: session.prefill(ids)))

    def decode(command: dict[str, Any]) -> dict[str, Any]:
        """Appends `tokens` tokens one by one to what the session holds."""
        ids = fixed_ids(command["tokens"], engine.vocab, command["seed"])

        def run() -> None:
            for token in ids:
                engine.decode([session], [token])

        return counted(lambda: timed(len(ids), run))

    def status(command: dict[str, Any]) -> dict[str, Any]:
        snapshot = engine.snapshot()
        return {
            **memory(),
            "before_open": before["VmRSS"],
            **{name: getattr(snapshot, name) for name in snapshot.__struct_fields__},
        }

    serve({"prefill": prefill, "decode": decode, "status": status})


if __name__ == "__main__":
    main()
