"""Rows about a model larger than memory: how much of the disk's speed reaches the experts.

For: `run.py`. A synthetic GLM-shaped model of 7.2 GB (made once, in the build folder) is decoded
and prefilled by a fresh engine process inside a memory cgroup of 25 % or 50 % of the model's size,
its page cache dropped first. The limit is what fio reads with direct I/O from the same files, in
blocks of one expert at the same depth, measured before and after in the same run.

Where no cgroup can be made the engine's own budget is the only bound; `detail` says so. With direct
I/O that makes no difference to the engine, whose reads do not pass the page cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri.engine.table import Tensor
from colibri.models.model import Model, open_model
from tests.perf.driver import ROOT, Driver
from tests.perf.rows import LOWER, Row

if TYPE_CHECKING:
    from tests.perf.run import Bench

MODEL_GB = 7.2
ROUTINGS = {"uniform": "uniform", "zipf08": "zipf:0.8"}
SHARES = (25, 50)
CONTEXT = 8192
PROMPT = 16
PREFILL = 4096
# Interpreter, libraries and the model's index, which are ours to hold but not the engine's.
RESERVE = 200_000_000
FLIGHT_BYTES = 64 << 20  # what the engine keeps in flight
SHARE_TARGET = ">= 85 % of fio"
GIGA = 1e9


@dataclass(frozen=True)
class Disk:
    """fio's direct reads in bytes/s before and after a run."""

    before: float
    after: float

    @property
    def rate(self) -> float:
        return (self.before + self.after) / 2


def stream_rows(bench: Bench) -> Iterator[Row]:
    """Decoding at both limits and routings, and a long prompt at the smaller one."""
    for routing in ROUTINGS:
        for share in SHARES:
            name = f"stream{share}_{routing}"
            if bench.wants(f"{name}_disk_share", f"{name}_decode"):
                yield from _decode(bench, name, routing, share)
    if bench.wants("prefill4096_stream", "prefill4096_stream_rate"):
        yield from _prefill(bench, "uniform", SHARES[0])


def _decode(bench: Bench, name: str, routing: str, share: int) -> Iterator[Row]:
    model = synthetic_model(bench, routing)
    with stream_engine(bench, model, share) as run:
        run.driver.call("prefill", tokens=PROMPT, seed=3)
        # Right before: shared disks save up for bursts while they idle.
        before = _fio(model, run.expert_bytes)
        answer = run.driver.call("decode", tokens=24 if bench.quick else 64, seed=7)
        disk = Disk(before, _fio(model, run.expert_bytes))
    yield from decode_rows(name, answer, disk, run.bounds)


def decode_rows(
    name: str, answer: Mapping[str, Any], disk: Disk, bounds: Mapping[str, Any]
) -> Iterator[Row]:
    """Share of the disk, and tokens per second beside what the disk would allow."""
    read, tokens, wall = answer["expert_bytes_read"], answer["tokens"], answer["wall"]
    detail = {
        **bounds,
        "gb_per_token": read / tokens / GIGA,
        "read_gb_per_s": read / wall / GIGA,
        "fio_gb_per_s": [disk.before / GIGA, disk.after / GIGA],
        "hit_rate": 1 - answer["expert_misses"] / max(answer["expert_lookups"], 1),
        "guessed_gb": answer["guessed_bytes"] / GIGA,
        "useful_gb": answer["useful_bytes"] / GIGA,
        "wasted_gb": answer["wasted_bytes"] / GIGA,
        "wait_share": answer["disk_wait_ns"] / 1e9 / wall,
        "cpu_seconds_per_token": answer["cpu"] / tokens,
        "peak_rss": answer["VmHWM"],
    }
    yield Row(
        name=f"{name}_disk_share",
        unit="GB/s read",
        ours=read / wall / GIGA,
        limit=disk.rate / GIGA,
        share_of_limit=read / wall / disk.rate,
        runs=1,
        target=SHARE_TARGET,
        detail=detail,
    )
    limit = disk.rate / (read / tokens) if read else None
    yield Row(
        name=f"{name}_decode",
        unit="tok/s of wall time",
        ours=tokens / wall,
        limit=limit,
        share_of_limit=tokens / wall / limit if limit else None,
        runs=1,
        detail=detail,
    )


def _prefill(bench: Bench, routing: str, share: int) -> Iterator[Row]:
    model = synthetic_model(bench, routing)
    with stream_engine(bench, model, share) as run:
        before = _fio(model, run.expert_bytes)
        answer = run.driver.call("prefill", tokens=PREFILL, seed=5)
        disk = Disk(before, _fio(model, run.expert_bytes))
    peaks = bench.native.probe(stream_threads())
    linear, attention = prefill_work(model, PREFILL)
    compute = PREFILL / (linear / peaks["vnni"] + attention / peaks["bf16"])
    yield from prefill_rows(answer, run.expert_bytes, run.n_experts, disk, compute, run.bounds)


