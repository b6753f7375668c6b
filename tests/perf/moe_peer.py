"""Rows that put a Mixture-of-Experts model beside the peer: larger than memory, and fully cached.

For: `run.py`. Ours is the synthetic model of `stream.py`; the peer gets one of equal size and
shape (`moe_gguf.py`). Larger than memory: both decode inside a memory cgroup of 25 % or 50 % of the
model, cold, taking turns; the peer in its best mode (mapped, with a read-ahead of 128 KiB: more of
each page fault is useless) and once with the system's own read-ahead. Fully cached: ours and the
peer's best mode (loaded and repacked) in memory together, a few hundred tokens of context, one
thread, by CPU time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from colibri.models.model import Model
from tests.perf.driver import Driver
from tests.perf.moe_gguf import MoeShape, write_moe
from tests.perf.rows import Row, Timing, paired_ratio, rate_row
from tests.perf.stream import (
    GIGA,
    SHARES,
    drop_page_cache,
    memory_group,
    stream_engine,
    stream_threads,
    synthetic_model,
)

if TYPE_CHECKING:
    from tests.perf.run import Bench

TARGETS = {25: ">= 2.1x", 50: ">= 2.4x"}
READ_AHEAD_KIB = 128
# The cold start of either side is not what is compared.
WARM_TOKENS = 8
CACHED_PROMPT = 64
CACHED_TOKENS = 64
HEAD_WEIGHTS = 128


def moe_peer_rows(bench: Bench) -> Iterator[Row]:
    """Nothing without the peer, except the fully cached row's own figures."""
    for share in SHARES:
        name = f"stream{share}_uniform_vs_peer"
        if bench.peer and bench.wants(name):
            yield _streamed(bench, name, share)
    if bench.wants("moe_cached_decode"):
        yield _cached(bench)


