"""Our engine under test on a model larger than its memory; see `stream.py`, which starts
    python -m tests.perf.stream_driver MODEL BUDGET CONTEXT SESSIONS THREADS CGROUP

CGROUP is the `cgroup.procs` file of a memory cgroup that this process enters before it loads
anything, or "-". Commands and answers as in `driver_loop.py`; every answer carries the differences
of the engine's counters and the process's memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colibri.engine.ffi import Session

COUNTERS = (
    "expert_lookups",
    "expert_misses",
    "expert_bytes_read",
    "guessed_bytes",
    "useful_bytes",
    "wasted_bytes",
    "disk_wait_ns",
)

TRACE_WORDS = 1 << 22


def memory() -> dict[str, int]:
    """Bytes resident now and at most so far, of the whole process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")}


def distinct(words: Sequence[int]) -> int:
    """Experts of all records: step, layer, rows, how many, and so many different experts."""
    total, at = 0, 0
    while at < len(words):
        total += words[at + 3]
        at += 4 + words[at + 3]
    return total


def main() -> None:
    model_path, budget, context, sessions, threads, cgroup = sys.argv[1:7]
    if cgroup != "-":
        Path(cgroup).write_text(str(os.getpid()), encoding="ascii")

    from colibri.engine import experts
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

    side_by_side: list[Session] = []

    def ready(command: dict[str, Any]) -> dict[str, Any]:
        """Gives each of `sessions` sessions a prompt of its own, of `tokens` tokens."""
        session.truncate(0)
        while len(side_by_side) < command["sessions"]:
            side_by_side.append(engine.session())
        for number, one in enumerate(side_by_side):
            one.truncate(0)
            one.prefill(fixed_ids(command["tokens"], engine.vocab, command["seed"] + number))
        return {}

    def parallel(command: dict[str, Any]) -> dict[str, Any]:
        """`steps` steps of the first `sessions` sessions together, tokens all different; tells how
        many different experts of a layer a step asked for, as the engine's trace has it.
        """
        steps, batch = command["steps"], side_by_side[: command["sessions"]]
        ids = fixed_ids(steps * len(batch), engine.vocab, command["seed"])
        experts.record(engine, TRACE_WORDS)

        def run() -> None:
            for step in range(steps):
                engine.decode(batch, ids[step * len(batch) : (step + 1) * len(batch)])

        answer = counted(lambda: timed(len(ids), run))
        records, lost = experts.recorded(engine, TRACE_WORDS)
        experts.record(engine, 0)
        if lost:
            raise RuntimeError(f"the trace lost {lost} records")
        return {**answer, "steps": steps, "union": distinct(records.tolist()) / steps}

    def status(command: dict[str, Any]) -> dict[str, Any]:
        snapshot = engine.snapshot()
        return {
            **memory(),
            "before_open": before["VmRSS"],
            **{name: getattr(snapshot, name) for name in snapshot.__struct_fields__},
        }

    serve(
        {
            "prefill": prefill,
            "decode": decode,
            "ready": ready,
            "parallel": parallel,
            "status": status,
        }
    )


if __name__ == "__main__":
    main()