def prefill_rows(
    answer: Mapping[str, Any],
    expert_bytes: int,
    n_experts: int,
    disk: Disk,
    compute: float,
    bounds: Mapping[str, Any],
) -> Iterator[Row]:
    """Bytes read per byte of the experts touched, and tokens per second beside the two limits."""
    touched = min(answer["expert_lookups"], n_experts) * expert_bytes
    read, rate = answer["expert_bytes_read"], answer["tokens"] / answer["wall"]
    by_disk = answer["tokens"] * disk.rate / read
    detail = {
        **bounds,
        "read_gb": read / GIGA,
        "touched_gb": touched / GIGA,
        "disk_limit_tok_s": by_disk,
        "compute_limit_tok_s": compute,
        "fio_gb_per_s": [disk.before / GIGA, disk.after / GIGA],
        "tok_per_cpu_s": answer["tokens"] / answer["cpu"],
        "wait_share": answer["disk_wait_ns"] / 1e9 / answer["wall"],
        "guessed_gb": answer["guessed_bytes"] / GIGA,
        "wasted_gb": answer["wasted_bytes"] / GIGA,
        "peak_rss": answer["VmHWM"],
    }
    yield Row(
        name="prefill4096_stream",
        unit="bytes read / bytes touched",
        ours=read / touched,
        limit=1.1,
        share_of_limit=read / touched / 1.1,
        runs=1,
        better=LOWER,
        target="<= 1.1",
        detail=detail,
    )
    limit = min(by_disk, compute)
    yield Row(
        name="prefill4096_stream_rate",
        unit="tok/s of wall time",
        ours=rate,
        limit=limit,
        share_of_limit=rate / limit,
        runs=1,
        detail=detail,
    )


def prefill_work(model: Model, tokens: int) -> tuple[float, float]:
    """Operations of a prompt: in matrices (head left out), and in causal latent attention."""
    g = model.geometry
    active = sum(
        t.rows * t.cols * (g.experts_per_token / g.n_experts if _is_expert(t) else 1)
        for t in model.tensors
        if t.rows > 1 and t.name.startswith("model.layers.")
    )
    pairs = tokens * (tokens + 1) / 2
    attention = 2.0 * g.n_layers * g.n_heads * (2 * g.kv_lora + g.qk_rope) * pairs
    return 2.0 * active * tokens, attention


def _is_expert(tensor: Tensor) -> bool:
    return ".mlp.experts." in tensor.name


# ---- engine, limit, disk -------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A started engine and what bounds it."""

    driver: Driver
    expert_bytes: int
    n_experts: int
    bounds: dict[str, Any]


@contextlib.contextmanager
def stream_engine(bench: Bench, model: Model, share: int, sessions: int = 1) -> Iterator[Run]:
    """Our engine in a memory cgroup of `share` percent of the model, page cache dropped; its budget
    has room for so many sessions.
    """
    size = sum(path.stat().st_size for path in model.paths)
    experts = [tensor.bytes for tensor in model.tensors if _is_expert(tensor)]
    limit = size * share // 100
    drop_page_cache(model.paths)
    with memory_group(limit) as processes:
        arguments = [str(model.files.folder), str(limit - RESERVE), str(CONTEXT)]
        arguments += [str(sessions), str(stream_threads()), processes or "-"]
        command = [sys.executable, "-m", "tests.perf.stream_driver", *arguments]
        with Driver("ours", command, bench.build / "bench-stream.log") as driver:
            status = driver.call("status")
            bounds = {
                "model_bytes": size,
                "limit": limit,
                "budget": limit - RESERVE,
                "bounded_by": "cgroup and budget" if processes else "budget only (no cgroup)",
                "expert_slots": status["expert_slots"],
                "rss_before_open": status["before_open"],
            }
            yield Run(driver, 3 * sum(experts) // len(experts), len(experts) // 3, bounds)


def stream_threads() -> int:
    return min(2, os.cpu_count() or 1)


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[str | None]:
    """A memory cgroup: the file to write a process id into; None where it is not allowed."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").is_file()
    folder = (root if unified else root / "memory") / f"colibri-bench-{os.getpid()}"
    bound = "memory.max" if unified else "memory.limit_in_bytes"
    try:
        folder.mkdir()
        (folder / bound).write_text(str(limit), encoding="ascii")
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield str(folder / "cgroup.procs")
    finally:
        with contextlib.suppress(OSError):  # empty once the driver has ended
            folder.rmdir()


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Pages stay charged to whoever read them first, so a warm cache would help us."""
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())  # pages not yet written stay
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _fio(model: Model, block: int) -> float:
    """Bytes/s of random direct reads from the model's largest file."""
    if shutil.which("fio") is None:
        raise RuntimeError("the stream rows compare with fio, which is not installed")
    path = max(model.paths, key=lambda item: item.stat().st_size)
    depth = min(max(FLIGHT_BYTES // block, 4), 32)
    options = {
        "filename": path,
        "size": path.stat().st_size,
        "bs": block // 4096 * 4096,
        "iodepth": depth,
        "rw": "randread",
        "direct": 1,
        "ioengine": "io_uring",
        "runtime": 5,
        "output-format": "json",
    }
    command = ["fio", "--name=read", "--readonly", "--time_based"]
    command += [f"--{name}={value}" for name, value in options.items()]
    # Buffers in huge pages, as ours are: pinning a block of 4 KiB pages costs half the rate.
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment
    )
    start = done.stdout.find("{")
    if done.returncode != 0 or start < 0:
        raise RuntimeError(f"fio failed ({done.returncode}): {done.stderr[-300:]}")
    rate = json.loads(done.stdout[start:])["jobs"][0]["read"]["bw_bytes"]
    return float(rate)


def synthetic_model(bench: Bench, routing: str) -> Model:
    """The benchmark's own model with this routing (a key of ROUTINGS), made once."""
    folder = bench.build / "bench-models" / routing
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < 1.2 * MODEL_GB * GIGA:
            raise RuntimeError(f"{free / GIGA:.1f} GB are free, {1.2 * MODEL_GB:.1f} are needed")
        command = [sys.executable, "-m", "colibri.cli", "bench", "make-model", str(folder)]
        command += ["--gb", str(MODEL_GB), "--routing", ROUTINGS[routing], "--quiet"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return open_model(folder)
