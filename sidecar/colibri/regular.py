"""Opening files of folders that nobody has checked: a model's, above all.

For: every reader of a model folder. A pipe by the name of a file would hold its reader until
somebody writes, and a device may never end; both are refused here without waiting. Not for: our own
files. Thread rule: pure functions over files.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, cast

_KINDS: Final = {
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_file(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises OSError, also for what is neither file nor folder."""
    return cast(BinaryIO, open(path, "rb", opener=_opener))


def read_file(path: Path) -> bytes:
    """A file as a whole. Raises OSError as `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def _opener(path: str, flags: int) -> int:
    # A device may already do something by being opened (a tape rewinds), and a socket has an error
    # of its own: look first. What takes the place of the file in between must not hold us either.
    _check(path, os.stat(path).st_mode)  # noqa: PTH116 - the path as it is opened
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str, mode: int) -> None:
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is a {kind}, not a file", path)
