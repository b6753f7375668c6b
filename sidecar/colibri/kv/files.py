"""The few operations on files that the package is made of.

For: everything in `colibri.kv`; tests replace these functions to end a process between any two of
them. Not for: formats. Errors are OSError as the system gives them; short reads and writes are
finished here. Thread rule: `DataFile` may be read from any thread; one thread at a time writes.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
from pathlib import Path
from typing import Final

# Positional reads where the system has them; elsewhere the file's place is guarded by a lock.
_POSITIONAL: Final = hasattr(os, "preadv") and hasattr(os, "pwrite")
_ADVICE: Final = hasattr(os, "posix_fadvise")


class DataFile:
    """An open file that is read and written at given places, past Python's buffers."""

    def __init__(self, path: Path, *, write: bool = False, create: bool = False) -> None:
        """`create` fails if the file exists. Raises OSError."""
        self._file = io.FileIO(path, "x+" if create else "r+" if write else "r")
        self._place = threading.Lock()

    def read_into(self, offset: int, *views: memoryview) -> int:
        """Fills `views` one after the other; returns the bytes read, less only at the end."""
        total = 0
        for view in views:
            done = 0
            while done < len(view):
                count = self._read(offset + total, view[done:])
                if count == 0:
                    return total
                done += count
                total += count
        return total

    def _read(self, offset: int, view: memoryview) -> int:
        if _POSITIONAL:
            return os.preadv(self._file.fileno(), [view], offset)
        with self._place:
            self._file.seek(offset)
            return self._file.readinto(view) or 0

    def write(self, offset: int, data: memoryview) -> None:
        """Writes all of `data`."""
        done = 0
        while done < len(data):
            if _POSITIONAL:
                done += os.pwrite(self._file.fileno(), data[done:], offset + done)
            else:
                with self._place:
                    self._file.seek(offset + done)
                    done += self._file.write(data[done:]) or 0

    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, size: int) -> None:
        """Cuts the file, or lengthens it with zeros."""
        self._file.truncate(size)

    def sync(self) -> None:
        """Returns when the bytes are on the device."""
        os.fsync(self._file.fileno())

    def forget(self, offset: int, size: int) -> None:
        """Tells the system that these bytes (size 0: up to the end) are not needed in memory.

        What is not on the device yet stays. Memory is for experts.
        """
        if _ADVICE:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), offset, size, os.POSIX_FADV_DONTNEED)

    def expect(self, offset: int, size: int) -> None:
        """Tells the system that these bytes will be read soon, so that it can start."""
        if _ADVICE:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), offset, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._file.close()

    def is_at(self, path: Path) -> bool:
        """Whether `path` still names this file."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except OSError:
            return False


def remove(path: Path) -> None:
    """Deletes a file that may be gone already."""
    path.unlink(missing_ok=True)


def rename(source: Path, target: Path) -> None:
    """Renames at once, replacing `target`."""
    source.replace(target)


def replace(path: Path, data: bytes, *, sync: bool) -> None:
    """Makes `path` hold `data`: at every moment it has the old content or all of the new one.

    With `sync` that is true after a power failure too. The temporary file lies beside it.
    """
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    file = DataFile(temporary, create=True)
    try:
        file.write(0, memoryview(data))
        if sync:
            file.sync()
    finally:
        file.close()
    rename(temporary, path)
    if sync:
        sync_folder(path.parent)


def read(path: Path, limit: int) -> bytes:
    """The whole file. Raises OSError; ValueError if it is longer than `limit` bytes."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} is longer than {limit} bytes")
    return data


def sync_folder(folder: Path) -> None:
    """Makes names in `folder` durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write on the folder's file system."""
    return shutil.disk_usage(folder).free
