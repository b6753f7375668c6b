"""What a model's experts were used for so far: `.coli_usage`, the published text format.

For: the model's backend, which starts the expert cache with these counts and adds to them. Not for:
who is kept in memory (`native/src/policy.h`). Files come from other programs too: one that is
damaged or belongs to another model is set aside with a warning, never half-read. Threads: one
keeper per engine, driven by the engine's thread.

    -1 LAYERS EXPERTS      shape; -2 1 HASH: FNV-1a of the family's name. Both may be absent.
    LAYER EXPERT COUNT     a line for each count that is not 0

It lies in the folder that `--state-dir` names, else in the model's own folder if that can be
written, else in a folder for this model below the user's state. A file in the model's folder is
read as long as there is none at the place where counts are kept.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from colibri import paths, regular
from colibri.engine.experts import Counts
from colibri.errors import ModelError

log = logging.getLogger(__name__)

NAME: Final = ".coli_usage"
DAMAGED: Final = ".damaged"
_SHAPE: Final = -1
_ENGINE: Final = -2
_ENGINE_VERSION: Final = 1
_FIELDS: Final = 3
# A line of the largest models takes under 20 bytes.
_MOST_BYTES: Final = 64 << 20
_MOST_COUNT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What counts belong to: `layers` without and `mtp` of the drafting layers, and the family."""

    family: str
    layers: int
    mtp: int
    experts: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts [layers + mtp, experts], and the number of layers that the file's header gives."""

    counts: Counts
    header_layers: int


def fnv1a(text: str) -> int:
    """32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def empty(shape: ModelShape) -> Usage:
    return Usage(np.zeros((shape.layers + shape.mtp, shape.experts), np.int64), shape.layers)


def parse(text: str, shape: ModelShape) -> Usage:
    """Counts of a file. Raises ModelError with the line that is wrong."""
    counts = np.zeros((shape.layers + shape.mtp, shape.experts), np.int64)
    header_layers = shape.layers
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            first, second, third = (int(field) for field in fields)
        except ValueError:
            raise ModelError(f"line {number} is not `layer expert count`.", where=NAME) from None
        if first == _SHAPE:
            _check_shape(second, third, shape)
            header_layers = second
        elif first == _ENGINE:
            if second == _ENGINE_VERSION and third != fnv1a(shape.family):
                raise ModelError(f"the counts are not of a {shape.family} model.", where=NAME)
        elif not (
            0 <= first < len(counts) and 0 <= second < shape.experts and 0 <= third <= _MOST_COUNT
        ):
            raise ModelError(
                f"line {number} does not fit {len(counts)} layers of {shape.experts} experts.",
                where=NAME,
            )
        else:
            counts[first, second] = min(int(counts[first, second]) + third, _MOST_COUNT)
    return Usage(counts, header_layers)


def _check_shape(layers: int, experts: int, shape: ModelShape) -> None:
    if experts != shape.experts or not shape.layers <= layers <= shape.layers + shape.mtp:
        raise ModelError(
            f"the counts are of {layers} layers with {experts} experts, not "
            f"{shape.layers} with {shape.experts}.",
            where=NAME,
        )


def render(usage: Usage, shape: ModelShape) -> str:
    """The file's text. Counts of drafting layers widen the shape that a header gave."""
    layers, experts = np.nonzero(usage.counts)
    wide = int(layers.max()) + 1 if len(layers) else 0
    header = max(usage.header_layers, shape.layers + shape.mtp if wide > shape.layers else 0)
    lines = [
        f"{_SHAPE} {header} {shape.experts}",
        f"{_ENGINE} {_ENGINE_VERSION} {fnv1a(shape.family)}",
    ]
    lines += [
        f"{layer} {expert} {usage.counts[layer, expert]}"
        for layer, expert in zip(layers.tolist(), experts.tolist(), strict=True)
    ]
    return "\n".join(lines) + "\n"


# ---- places --------------------------------------------------------------------------------------


def place(model: Path, state_dir: str | None) -> Path:
    """Where the counts of the model in a folder are kept."""
    return paths.learnt_dir(model, state_dir) / NAME


def load(model: Path, where: Path, shape: ModelShape, *, only_look: bool = False) -> Usage:
    """The counts known so far; what is damaged is set aside with a warning, with `only_look` left
    where it is.
    """
    for path in (where, model.absolute() / NAME):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ModelError("the file is too large.", where=str(path))
            return parse(regular.read_file(path).decode("ascii"), shape)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, ModelError) as error:
            _set_aside(path, error, only_look)
    return empty(shape)


def _set_aside(path: Path, error: Exception, only_look: bool) -> None:
    reason = error.message if isinstance(error, ModelError) else str(error)
    aside = path.with_name(path.name + DAMAGED)
    if only_look:
        log.warning("%s cannot be used and is ignored: %s", path, reason)
        return
    try:
        path.replace(aside)
    except OSError:
        log.warning("%s cannot be used and is ignored: %s", path, reason)
    else:
        log.warning("%s cannot be used and is now %s: %s", path, aside.name, reason)


def save(where: Path, usage: Usage, shape: ModelShape) -> None:
    """Writes the counts, whole or not at all. Raises OSError."""
    where.parent.mkdir(parents=True, exist_ok=True)
    temporary = where.with_name(f"{where.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(render(usage, shape), encoding="ascii", newline="\n")
        temporary.replace(where)
    finally:
        temporary.unlink(missing_ok=True)


class Keeper:
    """Counts of one model over the life of one engine: those known before, and those since."""

    def __init__(self, model: Path, state_dir: str | None, shape: ModelShape) -> None:
        self._where = place(model, state_dir)
        self._shape = shape
        self.before = load(model, self._where, shape)
        self._saved = 0
        self._failed = False

    def save(self, since: Counts) -> None:
        """Adds the counts since opening to those before, if there are new ones. A disk that does
        not take them is said once; it must not stop answers.
        """
        total = int(since.sum())
        if total == self._saved or self._failed:
            return
        usage = Usage(self.before.counts + since, self.before.header_layers)
        try:
            save(self._where, usage, self._shape)
        except OSError as error:
            self._failed = True
            log.warning(
                "%s cannot be written, what experts are used for is forgotten: %s",
                self._where,
                error.strerror or error,
            )
        else:
            self._saved = total
