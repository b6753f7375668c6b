"""What other people's work a release contains: packages of Python, JavaScript and the system.

For: `release.sbom` and `release.licences`. The frozen program's files come from the list that
build.spec writes; each is traced to the installed distribution or the system's package that owns
it, so that what is merely installed is not claimed and what is bundled is not forgotten.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|authors)", re.IGNORECASE)
_SYSTEM_DOC = Path("/usr/share/doc")
# Ours, and what freezes but does not travel (its start-up program does, and is named below).
_OWN = {"colibri-llm"}
BOOTLOADER = "pyinstaller"


class Component(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One package. `kind`: pypi, npm, deb or generic; `texts`: its licence files; `digest`: SHA-512
    of its archive in hex, where a lock names it.
    """

    kind: str
    name: str
    version: str
    licence: str = ""
    homepage: str = ""
    texts: tuple[str, ...] = ()
    digest: str = ""

    @property
    def purl(self) -> str:
        """The package URL."""
        name = self.name.replace("@", "%40")
        space = {"deb": "debian/"}.get(self.kind, "")
        return f"pkg:{self.kind}/{space}{name}@{self.version}"


# ---- Python


def python(sources: Iterable[str]) -> list[Component]:
    """The distributions that own any of the files."""
    owners = {}
    for distribution in metadata.distributions():
        root = os.path.realpath(str(distribution.locate_file("")))
        for file in distribution.files or ():
            owners[os.path.normpath(f"{root}/{file}")] = distribution
    found = {}
    for source in sources:
        owner = owners.get(os.path.realpath(source))
        if owner is not None and owner.metadata["Name"].lower() not in _OWN:
            found[owner.metadata["Name"]] = owner
    return sorted(_distribution(item) for item in found.values())


def _distribution(item: metadata.Distribution) -> Component:
    fields = item.metadata
    texts = [
        Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
        for file in sorted(item.files or (), key=str)
        if ".dist-info" in str(file)
        and _LICENCE_FILE.search(file.name)
        and Path(str(file.locate())).is_file()
    ]
    return Component(
        kind="pypi",
        name=re.sub(r"[-_.]+", "-", fields["Name"]).lower(),
        version=item.version,
        licence=_licence(fields),
        homepage=fields.get("Home-page") or _project_url(fields.get_all("Project-URL") or ()),
        texts=tuple(texts),
    )


def _licence(fields: metadata.PackageMetadata) -> str:
    """SPDX expression where there is one, else the words that the package uses."""
    if expression := fields.get("License-Expression"):
        return expression
    classifiers = [
        line.rsplit(" :: ", 1)[-1]
        for line in fields.get_all("Classifier") or ()
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    first = (fields.get("License") or "").strip().splitlines()
    return " OR ".join(classifiers) or (first[0] if first else "")


def _project_url(urls: Iterable[str]) -> str:
    wanted = ("homepage", "source", "repository", "github", "documentation")
    found = {
        label.strip().lower(): url.strip() for label, _, url in (u.partition(",") for u in urls)
    }
    return next((found[name] for name in wanted if name in found), "")


# ---- JavaScript


def javascript(lock: Path) -> list[Component]:
    """The packages of the dashboard: what package-lock.json has not only for development."""
    packages: Mapping[str, Mapping[str, Any]] = json.loads(lock.read_text(encoding="utf-8"))[
        "packages"
    ]
    found = set()
    for place, entry in packages.items():
        if not place or entry.get("dev") or entry.get("devOptional") or entry.get("optional"):
            continue
        name = place.rsplit("node_modules/", 1)[-1]
        folder = lock.parent / place
        found.add(
            Component(
                kind="npm",
                name=name,
                version=entry["version"],
                licence=str(entry.get("license", "")),
                texts=tuple(_texts(folder)),
                digest=_sha512(entry.get("integrity", "")),
            )
        )
    return sorted(found)


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and _LICENCE_FILE.search(path.name):
            yield path.read_text(encoding="utf-8", errors="replace")


def _sha512(integrity: str) -> str:
    method, _, value = integrity.partition("-")
    return base64.b64decode(value).hex() if method == "sha512" else ""


# ---- the system


def system(sources: Iterable[str]) -> list[Component]:
    """The Debian packages of the system's files, and Python itself; elsewhere Python alone."""
    paths = sorted({source for source in sources if source.startswith(("/usr/", "/lib"))})
    found: set[Component] = set()
    for path in paths:
        if package := _owner(path):
            found.add(package)
    if not any(item.name.startswith("libpython") for item in found):
        version = ".".join(str(part) for part in sys.version_info[:3])
        found.add(Component(kind="generic", name="python", version=version, licence="PSF-2.0"))
    return sorted(found)


def _owner(path: str) -> Component | None:
    """The package of one file; dpkg knows files of /usr/lib under /lib as well."""
    for name in (path, path.removeprefix("/usr"), str(Path(path).resolve())):
        answer = _run("dpkg-query", "--search", name)
        if answer:
            package = answer.split(": ", 1)[0].split(",")[0]
            version = _run("dpkg-query", "--show", "--showformat", "${Version}", package)
            bare = package.split(":")[0]
            text = _SYSTEM_DOC / bare / "copyright"
            texts = (text.read_text(encoding="utf-8", errors="replace"),) if text.is_file() else ()
            return Component(kind="deb", name=bare, version=version, licence="", texts=texts)
    return None


def _run(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def of_bundle(contents: Path, package_lock: Path) -> list[Component]:
    """Everything in one frozen program: `contents` is what build.spec wrote beside it."""
    sources: list[str] = json.loads(contents.read_text(encoding="utf-8"))
    # Its start-up program is no module, so the list does not have it.
    starter = metadata.distribution(BOOTLOADER)
    return [_distribution(starter), *python(sources), *javascript(package_lock), *system(sources)]