def shape_like(model: Model) -> MoeShape:
    """The peer's model with the experts of ours."""
    g = model.geometry
    return MoeShape(
        layers=sum(g.layer_sparse or ()),
        hidden=g.hidden,
        experts=g.n_experts,
        top_k=g.experts_per_token,
        expert_ffn=g.expert_ffn,
        vocab=g.vocab,
        heads=g.hidden // HEAD_WEIGHTS,
        kv_heads=max(1, g.hidden // HEAD_WEIGHTS // 4),
    )


def step_bytes(model: Model) -> float:
    """Bytes of weights that one decoded token reads: dense ones, and its share of the experts."""
    g = model.geometry
    total = 0.0
    for tensor in model.tensors:
        if tensor.name == "model.embed_tokens.weight":
            continue
        size = tensor.bytes + max(tensor.scale_bytes, 0)
        routed = ".mlp.experts." in tensor.name
        total += size * (g.experts_per_token / g.n_experts if routed else 1)
    return total


def _gguf(bench: Bench, model: Model) -> Path:
    path = bench.build / "bench-models" / "peer-moe-q4_0.gguf"
    if not path.is_file():
        print(f"bench: writing {path.name}, once", flush=True)
        write_moe(path, shape_like(model))
    return path


@contextlib.contextmanager
def read_ahead(path: Path, kib: int) -> Iterator[bool]:
    """Sets the read-ahead of the file's device for a while; False where that is not allowed."""
    device = path.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        before = setting.read_text(encoding="ascii")
        setting.write_text(str(kib), encoding="ascii")
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        setting.write_text(before, encoding="ascii")


def _peer_streamed(bench: Bench, path: Path, limit: int, tokens: int) -> dict[str, Any]:
    drop_page_cache([path])
    with memory_group(limit) as processes:
        if processes is None:
            raise RuntimeError("the peer keeps no budget: this row needs a memory cgroup")
        arguments = [str(path), str(stream_threads()), "512", "mapped", processes]
        command = [str(bench.peer_python), "-m", "tests.perf.peer_driver", *arguments]
        with Driver("peer", command, bench.build / "bench-peer.log") as driver:
            return driver.call("decode", prompt=WARM_TOKENS, tokens=tokens, seed=7)


def _ours_streamed(bench: Bench, model: Model, share: int, tokens: int) -> dict[str, Any]:
    with stream_engine(bench, model, share) as run:
        run.driver.call("prefill", tokens=WARM_TOKENS, seed=7)
        return run.driver.call("decode", tokens=tokens, seed=7)


def _streamed(bench: Bench, name: str, share: int) -> Row:
    model = synthetic_model(bench, "uniform")
    path = _gguf(bench, model)
    tokens, rounds = (16, 1) if bench.quick else (32, 3)
    size = sum(item.stat().st_size for item in model.paths)
    ours, peer = [], []
    with read_ahead(path, READ_AHEAD_KIB) as small:
        for _ in range(rounds):
            ours.append(_ours_streamed(bench, model, share, tokens))
            peer.append(_peer_streamed(bench, path, size * share // 100, tokens))
    default = _peer_streamed(bench, path, size * share // 100, tokens // 2)
    return streamed_row(name, TARGETS[share], ours, peer, default, small_read_ahead=small)


def streamed_row(
    name: str,
    target: str,
    ours: Sequence[Mapping[str, Any]],
    peer: Sequence[Mapping[str, Any]],
    default: Mapping[str, Any],
    *,
    small_read_ahead: bool,
) -> Row:
    """Tokens per second of wall time: the disk is the bottleneck, so CPU time says nothing."""

    def rate(answer: Mapping[str, Any]) -> float:
        return float(answer["tokens"] / answer["wall"])

    fastest = [max(rate(answer), rate(default)) for answer in peer]
    return Row(
        name=name,
        unit="tok/s of wall time",
        ours=median(map(rate, ours)),
        peer=median(fastest),
        ratio=paired_ratio([rate(answer) for answer in ours], fastest),
        runs=len(ours),
        threads=stream_threads(),
        target=target,
        detail={
            "ours_samples": [rate(answer) for answer in ours],
            "peer_samples": [rate(answer) for answer in peer],
            "peer_default_read_ahead": rate(default),
            "peer_small_read_ahead_possible": small_read_ahead,
            "ours_gb_per_token": [
                answer["expert_bytes_read"] / answer["tokens"] / GIGA for answer in ours
            ],
        },
    )


def _cached(bench: Bench) -> Row:
    model = synthetic_model(bench, "uniform")
    path = _gguf(bench, model) if bench.peer else None
    ours_command = [sys.executable, "-m", "tests.perf.stream_driver", str(model.files.folder)]
    ours_command += ["0", "512", "1", "1", "-"]
    timings: dict[str, list[Timing]] = {"ours": [], "peer": []}
    limits = []
    with contextlib.ExitStack() as stack:
        log = bench.build
        ours = stack.enter_context(Driver("ours", ours_command, log / "bench-stream.log"))
        peer = None
        if path is not None:
            arguments = [str(path), "1", "512", "loaded"]
            command = [str(bench.peer_python), "-m", "tests.perf.peer_driver", *arguments]
            peer = stack.enter_context(Driver("peer", command, log / "bench-peer.log"))
            peer.time("decode", prompt=CACHED_PROMPT, tokens=CACHED_TOKENS, seed=7)
        ours.call("prefill", tokens=CACHED_PROMPT, seed=7)
        ours.time("decode", tokens=CACHED_TOKENS, seed=7)
        for _ in range(bench.runs):
            limits.append(bench.native.probe(1)["read"] / step_bytes(model))
            ours.call("prefill", tokens=CACHED_PROMPT, seed=7)
            timings["ours"].append(ours.time("decode", tokens=CACHED_TOKENS, seed=7))
            if peer is not None:
                arguments_ = {"prompt": CACHED_PROMPT, "tokens": CACHED_TOKENS, "seed": 7}
                timings["peer"].append(peer.time("decode", **arguments_))
    target = ">= 1.3x and 70 % (aim 80 %)"
    return rate_row("moe_cached_decode", 1, timings, limits, target)
