"""Says in which files two builds of one release differ: `python -m release.compare OLD NEW`.

For: `make release-twice`, which builds twice from the same sources, and people who check a release
against one they have built themselves. Reads tar.gz archives; ends with 1 and one line for each
difference, with 0 when the archives are the same byte for byte. Thread rule: none.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from release import archive

# One entry: kind, mode, owner, time and what it holds.
Entry = tuple[bytes, int, tuple[int, int, str, str], float, str]
_ASPECTS = ("kind", "mode", "owner", "time", "contents")


def contents(packed: Path) -> dict[str, Entry]:
    """The entries of an archive by name, in its order; contents as SHA-256, links as their aim."""
    found: dict[str, Entry] = {}
    with tarfile.open(packed) as content:
        for member in content:
            held = member.linkname
            if (reader := content.extractfile(member)) is not None and member.isreg():
                held = hashlib.file_digest(reader, "sha256").hexdigest()
            owner = (member.uid, member.gid, member.uname, member.gname)
            found[member.name] = (member.type, member.mode, owner, member.mtime, held)
    return found


def differences(old: Path, new: Path) -> list[str]:
    """One line for each entry that differs; empty only where the archives are the same bytes."""
    before, after = contents(old), contents(new)
    lines = [f"{name}: only in {old.name}" for name in before.keys() - after.keys()]
    lines += [f"{name}: only in {new.name}" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        both = zip(_ASPECTS, before[name], after[name], strict=True)
        if wrong := [aspect for aspect, one, other in both if one != other]:
            lines.append(f"{name}: other {', '.join(wrong)}")
    if not lines and list(before) != list(after):
        lines.append("the entries are in another order")
    if not lines and archive.digest(old) != archive.digest(new):
        lines.append("every entry is the same, the packing is not")
    return sorted(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    old, new = map(Path, sys.argv[1:] if arguments is None else arguments)
    lines = differences(old, new)
    for line in lines:
        print(f"compare: {line}")
    print(f"compare: {new.name}: {f'{len(lines)} differences' if lines else 'the same bytes'}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
