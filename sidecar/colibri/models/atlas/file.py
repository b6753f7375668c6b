"""`experts.json`: written whole or not at all, read with suspicion, given out as columns.

For: `coli atlas analyze --web`, which writes it, and `GET /api/atlas`. The format is older than
this program and files come from anywhere: what does not make sense is refused with its place,
never half-used. It lies where `.coli_usage` does, else in the model's own folder. Threads:
`AtlasFile.get` from any thread, the rest are pure functions over files.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

from colibri import paths, regular
from colibri.errors import ModelError, NotFoundError, RequestError, ResourceError
from colibri.models.atlas.topics import MOST_TOPICS, is_name

if TYPE_CHECKING:
    from colibri.models.atlas.analysis import Atlas, Expert

NAME: Final = "experts.json"
VERSION: Final = 1
DAMAGED: Final = "atlas_damaged"
MISSING: Final = "atlas_missing"
_MOST_BYTES: Final = 64 << 20
_KEY: Final = re.compile(r"(0|[1-9][0-9]{0,5}):(0|[1-9][0-9]{0,5})")
_SUM_TOLERANCE: Final = 0.05
_ENTROPY_TOLERANCE: Final = 0.05
_GENERALIST: Final = "generalist"
_SPECIALIST: Final = "specialist: "


# What a page computes with exactly, and the last moment that its dates know.
_EXACT: Final = 1 << 53
_LAST_MS: Final = 8_640_000_000_000_000
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=_EXACT)]
_Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_LAST_MS)]
_Bits: TypeAlias = Annotated[float, msgspec.Meta(ge=-64, le=64)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Correlation: TypeAlias = Annotated[float, msgspec.Meta(ge=-1, le=1)]


class AtlasDamagedError(RequestError):
    """The file cannot be used; what is wrong with it is no fault of the server's."""

    http_status = 422
    default_code = DAMAGED


class AtlasMissingError(NotFoundError):
    """There is no atlas yet; `commands` make one."""

    default_code = MISSING

    def __init__(self, message: str, commands: Sequence[str]) -> None:
        super().__init__(message, hint=f"Make one: {' && '.join(commands)}")
        self.commands = list(commands)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a measurement that is kept in the file; see docs/dashboard.md."""

    measured_at_ms: _Moment
    topics: _Count
    prompts: _Count
    tokens: _Count
    counted: Literal["prompt", "answer", "both"]
    left_out: _Count
    specialists: _Count
    mutual_information_bits: _Bits
    chance_bits: _Bits
    prediction: _Share
    prediction_chance: _Share
    agreement: _Correlation | None = None
    agreement_chance: _Correlation | None = None
    sets: dict[str, dict[str, _Bits]] = {}


class _Expert(msgspec.Struct, frozen=True, kw_only=True):
    affinity: dict[str, float]
    entropy: float
    top: str
    label: str
    tokens: int | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    categories: list[str]
    experts: dict[str, _Expert]
    measurement: Figures | None = None


# ---- writing -------------------------------------------------------------------------------------


def figures_of(atlas: Atlas, now_ms: int | None = None) -> Figures:
    """What the file says of the measurement itself."""
    evidence, prediction = atlas.evidence, atlas.evidence.prediction
    return Figures(
        measured_at_ms=int(time.time() * 1000) if now_ms is None else now_ms,
        topics=len(atlas.topics),
        prompts=atlas.prompts,
        tokens=atlas.tokens,
        counted=atlas.counted,
        left_out=atlas.left_out,
        specialists=atlas.specialists,
        mutual_information_bits=round(evidence.information.found, 6),
        chance_bits=round(evidence.information.chance, 6),
        prediction=round(prediction.found, 4),
        prediction_chance=round(prediction.chance, 4),
        agreement=round(evidence.agreement.found, 4),
        agreement_chance=round(evidence.agreement.chance, 4),
        sets={
            side: {"found": round(found.found, 6), "chance": round(found.chance, 6)}
            for side, found in evidence.by_set.items()
        },
    )


def _entry(expert: Expert, topics: Sequence[str]) -> _Expert:
    top = topics[expert.top]
    return _Expert(
        affinity={
            name: round(share, 4)
            for name, share in zip(topics, expert.affinity, strict=True)
            if round(share, 4) > 0
        },
        entropy=round(expert.entropy, 4),
        top=top,
        label=f"{_SPECIALIST}{top}" if expert.specialist else _GENERALIST,
        tokens=expert.tokens,
    )


def render(atlas: Atlas, now_ms: int | None = None) -> bytes:
    """The file's bytes."""
    content = _File(
        categories=list(atlas.topics),
        experts={
            f"{expert.layer}:{expert.expert}": _entry(expert, atlas.topics)
            for expert in atlas.experts
        },
        measurement=figures_of(atlas, now_ms),
    )
    return msgspec.json.encode(content)


def write(path: Path, data: bytes) -> None:
    """Replaces the file, whole or not at all. Raises ResourceError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ResourceError(
            f"the atlas cannot be written: {error.strerror or error}.",
            where=str(path),
            hint="Check the disk's free room, or give another file with --out.",
        ) from error


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a page draws: entry i of each column is one expert, sorted by layer, then expert."""

    categories: tuple[str, ...]
    layer: list[int]
    expert: list[int]
    top: list[int]
    specialist: list[bool]
    entropy: list[float]
    affinity: list[int]  # thousandths, len(categories) for each expert
    tokens: list[int] | None
    measurement: Figures | None


