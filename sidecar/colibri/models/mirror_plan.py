"""Which shards are worth copying to another drive, what that would bring, and the copying.

For: `coli models mirror`. Not for: using mirrors (`mirror`, and the engine).

A mirror that takes its fair share of the reads, its speed over the sum of both speeds, makes both
drives end at the same time; copying more brings nothing. So shards are proposed by how much of
what experts are asked for they hold per byte, until that share is reached or the room is used up.
An expert counts once all shards that hold parts of it are there. Thread rule: pure functions,
except `copy_shard`, of which one may run per target.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import filelock

from colibri import regular
from colibri.errors import IntegrityError, ResourceError, UsageError
from colibri.models import mirror
from colibri.models.container import ModelFiles

Progress = Callable[[int, int], None]
_PIECE: Final = 16 << 20
_LOCK_NAME: Final = ".colibri-mirror.lock"
# Left free on the target, for the file system's own needs.
_SPARE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """One expert: the numbers of the files that hold it, its bytes, how often it is asked for."""

    files: frozenset[int]
    bytes: int
    uses: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Files to have on the mirror, of which `present` are there already.

    `share` of the bytes that experts are read for is then on both drives; `wanted` is the share
    from which on more brings nothing. Speeds in bytes per second.
    """

    files: tuple[int, ...]
    present: tuple[int, ...]
    copy_bytes: int
    share: float
    wanted: float
    own_speed: float
    mirror_speed: float

    @property
    def speed(self) -> float:
        """Bytes per second that both drives deliver together."""
        return together(self.share, self.own_speed, self.mirror_speed)

    @property
    def gain(self) -> float:
        """How many times as fast experts come from disk."""
        return self.speed / self.own_speed


def fair_share(own: float, other: float) -> float:
    """Share of all reads that the mirror takes when both drives end at the same time."""
    return other / (own + other)


def together(share: float, own: float, other: float) -> float:
    """Speed of both drives when `share` of the reads can be served by the mirror."""
    return own / (1 - share) if share < fair_share(own, other) else own + other


def expert_reads(files: ModelFiles, uses: Callable[[int, int], float]) -> list[ExpertReads]:
    """Every routed expert with its files; `uses(layer, expert)` tells how often it is needed."""
    places = {
        spec.name: (spec.layer, spec.expert)
        for spec in files.family.tensors(files.geometry)
        if spec.expert >= 0 and spec.layer is not None
    }
    held: dict[tuple[int, int], set[int]] = defaultdict(set)
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for tensor in files.tensors:
        place = places.get(tensor.name)
        if place is None:
            continue
        held[place].add(tensor.file)
        sizes[place] += tensor.bytes + tensor.scale_bytes
        if tensor.scale_file >= 0:
            held[place].add(tensor.scale_file)
    return [
        ExpertReads(frozenset(held[place]), sizes[place], uses(*place)) for place in sorted(held)
    ]


def covered(experts: Sequence[ExpertReads], files: Collection[int]) -> float:
    """Share of the bytes asked for that these files hold."""
    chosen = set(files)
    total = sum(expert.bytes * expert.uses for expert in experts)
    here = sum(expert.bytes * expert.uses for expert in experts if expert.files <= chosen)
    return here / total if total else 0.0


