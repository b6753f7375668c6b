"""Archives: the same bytes from the same files, links and modes kept, checksums that can fail."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from release import archive, compare

EPOCH = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small program: an executable, a link to it, a read-only file, a folder."""
    root = tmp_path / "program"
    (root / "_internal").mkdir(parents=True)
    (root / "sidecar").write_bytes(b"\x7fELF")
    (root / "sidecar").chmod(0o700)
    (root / "coli").symlink_to("sidecar")
    (root / "_internal" / "data.txt").write_text("data")
    (root / "_internal" / "data.txt").chmod(0o600)
    return root


def write(kind: str, folder: Path, target: Path) -> Path:
    {"tar": archive.write_tar, "zip": archive.write_zip}[kind](folder, target, "top", EPOCH)
    return target


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_bytes_depend_on_the_files_alone(kind: str, folder: Path, tmp_path: Path) -> None:
    first = write(kind, folder, tmp_path / "first").read_bytes()
    for path in archive.entries(folder):
        os.utime(path, (1, 2), follow_symlinks=False)
    (folder / "_internal" / "data.txt").chmod(0o640)
    assert write(kind, folder, tmp_path / "second").read_bytes() == first
    (folder / "_internal" / "data.txt").write_text("date")
    assert write(kind, folder, tmp_path / "third").read_bytes() != first


def test_a_tar_holds_no_trace_of_who_made_it(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(write("tar", folder, tmp_path / "x.tar.gz")) as content:
        members = {member.name: member for member in content}
    assert list(members) == sorted(members)
    assert all(name.split("/")[0] == "top" for name in members)
    assert {(m.uid, m.gid, m.uname, m.mtime) for m in members.values()} == {(0, 0, "", EPOCH)}
    assert members["top/coli"].issym() and members["top/coli"].linkname == "sidecar"
    assert members["top/sidecar"].mode == 0o755
    assert members["top/_internal/data.txt"].mode == 0o644


def test_a_zip_keeps_links_and_modes(folder: Path, tmp_path: Path) -> None:
    """R209: without its links a framework of macOS is damaged and its signature void."""
    packed = write("zip", folder, tmp_path / "x.zip")
    archive.read_zip(packed, tmp_path / "out")
    top = tmp_path / "out" / "top"
    assert (top / "coli").is_symlink() and (top / "coli").read_bytes() == b"\x7fELF"
    assert (top / "sidecar").stat().st_mode & 0o777 == 0o755
    assert (top / "_internal" / "data.txt").stat().st_mode & 0o777 == 0o644


def test_a_zip_that_leads_outside_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("../outside", "x")
    with pytest.raises(ValueError, match="outside"):
        archive.read_zip(tmp_path / "bad.zip", tmp_path / "out")
    assert not (tmp_path / "outside").exists()


def test_checksums_find_a_changed_and_a_missing_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b", "a")]
    for path in files:
        path.write_text(path.name)
    sums = tmp_path / "SHA256SUMS"
    archive.write_checksums(files, sums)
    assert [line.split("  ")[1] for line in sums.read_text().splitlines()] == ["a", "b"]
    assert archive.wrong_checksums(sums) == []
    (tmp_path / "a").write_text("other")
    (tmp_path / "b").unlink()
    assert archive.wrong_checksums(sums) == ["a", "b"]


def test_a_size_counts_files_once(folder: Path) -> None:
    assert archive.size(folder) == len(b"\x7fELF") + len("data")


def test_two_builds_are_compared_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way in which two builds can differ is named with its file."""
    folder = tmp_path / "program"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "one.pyc").write_bytes(b"one")
    (folder / "two").write_bytes(b"two")
    (folder / "link").symlink_to("two")
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    archive.write_tar(folder, first, "top", 1_000_000)

    def again(epoch: int = 1_000_000) -> list[str]:
        archive.write_tar(folder, second, "top", epoch)
        return compare.differences(first, second)

    assert again() == []
    assert compare.main([str(first), str(second)]) == 0
    assert set(again(1_000_001)) == {
        f"{name}: other time"
        for name in ("top", "top/inner", "top/inner/one.pyc", "top/link", "top/two")
    }
    (folder / "inner" / "one.pyc").write_bytes(b"One")
    (folder / "two").chmod(0o755)
    (folder / "link").unlink()
    (folder / "new").touch()
    assert again() == [
        "top/inner/one.pyc: other contents",
        "top/link: only in first.tar.gz",
        "top/new: only in second.tar.gz",
        "top/two: other mode",
    ]
    assert compare.main([str(first), str(second)]) == 1
    assert "4 differences" in capsys.readouterr().out
