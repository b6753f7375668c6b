"""Experts that a checkpoint stores fused, one tensor per layer, seen as one tensor per expert.

For: opening folders. Some writers keep the experts of a layer as they lie in memory:
`mlp.experts.gate_up_proj` [experts, 2 * width, hidden], the rows of gate before those of up, and
`mlp.experts.down_proj` [experts, hidden, width]; FP8 ones have block scales beside
(`..._scale_inv`). An expert's part is a range of such a tensor, so nothing is copied. Thread rule:
`expand` changes the table it is given, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from colibri.families.base import TensorSpec
from colibri.families.values import show
from colibri.models.formats import FP8_BLOCK, ceil_div
from colibri.models.safetensors import DTYPE_BITS, Entry

SCALE_INV: Final = "_scale_inv"
_DTYPES: Final = ("F32", "BF16", "F16", "F8_E4M3")
_EXPERT: Final = re.compile(
    r"(?P<prefix>.*\.experts)\.(?P<expert>\d+)\.(?P<part>gate|up|down)_proj.weight\Z"
)
_FUSED: Final = re.compile(r".*\.experts\.(gate_up|down)_proj(\.weight)?\Z")


def expand(entries: dict[str, Entry], specs: Iterable[TensorSpec]) -> list[str]:
    """Adds an entry for every expert of `specs` that lies in a fused tensor, and takes that out.

    Returns a sentence for every fused tensor that cannot be cut; it is left as it is.
    """
    if not any(_FUSED.match(name) for name in entries):
        return []
    experts = [spec for spec in specs if spec.expert >= 0]
    problems: dict[str, str] = {}
    used: set[str] = set()
    counts: dict[str, int] = {}
    for spec in experts:
        prefix = spec.name.rsplit(".", 3)[0]
        counts[prefix] = max(counts.get(prefix, 0), spec.expert + 1)
    for spec in experts:
        match = _EXPERT.match(spec.name)
        if match is None or spec.name in entries:
            continue
        kind = "down_proj" if match["part"] == "down" else "gate_up_proj"
        name, whole = _find(entries, f"{match['prefix']}.{kind}")
        if whole is None or name in problems:
            continue
        halves = 1 if match["part"] == "down" else 2
        shape = (counts[match["prefix"]], halves * spec.rows, spec.cols)
        scale_name, scale = _scale(entries, name)
        problem = _problem(whole, scale, shape, halves)
        if problem:
            problems[name] = f"tensor {show(name)}: {problem}"
            continue
        used.update((name, scale_name))
        half = spec.expert * halves + (match["part"] == "up")
        entries[spec.name] = _part(whole, spec.name, half, (spec.rows, spec.cols))
        if scale is not None:
            grid = (ceil_div(spec.rows, FP8_BLOCK), ceil_div(spec.cols, FP8_BLOCK))
            scale_spec = spec.name + SCALE_INV
            entries[scale_spec] = _part(scale, scale_spec, half, grid)
    for name in used:
        entries.pop(name, None)
    return list(problems.values())


def _find(entries: dict[str, Entry], base: str) -> tuple[str, Entry | None]:
    for name in (base, base + ".weight"):
        if name in entries:
            return name, entries[name]
    return base, None


def _scale(entries: dict[str, Entry], name: str) -> tuple[str, Entry | None]:
    scale_name = name + SCALE_INV
    return scale_name, entries.get(scale_name)


def _problem(whole: Entry, scale: Entry | None, shape: tuple[int, int, int], halves: int) -> str:
    """Why a fused tensor cannot be cut into the experts of `shape`; empty when it can."""
    if whole.dtype not in _DTYPES:
        return (
            f"fused experts of dtype {whole.dtype} are not read; expected one tensor per expert, "
            f"or {', '.join(_DTYPES)}"
        )
    if whole.shape != shape:
        return f"its shape is {list(whole.shape)}, expected {list(shape)} from config.json"
    return _scale_problem(whole, scale, shape, halves) if whole.dtype == "F8_E4M3" else ""


def _scale_problem(
    whole: Entry, scale: Entry | None, shape: tuple[int, int, int], halves: int
) -> str:
    experts, rows, cols = shape
    grid = (experts, ceil_div(rows, FP8_BLOCK), ceil_div(cols, FP8_BLOCK))
    if scale is None:
        return f"its data is F8_E4M3, but its scales {show(whole.name + SCALE_INV)} are missing"
    if scale.dtype != "F32" or scale.shape != grid:
        return f"its scales are {scale.dtype} {list(scale.shape)}, expected F32 {list(grid)}"
    if halves > 1 and (rows // halves) % FP8_BLOCK:
        return (
            f"gate and up have {rows // halves} rows each, so they share a block of {FP8_BLOCK} "
            "rows and its scale; expected one tensor per expert"
        )
    return ""


def _part(whole: Entry, name: str, number: int, shape: tuple[int, int]) -> Entry:
    size = shape[0] * shape[1] * DTYPE_BITS[whole.dtype] // 8
    return replace(whole, name=name, shape=shape, offset=whole.offset + number * size, bytes=size)
