"""The benchmark: `python -m tests.perf.run`, called by `make bench`.

Every rate is measured in interleaved runs (limit probe, ours, peer, limit probe, ours, peer, ...)
by persistent driver processes that hold one model each, and reported as medians of rates by CPU
time with wall-clock figures beside. Prints a table and writes a list of rows (`rows.Row`).

Later issues add a row by adding a function to GROUPS.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.perf import kl, peer_env, startup
from tests.perf.driver import ROOT, Driver
from tests.perf.moe_peer import moe_peer_rows
from tests.perf.native import Native
from tests.perf.parallel import parallel_rows
from tests.perf.policy import NAME as POLICY_MARGIN
from tests.perf.policy import policy_rows
from tests.perf.rows import (
    LOWER,
    Row,
    Timing,
    decode_limit,
    kernel_row,
    prefill_limit,
    rate_row,
    table,
    time_row,
    to_json,
)
from tests.perf.stream import stream_rows
from tests.perf.timers import timer_rows
from tests.perf.turns import turn_rows
from tests.perf.work import work_of

CONTEXT = 4096
DECODE_PROMPT = 64
KL_THREADS = 2
KL_LIMIT = 1e-3
DECODE_TARGET = ">= 1.5x; aim 85 % on 1, 70 % on 2 threads"
PREFILL_TARGET = {512: ">= 2x; aim 60 %", 2048: ">= 2.5x; aim 60 %"}


@dataclass
class Bench:
    """What was asked for, and the things that several groups of rows need."""

    build: Path
    patterns: list[str]
    peer: bool
    quick: bool
    runs: int
    native: Native

    def wants(self, *names: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for name in names for pattern in self.patterns)

    @cached_property
    def peer_python(self) -> Path:
        return peer_env.peer_python(self.build)

    def weights(self, kind: str) -> peer_env.Weights:
        return peer_env.weights(kind, lambda: self.peer_python)

    def ours(self, weights: peer_env.Weights, threads: int, precision: str = "fast") -> Driver:
        arguments = [str(weights.packed), str(threads), str(CONTEXT), precision]
        return self._driver("ours", sys.executable, arguments)

    def peer_driver(
        self, weights: peer_env.Weights, threads: int, environment: dict[str, str] | None = None
    ) -> Driver:
        arguments = [str(weights.gguf), str(threads), str(CONTEXT)]
        return self._driver("peer", str(self.peer_python), arguments, environment)

    def _driver(
        self,
        side: str,
        python: str,
        arguments: list[str],
        environment: dict[str, str] | None = None,
    ) -> Driver:
        command = [python, "-m", f"tests.perf.{side}_driver", *arguments]
        return Driver(side, command, self.build / f"bench-{side}.log", environment)


def rate_rows(bench: Bench) -> Iterator[Row]:
    """Decode and prefill, both weights, one and two threads."""
    for kind, suffix in (("q4_0", ""), ("q4_1", "_q41")):
        for threads in (1, 2):
            tail = suffix + ("" if threads == 1 else f"_t{threads}")
            decode = f"decode_smollm2{tail}"
            prefills = {n: f"prefill{n}_smollm2{tail}" for n in PREFILL_TARGET}
            if bench.wants(decode, *prefills.values()):
                yield from _rates_of(bench, kind, threads, decode, prefills)


def _rates_of(
    bench: Bench, kind: str, threads: int, decode: str, prefills: dict[int, str]
) -> Iterator[Row]:
    weights = bench.weights(kind)
    work = work_of(weights.gguf)
    with ExitStack() as stack:
        sides = {"ours": stack.enter_context(bench.ours(weights, threads))}
        if bench.peer:
            sides["peer"] = stack.enter_context(bench.peer_driver(weights, threads))
        if bench.peer and threads > 1:
            sides["peer_passive"] = stack.enter_context(
                bench.peer_driver(weights, threads, {"OMP_WAIT_POLICY": "passive"})
            )
        for driver in sides.values():  # touches every page that a timed run will use
            driver.time("prefill", tokens=max(PREFILL_TARGET), seed=1)
        if bench.wants(decode):
            tokens = 32 if bench.quick else 128
            runs = _interleave(bench, threads, sides, "decode", prompt=DECODE_PROMPT, tokens=tokens)
            limits = [decode_limit(work, probe["read"]) for probe in runs.probes]
            yield rate_row(decode, threads, runs.timings, limits, DECODE_TARGET)
        for length, name in prefills.items():
            if bench.wants(name):
                runs = _interleave(bench, threads, sides, "prefill", tokens=length)
                limits = [
                    prefill_limit(work, length, probe["vnni"], probe["bf16"])
                    for probe in runs.probes
                ]
                yield rate_row(name, threads, runs.timings, limits, PREFILL_TARGET[length])


@dataclass(frozen=True)
class Runs:
    """Interleaved runs: timings of each side, and the machine's limits around them."""

    timings: dict[str, list[Timing]]
    probes: list[dict[str, float]]


def _interleave(
    bench: Bench, threads: int, sides: dict[str, Driver], op: str, **arguments: int
) -> Runs:
    """Alternates probe, ours, peer, probe, ours, peer, ..."""
    runs = Runs({side: [] for side in sides}, [])
    for _ in range(bench.runs):
        runs.probes.append(bench.native.probe(threads))
        for side, driver in sides.items():
            runs.timings[side].append(driver.time(op, seed=7, **arguments))
    return runs


