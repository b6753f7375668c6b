"""Mirrors of a model: folders on other drives with copies of its shards, or with a part of them.

For: opening a model (`container`), which asks where each shard lies and which copies can be used.
Not for: reading experts (`native/src/store.h` shares reads among the places by speed) and not for
making copies (`mirror_plan`).

A place is the model's own folder or a mirror. For every shard the first place whose file has a
sound header is the one to compare with; that a mirror has a shard which the folder lacks makes it
part of the model (a model split over drives). A copy counts if it has the same size and header and
does not differ where it is sampled. What does not count is left out and said, never fatal as long
as one place has the shard. Thread rule: pure functions over files; results are immutable.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from colibri import regular
from colibri.engine.protocol import MirrorReport
from colibri.engine.table import MirrorCounters, MirrorState
from colibri.errors import ModelError, UsageError
from colibri.models.safetensors import ShardSet, add_shard, data_start

log = logging.getLogger(__name__)

# The engine counts places in the bits of a word.
MOST_MIRRORS: Final = 31
_SAMPLE: Final = 4096
# Pipes, logs, the model's small files.
_OTHER_FILES: Final = 128
_NO_FOLDER: Final = "there is no such folder; is the drive mounted?"


@dataclass(frozen=True, slots=True)
class BadShard:
    """A file that is not read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """The model's own folder or a mirror: `paths` has one entry per file of the model, None where
    this place does not have it or has a bad one.
    """

    folder: Path
    paths: tuple[Path | None, ...]
    bad: tuple[BadShard, ...] = ()

    @property
    def files(self) -> int:
        """How many files of the model can be read here."""
        return sum(path is not None for path in self.paths)


def check_folders(folder: Path, mirrors: Sequence[Path]) -> None:
    """Refuses (UsageError) what cannot be a set of mirrors: the model's own folder, one twice, too
    many. A folder that is not there is no error: its drive may be.
    """
    if len(mirrors) > MOST_MIRRORS:
        raise UsageError(
            f"{len(mirrors)} mirrors are more than the {MOST_MIRRORS} possible.", where="--mirror"
        )
    seen: list[Path] = [folder]
    for mirror in mirrors:
        for other in seen:
            if _is_same(mirror, other):
                what = "the model's own folder" if other is folder else "given twice"
                raise UsageError(
                    f"{mirror} is {what}; reading the same files twice gains nothing.",
                    where="--mirror",
                    hint="Give a folder with copies of the shards on another drive.",
                )
        seen.append(mirror)


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one is not there
        return a.absolute() == b.absolute()


def read_shards(
    folder: Path, mirrors: Sequence[Path]
) -> tuple[ShardSet, dict[Path, list[BadShard]]]:
    """The model's shards from all places as one table, and the files that were passed over.

    Raises ModelError for a damaged shard of the model's own folder of which no place has a sound
    copy, and for a name that two of its files define.
    """
    shards = ShardSet()
    bad: dict[Path, list[BadShard]] = {}
    candidates: dict[str, list[Path]] = {}
    for place in (folder, *mirrors):
        for path in sorted(place.glob("*.safetensors")):
            candidates.setdefault(path.name, []).append(path)
    for name in sorted(candidates):
        _choose(shards, folder, candidates[name], bad)
    return shards, bad


