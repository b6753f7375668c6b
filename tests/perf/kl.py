"""How far fast kernels are from f32 on the same weights: KL divergence and top-1 agreement.

For: `run.py`. The reference is our own `--precision f32` path on the same packed weights; compared
are our fast path and the peer's kernels, position by position, on texts of two kinds: our own
documents and text that the model sampled itself from fixed seeds.
Not for: the error of quantizing (weights are equal on both sides here).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.perf.driver import ROOT, Driver

Logits = npt.NDArray[np.float32]

SEGMENT = 256
SAMPLE_SEEDS = tuple(range(1, 65))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "CHANGELOG.md", "LICENSE")


@dataclass
class Divergence:
    """Sums over positions; `mean_kl` in nats, `agreement` in [0, 1]."""

    positions: int = 0
    kl_sum: float = 0.0
    kl_max: float = 0.0
    agree: int = 0
    values: list[float] = field(default_factory=list)

    def add(self, reference: Logits, other: Logits) -> None:
        """Adds [n, vocab] logits of the same positions."""
        kl = kl_rows(reference, other)
        self.positions += len(kl)
        self.kl_sum += float(kl.sum())
        self.kl_max = max(self.kl_max, float(kl.max()))
        self.agree += int((reference.argmax(axis=1) == other.argmax(axis=1)).sum())
        self.values.extend(float(v) for v in kl)

    def summary(self) -> dict[str, float]:
        return {
            "mean_kl": self.kl_sum / self.positions,
            "max_kl": self.kl_max,
            "p99_kl": float(np.quantile(self.values, 0.99)),
            "top1_agreement": self.agree / self.positions,
            "positions": self.positions,
        }


def kl_rows(reference: Logits, other: Logits) -> npt.NDArray[np.float64]:
    """KL(reference || other) in nats of each row of logits, computed in f64."""
    p = log_softmax(reference)
    q = log_softmax(other)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1))


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Row-wise log-probabilities in f64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def segments(ours: Driver, positions: int) -> list[list[int]]:
    """Token segments of SEGMENT tokens, half documents and half sampled, `positions` in total."""
    count = max(2, -(-positions // SEGMENT))
    documents = _document_ids(ours)
    chosen = [documents[i * SEGMENT : (i + 1) * SEGMENT] for i in range((count + 1) // 2)]
    chosen = [ids for ids in chosen if len(ids) == SEGMENT]
    for seed in SAMPLE_SEEDS[: count - len(chosen)]:
        chosen.append(ours.call("sample", seed=seed, tokens=SEGMENT)["ids"])
    return chosen


def _document_ids(ours: Driver) -> list[int]:
    text = ""
    for pattern in DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            text += path.read_text(encoding="utf-8") + "\n\n"
    ids: list[int] = ours.call("tokenize", text=text)["ids"]
    return ids


def measure(reference: Driver, others: dict[str, Driver], texts: list[list[int]]) -> dict[str, Any]:
    """Divergence of each driver's logits from the reference's over `texts`."""
    sums = {name: Divergence() for name in others}
    with tempfile.TemporaryDirectory(prefix="colibri-kl-") as folder:
        path = Path(folder) / "logits.npy"
        for ids in texts:
            reference.call("logits", ids=ids, out=str(path))
            expected = np.load(path)
            for name, driver in others.items():
                driver.call("logits", ids=ids, out=str(path))
                sums[name].add(expected, np.load(path))
    return {name: divergence.summary() for name, divergence in sums.items()}
