"""A Debian that has nothing: for programs that must run where there is no Python and no display.

For: `smoke.__main__`. Needs root and `debootstrap`. Where the packages come from is read from apt's
own configuration each time, and never written down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from smoke.program import SmokeError


def _run(command: Sequence[str], **options: object) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]  # noqa: S603
    if result.returncode:
        raise SmokeError(
            f"{' '.join(command[:3])} failed: {(result.stdout + result.stderr)[-2000:]}"
        )
    return str(result.stdout)


def missing() -> str:
    """Why no such root can be made here; empty when one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "it needs root"
    return "" if shutil.which("debootstrap") else "it needs debootstrap"


def sources() -> list[tuple[str, str, str]]:
    """Address, suite and components of the system's own package sources, in apt's order."""
    form = "$(REPO_URI)|$(CODENAME)|$(COMPONENT)"
    lines = _run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines()
    found = dict.fromkeys(tuple(line.split("|")) for line in lines if line.count("|") == 2)  # noqa: PLR2004
    return [(address, suite, component) for address, suite, component in found]


def codename() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise SmokeError("this system does not say its code name")


def make(target: Path) -> None:
    """Makes the root at `target`, unless it is there."""
    if (target / "etc" / "debian_version").exists():
        return
    suite = codename()
    address = next((at for at, name, _ in sources() if name == suite), None)
    if address is None:
        raise SmokeError(f"apt knows no source of {suite}")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    _run(["debootstrap", "--variant=minbase", suite, str(partial), address])
    partial.rename(target)


def copy(source: Path, target: Path) -> None:
    """A fresh copy of a root, to be changed and thrown away."""
    shutil.rmtree(target, ignore_errors=True)
    _run(["cp", "-a", "--reflink=auto", str(source), str(target)])


@contextmanager
def running(root: Path) -> Iterator[None]:
    """Gives a root what every running system has: its processes under /proc. Taken away at the end,
    also after a failure, before anybody deletes the root.
    """
    proc = str(root / "proc")
    _run(["mount", "-t", "proc", "proc", proc])
    try:
        yield
    finally:
        _run(["umount", proc])


def allow_packages(root: Path) -> None:
    """Gives a root the system's package sources, for the time that the test takes."""
    lines = [f"deb {at} {suite} {component}\n" for at, suite, component in sources()]
    (root / "etc" / "apt" / "sources.list").write_text("".join(lines), encoding="utf-8")
    for name in ("etc/resolv.conf", "etc/hosts"):
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)


def inside(root: Path, *command: str) -> str:
    """Runs a command in a root, with nothing of our environment but the way to the packages."""
    kept = {name: text for name, text in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    environment |= {"DEBIAN_FRONTEND": "noninteractive", **kept}
    return _run(["chroot", str(root), *command], env=environment)
