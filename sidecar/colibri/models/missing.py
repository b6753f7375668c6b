"""Saying what an incomplete model lacks, so that one message is enough to fix it.

For: opening containers and the check command. A user whose download lacks layers 36 to 71 must read
that, not the name of one tensor. Thread rule: pure functions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from colibri.families.base import TensorSpec

_NUMBERED: Final = re.compile(
    r"(?P<stem>.*?)(?P<number>\d{1,9})(?:-of-(?P<total>\d{1,9}))?\.safetensors\Z"
)
# Numbers of layers and experts in a tensor's name.
_NUMBERS: Final = re.compile(r"(?<=\.)\d+(?=\.)")
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
    torn: dict[str, list[int]] = defaultdict(list)
    for layer in sorted(lost):
        specs = lost[layer]
        if len(specs) < totals[layer]:
            torn[f"{len(specs)} of {totals[layer]} tensors{_which(specs)}"].append(layer)
    for what, layers in list(torn.items())[:_SHOWN]:
        one = len(layers) == 1
        subject = f"layer {layers[0]} lacks" if one else f"layers {ranges(layers)} lack each"
        problems.append(f"{subject} {what}")
    rest = [layer for layers in list(torn.values())[_SHOWN:] for layer in layers]
    if rest:
        problems.append(f"and {len(rest)} more incomplete layers: {ranges(rest)}")
    return problems


def lost_bytes(expected: Sequence[TensorSpec], sizes: Mapping[str, int]) -> int:
    """About how many bytes are missing, by the sizes of the same tensors in other layers.

    One without counterpart counts as a byte per number.
    """
    alike: dict[str, int] = {}
    for name, size in sizes.items():
        alike.setdefault(_NUMBERS.sub("#", name), size)
    total = 0
    for spec in expected:
        if spec.name in sizes:
            continue
        kind = _NUMBERS.sub("#", spec.name)
        total += alike.get(kind, spec.rows * spec.cols)
        total += alike.get(kind + ".qs", 0) + alike.get(kind + "_scale_inv", 0)
    return total


def _which(specs: list[TensorSpec]) -> str:
    experts = sorted({spec.expert for spec in specs if spec.expert >= 0})
    if experts and all(spec.expert >= 0 for spec in specs):
        return f" (of experts {ranges(experts)})"
    names = [spec.name.split(".", 3)[-1] for spec in specs]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - three are enough
    return f" ({', '.join(names[:3])}{more})"


@dataclass(frozen=True, slots=True)
class Absent:
    """Shards that are not there. `names` may be empty when only their kind (`pattern`) is known.

    `expected` is the number of files there should be, 0 when nothing tells it.
    """

    sentence: str
    names: tuple[str, ...] = ()
    expected: int = 0
    pattern: str = "*.safetensors"


def absent_files(names: Collection[str], indexed: Collection[str] = ()) -> list[Absent]:
    """Gaps in the numbering of the shards, and files that an index or manifest names but the
    folder lacks.

    Only meaningful when tensors are missing: a numbering that starts at 1 is normal for some
    writers, so a shard 0 is then named as possibly lost.
    """
    absent = sorted(set(indexed) - set(names))
    if absent:
        more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        sentence = (
            f"the index names {len(set(indexed))} files, {len(absent)} of them are absent: "
            f"{', '.join(absent[:_SHOWN])}{more}"
        )
        return [Absent(sentence, tuple(absent), len(set(indexed)))]
    groups: dict[str, dict[int, str]] = defaultdict(dict)
    totals: dict[str, int] = {}
    for name in names:
        match = _NUMBERED.match(name)
        if match is None:
            continue
        groups[match["stem"]][int(match["number"])] = match["number"]
        if match["total"]:
            totals[match["stem"]] = int(match["total"])
    return [
        gap
        for stem, found in sorted(groups.items())
        if (gap := _gaps(stem, found, totals.get(stem))) is not None
    ]


def missing_files(names: Collection[str], indexed: Collection[str] = ()) -> list[str]:
    """`absent_files` as sentences."""
    return [gap.sentence for gap in absent_files(names, indexed)]


def _gaps(stem: str, found: dict[int, str], total: int | None) -> Absent | None:
    last = max(found)
    if max(last, total or 0) > _MOST_NUMBERS:
        return None
    wanted = range(1, total + 1) if total else range(last + 1)
    gaps = [number for number in wanted if number not in found]
    pattern = f"{stem}*.safetensors"
    if not gaps:
        return Absent(
            f"{pattern} is numbered without gaps up to {last}; files above it may be missing",
            pattern=pattern,
        )
    digits = len(found[last])
    ending = f"-of-{total:0{digits}d}" if total else ""
    lost = tuple(f"{stem}{number:0{digits}d}{ending}.safetensors" for number in gaps)
    example = lost[0].removesuffix(".safetensors")
    if gaps == [0]:
        return Absent(
            f"the {len(found)} files {pattern} are numbered from {min(found)} to {last}; "
            f"{example}.safetensors is absent, {len(found) + 1} are expected if the numbering "
            f"starts at 0",
            lost,
            len(found) + 1,
            pattern,
        )
    return Absent(
        f"of {pattern} the numbers {ranges(gaps)} are absent "
        f"(found {len(found)}, expected {len(wanted)}; first absent: {example})",
        lost,
        len(wanted),
        pattern,
    )
