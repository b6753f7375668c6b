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


def tokenizer_json() -> str:
    """A tokenizer for the fixtures' 100 ids: three special tokens, printable ASCII, white space."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokens = ["<unk>", "<s>", "</s>", *map(chr, range(33, 127)), "Ġ", "Ċ", "ĉ"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": tokens[i], "special": True, **flags} for i in range(3)]
    vocab = {token: i for i, token in enumerate(tokens)}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level | {"use_regex": True},
            "post_processor": None,
            "decoder": byte_level | {"use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )
