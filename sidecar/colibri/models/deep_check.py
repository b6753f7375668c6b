"""Reading every byte of a model: hashes where somebody promised them, sanity where nobody did.

For: `coli doctor --deep` and `coli verify`. A file is read once, front to back, past what the
system still remembers of it, and every byte feeds what is known about its place:

    file     SHA-256 of the manifest or the hub client's notes
    span     BLAKE2b of a tensor or expert in our packed container
    floats   no NaN and no infinity in scales and other F32, F16 and BF16 tensors
    codes    no megabyte of zeros inside quantized weights: that is a download that never came

Thread rule: `read_all` uses threads of its own, one file each, and ends them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from colibri import findings, regular
from colibri.families.values import show
from colibri.findings import Finding
from colibri.hardware import disk
from colibri.hardware.disk import Read, ReadFailure
from colibri.models import packed, shard_check
from colibri.models.manifest import Manifest
from colibri.models.shard_check import Scan

Progress = Callable[[int, int], None]

_READERS: Final = 4
_AHEAD: Final = 3 * disk.PIECE
_ZEROS: Final = 1 << 20
_MOST_SAME: Final = 4
_POLL_SECONDS: Final = 0.2
# numpy's view of a float format, and the bits of an exponent that stands for NaN or infinity.
_FLOATS: Final[dict[str, tuple[np.dtype[Any], int]]] = {
    "F32": (np.dtype("<u4"), 0x7F800000),
    "F16": (np.dtype("<u2"), 0x7C00),
    "BF16": (np.dtype("<u2"), 0x7F80),
}
_CODES: Final = frozenset({"U8", "I8", "F8_E4M3"})


@dataclass(frozen=True, slots=True)
class _Segment:
    """Bytes [start, end) of a file and what is known of them. `hash` "": nothing promised."""

    start: int
    end: int
    name: str = ""
    dtype: str = ""
    hash: str = ""


@dataclass(slots=True)
class Deep:
    """Result. `hashes` holds (bytes, SHA-256) of every file read, for a manifest."""

    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0
    hashed: int = 0
    hashes: dict[str, tuple[int, str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Job:
    """One file to read."""

    path: Path
    size: int
    segments: list[_Segment]
    sha256: str = ""
    always_hash: bool = False


class _Shared:
    """What the readers share: the way to stop them, and how much is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.stop = threading.Event()
        self.done = 0
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.done += size

    def show(self) -> None:
        if self._progress is not None:
            with self._lock:
                done = self.done
            self._progress(done, self._total)


def read_all(
    scan: Scan,
    index: packed.Index | None = None,
    progress: Progress | None = None,
    *,
    always_hash: bool = False,
    read: Read = disk.pread,
) -> Deep:
    """Reads every weight file that `scan` found, and what else the manifest names.

    `always_hash` computes the SHA-256 of each file also where nothing promises one. An interrupt
    (KeyboardInterrupt) ends the readers at once and is raised again.
    """
    jobs = list(_jobs(scan, index, always_hash))
    shared = _Shared(sum(job.size for job in jobs), progress)
    result = Deep()
    workers = max(1, min(_READERS, os.cpu_count() or 1, len(jobs)))
    with ThreadPoolExecutor(workers, thread_name_prefix="verify") as pool:
        pending: set[Future[Deep]] = {
            pool.submit(_read_file, job, scan, shared, read) for job in jobs
        }
        try:
            while pending:
                finished, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    _merge(result, future.result())
                shared.show()
        except BaseException:
            shared.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    result.findings.sort(key=lambda item: item.where)
    return result


def _merge(into: Deep, other: Deep) -> None:
    into.findings += other.findings
    into.bytes += other.bytes
    into.hashed += other.hashed
    into.hashes.update(other.hashes)
    into.damaged += other.damaged


def _jobs(scan: Scan, index: packed.Index | None, always_hash: bool) -> Iterator[_Job]:
    known: Manifest | None = scan.known
    per_file = _packed_segments(index) if index is not None else _entry_segments(scan)
    names = {name for name, size in scan.sizes.items() if size}
    if known is not None:
        names |= {name for name in known.files if scan.path(name).is_file()}
    for name in sorted(names):
        path = scan.path(name)
        size = scan.sizes[name] if name in scan.sizes else path.stat().st_size
        listed = known.files.get(name) if known is not None else None
        segments = sorted(per_file.get(name, ()), key=lambda item: item.start)
        yield _Job(path, size, segments, listed.sha256 if listed else "", always_hash)


def _packed_segments(index: packed.Index) -> dict[str, list[_Segment]]:
    found: dict[str, list[_Segment]] = {}
    for span in index.spans:
        segment = _Segment(span.offset, span.offset + span.bytes, span.name, hash=span.hash)
        found.setdefault(index.paths[span.file].name, []).append(segment)
    return found