def _choose(
    shards: ShardSet, folder: Path, paths: Sequence[Path], bad: dict[Path, list[BadShard]]
) -> None:
    """Adds the first sound file of one name. A file of 0 bytes is skipped, as everywhere."""
    first: ModelError | None = None
    passed: list[tuple[Path, str]] = []
    for path in paths:
        try:
            if not path.is_file():
                raise ModelError("this is no readable file.", where=str(path))
            if path.stat().st_size == 0:
                passed.append((path, "it holds no bytes"))
                continue
            add_shard(shards, path)
        except (ModelError, OSError) as error:
            if path.parent == folder and isinstance(error, ModelError):
                first = error
            passed.append((path, error.message if isinstance(error, ModelError) else str(error)))
            continue
        break
    else:
        if first is not None:
            raise first
        if all(_is_empty(path) for path in paths):
            shards.empty.append(paths[0])
            return
    for path, reason in passed:
        bad.setdefault(path.parent, []).append(BadShard(path.name, reason.rstrip(".")))


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def places(
    folder: Path,
    mirrors: Sequence[Path],
    files: Sequence[Path],
    passed: Mapping[Path, Iterable[BadShard]] | None = None,
) -> tuple[Place, ...]:
    """Every place with the files that can be read there, the model's own folder first.

    `files` are the files of the model, each in the place to compare with; `passed` are files that
    are already known to be bad.
    """
    found = []
    for place in (folder, *mirrors):
        bad = list((passed or {}).get(place, ()))
        known = {shard.name for shard in bad}
        paths: list[Path | None] = []
        for reference in files:
            path = place / reference.name
            usable = path == reference
            if not usable and path.name not in known and os.path.lexists(path):
                reason = difference(reference, path)
                usable = not reason
                if reason:
                    bad.append(BadShard(path.name, reason))
            paths.append(path if usable else None)
        if not place.is_dir():
            bad.append(BadShard("", _NO_FOLDER))
        found.append(Place(place, tuple(paths), tuple(bad)))
    return tuple(found)


def difference(reference: Path, copy: Path) -> str:
    """Why `copy` is no usable copy of the shard `reference`; "" when it is one.

    Size and header must be equal; of the data the last page and one more are compared, which finds
    copies that were reserved and never filled, and other weights of the same shape.
    """
    try:
        if copy.samefile(reference):
            return f"it is {reference} itself (a link), not a copy on another drive"
        size, found = reference.stat().st_size, copy.stat().st_size
        if found != size:
            return f"it holds {found:,} bytes, {reference} holds {size:,}; copy it again"
        with regular.open_file(reference) as ours, regular.open_file(copy) as theirs:
            start = data_start(reference)
            if ours.read(start) != theirs.read(start):
                return f"its header differs from that of {reference}; it is of another model"
            for offset in _sample_offsets(copy.name, start, size):
                ours.seek(offset)
                theirs.seek(offset)
                if ours.read(_SAMPLE) != theirs.read(_SAMPLE):
                    return (
                        f"its data differs from that of {reference} near byte {offset:,}; "
                        "copy it again"
                    )
    except (OSError, ModelError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"it cannot be read: {reason}"
    return ""


def _sample_offsets(name: str, start: int, size: int) -> tuple[int, int]:
    """The last page, and one that the name decides."""
    room = max(size - start - _SAMPLE, 1)
    return max(size - _SAMPLE, 0), start + zlib.crc32(name.encode()) * 4099 % room


def allow_open_files(wanted: int) -> None:
    """Raises this process's limit of open files as far as the system lets it. The usual 1,024 are
    too few for a model of 141 shards with three mirrors, whose files are open twice while loading.
    """
    if os.name != "posix":
        return  # Windows has no such limit
    import resource  # noqa: PLC0415 - POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted += _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning("only %d files may be open at a time: %s", soft, error)


def reports(found: Sequence[Place], counters: Sequence[MirrorCounters]) -> tuple[MirrorReport, ...]:
    """Places with what the engine counted there; without counters (all in memory) zeros."""
    result = []
    for number, place in enumerate(found):
        seen = counters[number] if number < len(counters) else None
        result.append(
            MirrorReport(
                folder=str(place.folder),
                files=seen.files if seen else place.files,
                left_out=tuple(f"{shard.name}: {shard.reason}".lstrip(": ") for shard in place.bad),
                failed=seen is not None and seen.state == MirrorState.FAILED,
                bytes_read=seen.bytes if seen else 0,
                reads=seen.reads if seen else 0,
                failures=seen.failures if seen else 0,
                bytes_per_second=seen.rate if seen else 0,
            )
        )
    return tuple(result)
