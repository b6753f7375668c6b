"""Hostile `experts.json`: what is taken makes sense as columns and leaves as JSON for a page."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri.models.atlas"]):
    from colibri.models.atlas import file

import msgspec

from tests.fuzz import target

LAYERS, COLS = range(1, 20), 32
# What a page computes with exactly.
_EXACT = 1 << 53


class Keys(msgspec.Struct):
    """The file's own names of its experts; what else stands in it may be anything."""

    experts: dict[str, msgspec.Raw]


def read(data: bytes, folder: Path) -> None:
    """Reads it as the server does, from a model's folder."""
    (folder / file.NAME).write_bytes(data)
    columns, _ = file.AtlasFile().get(folder, str(folder), ("make one",))
    places = list(zip(columns.layer, columns.expert, strict=True))
    if any(before >= after for before, after in itertools.pairwise(places)):
        raise RuntimeError(f"experts twice or out of order: {places}")
    if {f"{layer}:{expert}" for layer, expert in places} != set(
        msgspec.json.decode(data, type=Keys).experts
    ):
        raise RuntimeError(f"experts under other names: {places}")
    topics, count = len(columns.categories), len(places)
    for name in ("top", "specialist", "entropy"):
        if len(getattr(columns, name)) != count:
            raise RuntimeError(f"{name} has another length")
    if len(columns.affinity) != count * topics or any(not 0 <= n < topics for n in columns.top):
        raise RuntimeError("affinity or top does not fit the topics")
    if columns.tokens is not None and len(columns.tokens) != count:
        raise RuntimeError("tokens has another length")
    check_numbers(json.loads(msgspec.json.encode(file.answer(columns, "model", COLS))))
    file.check_shape(columns, LAYERS, COLS, "model")


def check_numbers(value: Any) -> None:
    """Raises RuntimeError for a number that a page cannot read as it stands."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            check_numbers(inner)
    elif isinstance(value, int | float) and not -_EXACT < value < _EXACT:
        raise RuntimeError(f"a number that no page can read: {value}")


ENTRY = {"affinity": {"x": 0.75, "y": 0.25}, "entropy": 0.811, "top": "x", "label": "generalist"}
MEASUREMENT = {
    "measured_at_ms": 5,
    "topics": 2,
    "prompts": 3,
    "tokens": 4,
    "counted": "both",
    "left_out": 0,
    "specialists": 1,
    "mutual_information_bits": 0.25,
    "chance_bits": 0.01,
    "prediction": 0.5,
    "prediction_chance": 0.5,
    "agreement": None,
    "sets": {"a": {"found": 0.25, "chance": 0.01}},
}
SEEDS: dict[str, Any] = {
    "plain": {"categories": ["x", "y"], "experts": {"1:2": ENTRY, "10:0": ENTRY}},
    "measured": {
        "categories": ["x", "y"],
        "experts": {"1:2": {**ENTRY, "label": "specialist: x", "tokens": 9}},
        "measurement": MEASUREMENT,
    },
}
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 0.5, -0.5, 1e308, 1e-320, "", "x",
    "y", "1:2", "1:3", "01:2", "1\u0663:2", "13:2", "1:2\n", "specialist: y", "\ud800", "\u2028",
    "x" * 100, [], {}, ["x"], {"x": 1}, {"x": 1, "y": 0}, {"x": 0.95},
)  # fmt: skip


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Changes the JSON somewhere inside, or the bytes. What is refused early teaches little, so it
    often begins with a seed again.
    """
    rng = random.Random(seed)  # noqa: S311
    if rng.random() < 0.1:
        return atheris.Mutate(data, most)
    value = copy.deepcopy(SEEDS[rng.choice(list(SEEDS))])
    if rng.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(data)
    for _ in range(rng.randrange(1, 4)):
        change(value, rng)
    return json.dumps(value).encode()[:most]


def change(value: Any, rng: random.Random) -> None:
    """Replaces, renames, copies or removes something in a JSON value."""
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(list(keys))
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
            value = value[key]
            continue
        what = rng.choice(("odd", "odd", "odd", "copy", "rename", "remove"))
        if what == "odd":
            value[key] = copy.deepcopy(rng.choice(ODD))
        elif what == "remove":
            del value[key]
        elif isinstance(value, list):
            value.append(copy.deepcopy(value[key]))
        else:
            name = rng.choice([odd for odd in ODD if isinstance(odd, str)])
            value[name] = copy.deepcopy(value[key]) if what == "copy" else value.pop(key)
        return


if __name__ == "__main__":
    seeds = {name: json.dumps(seed).encode() for name, seed in SEEDS.items()}
    target.run(read, seeds, mutate)
