"""Reading files in bounded pieces with exact failures, and how fast a disk delivers.

For: the checks of `coli doctor`, `coli verify` and `coli tune`. Not for: the engine's own reads
(`native/src/io.h`). The speed is that of large direct reads at random places of the given files
with several in flight, which is what streaming experts does to a disk. Thread rule: functions may
be called from any thread; `measure` uses threads of its own and ends them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE: Final = 8 << 20
# Reads of a speed test: as large as an expert, and so many in flight that any drive is busy.
_BLOCK: Final = 4 << 20
_IN_FLIGHT: Final = 8
_PAGE: Final = 4096
_SMALLEST: Final = 64 << 20

# `os.pread`, or what a test puts in its place: (descriptor, bytes, offset) -> bytes.
Read = Callable[[int, int, int], bytes]


class ReadFailure(Exception):
    """A read that did not bring what was wanted; `error` is None when the file just ended."""

    def __init__(
        self, path: Path, offset: int, wanted: int, got: int, error: OSError | None
    ) -> None:
        reason = (error.strerror or str(error)) if error else "the file ends there"
        super().__init__(
            f"reading {wanted:,} bytes failed at byte {offset:,} after {got:,}: {reason}"
        )
        self.path = path
        self.offset = offset
        self.wanted = wanted
        self.got = got
        self.error = error
        self.__cause__ = error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading that never waits for a peer (a pipe by the name of a shard)."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_BINARY: Final = getattr(os, "O_BINARY", 0)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """One positioned read, also where the system has none."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def read_at(path: Path, descriptor: int, size: int, offset: int, read: Read = pread) -> bytes:
    """Exactly `size` bytes: short reads are continued, else ReadFailure with the exact place."""
    parts: list[bytes] = []
    got = 0
    while got < size:
        try:
            part = read(descriptor, size - got, offset + got)
        except InterruptedError:
            continue
        except OSError as error:
            raise ReadFailure(path, offset + got, size, got, error) from error
        if not part:
            raise ReadFailure(path, offset + got, size, got, None)
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def drop_cache(descriptor: int) -> None:
    """Asks the system to forget what it holds of a file, so that reads come from the device."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def announce(descriptor: int, offset: int, size: int) -> None:
    """Tells the system what will be read next, so that it reads while we compute: twice as fast."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)


def first_hole(descriptor: int, size: int, least: int) -> int | None:
    """Offset of the first unwritten stretch of `least` bytes or more; None without one."""
    if not hasattr(os, "SEEK_HOLE"):
        return None
    place = 0
    with contextlib.suppress(OSError):
        while place < size:
            hole = os.lseek(descriptor, place, os.SEEK_HOLE)
            if hole >= size:
                return None
            try:
                place = os.lseek(descriptor, hole, os.SEEK_DATA)
            except OSError:  # no data after the hole
                place = size
            if place - hole >= least:
                return hole
    return None


@dataclass(frozen=True, slots=True)
class Speed:
    """Result of a speed test. `direct` False: through the page cache, so it may flatter."""

    bytes_per_second: float
    bytes: int
    seconds: float
    direct: bool


def measure(paths: Sequence[Path], seconds: float = 1.0, seed: int = 1) -> Speed | None:
    """Speed of reading these files for about `seconds`; None when they are too small to tell.

    Raises ReadFailure for a read that fails and OSError for a file that cannot be opened.
    """
    sizes = [(path, path.stat().st_size) for path in paths]
    usable = [(path, size) for path, size in sizes if size >= 2 * _BLOCK]
    total = sum(size for _, size in usable)
    if total < _SMALLEST:
        return None
    direct = _direct_works(usable[0][0])
    files = []
    try:
        files = [_open_for_speed(path, direct) for path, _ in usable]
        work = _Work(usable, files, seed)
        start = time.monotonic()
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="disk") as pool:
            jobs = [pool.submit(work.run, start + seconds) for _ in range(_IN_FLIGHT)]
        done = sum(job.result() for job in jobs)
        spent = time.monotonic() - start
    finally:
        for descriptor in files:
            os.close(descriptor)
    return Speed(done / spent, done, spent, direct)


class _Work:
    """What the threads of a speed test share: places still to be read, each one only once."""

    def __init__(self, usable: Sequence[tuple[Path, int]], files: Sequence[int], seed: int) -> None:
        self._usable, self._files = usable, files
        places = [
            (number, block)
            for number, (_, size) in enumerate(usable)
            for block in range(min(size // _BLOCK, 4096))
        ]
        random.Random(seed).shuffle(places)  # noqa: S311 - no secret
        self._places = iter(places)
        self._lock = threading.Lock()

    def run(self, deadline: float) -> int:
        """Reads until the deadline; returns bytes."""
        done = 0
        with mmap.mmap(-1, _BLOCK) as buffer:
            while time.monotonic() < deadline:
                with self._lock:
                    place = next(self._places, None)
                if place is None:
                    break
                number, block = place
                path = self._usable[number][0]
                try:
                    got = _read_into(self._files[number], buffer, block * _BLOCK)
                except OSError as error:
                    raise ReadFailure(path, block * _BLOCK, _BLOCK, 0, error) from error
                done += got
        return done


def _read_into(descriptor: int, buffer: mmap.mmap, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    return len(pread(descriptor, _BLOCK, offset))


def _open_for_speed(path: Path, direct: bool) -> int:
    flags = os.O_RDONLY | _BINARY | (getattr(os, "O_DIRECT", 0) if direct else 0)
    descriptor = os.open(path, flags)
    if not direct:
        drop_cache(descriptor)
    return descriptor


def _direct_works(path: Path) -> bool:
    """Whether the file system reads past its cache."""
    if not hasattr(os, "O_DIRECT") or not hasattr(os, "preadv"):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, _PAGE) as page:
            os.preadv(descriptor, [page], 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def measure_folder(folder: Path, seconds: float = 1.0) -> Speed | None:
    """Speed of the disk behind a folder, with a temporary file of 256 MB; None without the room."""
    size = 256 << 20
    usage = os.statvfs(folder) if hasattr(os, "statvfs") else None
    if usage is None or usage.f_bavail * usage.f_frsize < 8 * size:
        return None
    path = folder / f".colibri-speed-{os.getpid()}.tmp"
    try:
        with path.open("wb") as stream:
            block = random.Random(1).randbytes(_BLOCK)  # noqa: S311 - no secret
            for _ in range(size // _BLOCK):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        return measure([path], seconds)
    finally:
        path.unlink(missing_ok=True)
