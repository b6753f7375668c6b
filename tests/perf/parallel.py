"""Rows about several sequences in one step: total tokens per second beside what sharing allows.

For: `run.py`. Not for: whether the answers are equal (`tests/engine/test_parallel.py`).

A step of n sequences reads the union of their experts once. So, if bytes are all that counts, n
sequences are faster than one by `n * bytes of one / bytes of the union`: from disk the experts that
were not in the cache, in memory the dense weights and all experts. Both are computed from the
routing that the engine recorded in the very run, and rates are compared with those of one sequence
in the same process. On SmolLM2, which has no experts, the peer computes as many sequences in one
batch; the figures are tokens per second of CPU time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from colibri.models.model import Model
from tests.perf.driver import Driver
from tests.perf.rows import Row, Timing, cpu_rate, rate_row, wall_rate
from tests.perf.stream import ROUTINGS, stream_engine, stream_threads, synthetic_model

if TYPE_CHECKING:
    from tests.perf.run import Bench

WIDTHS = (4, 8)
SHARE = 25
PROMPT = 16
CACHED_CONTEXT = 512
DENSE_CONTEXT = 4096  # of the peer, for all its sequences
DENSE_PROMPT = 64
BOUND_TARGET = ">= 90 % of the bound"
PEER_TARGET = ">= 2x"

Answer = Mapping[str, Any]


def parallel_rows(bench: Bench) -> Iterator[Row]:
    """From disk, cached, and the dense model beside the peer."""
    for routing in ROUTINGS:
        names = [f"parallel{n}_stream_{routing}" for n in WIDTHS]
        if bench.wants(*names):
            yield from _streamed(bench, routing)
    if bench.wants(*(f"parallel{n}_cached" for n in WIDTHS)):
        yield from _cached(bench)
    if bench.wants("parallel8_smollm2"):
        yield _dense(bench)


def _streamed(bench: Bench, routing: str) -> Iterator[Row]:
    model = synthetic_model(bench, routing)
    with stream_engine(bench, model, SHARE, max(WIDTHS)) as run:
        answers = _measure(bench, run.driver, 8 if bench.quick else 24)
        for n in WIDTHS:
            yield bound_row(
                f"parallel{n}_stream_{routing}",
                answers[1],
                answers[n],
                0,
                run.expert_bytes,
                {**run.bounds, "trace": f"this run, synthetic routing {ROUTINGS[routing]}"},
            )


def _cached(bench: Bench) -> Iterator[Row]:
    model = synthetic_model(bench, "uniform")
    expert, dense = _sizes(model)
    command = [sys.executable, "-m", "tests.perf.stream_driver", str(model.files.folder), "0"]
    command += [str(CACHED_CONTEXT), str(max(WIDTHS)), str(stream_threads()), "-"]
    with Driver("ours", command, bench.build / "bench-stream.log") as driver:
        answers = _measure(bench, driver, 8 if bench.quick else 24)
    for n in WIDTHS:
        detail = {"trace": "this run, synthetic routing uniform", "bounded_by": "memory bandwidth"}
        yield bound_row(f"parallel{n}_cached", answers[1], answers[n], dense, expert, detail)


def _measure(bench: Bench, driver: Driver, steps: int) -> dict[int, list[Answer]]:
    """Steps of one, four and eight sequences, taking turns."""
    driver.call("ready", sessions=max(WIDTHS), tokens=PROMPT, seed=3)
    answers: dict[int, list[Answer]] = {n: [] for n in (1, *WIDTHS)}
    for turn in range(3 if bench.quick else 5):
        for n, found in answers.items():
            answer = driver.call("parallel", sessions=n, steps=steps, seed=100 * turn + n)
            if turn:  # the first turn fills the cache
                found.append(answer)
    return answers


def _sizes(model: Model) -> tuple[int, int]:
    """Bytes of one expert, and of all that every token reads."""
    routed = [t for t in model.tensors if ".mlp.experts." in t.name]
    rest = [t for t in model.tensors if ".mlp.experts." not in t.name]
    dense = sum(
        t.bytes + max(t.scale_bytes, 0) for t in rest if t.name != "model.embed_tokens.weight"
    )
    return 3 * sum(t.bytes + max(t.scale_bytes, 0) for t in routed) // len(routed), dense


def step_bytes(answer: Answer, dense: int, expert: int) -> float:
    """Bytes that a step had to move: what is dense and the union of experts or, of a streamed
    model, the experts of it that were not at hand.
    """
    missed = answer["expert_misses"] / max(answer["expert_lookups"], 1)
    return float(dense + answer["union"] * expert * (1 if dense else missed))


def bound_row(
    name: str,
    alone: Sequence[Answer],
    together: Sequence[Answer],
    dense: int,
    expert: int,
    detail: Mapping[str, Any],
) -> Row:
    """Total tokens per second beside the bound: the rate of one sequence times what sharing saves.

    `dense` 0 = the disk is what counts, by wall time; in memory it is CPU time. Neighbouring turns
    are compared.
    """
    threads = stream_threads()

    def rate(answer: Answer) -> float:
        timing = Timing(answer["tokens"], answer["wall"], answer["cpu"])
        return cpu_rate(timing, threads) if dense else wall_rate(timing)

    rates, bounds, shares = [], [], []
    for one, many in zip(alone, together, strict=True):
        n = many["tokens"] / many["steps"]
        saved = n * step_bytes(one, dense, expert) / step_bytes(many, dense, expert)
        rates.append(rate(many))
        bounds.append(rate(one) * saved)
        shares.append(rates[-1] / bounds[-1])
    return Row(
        name=name,
        unit="tok/s of CPU time" if dense else "tok/s of wall time",
        ours=median(rates),
        limit=median(bounds),
        share_of_limit=median(shares),
        runs=len(rates),
        threads=threads,
        target=BOUND_TARGET,
        detail={
            **detail,
            "one_tok_s": [rate(one) for one in alone],
            "samples": rates,
            "bounds": bounds,
            "experts_of_one": median(one["union"] for one in alone),
            "experts_of_union": median(many["union"] for many in together),
            "hit_rate_one": [_hits(one) for one in alone],
            "hit_rate": [_hits(many) for many in together],
            "read_gb_per_step": [
                many["expert_bytes_read"] / many["steps"] / 1e9 for many in together
            ],
            "wait_share": [many["disk_wait_ns"] / 1e9 / many["wall"] for many in together],
            "cpu_seconds_per_token": [many["cpu"] / many["tokens"] for many in together],
            "cpu_seconds_per_token_one": [one["cpu"] / one["tokens"] for one in alone],
        },
    )


def _hits(answer: Answer) -> float:
    return 1 - float(answer["expert_misses"]) / max(answer["expert_lookups"], 1)


def _dense(bench: Bench) -> Row:
    """SmolLM2 with eight sequences, one thread, both sides."""
    weights = bench.weights("q4_0")
    steps, n = 16 if bench.quick else 64, 8
    timings: dict[str, list[Timing]] = {}
    with contextlib.ExitStack() as stack:
        sides = {"ours": stack.enter_context(bench.ours(weights, 1))}
        if bench.peer:
            for side, sequences in (("peer", f"{n}"), ("peer_unified", f"{n}u")):
                arguments = [str(weights.gguf), "1", str(DENSE_CONTEXT), "default", "-", sequences]
                command = [str(bench.peer_python), "-m", "tests.perf.peer_driver", *arguments]
                log = bench.build / "bench-peer.log"
                sides[side] = stack.enter_context(Driver("peer", command, log))
        for _ in range(bench.runs + 1):
            for side, driver in sides.items():
                timings.setdefault(side, []).append(
                    driver.time("parallel", sessions=n, prompt=DENSE_PROMPT, steps=steps, seed=7)
                )
    warm = {side: found[1:] for side, found in timings.items()}
    return rate_row("parallel8_smollm2", 1, warm, [], PEER_TARGET)
