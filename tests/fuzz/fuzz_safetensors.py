"""Hostile safetensors headers: raw bytes, or a JSON header with a right length and some data."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri"]):
    from colibri.models import safetensors

from tests.fuzz import target

DATA_BYTES = 64


def read(data: bytes, folder: Path) -> None:
    framed = data[1:]
    if data[:1] < b"\x20":
        content = framed
    else:
        content = struct.pack("<Q", len(framed)) + framed + bytes(DATA_BYTES)
    (folder / "out-00000.safetensors").write_bytes(content)
    safetensors.read_folder(folder)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SEEDS = {
    "plain": {"a.weight": entry("F32", [2, 4], 0, 32), "b": entry("BF16", [4], 32, 40)},
    "published": {
        "a.weight": entry("U8", [16], 0, 16),
        "a.weight.qs": entry("F32", [4], 16, 32),
        "__metadata__": {"colibri.fmt": '{"a.weight": "int4"}'},
    },
}

if __name__ == "__main__":
    target.run(read, {name: b"~" + json.dumps(seed).encode() for name, seed in SEEDS.items()})