def kl_rows(bench: Bench) -> Iterator[Row]:
    """Fast path against f32 on equal weights; the peer's kernels against the same f32 logits."""
    for kind, suffix in (("q4_0", ""), ("q4_1", "_q41"), ("q8_0", "_q80"), ("int8", "_int8")):
        name = f"kl_smollm2{suffix}"
        if bench.wants(name):
            yield _kl_row(bench, kind, name)


def _kl_row(bench: Bench, kind: str, name: str) -> Row:
    weights = bench.weights(kind)
    with ExitStack() as stack:
        reference = stack.enter_context(bench.ours(weights, KL_THREADS, "f32"))
        others = {"ours": stack.enter_context(bench.ours(weights, KL_THREADS))}
        if bench.peer and kind != "int8":  # the peer has no such weights
            others["peer"] = stack.enter_context(bench.peer_driver(weights, 1))
        texts = kl.segments(others["ours"], 512 if bench.quick else 4096)
        result = kl.measure(reference, others, texts)
    ours = result["ours"]["mean_kl"]
    peer = result["peer"]["mean_kl"] if "peer" in result else None
    limit = KL_LIMIT if kind in {"q8_0", "int8"} else None
    return Row(
        name=name,
        unit="nats (mean KL)",
        ours=ours,
        peer=peer,
        ratio=peer / ours if peer is not None else None,
        limit=limit,
        share_of_limit=ours / limit if limit else None,
        runs=int(result["ours"]["positions"]),
        better=LOWER,
        target="< 1e-3" if limit else "no worse than the peer",
        detail=result,
    )


def startup_rows(bench: Bench) -> Iterator[Row]:
    """Time until something answers."""
    if bench.wants("ready_smollm2"):
        packed = bench.weights("q4_1").packed
        times = [startup.ready_seconds(packed, bench.build) for _ in range(bench.runs + 1)][1:]
        row = time_row("ready_smollm2", [wall for wall, _ in times], 2.0, "< 2 s")
        row.detail["cpu_samples"] = [cpu for _, cpu in times]
        yield row
    if bench.wants("import_cli"):
        seconds = [startup.import_seconds() for _ in range(max(5, bench.runs))]
        yield time_row("import_cli", seconds, 0.3, "< 0.3 s")
    if bench.wants("table_118k"):
        folder = bench.build / "bench-glm52-headers"
        seconds = [startup.table_seconds(folder) for _ in range(bench.runs + 1)][1:]
        yield time_row("table_118k", seconds, 5.0, "< 5 s")


def kernel_rows(bench: Bench) -> Iterator[Row]:
    """The bare kernels, as the native programs measure them."""
    if bench.wants("kernel_*"):
        for line in bench.native.kernels(bench.quick):
            yield kernel_row(line)


def cache_policy_rows(bench: Bench) -> Iterator[Row]:
    """Hit rates of the expert cache's policy."""
    yield from policy_rows(bench.wants(POLICY_MARGIN), bench.quick)


def second_turn_rows(bench: Bench) -> Iterator[Row]:
    """What the second turn of a conversation costs."""
    yield from turn_rows(
        bench.build, bench.wants, lambda: bench.weights("q4_1").packed, quick=bench.quick
    )


def clock_rows(bench: Bench) -> Iterator[Row]:
    """What it costs that the engine books the time of its steps."""
    yield from timer_rows(
        bench.build, bench.wants, lambda: bench.weights("q4_1").packed, quick=bench.quick
    )


GROUPS: tuple[Callable[[Bench], Iterator[Row]], ...] = (
    startup_rows,
    rate_rows,
    kl_rows,
    kernel_rows,
    stream_rows,
    moe_peer_rows,
    cache_policy_rows,
    second_turn_rows,
    parallel_rows,
    clock_rows,
)


def main() -> int:
    """Measures what was asked for; exit code 1 if a group failed (its error is printed)."""
    options = _parser().parse_args()
    build: Path = options.build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    runs = options.runs or (3 if options.quick else 7)
    bench = Bench(
        build=build,
        patterns=options.rows.split(","),
        peer=options.peer,
        quick=options.quick,
        runs=runs,
        native=Native(options.native),
    )
    rows: list[Row] = []
    failed = False
    for group in GROUPS:
        try:
            for row in group(bench):
                rows.append(row)
                print(table([row]).splitlines()[1], flush=True)
        except (RuntimeError, OSError, ValueError) as error:
            failed = True
            print(f"bench: {group.__name__}: {error}", file=sys.stderr, flush=True)
    cpu = peer_env.cpu_info()
    output = build / "bench.json"
    output.write_text(to_json(rows, cpu), encoding="utf-8")
    print(f"\n{cpu['model']}, {cpu['cores']} cores\n{table(rows)}\nwritten: {output}")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.run", description="Colibri benchmarks"
    )
    parser.add_argument(
        "--rows", default="*", help="comma-separated names, * allowed (default: all)"
    )
    parser.add_argument(
        "--peer", action=argparse.BooleanOptionalAction, default=True, help="compare with llama.cpp"
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter runs; rough figures")
    parser.add_argument("--runs", type=int, default=0, help="interleaved runs per row (default 7)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder for outputs")
    parser.add_argument(
        "--native",
        type=Path,
        default=ROOT / "build" / "bench-native",
        help="built native/bench programs",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
