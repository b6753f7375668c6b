"""A tiny dense model for tests of the binding: seeded random weights in one flat file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colibri.engine.table import EngineOptions, Family, Format, Geometry, Tensor
from colibri.families import LLAMA

VOCAB = 40
CONTEXT = 64
GEOMETRY = Geometry(
    family=Family.LLAMA,
    n_layers=2,
    hidden=32,
    vocab=VOCAB,
    ffn=48,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    max_position=512,
    norm_eps=1e-5,
    rope_theta=10000.0,
)
OPTIONS = EngineOptions(threads=1, context=CONTEXT)


def write(folder: Path, seed: int = 1) -> tuple[list[Path], list[Tensor]]:
    """The weights file (as the one path of the list) and its table, everything in f32."""
    random = np.random.default_rng(seed)
    tensors, parts, offset = [], [], 0
    for spec in LLAMA.tensors(GEOMETRY):
        values = random.normal(1.0 if spec.rows == 1 else 0.0, 0.2, spec.rows * spec.cols)
        data = values.astype("<f4").tobytes()
        tensors.append(Tensor(spec.name, Format.F32, spec.rows, spec.cols, 0, offset, len(data)))
        parts.append(data)
        offset += len(data)
    path = folder / "weights.bin"
    path.write_bytes(b"".join(parts))
    return [path], tensors
