"""Builds the releases of this system: freezes, packs, lists, signs. Smoke tests are
`packaging/smoke`.

Run by `make release`, in the environment of requirements/release.lock: `python -m release.build
[--variant headless] [--variant desktop]`. Everything lies in build/release/; what people get in
build/release/out/. The same sources and SOURCE_DATE_EPOCH (default: the commit's time) give the
same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release import archive, components, debian, licences, sbom, sign, variants

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "release"
OUT = WORK / "out"
# What people have to download and keep, without a model.
PACKED_LIMIT = 60_000_000
UNPACKED_LIMIT = 160_000_000
STARTER_LIMIT = 12_000_000

_START = {
    "linux": "Start: ./sidecar",
    "windows": "Start: Colibri.exe (with a window), sidecar.exe --no-window (server)",
    "macos": "Start: Colibri.app",
}
_README = """\
Colibri {version}

{start}
The server alone: sidecar --no-window. In a terminal: coli --help.
Nothing is written beside the program. Models, chats and settings lie in your user folders; deleting
this folder removes the program and leaves them.
Licence: LICENSE; the work of others in it: THIRD-PARTY.txt.
"""


def epoch() -> int:
    """The time that every file of the release gets, in seconds."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return int(answer.stdout)


def version() -> str:
    text = (ROOT / "sidecar" / "colibri" / "__init__.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


def run(*command: str | Path, **environment: str) -> None:
    """Runs a program in the root; its failure ends this one with its own message."""
    words = [str(part) for part in command]
    result = subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=False)  # noqa: S603
    if result.returncode:
        raise SystemExit(result.returncode)


def install_package() -> None:
    """Builds the package with engine and dashboard, and installs it beside the locked packages."""
    wheels = WORK / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [sys.executable, "-m", "pip"]
    tools = Path(sys.executable).parent
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
    build_folder = f"build-dir={WORK / 'package'}"
    path = os.pathsep.join([str(tools), os.environ.get("PATH", "")])
    run(*pip, "wheel", *options, "--config-settings", build_folder, ".", PATH=path)
    (wheel,) = wheels.glob("*.whl")
    run(*pip, "install", "--quiet", "--no-deps", "--force-reinstall", wheel)


def can_have_window(system: str) -> str:
    """Why no program with a window can be made here; empty when one can."""
    if importlib.util.find_spec("webview") is None:
        return "pywebview is not installed"
    if system == "linux" and importlib.util.find_spec("gi") is None:
        return "python3-gi is not installed (Debian: python3-gi gir1.2-gtk-3.0 gir1.2-webkit2-4.1)"
    return ""


def freeze(variant: variants.Variant, moment: int) -> Path:
    """Runs PyInstaller; returns the folder of the program, or on macOS of the app."""
    target = WORK / "dist"
    options: list[str | Path] = ["--noconfirm", "--log-level", "WARN", "--distpath", target]
    options += ["--workpath", WORK / "freeze" / variant.name, ROOT / "build.spec"]
    run(
        Path(sys.executable).parent / "pyinstaller",
        *options,
        "--",
        "--variant",
        variant.name,
        SOURCE_DATE_EPOCH=str(moment),
        PYTHONHASHSEED="0",
    )
    if variant.platform == "macos" and variant.window:
        return target / "Colibri.app"
    return target / f"colibri-{variant.name}"


def notices() -> list[tuple[str, str]]:
    """Licences that no package declares: data that the program carries."""
    package = ROOT / "sidecar" / "colibri"
    found = sorted([*package.rglob("NOTICE*"), *package.rglob("LICENSE*")])
    return [(f"{path.parent.name}/{path.name}", path.read_text(encoding="utf-8")) for path in found]


def complete(bundle: Path, variant: variants.Variant, third_party: str, number: str) -> None:
    """Adds what people read, and the page that the dashboard shows."""
    for web in bundle.rglob("colibri/web"):
        (web / "third-party.txt").write_text(third_party, encoding="utf-8")
    if bundle.suffix == ".app":
        return
    shutil.copyfile(ROOT / "LICENSE", bundle / "LICENSE")
    (bundle / "THIRD-PARTY.txt").write_text(third_party, encoding="utf-8")
    text = _README.format(version=number, start=_START[variant.platform])
    (bundle / "README.txt").write_text(text, encoding="utf-8")


