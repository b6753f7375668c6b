"""Writes the fixtures as flat dumps, so that the C tests run the oracle without Python.

    python -m tests.oracle.flatdump OUT_DIR

One file per fixture, OUT_DIR/<name>.dump, holds geometry, tensor table, tensor data, prompts,
expected logits and greedy tokens; `native/tests/flatdump.c` reads it. Files are renamed into place,
so that a test never meets half of one. Little-endian numbers; offsets from the start of the file:

    header    char magic[8] = "CLBDUMP1"
              u32 n_tensors, n_prompts, n_layers, n_fields
              u64 geometry, sparse, indexer, tensors, prompts, file_bytes
    geometry  f64[n_fields]: the scalar fields of colibri_geometry from `family` on, in its order
    sparse    u8[n_layers], indexer u8[n_layers]; offset 0 = none
    tensors   n_tensors of: u64 name (NUL-terminated), i32 format, layout, group, 0, i64 rows, cols,
              u64 data, bytes, scales, scale_bytes (offset 0 = no scales)
    prompts   n_prompts of: u32 n_prompt, n_greedy, u64 tokens (i32, prompt then greedy), u64 logits
              (f32 [n_prompt + n_greedy, vocab])

Numbers are 8-byte aligned; tensor data lies wherever it falls, as in a safetensors file.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import msgspec
import numpy as np

from colibri.engine.table import Geometry
from colibri.models.container import ModelFiles, open_folder

from . import fixture
from .fixture import Prompt

MAGIC = b"CLBDUMP1"
HEADER = struct.Struct("<8s4I6Q")
TENSOR = struct.Struct("<Q4i2q4Q")
PROMPT = struct.Struct("<2I2Q")
FLAGS = ("layer_sparse", "layer_indexer")


class _Writer:
    """Grows the file's bytes; `add` returns the offset at which it placed them."""

    def __init__(self) -> None:
        self.bytes = bytearray(HEADER.size)

    def add(self, data: bytes, align: int = 8) -> int:
        self.bytes += b"\0" * (-len(self.bytes) % align)
        at = len(self.bytes)
        self.bytes += data
        return at


def _fields(geometry: Geometry) -> bytes:
    values = msgspec.structs.asdict(geometry)
    return struct.pack(
        f"<{len(values) - len(FLAGS)}d", *(float(v) for k, v in values.items() if k not in FLAGS)
    )


def _tensors(out: _Writer, files: ModelFiles) -> bytes:
    blobs = [path.read_bytes() for path in files.paths]
    records = b""
    for t in files.tensors:
        scales = 0
        data = out.add(blobs[t.file][t.offset : t.offset + t.bytes], 1)
        if t.scale_file >= 0:
            end = t.scale_offset + t.scale_bytes
            scales = out.add(blobs[t.scale_file][t.scale_offset : end], 1)
        name = out.add(t.name.encode() + b"\0", 1)
        kind = (int(t.format), int(t.layout), t.group, 0)
        records += TENSOR.pack(name, *kind, t.rows, t.cols, data, t.bytes, scales, t.scale_bytes)
    return records


def write(path: Path, files: ModelFiles, prompts: list[Prompt]) -> None:
    """Writes one dump; replaces an older one."""
    g, out = files.geometry, _Writer()
    records = _tensors(out, files)
    prompt_records = b""
    for p in prompts:
        tokens = out.add(np.array(p.tokens, "<i4").tobytes())
        logits = out.add(np.ascontiguousarray(p.logits, "<f4").tobytes())
        prompt_records += PROMPT.pack(len(p.prompt), len(p.greedy), tokens, logits)
    fields = _fields(g)
    at = (
        out.add(fields),
        out.add(g.layer_sparse) if g.layer_sparse else 0,
        out.add(g.layer_indexer) if g.layer_indexer else 0,
        out.add(records),
        out.add(prompt_records),
    )
    counts = (len(files.tensors), len(prompts), g.n_layers, len(fields) // 8)
    HEADER.pack_into(out.bytes, 0, MAGIC, *counts, *at, len(out.bytes))
    part = path.with_suffix(".tmp")
    part.write_bytes(out.bytes)
    part.replace(path)


def write_all(folder: Path) -> list[Path]:
    """Writes a dump of every fixture into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in fixture.NAMES:
        one = fixture.load(name)
        paths.append(folder / f"{name}.dump")
        write(paths[-1], open_folder(one.model), one.prompts)
    return paths


if __name__ == "__main__":
    for written in write_all(Path(sys.argv[1])):
        print(written)
