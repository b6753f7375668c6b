"""Synthetic routing traces: which experts a router of a given kind asks for, step after step.

For: tests and benchmarks of the cache policy (`models.policy`). Not for: models; the routing of a
synthetic model comes from its own weights (`models.synthetic`). Threads: pure functions; the same
arguments give the same trace.

    uniform    every expert equally often
    zipf:S     an expert's frequency falls with its rank to the power S
    drifting   frequencies wander: an expert is in fashion for some hundred steps
    sticky     a step keeps most of the experts of the step before, as consecutive tokens do
    phases     the topic changes all at once, every so many steps
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.experts import Records
from colibri.errors import UsageError
from colibri.models.trace import HEAD, Trace

# The set that the policy is held to.
KINDS: Final = (
    "uniform",
    "zipf:0.5",
    "zipf:0.8",
    "zipf:1.2",
    "drifting",
    "drifting:40",
    "sticky",
    "sticky:0.9",
    "phases",
)
_DRIFT_STEPS: Final = 200.0
_DRIFT_SPREAD: Final = 1.5  # deviation of the log frequencies
_STICKY_KEEP: Final = 0.7
_STICKY_SKEW: Final = 0.5
_PHASE_STEPS: Final = 150.0
_PHASE_SKEW: Final = 1.0
_CERTAIN: Final = 1e3  # log weight of an expert that stays

Floats = NDArray[np.float64]
Experts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingShape:
    """How many steps, layers, experts of a layer, and experts of a step."""

    steps: int = 600
    layers: int = 8
    experts: int = 64
    top_k: int = 4


def parse_kind(text: str) -> tuple[str, float]:
    """Kind and parameter of `kind` or `kind:number`. Raises UsageError for what is neither."""
    limits = {
        "uniform": (0.0, 0.0, 0.0),
        "zipf": (1.0, 0.0, 3.0),
        "drifting": (_DRIFT_STEPS, 1.0, 1e6),
        "sticky": (_STICKY_KEEP, 0.0, 1.0),
        "phases": (_PHASE_STEPS, 1.0, 1e6),
    }
    kind, colon, number = text.partition(":")
    if kind in limits:
        default, low, high = limits[kind]
        try:
            value = float(number) if colon else default
        except ValueError:
            value = -1.0
        if low <= value <= high:
            return kind, value
    raise UsageError(
        f"{text!r} is no kind of routing.",
        hint="Choose uniform, zipf:S, drifting, drifting:STEPS, sticky, sticky:KEPT or phases.",
    )


def trace(kind: str, shape: RoutingShape | None = None, seed: int = 1) -> Trace:
    """A trace of decode steps, one row each, over all layers."""
    shape = shape or RoutingShape()
    name, value = parse_kind(kind)
    random = np.random.default_rng(seed)
    steps = {
        "uniform": lambda: _steady(0.0, shape, random),
        "zipf": lambda: _steady(value, shape, random),
        "drifting": lambda: _drifting(value, shape, random),
        "sticky": lambda: _sticky(value, shape, random),
        "phases": lambda: _phases(int(value), shape, random),
    }[name]()
    words = np.empty((shape.steps, shape.layers, HEAD + shape.top_k), np.int32)
    words[:, :, 0] = np.arange(shape.steps)[:, None]
    words[:, :, 1] = np.arange(shape.layers)
    words[:, :, 2] = 1
    words[:, :, 3] = shape.top_k
    for step in range(shape.steps):
        words[step, :, HEAD:] = next(steps)
    return Trace(kind, shape.layers, shape.experts, words.reshape(-1))


def with_prompt(plain: Trace, before_step: int) -> Trace:
    """The trace with a long prompt passing through all experts before a step."""
    records: Records = plain.records
    cut = next((at for at in plain.starts() if records[at] >= before_step), len(records))
    all_experts = list(range(plain.experts))
    prompt = [
        word
        for layer in range(plain.layers)
        for word in (before_step, layer, 4096, plain.experts, *all_experts)
    ]
    whole = np.concatenate([records[:cut], np.array(prompt, np.int32), records[cut:]])
    return Trace(f"{plain.name}+prompt", plain.layers, plain.experts, whole)


def _draw(log_weights: Floats, top_k: int, random: np.random.Generator) -> Experts:
    """Draws without replacement along the last axis: the largest of log weight + Gumbel noise."""
    noisy = log_weights + random.gumbel(size=log_weights.shape)
    found: Experts = np.argpartition(-noisy, top_k - 1, axis=-1)[..., :top_k]
    return found


def _zipf(skew: float, shape: RoutingShape, random: np.random.Generator) -> Floats:
    """Log weights [layers, experts], each layer with ranks of its own."""
    weights = -skew * np.log(np.arange(1, shape.experts + 1))
    ranks = np.stack([random.permutation(shape.experts) for _ in range(shape.layers)])
    result: Floats = weights[ranks]
    return result


def _steady(skew: float, shape: RoutingShape, random: np.random.Generator) -> Iterator[Experts]:
    weights = _zipf(skew, shape, random)
    while True:
        yield _draw(weights, shape.top_k, random)


def _drifting(steps: float, shape: RoutingShape, random: np.random.Generator) -> Iterator[Experts]:
    kept = np.exp(-1 / steps)
    fashion = random.standard_normal((shape.layers, shape.experts))
    while True:
        change = random.standard_normal(fashion.shape)
        fashion = kept * fashion + np.sqrt(1 - kept * kept) * change
        yield _draw(_DRIFT_SPREAD * fashion, shape.top_k, random)


def _sticky(keep: float, shape: RoutingShape, random: np.random.Generator) -> Iterator[Experts]:
    weights = _zipf(_STICKY_SKEW, shape, random)
    now = _draw(weights, shape.top_k, random)
    while True:
        stays = np.zeros(weights.shape)
        kept = np.where(random.random(now.shape) < keep, _CERTAIN, 0.0)
        np.put_along_axis(stays, now, kept, axis=-1)
        now = _draw(weights + stays, shape.top_k, random)
        yield now


def _phases(steps: int, shape: RoutingShape, random: np.random.Generator) -> Iterator[Experts]:
    while True:
        weights = _zipf(_PHASE_SKEW, shape, random)
        for _ in range(steps):
            yield _draw(weights, shape.top_k, random)