def propose(
    experts: Sequence[ExpertReads],
    sizes: Sequence[int],
    present: Collection[int],
    room: int,
    speeds: tuple[float, float],
) -> Proposal:
    """The files worth having on a mirror with `room` bytes free; `sizes` are those of all files,
    `speeds` of the model's own drive and of the mirror's.
    """
    own, other = speeds
    wanted = fair_share(own, other)
    asked: dict[int, float] = defaultdict(float)
    total = sum(expert.bytes * expert.uses for expert in experts)
    missing = {number: len(expert.files) for number, expert in enumerate(experts)}
    holds: dict[int, list[int]] = defaultdict(list)
    for number, expert in enumerate(experts):
        for file in expert.files:
            asked[file] += expert.bytes * expert.uses / len(expert.files)
            holds[file].append(number)
    chosen: list[int] = []
    here = 0.0

    def take(file: int) -> float:
        chosen.append(file)
        gained = 0.0
        for number in holds[file]:
            missing[number] -= 1
            if missing[number] == 0:
                gained += experts[number].bytes * experts[number].uses
        return gained

    for file in sorted(present):
        here += take(file)
    left = room
    for file in sorted(asked, key=lambda file: (-asked[file] / max(sizes[file], 1), file)):
        if total == 0 or here >= wanted * total:
            break
        if file in present or sizes[file] > left or asked[file] == 0:
            continue
        left -= sizes[file]
        here += take(file)
    return Proposal(
        files=tuple(sorted(chosen)),
        present=tuple(sorted(present)),
        copy_bytes=room - left,
        share=here / total if total else 0.0,
        wanted=wanted,
        own_speed=own,
        mirror_speed=other,
    )


def uses_of(counts: Mapping[tuple[int, int], float]) -> Callable[[int, int], float]:
    """How often an expert is needed by recorded use counts; without any, all alike."""
    if not any(counts.values()):
        return lambda _layer, _expert: 1.0
    return lambda layer, expert: counts.get((layer, expert), 0.0)


def room_for(folder: Path, budget: int | None) -> int:
    """Bytes that may be copied to a folder: the budget, and no more than what is free."""
    free = max(shutil.disk_usage(folder).free - _SPARE, 0)
    return free if budget is None else min(free, budget)


# ---- copying -------------------------------------------------------------------------------------


def part_name(name: str) -> str:
    """Name of an unfinished copy; no model reads files of this name."""
    return f".{name}.part"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While copies are written into a mirror: UsageError if another command does that already."""
    path = folder / _LOCK_NAME
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(
            "another command copies into this folder.",
            where=str(folder),
            hint="Wait until it is done.",
        ) from None
    except OSError as error:
        raise ResourceError(
            f"nothing can be written here: {error.strerror or error}.", where=str(folder)
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def copy_shard(source: Path, folder: Path, progress: Progress | None = None) -> Path:
    """Copies a shard into a mirror through a temporary file, going on with an earlier attempt.

    Never replaces a file that is there: UsageError if it is no copy of the source. ResourceError
    when the drive is full or cannot be written, IntegrityError if what was written differs.
    """
    target, part = folder / source.name, folder / part_name(source.name)
    if os.path.lexists(target):
        reason = mirror.difference(source, target)
        if reason:
            raise UsageError(
                f"{reason}.",
                where=str(target),
                hint="Remove this file, then give the command again.",
            )
        return target
    size = source.stat().st_size
    try:
        with regular.open_file(source) as read, part.open("a+b") as write:
            done = _resume(read, write, size)
            read.seek(done)
            write.seek(done)
            write.truncate()
            while done < size:
                piece = read.read(min(_PIECE, size - done))
                if not piece:
                    raise IntegrityError("the file became shorter.", where=str(source))
                write.write(piece)
                done += len(piece)
                if progress is not None:
                    progress(done, size)
            write.flush()
            os.fsync(write.fileno())
    except OSError as error:
        raise ResourceError(
            f"the copy cannot be written: {error.strerror or error}.",
            where=str(part),
            hint="What is there is kept; make room, then give the command again.",
        ) from error
    reason = mirror.difference(source, part)
    if reason:
        part.unlink()
        raise IntegrityError(f"the finished copy is wrong: {reason}.", where=str(part))
    part.rename(target)
    return target


def _resume(read: BinaryIO, write: BinaryIO, size: int) -> int:
    """Bytes of an earlier attempt that are the same as in the source, in whole pieces."""
    write.seek(0, os.SEEK_END)
    there, done = min(write.tell(), size), 0
    write.seek(0)
    while done < there:
        piece = min(_PIECE, there - done)
        if read.read(piece) != write.read(piece):
            break
        done += piece
    return done
