"""The .deb of the desktop program: one folder below /usr/lib, commands, menu entry, icons.

For: `release.build`. Needs `dpkg-deb`. No maintainer scripts: installing and removing is unpacking
and deleting files, so that nothing of a person's is ever touched.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from release import archive
from release.icons import SIZES
from release.variants import APP_ID

PACKAGE = "colibri-llm"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The C library's version is that of the system it was built on, the others what the window needs.
DEPENDS = (
    "libc6 (>= {libc}), libgcc-s1, libstdc++6, libgirepository-1.0-1, gir1.2-gtk-3.0, "
    "gir1.2-webkit2-4.1"
)
COMMANDS = ("colibri", "coli", "sidecar")

_CONTROL = """\
Package: {package}
Version: {version}
Architecture: {architecture}
Maintainer: The Colibri authors <colibri@localhost>
Installed-Size: {kibibytes}
Depends: {depends}
Section: science
Priority: optional
Description: large language models on the computer you already own
 Colibri runs Mixture-of-Experts language models whose experts do not fit in
 memory: those that a word needs are read from disk. It has a window to chat
 in, and serves the APIs of OpenAI and Anthropic to editors and tools.
"""


def control(version: str, architecture: str, size: int, libc: str) -> str:
    """The control file; `size` in bytes as installed."""
    return _CONTROL.format(
        package=PACKAGE,
        version=version,
        architecture=architecture,
        kibibytes=-(-size // 1024),
        depends=DEPENDS.format(libc=libc),
    )


def metainfo(text: str, version: str, epoch: int) -> str:
    """The AppStream file for a release."""
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    return text.replace("@VERSION@", version).replace("@DATE@", date)


def desktop_files(packaging: Path, share: Path, version: str, epoch: int) -> None:
    """Writes menu entry, AppStream data and icons below a `share` folder."""
    linux, icons = packaging / "linux", packaging / "icons"
    _copy(linux / f"{APP_ID}.desktop", share / "applications" / f"{APP_ID}.desktop")
    meta = share / "metainfo" / f"{APP_ID}.metainfo.xml"
    meta.parent.mkdir(parents=True, exist_ok=True)
    source = (linux / f"{APP_ID}.metainfo.xml").read_text(encoding="utf-8")
    meta.write_text(metainfo(source, version, epoch), encoding="utf-8")
    hicolor = share / "icons" / "hicolor"
    for size in SIZES:
        _copy(icons / f"colibri-{size}.png", hicolor / f"{size}x{size}" / "apps" / f"{APP_ID}.png")
    _copy(icons / "colibri.svg", hicolor / "scalable" / "apps" / f"{APP_ID}.svg")


def lay_out(
    bundle: Path, root: Path, packaging: Path, licences: str, version: str, epoch: int
) -> None:
    """Writes the installed files below `root`, everything with one time and plain modes."""
    home = root / "usr" / "lib" / PACKAGE
    shutil.copytree(bundle, home, symlinks=True)
    bin_folder = root / "usr" / "bin"
    bin_folder.mkdir(parents=True)
    for name in COMMANDS:
        program = "coli" if name == "coli" else "sidecar"
        (bin_folder / name).symlink_to(f"../lib/{PACKAGE}/{program}")
    share = root / "usr" / "share"
    desktop_files(packaging, share, version, epoch)
    documents = share / "doc" / PACKAGE
    documents.mkdir(parents=True)
    (documents / "copyright").write_text(licences, encoding="utf-8")
    changes = (packaging.parent / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(changes, 9, mtime=epoch))


def build(root: Path, target: Path, control_text: str, epoch: int) -> None:
    """Makes the .deb of the files below `root`. Raises CalledProcessError when dpkg-deb refuses."""
    sums = []
    for path in archive.entries(root):
        if path.is_file() and not path.is_symlink():
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            sums.append(f"{digest}  {path.relative_to(root).as_posix()}\n")
    inside = root / "DEBIAN"
    inside.mkdir()
    (inside / "control").write_text(control_text, encoding="utf-8")
    (inside / "md5sums").write_text("".join(sums), encoding="utf-8")
    for path in [root, *archive.entries(root)]:
        if not path.is_symlink():
            path.chmod(archive.mode(path))
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(target)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
