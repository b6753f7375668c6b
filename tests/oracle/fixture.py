"""The committed fixtures: where they are and what the oracle says about them.

For: the oracle tests and the flat dump. Not for: making them (`make_fixtures`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Array, read_safetensors

FOLDER = Path(__file__).parent / "fixtures"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))


@dataclass(frozen=True)
class Prompt:
    """One prompt of the oracle: `logits` f32 [len(prompt) + len(greedy), vocab], every position."""

    prompt: list[int]
    greedy: list[int]
    logits: Array

    @property
    def tokens(self) -> list[int]:
        """Prompt and greedy continuation together."""
        return self.prompt + self.greedy


@dataclass(frozen=True)
class Fixture:
    """A fixture's model folder, its prompts and the debug tensors of its oracle file."""

    name: str
    model: Path
    prompts: list[Prompt]
    tensors: dict[str, Array]


def load(name: str) -> Fixture:
    """Reads one fixture."""
    path = FOLDER / name
    raw = read_safetensors(path / "oracle.safetensors")
    tensors = {key: t.data.reshape(t.shape) for key, t in raw.items()}
    listed = json.loads((path / "oracle.json").read_text())["prompts"]
    prompts = [
        Prompt(p["prompt"], p["greedy"], tensors[f"p{i}.logits"]) for i, p in enumerate(listed)
    ]
    return Fixture(name, path / "model", prompts, tensors)
