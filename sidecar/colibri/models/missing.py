"""Saying what an incomplete model lacks, so that one message is enough to fix it.

For: opening containers and the check command. A user whose download lacks layers 36 to 71 must read
that, not the name of one tensor. Thread rule: pure functions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from colibri.families.base import TensorSpec

_NUMBERED: Final = re.compile(
    r"(?P<stem>.*?)(?P<number>\d{1,9})(?:-of-(?P<total>\d{1,9}))?\.safetensors\Z"
)
_MOST_NUMBERS: Final = 100_000
_SHOWN: Final = 8


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7` for {0, 1, 2, 3, 7}."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def describe(expected: Sequence[TensorSpec], present: Collection[str]) -> list[str]:
    """One sentence for everything absent outside the layers, one for whole layers, one per torn
    layer.
    """
    totals: dict[int, int] = defaultdict(int)
    lost: dict[int, list[TensorSpec]] = defaultdict(list)
    outside: list[str] = []
    for spec in expected:
        if spec.layer is not None:
            totals[spec.layer] += 1
        if spec.name in present:
            continue
        if spec.layer is None:
            outside.append(spec.name)
        else:
            lost[spec.layer].append(spec)
    problems: list[str] = []
    if outside:
        problems.append(f"missing: {', '.join(outside)}")
    whole = [layer for layer, specs in lost.items() if len(specs) == totals[layer]]
    if whole:
        problems.append(
            f"all tensors of {len(whole)} of {len(totals)} layers are missing: {ranges(whole)}"
        )
    torn = [layer for layer in sorted(lost) if len(lost[layer]) < totals[layer]]
    for layer in torn[:_SHOWN]:
        specs = lost[layer]
        problems.append(
            f"layer {layer} lacks {len(specs)} of {totals[layer]} tensors{_which(specs)}"
        )
    if len(torn) > _SHOWN:
        problems.append(f"and {len(torn) - _SHOWN} more incomplete layers: {ranges(torn[_SHOWN:])}")
    return problems


def _which(specs: list[TensorSpec]) -> str:
    experts = sorted({spec.expert for spec in specs if spec.expert >= 0})
    if experts and all(spec.expert >= 0 for spec in specs):
        return f" (of experts {ranges(experts)})"
    names = [spec.name.split(".", 3)[-1] for spec in specs]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - three are enough
    return f" ({', '.join(names[:3])}{more})"


def missing_files(names: Collection[str], indexed: Collection[str] = ()) -> list[str]:
    """Gaps in the numbering of the shards, and files that an index names but the folder lacks.

    Only meaningful when tensors are missing: a numbering that starts at 1 is normal for some
    writers, so a shard 0 is then named as possibly lost.
    """
    problems: list[str] = []
    absent = sorted(set(indexed) - set(names))
    if absent:
        more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        problems.append(
            f"the index names {len(set(indexed))} files, {len(absent)} of them are absent: "
            f"{', '.join(absent[:_SHOWN])}{more}"
        )
        return problems
    groups: dict[str, dict[int, str]] = defaultdict(dict)
    totals: dict[str, int] = {}
    for name in names:
        match = _NUMBERED.match(name)
        if match is None:
            continue
        groups[match["stem"]][int(match["number"])] = match["number"]
        if match["total"]:
            totals[match["stem"]] = int(match["total"])
    for stem, found in sorted(groups.items()):
        problems.extend(_gaps(stem, found, totals.get(stem)))
    return problems


def _gaps(stem: str, found: dict[int, str], total: int | None) -> list[str]:
    last = max(found)
    if max(last, total or 0) > _MOST_NUMBERS:
        return []
    wanted = range(1, total + 1) if total else range(last + 1)
    gaps = [number for number in wanted if number not in found]
    if not gaps:
        return [
            f"{stem}*.safetensors is numbered without gaps up to {last}; "
            f"files above it may be missing"
        ]
    example = f"{stem}{gaps[0]:0{len(found[last])}d}"
    if gaps == [0]:
        return [
            f"the {len(found)} files {stem}*.safetensors are numbered from {min(found)} to {last}; "
            f"{example}.safetensors is absent, {len(found) + 1} are expected if the numbering "
            f"starts at 0"
        ]
    return [
        f"of {stem}*.safetensors the numbers {ranges(gaps)} are absent "
        f"(found {len(found)}, expected {len(wanted)}; first absent: {example})"
    ]
