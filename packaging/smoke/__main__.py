"""`python packaging/smoke RELEASE...`: tries archives and packages; ends with 1 at the first
failure.

    ARCHIVE.tar.gz / .zip   unpacked into an empty folder, and with --root also on a bare Debian
    FOLDER                  every archive and package in it
    PACKAGE.deb             installed on a bare Debian with what it depends on, tried, removed
    --model DIR             the model to chat with; without it the program's own
    --root DIR              a bare Debian (made there with debootstrap, once; needs root)
    --if-possible           where no bare Debian can be made, say so and try the rest
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from release import archive
from smoke import roots, steps
from smoke.program import Program, SmokeError, copy_tree

_KINDS = (".tar.gz", ".zip", ".deb")
_HOME = "/srv/somebody"
_MODEL = "/srv/somebody/model"


def unpack(packed: Path, folder: Path) -> Path:
    """Unpacks an archive; returns the one folder that it must consist of."""
    if packed.suffix == ".zip":
        archive.read_zip(packed, folder)
    else:
        with tarfile.open(packed) as content:
            content.extractall(folder, filter="data")
    found = list(folder.iterdir())
    steps.require(len(found) == 1, f"{packed.name} unpacks to {[path.name for path in found]}")
    inner = found[0] / "Contents" / "MacOS"
    return inner if inner.is_dir() else found[0]


def checksum(packed: Path) -> None:
    """The archive is what SHA256SUMS beside it says."""
    sums = packed.with_name("SHA256SUMS")
    if sums.exists():
        wrong = archive.wrong_checksums(sums)
        steps.require(not wrong, f"SHA256SUMS is wrong about {wrong}")


def in_empty_folder(packed: Path, model: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="colibri smoke ") as name:
        work = Path(name)
        folder = unpack(packed, work / "unpacked")
        home = work / "home"
        home.mkdir()
        program = Program(str(folder), str(home), model=str(model.resolve()) if model else "")
        steps.all_of(program, work / "server.log")


def _home(root: Path, model: Path | None) -> str:
    (root / _HOME[1:]).mkdir(parents=True)
    if model is None:
        return ""
    copy_tree(model, root / _MODEL[1:])
    return _MODEL


def on_bare_system(packed: Path, bare: Path, model: Path | None, work: Path) -> None:
    root = work / "bare"
    roots.copy(bare, root)
    for name in ("python3", "X", "Xorg", "gcc"):
        steps.require(not (root / "usr" / "bin" / name).exists(), f"the bare system has {name}")
    folder = unpack(packed, root / "opt")
    program = Program(f"/opt/{folder.name}", _HOME, root, _home(root, model))
    with roots.running(root):
        steps.all_of(program, work / "server.log")
    shutil.rmtree(root)


def as_package(package: Path, bare: Path, model: Path | None, work: Path) -> None:
    root = work / "installed"
    roots.copy(bare, root)
    roots.allow_packages(root)
    shutil.copyfile(package, root / package.name)
    chosen = _home(root, model)
    with roots.running(root):
        _install_use_remove(package, root, chosen, work)
    shutil.rmtree(root)


def _install_use_remove(package: Path, root: Path, chosen: str, work: Path) -> None:
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
    roots.inside(root, "apt-get", "update")
    roots.inside(root, *install, f"./{package.name}")
    name = package.name.partition("_")[0]
    paths = roots.inside(root, "dpkg", "--listfiles", name).splitlines()
    wrong = roots.inside(root, "dpkg", "--verify", name).strip()
    steps.require(not wrong, f"installed files differ: {wrong}")
    program = Program(f"/usr/lib/{name}", _HOME, root, chosen)
    steps.all_of(program, work / "server.log")
    version = roots.inside(root, "/usr/bin/coli", "--version").strip()
    for command in ("colibri", "sidecar"):
        words = roots.inside(root, f"/usr/bin/{command}", "--version").strip()
        steps.require(words.split()[-1] == version.split()[-1], f"{command} prints {words!r}")
    kept = {path: path.stat().st_size for path in (root / _HOME[1:]).rglob("*") if path.is_file()}
    steps.require(bool(kept), "the program kept nothing in the home folder")
    roots.inside(root, "apt-get", "purge", "--yes", "--quiet", name)
    files = [path for path in paths if path != "/." and _is_ours(path, name)]
    left = [path for path in files if (root / path[1:]).exists() or (root / path[1:]).is_symlink()]
    steps.require(bool(files), "the package owns no file of its own")
    steps.require(not left, f"left behind after removal: {left[:10]}")
    lost = [
        str(path) for path, size in kept.items() if not path.exists() or path.stat().st_size != size
    ]
    steps.require(not lost, f"removal touched a person's files: {lost}")
    steps.say(f"{package.name}: installed, used, removed; {len(kept)} files of the person kept")


def _is_ours(path: str, name: str) -> bool:
    """Whether a path is the package's alone, not a folder that others use as well."""
    return name in path or "colibri" in path.lower() or path.startswith("/usr/bin/")


def releases(given: Sequence[Path]) -> list[Path]:
    """Archives and packages: those given, and those in folders that are given."""
    found: list[Path] = []
    for path in given:
        inside = [item for item in sorted(path.glob("*")) if item.name.endswith(_KINDS)]
        found += inside if path.is_dir() else [path]
    steps.require(bool(found), "there is no release to try")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="smoke", description="Tries releases.")
    parser.add_argument("release", nargs="+", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--if-possible", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="colibri-smoke-") as name:
        work = Path(name)
        try:
            if options.root:
                reason = roots.missing()
                if reason and not options.if_possible:
                    raise SmokeError(f"no bare system can be made here: {reason}")
                if reason:
                    print(f"smoke: NOT TRIED on a bare Debian: {reason}", file=sys.stderr)
                    options.root = None
                else:
                    roots.make(options.root)
            for release in releases(options.release):
                steps.say(release.name)
                checksum(release)
                if release.suffix == ".deb":
                    if options.root is None and options.if_possible:
                        continue
                    if options.root is None:
                        raise SmokeError(f"{release.name} needs --root: it is not installed here")
                    as_package(release, options.root, options.model, work)
                    continue
                in_empty_folder(release, options.model)
                if options.root:
                    steps.say(f"{release.name} on a bare system")
                    on_bare_system(release, options.root, options.model, work)
        except SmokeError as error:
            print(f"smoke: FAILED: {error}", file=sys.stderr)
            return 1
    steps.say("all steps passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