def parse(data: bytes) -> Columns:
    """Raises ModelError, which names what is wrong."""
    if len(data) > _MOST_BYTES:
        raise ModelError(f"it has more than {_MOST_BYTES >> 20} MiB.")
    try:
        content = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ModelError(str(error) or "it is no JSON of the right shape") from None
    names = content.categories
    if not 0 < len(names) <= MOST_TOPICS or len(set(names)) != len(names):
        raise ModelError(f"it must have 1 to {MOST_TOPICS} different categories.")
    if not all(is_name(name) for name in names):
        raise ModelError("a category must be a short line that can be printed.")
    number = {name: i for i, name in enumerate(names)}
    rows = sorted(
        (_place(key), _row(key, expert, number)) for key, expert in content.experts.items()
    )
    counted = [row.tokens for _, row in rows]
    return Columns(
        categories=tuple(names),
        layer=[place[0] for place, _ in rows],
        expert=[place[1] for place, _ in rows],
        top=[row.top for _, row in rows],
        specialist=[row.specialist for _, row in rows],
        entropy=[row.entropy for _, row in rows],
        affinity=[share for _, row in rows for share in row.affinity],
        tokens=None if None in counted or not counted else [n for n in counted if n is not None],
        measurement=content.measurement,
    )


@dataclass(frozen=True, slots=True, order=True)
class _Row:
    top: int
    specialist: bool
    entropy: float
    affinity: tuple[int, ...]
    tokens: int | None


def _place(key: str) -> tuple[int, int]:
    found = _KEY.fullmatch(key)
    if found is None:
        raise ModelError(f"{key[:40]!r} is no `layer:expert`.")
    return int(found[1]), int(found[2])


def _row(key: str, expert: _Expert, number: Mapping[str, int]) -> _Row:
    affinity = [0] * len(number)
    total = 0.0
    for name, share in expert.affinity.items():
        if name not in number:
            raise ModelError(f"expert {key} has the affinity of a topic that is no category.")
        if not 0 <= share <= 1:
            raise ModelError(f"expert {key} has an affinity that is no share of 1.")
        affinity[number[name]] = round(1000 * share)
        total += share
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ModelError(f"the affinities of expert {key} do not sum up to 1.")
    if not -_ENTROPY_TOLERANCE <= expert.entropy <= math.log2(len(number)) + _ENTROPY_TOLERANCE:
        raise ModelError(f"the entropy of expert {key} is impossible.")
    if expert.top not in number:
        raise ModelError(f"the top topic of expert {key} is no category.")
    if expert.label not in (_GENERALIST, f"{_SPECIALIST}{expert.top}"):
        raise ModelError(f"expert {key} has a label that means nothing.")
    if expert.tokens is not None and not 0 <= expert.tokens < _EXACT:
        raise ModelError(f"expert {key} has an impossible number of tokens.")
    return _Row(
        number[expert.top],
        expert.label != _GENERALIST,
        round(max(expert.entropy, 0.0), 3),
        tuple(affinity),
        expert.tokens,
    )


def place(model: Path, state_dir: str | None) -> Path:
    """Where the atlas of the model in a folder is written."""
    return paths.learnt_dir(model, state_dir) / NAME


class AtlasFile:
    """The atlas of one model, read again when its file has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: tuple[str, int, int] | None = None
        self._tag = ""
        self._columns: Columns | None = None

    def get(
        self, model: Path, state_dir: str | None, commands: Sequence[str]
    ) -> tuple[Columns, str]:
        """The atlas, and a tag that changes with its file. Raises AtlasMissingError and
        AtlasDamagedError.
        """
        for path in (place(model, state_dir), model / NAME):
            try:
                with self._lock:
                    return self._read(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _damaged(path, error.strerror or str(error)) from error
            except ModelError as error:
                raise _damaged(path, error.message) from error
        raise AtlasMissingError("No atlas of this model has been measured yet.", commands)

    def _read(self, path: Path) -> tuple[Columns, str]:
        with regular.open_file(path) as stream:
            stat = os.fstat(stream.fileno())
            seen = (str(path), stat.st_mtime_ns, stat.st_size)
            if seen != self._seen or self._columns is None:
                data = stream.read(_MOST_BYTES + 1)
                self._seen = None
                self._columns = parse(data)
                self._tag = hashlib.blake2b(data, digest_size=12).hexdigest()
                self._seen = seen
            return self._columns, self._tag


def _damaged(path: Path, reason: str) -> AtlasDamagedError:
    return AtlasDamagedError(
        f"The atlas {path} cannot be used: {reason.rstrip('.')}.",
        hint="Write it anew with `coli atlas analyze --web`, or delete it.",
    )


def check_shape(columns: Columns, layers: Sequence[int], cols: int, where: str) -> None:
    """Raises AtlasDamagedError for an expert that the model does not have."""
    known = set(layers)
    for layer, expert in zip(columns.layer, columns.expert, strict=True):
        if layer not in known or expert >= cols:
            raise AtlasDamagedError(
                f"The atlas of {where} names expert {layer}:{expert}, which it does not have.",
                hint="It is of another model: measure this one with `coli atlas run`.",
            )


def answer(columns: Columns, model: str, cols: int) -> dict[str, Any]:
    """The JSON of `GET /api/atlas`."""
    return {
        "version": VERSION,
        "model": model,
        "categories": columns.categories,
        "cols": cols,
        "layer": columns.layer,
        "expert": columns.expert,
        "top": columns.top,
        "specialist": columns.specialist,
        "entropy": columns.entropy,
        "affinity": columns.affinity,
        "tokens": columns.tokens,
        "measurement": columns.measurement,
    }
