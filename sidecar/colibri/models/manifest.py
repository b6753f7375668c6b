"""The list of files a container should have, so that a download can be checked in seconds.

For: the checks, and `coli verify --manifest`, which writes one beside a container before it is
published. Not for: opening a model, which needs none. Thread rule: pure functions over files.

    colibri-manifest.json   {"schema": 1, "source": {"repo": "owner/name", "revision": "..."},
                             "files": [{"name": "out-00000.safetensors", "bytes": 3221225472,
                                        "sha256": "..."}]}

`source` and every `sha256` may be absent. A folder that the Hugging Face client filled carries the
same knowledge in its own notes (`.cache/huggingface/download/NAME.metadata`, whose second line is
the SHA-256 of a large file); they are read when there is no manifest. All of it is untrusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from colibri import regular
from colibri.errors import ModelError
from colibri.families.values import ConfigReader, parse_object, show

MANIFEST_NAME: Final = "colibri-manifest.json"
SCHEMA: Final = 1
_HUB_NOTES: Final = Path(".cache") / "huggingface" / "download"
_MOST_FILES: Final = 100_000
_MOST_BYTES: Final = 1 << 50
_MOST_NOTE_BYTES: Final = 4096
_MOST_NAME_BYTES: Final = 255
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_REPO: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z")
_REVISION: Final = re.compile(r"[\w.-]{1,100}\Z")
# A command line longer than this is not copied by anyone; a pattern takes its place.
_MOST_NAMES: Final = 24


class Listed(msgspec.Struct, frozen=True):
    """One promised file; `bytes` -1 and `sha256` "" mean that nobody says."""

    name: str
    bytes: int = -1
    sha256: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What a folder should hold. `origin` is the file or folder that says so.

    `complete` tells whether files beyond the list are unexpected and all listed ones required.
    """

    files: Mapping[str, Listed]
    origin: str = ""
    repo: str = ""
    revision: str = ""
    complete: bool = True
    unfinished: tuple[str, ...] = ()


def read(folder: Path) -> Manifest | None:
    """The manifest of a folder, or the hub client's notes; None without either.

    Raises ModelError for a manifest that is damaged.
    """
    path = folder / MANIFEST_NAME
    if path.exists():
        return _own(path)
    return _from_hub_notes(folder)


def _own(path: Path) -> Manifest:
    try:
        data = regular.read_file(path)
    except OSError as error:
        raise ModelError(
            f"the file cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    reader = ConfigReader(parse_object(data, str(path)), str(path))
    if reader.integer("schema", 0, 1 << 30) != SCHEMA:
        reader.unsupported("schema", f"manifests of schema {SCHEMA}")
    listed = reader.values.get("files")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_FILES:
        reader.fail("files", "a list of files")
    files: dict[str, Listed] = {}
    for number, value in enumerate(listed):
        if not isinstance(value, dict):
            reader.fail("files", "a list of objects")
        item = _listed(ConfigReader(value, str(path), f"files[{number}]."))
        if item.name in files:
            raise ModelError(f"the file {show(item.name)} is listed twice.", where=str(path))
        files[item.name] = item
    source = reader.object("source")
    repo = source.string("repo", "") if source else ""
    revision = source.string("revision", "") if source else ""
    return Manifest(
        files,
        str(path),
        repo if _REPO.match(repo) else "",
        revision if _REVISION.match(revision) else "",
    )


def is_repo(name: str) -> bool:
    """Whether a text is the name of a repository."""
    return _REPO.match(name) is not None


def _listed(entry: ConfigReader) -> Listed:
    name = entry.string("name")
    if not is_plain_name(name):
        entry.fail("name", "the plain name of a file beside it")
    sha256 = entry.string("sha256", "")
    if sha256 and not _SHA256.match(sha256):
        entry.fail("sha256", "64 hexadecimal digits")
    return Listed(name, entry.integer("bytes", 0, _MOST_BYTES), sha256)


def is_plain_name(name: str) -> bool:
    """Whether a file may have this name on every system, and stays inside its folder then."""
    bad = {"/", "\\", ":"}
    return (
        name.isprintable()  # so it can be encoded, and shown in a message
        and 0 < len(name.encode()) <= _MOST_NAME_BYTES
        and name not in (".", "..")
        and not bad & set(name)
    )


def _from_hub_notes(folder: Path) -> Manifest | None:
    notes = folder / _HUB_NOTES
    files: dict[str, Listed] = {}
    revision = ""
    unfinished: list[str] = []
    with contextlib.suppress(OSError):
        for path in sorted(notes.iterdir())[:_MOST_FILES]:
            if path.name.endswith(".incomplete"):
                unfinished.append(path.name.split(".safetensors")[0][:100])
            if path.suffix != ".metadata" or not path.is_file():
                continue
            with path.open("rb") as stream:
                lines = stream.read(_MOST_NOTE_BYTES).decode("ascii", "replace").splitlines()
            name = path.name.removesuffix(".metadata")
            if len(lines) >= 2 and is_plain_name(name):  # noqa: PLR2004 - commit, hash
                tag = lines[1].strip()
                files[name] = Listed(name, -1, tag if _SHA256.match(tag) else "")
                revision = lines[0].strip() if _REVISION.match(lines[0].strip()) else revision
    if not files and not unfinished:
        return None
    return Manifest(files, str(notes), "", revision, False, tuple(unfinished))


def write(
    folder: Path,
    hashes: Mapping[str, tuple[int, str]],
    source: Mapping[str, str] | None = None,
) -> Path:
    """Writes the manifest of a folder (temporary file, then renamed) and returns its path.

    `hashes` is (bytes, sha256) by name; `source` may say `repo` and `revision`.
    """
    content: dict[str, Any] = {"schema": SCHEMA}
    if source:
        content["source"] = dict(source)
    content["files"] = [
        {"name": name, "bytes": size, "sha256": sha256}
        for name, (size, sha256) in sorted(hashes.items())
    ]
    path = folder / MANIFEST_NAME
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def fetch_command(
    folder: Path, names: Collection[str], known: Manifest | None = None, pattern: str = "*"
) -> str:
    """The command line that fetches these files (or what `pattern` matches) into the folder.

    Where nobody says which repository the model came from, the word REPO stands for it.
    """
    repo = known.repo if known is not None and known.repo else "REPO"
    words = ["hf", "download", repo]
    if known is not None and known.repo and known.revision:
        words += ["--revision", known.revision]
    chosen = sorted(name for name in names if is_plain_name(name) and not name.startswith("-"))
    if 0 < len(chosen) <= _MOST_NAMES:
        words += chosen
    else:
        words += ["--include", pattern if not chosen else _common(chosen)]
    words += ["--local-dir", str(folder)]
    return shlex.join(words)


def _common(names: Sequence[str]) -> str:
    """A pattern that matches all these names."""
    start = 0
    while all(name[start : start + 1] == names[0][start : start + 1] != "" for name in names):
        start += 1
    return names[0][:start].rstrip("0123456789") + "*"