def _entry_segments(scan: Scan) -> dict[str, list[_Segment]]:
    found: dict[str, list[_Segment]] = {}
    for entry in scan.shards.entries.values():
        segment = _Segment(entry.offset, entry.offset + entry.bytes, entry.name, entry.dtype)
        found.setdefault(scan.shards.paths[entry.file].name, []).append(segment)
    return found


def _covering(job: _Job) -> Iterator[_Segment]:
    """The segments with the bytes between them, so that nothing of the file is left out."""
    place = 0
    for segment in job.segments:
        if segment.start > place:
            yield _Segment(place, segment.start)
        if segment.end > segment.start >= place:
            yield segment
            place = segment.end
    if place < job.size:
        yield _Segment(place, job.size)


def _read_file(job: _Job, scan: Scan, shared: _Shared, read: Read) -> Deep:
    """Reads one file; every problem is a finding."""
    result = Deep()
    again = scan.again(job.path.name)
    whole = hashlib.sha256() if job.sha256 or job.always_hash else None
    problems = _Problems(job.path, again)
    try:
        with disk.opened(job.path) as descriptor:
            disk.drop_cache(descriptor)
            for segment in _covering(job):
                if shared.stop.is_set():
                    return result
                _read_segment(job, descriptor, segment, whole, problems, shared, read)
            disk.drop_cache(descriptor)
    except ReadFailure as failure:
        result.findings.append(shard_check.read_failure(failure, again))
    except OSError as failure:
        result.findings.append(findings.from_os_error(failure, str(job.path)))
    else:
        result.bytes = job.size
        if whole is not None:
            found = whole.hexdigest()
            result.hashes[job.path.name] = (job.size, found)
            if job.sha256:
                result.hashed += job.size
                if found != job.sha256:
                    problems.add(
                        f"its SHA-256 is {found[:16]}..., the manifest says {job.sha256[:16]}..."
                    )
        if not job.sha256:
            result.hashed += sum(part.end - part.start for part in job.segments if part.hash)
    result.findings += problems.findings()
    if problems or any(item.kind == "integrity" for item in result.findings):
        result.damaged.append(job.path.name)
    return result


class _Problems:
    """What is wrong with the bytes of one file: some by name, the rest as a number."""

    def __init__(self, path: Path, again: str) -> None:
        self._path, self._again = path, again
        self._sentences: list[str] = []

    def add(self, sentence: str) -> None:
        self._sentences.append(sentence)

    def __bool__(self) -> bool:
        return bool(self._sentences)

    def findings(self) -> list[Finding]:
        if not self._sentences:
            return []
        left = len(self._sentences) - _MOST_SAME
        more = f"; and {left} more" if left > 0 else ""
        what = f"{'; '.join(self._sentences[:_MOST_SAME])}{more}."
        return [findings.error("integrity", what, str(self._path), self._again)]


def _read_segment(
    job: _Job,
    descriptor: int,
    segment: _Segment,
    whole: Any,
    problems: _Problems,
    shared: _Shared,
    read: Read,
) -> None:
    digest = packed.new_hash() if segment.hash else None
    reported = False
    for offset in range(segment.start, segment.end, disk.PIECE):
        if shared.stop.is_set():
            return
        size = min(disk.PIECE, segment.end - offset)
        disk.announce(descriptor, offset + size, _AHEAD)
        data = disk.read_at(job.path, descriptor, size, offset, read)
        if whole is not None:
            whole.update(data)
        if digest is not None:
            digest.update(data)
        if not reported:
            problem = _strange(segment, data, offset)
            reported = bool(problem)
            if problem:
                problems.add(problem)
        shared.add(size)
    if digest is not None and digest.hexdigest() != segment.hash:
        problems.add(
            f"{show(segment.name)} at byte {segment.start:,} differs from its hash "
            f"(expected {segment.hash[:16]}..., found {digest.hexdigest()[:16]}...)"
        )


def _strange(segment: _Segment, data: bytes, offset: int) -> str:
    """One sentence about numbers that cannot be weights; "" for good ones."""
    if segment.dtype in _FLOATS:
        kind, exponent = _FLOATS[segment.dtype]
        words = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], dtype=kind)
        bad = (words & exponent) == exponent
        if bad.any():
            place = offset + int(bad.argmax()) * kind.itemsize
            return f"tensor {show(segment.name)} holds NaN or infinity at byte {place:,}"
    elif segment.dtype in _CODES and len(data) >= _ZEROS:
        blocks = np.frombuffer(data[: len(data) // _ZEROS * _ZEROS], dtype=np.uint64)
        empty = ~blocks.reshape(-1, _ZEROS // 8).any(axis=1)
        if empty.any():
            place = offset + int(empty.argmax()) * _ZEROS
            return f"tensor {show(segment.name)} is all zeros from byte {place:,} on"
    return ""


def hash_files(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """(bytes, SHA-256) of small files beside the weights. Raises OSError."""
    found = {}
    for name in names:
        data = regular.read_file(folder / name)
        found[name] = (len(data), hashlib.sha256(data).hexdigest())
    return found
