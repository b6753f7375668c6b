"""One segment file: records that are only ever appended, and counts of those still needed.

For: the store and the inventory. Not for: which record is which block's newest (the store).
Thread rule: `read` from any thread while `users` says so (see `Segment`); appending and closing
belong to the store's writer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from colibri.kv import blocks, files
from colibri.kv.blocks import Geometry, RecordHead, SegmentHead

SUFFIX: Final = ".seg"
_NAME: Final = re.compile(r"(\d{8,12})\.seg\Z")
# Bytes between two looks at the pace; small enough that a decode step is not kept waiting.
PIECE: Final = 1 << 20

# Record heads that a scan asks for ahead: one read after the other leaves a disk idle.
_AHEAD: Final = 64

Pace = Callable[[int], None]


def no_pace(_bytes: int) -> None:
    """Writes as fast as the disk takes it."""


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """Segment files of a folder by number. Raises OSError."""
    found = []
    for path in folder.iterdir():
        match = _NAME.match(path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found)


def path_of(folder: Path, number: int) -> Path:
    """Where segment `number` lies."""
    return folder / f"{number:08}{SUFFIX}"


def read_head(file: files.DataFile) -> SegmentHead | None:
    """Head of an open file; None if it is not whole or of another version. Raises OSError."""
    page = bytearray(blocks.PAGE)
    if file.read_into(0, memoryview(page)) != len(page):
        return None
    return blocks.decode_segment(memoryview(page))


class Segment:
    """An open segment. `records` counts places, `live` those that a known block occupies.

    A reader adds itself to `users` under the store's lock; a segment that is given up closes its
    file when the last one has left.
    """

    def __init__(self, path: Path, file: files.DataFile, head: SegmentHead) -> None:
        self.path = path
        self.number = head.number
        self.geometry = head.geometry
        self.file = file
        self.records = 0
        self.live = 0
        self.users = 0
        self.given_up = False

    @classmethod
    def create(cls, folder: Path, number: int, geometry: Geometry) -> Segment:
        """A new file with its head. Raises OSError; no file is left then."""
        path, head = path_of(folder, number), SegmentHead(geometry, number)
        file = files.DataFile(path, create=True)
        try:
            file.write(0, memoryview(blocks.encode_segment(head)))
        except BaseException:
            file.close()
            files.remove(path)
            raise
        return cls(path, file, head)

    @property
    def bytes(self) -> int:
        """Length of the file."""
        return self.geometry.offset(self.records)

    @property
    def dead(self) -> int:
        """Places that no known block occupies."""
        return self.records - self.live

    def scan(self, start: int = 0) -> Iterator[tuple[int, RecordHead]]:
        """Valid record heads from place `start` on; sets `records`. Raises OSError.

        Places after the last valid head are not counted: a write that was cut short.
        """
        geometry = self.geometry
        places = max(0, self.file.size() - blocks.PAGE) // geometry.stride
        page = memoryview(bytearray(blocks.PAGE))
        self.records = min(start, places)
        for ahead in range(start, min(start + _AHEAD, places)):
            self.file.expect(geometry.offset(ahead), blocks.PAGE)
        for index in range(start, places):
            if index + _AHEAD < places:
                self.file.expect(geometry.offset(index + _AHEAD), blocks.PAGE)
            if self.file.read_into(geometry.offset(index), page) != len(page):
                break
            head = blocks.decode_record(page, geometry)
            if head is not None:
                self.records = index + 1
                yield index, head

    def cut(self) -> bool:
        """Cuts off what follows the last record; True if there was something. Raises OSError."""
        if self.file.size() == self.bytes:
            return False
        self.file.truncate(self.bytes)
        return True

    def append(self, head: RecordHead, payload: memoryview, pace: Pace) -> int:
        """Writes a record and returns its place. Raises OSError; the file is as before then.

        The head is written last: a record with a valid head is whole, wherever a kill strikes.
        """
        geometry, index = self.geometry, self.records
        start = geometry.offset(index)
        try:
            self.file.truncate(geometry.offset(index + 1))
            for done in range(0, len(payload), PIECE):
                piece = payload[done : done + PIECE]
                self.file.write(start + blocks.PAGE + done, piece)
                pace(len(piece))
            self.file.write(start, memoryview(blocks.encode_record(head, geometry)))
        except OSError:
            # A tail that cannot be cut off either is overwritten, or cut off by the next start.
            with contextlib.suppress(OSError):
                self.file.truncate(start)
            raise
        self.records += 1
        return index

    def read(self, index: int, payload: memoryview) -> RecordHead | None:
        """Reads a record into `payload`; None if head or payload are damaged. Raises OSError.

        `payload` then holds anything; the caller decides what it may show.
        """
        page = memoryview(bytearray(blocks.PAGE))
        start = self.geometry.offset(index)
        wanted = len(page) + len(payload)
        if self.file.read_into(start, page, payload) != wanted:
            return None
        self.file.forget(start, self.geometry.stride)
        head = blocks.decode_record(page, self.geometry)
        if head is None or head.payload_crc != blocks.payload_crc(payload):
            return None
        return head

    def head(self, index: int) -> RecordHead | None:
        """The head of a record; None if it is damaged. Raises OSError."""
        page = memoryview(bytearray(blocks.PAGE))
        if self.file.read_into(self.geometry.offset(index), page) != len(page):
            return None
        return blocks.decode_record(page, self.geometry)

    def give_up(self) -> None:
        """Closes the file, now or when its last reader leaves."""
        self.given_up = True
        if not self.users:
            self.file.close()

    def leave(self) -> None:
        """Ends one reader's use."""
        self.users -= 1
        if self.given_up and not self.users:
            self.file.close()