def pack(bundle: Path, variant: variants.Variant, number: str, moment: int) -> Path:
    """Writes the archive of a program and checks its size. Raises SystemExit for one too large."""
    machine = platform.machine().lower().replace("amd64", "x86_64")
    kind = "" if variant.window else "-headless"
    top = f"colibri-{number}{kind}"
    stem = OUT / f"colibri-{number}-{variant.platform}-{machine}{kind}"
    if variant.platform == "linux":
        target = Path(f"{stem}.tar.gz")
        archive.write_tar(bundle, target, top, moment)
    elif bundle.suffix == ".app":
        target = Path(f"{stem}.zip")
        archive.write_zip(bundle, target, bundle.name, moment)
    else:
        target = Path(f"{stem}.zip")
        archive.write_zip(bundle, target, top, moment)
    starter = sum(archive.size(path.parent) for path in bundle.rglob("colibri.json"))
    unpacked = archive.size(bundle) - starter
    packed = target.stat().st_size
    print(
        f"release: {target.name}: {packed / 1e6:.1f} MB, unpacked {unpacked / 1e6:.1f} MB "
        f"and {starter / 1e6:.1f} MB of starter model"
    )
    if packed > PACKED_LIMIT or unpacked > UNPACKED_LIMIT or starter > STARTER_LIMIT:
        raise SystemExit(f"release: {target.name} is too large")
    return target


def build(variant: variants.Variant, number: str, moment: int) -> tuple[list[Path], list[str]]:
    """Makes everything of one variant; returns the files for people and what is unsigned."""
    bundle = freeze(variant, moment)
    contents = WORK / "dist" / f"colibri-{variant.name}.contents.json"
    parts = components.of_bundle(contents, ROOT / "frontend" / "package-lock.json")
    if nameless := licences.without_text(parts):
        raise SystemExit(f"release: without any licence: {', '.join(nameless)}")
    third_party = licences.page(number, parts, notices())
    complete(bundle, variant, third_party, number)
    unsigned = sign.sign_programs(variant.platform, bundle, os.environ)
    packed = pack(bundle, variant, number, moment)
    bill = packed.with_name(packed.name.removesuffix(".tar.gz").removesuffix(".zip") + ".cdx.json")
    bill.write_bytes(sbom.encode(sbom.document(number, parts, moment)))
    files = [packed, bill]
    if variant.platform == "linux" and variant.window and shutil.which("dpkg-deb"):
        files.append(_debian(bundle, third_party, number, moment))
    return files, unsigned


def _debian(bundle: Path, third_party: str, number: str, moment: int) -> Path:
    root = WORK / "deb"
    shutil.rmtree(root, ignore_errors=True)
    debian.lay_out(bundle, root, ROOT / "packaging", third_party, number, moment)
    architecture = debian.ARCHITECTURES[platform.machine()]
    libc = platform.libc_ver()[1]
    control = debian.control(number, architecture, archive.size(root), libc)
    target = OUT / f"{debian.PACKAGE}_{number}_{architecture}.deb"
    debian.build(root, target, control, moment)
    print(f"release: {target.name}: {target.stat().st_size / 1e6:.1f} MB")
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="release.build")
    parser.add_argument("--variant", action="append", choices=("headless", "desktop"))
    names = parser.parse_args(arguments).variant
    system = variants.PLATFORMS.get(sys.platform)
    if system is None:
        raise SystemExit(f"release: no release is made for {sys.platform}")
    reason = can_have_window(system)
    if names is None:
        names = ["headless"] if reason else ["headless", "desktop"]
        if reason:
            print(f"release: NO PROGRAM WITH A WINDOW is built: {reason}", file=sys.stderr)
    elif "desktop" in names and reason:
        raise SystemExit(f"release: {reason}")
    moment, number = epoch(), version()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    install_package()
    files: list[Path] = []
    unsigned: list[str] = []
    for name in names:
        variant = variants.chosen(["--variant", name], sys.platform)
        made, problems = build(variant, number, moment)
        files += made
        unsigned += problems
    sums = OUT / "SHA256SUMS"
    archive.write_checksums(files, sums)
    unsigned += sign.sign_checksums(sums, os.environ)
    sign.report(system, unsigned, OUT)
    print(f"release: {len(files)} files in {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
