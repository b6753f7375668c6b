"""Looking at every weight file of a folder without stopping at the first bad one.

For: `coli doctor` and `coli verify`. Opening a model (`container`) refuses at the first damaged
file; here each file is judged by itself, and what is readable still becomes one table, so that
missing layers are found as well. Reads headers and the first and last page of each file, never all
of its data (`deep_check`). Thread rule: functions over files; a `Scan` belongs to its caller.
"""

from __future__ import annotations

import contextlib
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from colibri import findings
from colibri.errors import ModelError
from colibri.families.values import parse_object, show
from colibri.findings import Finding
from colibri.hardware import disk
from colibri.hardware.disk import Read, ReadFailure
from colibri.models import manifest, safetensors
from colibri.models.manifest import Manifest
from colibri.models.safetensors import ShardSet

_PAGE: Final = 4096
_LENGTH_BYTES: Final = 8
# Alignment leaves holes of a page or so; what is longer was never written.
_LEAST_HOLE: Final = 1 << 20
_MOST_SAME: Final = 8
_REPEATED: Final = "repeated_tensor"


@dataclass(slots=True)
class Scan:
    """What looking at the files of one folder gave. `damaged` are the names to be fetched again,
    `elsewhere` the files of a split model that lie in a mirror.
    """

    folder: Path
    known: Manifest | None = None
    shards: ShardSet = field(default_factory=ShardSet)
    findings: list[Finding] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, Path] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Where a file lies: in the folder, or in a mirror that alone has it."""
        return self.elsewhere.get(name, self.folder / name)

    def again(self, name: str) -> str:
        """How to get one file again."""
        return f"Fetch this file again: {manifest.fetch_command(self.folder, [name], self.known)}"


def read_failure(failure: ReadFailure, again: str) -> Finding:
    """The finding for a read that failed: a device problem, or a file that is too short."""
    if failure.error is None:
        return findings.error("integrity", f"{failure}.", str(failure.path), again)
    if findings.is_device_error(failure.error):
        return findings.error("device", f"{failure}.", str(failure.path), findings.KEEP_FILES)
    return findings.from_os_error(failure.error, str(failure.path))


def scan(
    folder: Path,
    known: Manifest | None = None,
    read: Read = disk.pread,
    mirrors: Sequence[Path] = (),
) -> Scan:
    """Looks at every `*.safetensors` of a folder, and at those that only a mirror has.

    Raises OSError when the folder cannot be listed; a mirror that cannot be is passed over, which
    `doctor` tells.
    """
    result = Scan(folder, known)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            _look(result, path, read)
    for place in mirrors:
        with contextlib.suppress(OSError):
            for path in sorted(place.glob("*.safetensors")):
                if not result.sizes.get(path.name) and path.is_file() and path.stat().st_size:
                    result.elsewhere[path.name] = path
                    result.shards.empty = [p for p in result.shards.empty if p.name != path.name]
                    _look(result, path, read)
    _check_promises(result)
    return result


def _look(result: Scan, path: Path, read: Read) -> None:
    again = result.again(path.name)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            fix = "Remove it, or put the weight file of that name in its place."
            what = "this is no file, although its name is that of a weight file."
            result.findings.append(findings.error("model", what, str(path), fix))
            return
        result.sizes[path.name] = info.st_size
        if info.st_size == 0:
            result.shards.empty.append(path)
            return
        with disk.opened(path) as descriptor:
            raw = _read_header(path, descriptor, info.st_size, read)
            _check_extent(result, path, raw, info.st_size, again)
            _check_holes(result, path, descriptor, info.st_size, again)
        add(result.shards, path)
    except ReadFailure as failure:
        finding = read_failure(failure, again)
        result.findings.append(finding)
        if finding.kind == "integrity":
            result.damaged.append(path.name)
    except ModelError as failure:
        finding = findings.from_error(failure, str(path), again)
        if finding.kind != "device" and failure.code != _REPEATED:
            finding = findings.error(finding.kind, finding.what, finding.where, again)
            result.damaged.append(path.name)
        result.findings.append(finding)
    except OSError as failure:
        result.findings.append(findings.from_os_error(failure, str(path)))


def add(shards: ShardSet, path: Path) -> None:
    """Adds one file to the table; ModelError when it is damaged or repeats a tensor."""
    entries, metadata = safetensors.read_header(path, len(shards.paths))
    for entry in entries:
        other = shards.entries.get(entry.name)
        if other is not None:
            raise ModelError(
                f"tensor {show(entry.name)} is also in {shards.paths[other.file].name}.",
                where=str(path),
                hint="Remove the file that does not belong to this model.",
                code=_REPEATED,
            )
    shards.paths.append(path)
    shards.entries.update((entry.name, entry) for entry in entries)
    stamps = metadata.get("colibri.fmt")
    if stamps is not None:
        values = parse_object(stamps.encode("utf-8", "surrogatepass"), str(path))
        shards.stamps.update(
            (name, value) for name, value in values.items() if isinstance(value, str)
        )


def _read_header(path: Path, descriptor: int, size: int, read: Read) -> bytes:
    """First page, last page and header, in pieces; returns the header's text.

    A failure carries the exact place. b"" for a length that no header has.
    """
    start = disk.read_at(path, descriptor, min(size, _PAGE), 0, read)
    last = max(size - _PAGE, 0)
    disk.read_at(path, descriptor, size - last, last, read)
    if len(start) < _LENGTH_BYTES:
        return b""
    (length,) = struct.unpack("<Q", start[:_LENGTH_BYTES])
    if length > min(safetensors.MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        return b""
    pieces = []
    for offset in range(_LENGTH_BYTES, _LENGTH_BYTES + length, disk.PIECE):
        wanted = min(disk.PIECE, _LENGTH_BYTES + length - offset)
        pieces.append(disk.read_at(path, descriptor, wanted, offset, read))
    return b"".join(pieces)


def _ends(values: dict[str, Any]) -> Iterator[int]:
    for value in values.values():
        offsets = value.get("data_offsets") if isinstance(value, dict) else None
        if isinstance(offsets, list) and offsets and safetensors.is_count(offsets[-1]):
            yield offsets[-1]


def _check_extent(result: Scan, path: Path, raw: bytes, size: int, again: str) -> None:
    """Raises ModelError when the data that the header describes does not fit the file exactly."""
    if not raw:
        return  # `add` says what is wrong with it
    end = _LENGTH_BYTES + len(raw) + max(_ends(parse_object(raw, str(path))), default=0)
    if end > size:
        raise ModelError(
            f"the header describes {end:,} bytes, the file holds {size:,}: "
            f"{end - size:,} are missing.",
            where=str(path),
        )
    if end < size and result.known is None:
        what = f"the header describes {end:,} bytes, the file holds {size - end:,} more."
        result.findings.append(findings.warning("integrity", what, str(path), again))


def _check_holes(result: Scan, path: Path, descriptor: int, size: int, again: str) -> None:
    hole = disk.first_hole(descriptor, size, _LEAST_HOLE)
    if hole is not None:
        what = (
            f"the file has its full size, but from byte {hole:,} on a stretch was never written; "
            "it reads as zeros."
        )
        result.findings.append(findings.error("integrity", what, str(path), again))
        result.damaged.append(path.name)


def _check_promises(result: Scan) -> None:
    """Compares names and sizes with the manifest."""
    known = result.known
    if known is None:
        return
    absent: list[str] = []
    for name, listed in known.files.items():
        path = result.path(name)
        try:
            found = path.stat().st_size if path.is_file() else None
        except OSError as failure:
            result.findings.append(findings.from_os_error(failure, str(path)))
            continue
        if found is None and known.complete:
            absent.append(name)
        elif found is not None and listed.bytes >= 0 and found != listed.bytes:
            what = f"the file holds {found:,} bytes, the manifest says {listed.bytes:,}."
            result.findings.append(findings.error("integrity", what, str(path), result.again(name)))
            if name not in result.damaged:
                result.damaged.append(name)
    if absent:
        shown = ", ".join(absent[:_MOST_SAME])
        more = f" and {len(absent) - _MOST_SAME} more" if len(absent) > _MOST_SAME else ""
        command = manifest.fetch_command(result.folder, absent, known)
        what = (
            f"{len(absent)} of the {len(known.files)} files of the manifest are absent: "
            f"{shown}{more}."
        )
        result.findings.append(
            findings.error("model", what, str(result.folder), f"Go on with: {command}")
        )
    if known.complete:
        extra = sorted(set(result.sizes) - set(known.files))
        if extra:
            what = f"{len(extra)} weight files are not in the manifest: {', '.join(extra[:3])}."
            fix = "Remove them if they belong to another model."
            result.findings.append(findings.warning("model", what, str(result.folder), fix))
    if known.unfinished:
        what = f"{len(known.unfinished)} downloads into this folder were not finished."
        command = manifest.fetch_command(result.folder, [], known, "*")
        result.findings.append(
            findings.warning("model", what, known.origin, f"Go on with: {command}")
        )
