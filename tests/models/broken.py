"""A small published GLM container of many shards, to be broken by tests in one way each."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from colibri.findings import Finding
from colibri.models import synthetic
from colibri.models.synthetic import Shape

# Several groups of 64 columns per row, so that the format of every tensor is certain.
SHAPE = Shape(layers=6, hidden=256, experts=4, top_k=2, expert_ffn=128, layout="published")
SHARD_BYTES = 100_000


def make(folder: Path, shape: Shape = SHAPE) -> Path:
    """Writes the container; about thirty files out-00000.safetensors and on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "_SHARD_BYTES", SHARD_BYTES)
        synthetic.make(folder, shape)
    return folder


def copy(source: Path, target: Path) -> Path:
    """A copy that a test may break."""
    shutil.copytree(source, target)
    return target


def shards(folder: Path) -> list[Path]:
    """The weight files in order."""
    return sorted(folder.glob("*.safetensors"))


def header(path: Path) -> dict[str, Any]:
    """The header of a weight file."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        found: dict[str, Any] = json.loads(stream.read(length))
    return found


def data_start(path: Path) -> int:
    """Where the data of a weight file begins."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
    return 8 + int(length)


def rewrite(path: Path, keep: set[str]) -> None:
    """Leaves only the tensors named in a weight file."""
    old, start = header(path), data_start(path)
    data = path.read_bytes()[start:]
    new: dict[str, Any] = {}
    parts = b""
    for name, entry in old.items():
        if name in keep:
            begin, end = entry["data_offsets"]
            new[name] = {**entry, "data_offsets": [len(parts), len(parts) + end - begin]}
            parts += data[begin:end]
    text = json.dumps(new).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + parts)


def drop_layers(folder: Path, layers: set[int]) -> None:
    """Takes every tensor of some layers out of all files."""
    for path in shards(folder):
        names = set(header(path)) if path.stat().st_size else set()
        lost = {name for name in names if _layer(name) in layers}
        if lost:
            rewrite(path, names - lost)


def _layer(name: str) -> int:
    words = name.split(".")
    return int(words[2]) if words[:2] == ["model", "layers"] else -1


def errors(found: list[Finding]) -> list[Finding]:
    """Only the errors; every one must say where and what to do."""
    for item in found:
        if item.level in ("error", "warning"):
            assert item.where, item
            assert item.fix, item
    return [item for item in found if item.level == "error"]
