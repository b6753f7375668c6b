"""Release archives that come out the same from the same files, and their checksums.

For: `release.build`. Sorted entries, one time for all (SOURCE_DATE_EPOCH), no owner, links kept as
links. Thread rule: none.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

# The level matters little for size and much for time.
_GZIP_LEVEL = 6
# A ZIP file knows no time before 1980.
_ZIP_EPOCH = 315532800


def entries(folder: Path) -> list[Path]:
    """Everything below a folder, sorted by name; links to folders are entries, not followed."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        found += [here / name for name in (*folders, *files)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def mode(path: Path) -> int:
    """755 for folders, links and programs, 644 for the rest: no trace of the builder's umask."""
    info = path.lstat()
    return 0o755 if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o100 else 0o644


def write_tar(folder: Path, target: Path, top: str, epoch: int) -> None:
    """Writes the folder's contents as `top/...` into a tar.gz."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [folder, *entries(folder)]:
            inner = path.relative_to(folder).as_posix()
            member = archive.gettarinfo(str(path), top if inner == "." else f"{top}/{inner}")
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.mode = mode(path)
            if member.isreg():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)


def write_zip(folder: Path, target: Path, top: str, epoch: int) -> None:
    """Writes the folder's contents as `top/...` into a ZIP file; links are stored as links."""
    moment = time.gmtime(max(epoch, _ZIP_EPOCH))[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_GZIP_LEVEL) as archive:
        for path in entries(folder):
            inner = f"{top}/{path.relative_to(folder).as_posix()}"
            is_link = path.is_symlink()
            if path.is_dir() and not is_link:
                continue
            member = zipfile.ZipInfo(inner, moment)
            member.create_system = 3  # Unix, so that modes and links are understood
            kind = stat.S_IFLNK if is_link else stat.S_IFREG
            member.external_attr = (kind | mode(path)) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            data = str(path.readlink()).encode() if is_link else path.read_bytes()
            archive.writestr(member, data)


def read_zip(source: Path, folder: Path) -> None:
    """Unpacks a ZIP file as the systems do: links and modes included, nothing outside `folder`."""
    with zipfile.ZipFile(source) as packed:
        for member in packed.infolist():
            target = folder / member.filename
            if not target.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{source.name} holds {member.filename!r}")
            target.parent.mkdir(parents=True, exist_ok=True)
            kind = member.external_attr >> 16
            if stat.S_ISLNK(kind) and os.name == "posix":
                target.symlink_to(packed.read(member).decode())
            elif not member.is_dir():
                target.write_bytes(packed.read(member))
                target.chmod(stat.S_IMODE(kind) or 0o644)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_checksums(files: Iterable[Path], target: Path) -> None:
    """Writes SHA256SUMS in the form that `sha256sum --check` reads."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(files, key=lambda path: path.name)]
    target.write_text("".join(lines), encoding="utf-8")


def wrong_checksums(sums: Path) -> list[str]:
    """Names in a SHA256SUMS file whose file beside it is missing or different."""
    wrong = []
    for line in sums.read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        path = sums.with_name(name)
        if not path.is_file() or digest(path) != expected:
            wrong.append(name)
    return wrong


def size(folder: Path) -> int:
    """Bytes of all regular files below a folder."""
    return sum(
        path.stat().st_size for path in entries(folder) if path.is_file() and not path.is_symlink()
    )
