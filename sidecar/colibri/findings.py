"""What a check found: one sentence each for what, where and what to do.

For: `coli doctor` and `coli verify`, which print findings and end with the exit code of the worst.
Not for: errors that end a command at once (`colibri.errors`); `from_error` turns one of those into
a finding. Thread rule: immutable values and pure functions.

    kind        exit code   meaning
    device      5           a disk or mount failed while reading: the file itself may be whole
    integrity   7           bytes differ from their hash, size or header
    model       4           the model is incomplete, contradicts itself or is not supported
    not_found   3           there is no such model
    settings    2           a setting or config file is wrong
    machine     5           memory, disk space or a folder is not available

A `device` finding outranks all others, because they may only follow from it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from colibri.errors import (
    ColibriError,
    IntegrityError,
    ModelNotFoundError,
    ResourceError,
    UsageError,
    printable,
)

Level: TypeAlias = Literal["ok", "note", "warning", "error"]
Kind: TypeAlias = Literal["device", "integrity", "model", "not_found", "settings", "machine"]

LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "error")
# Kind to exit code; the first of the errors that were found decides.
EXIT_CODES: Final[dict[Kind, int]] = {
    "device": 5,
    "integrity": 7,
    "model": 4,
    "not_found": 3,
    "settings": 2,
    "machine": 5,
}
KEEP_FILES: Final = (
    "This is a device or mount problem: do not download again. Check cable, mount and the system's "
    "log (dmesg), then run the check once more."
)
# What a dying disk, a lost network share and an unplugged drive answer.
_DEVICE_ERRNOS: Final = frozenset(
    number
    for name in ("EIO", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "ENOTCONN", "EBADMSG", "EUCLEAN",
                 "ETIMEDOUT", "ENOMEDIUM", "EHOSTDOWN", "ECONNABORTED", "ESHUTDOWN", "ENOLINK")
    if (number := getattr(errno, name, None)) is not None
)  # fmt: skip


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check. `where` and `fix` are never empty on a warning or an error."""

    level: Level
    kind: Kind
    what: str
    where: str = ""
    fix: str = ""

    def line(self, *, remedy: bool = True) -> str:
        """For people: level, place, sentence, and on a line of its own the remedy."""
        place = f"{self.where}: " if self.where else ""
        below = f"\n         -> {printable(self.fix)}" if self.fix and remedy else ""
        return f"{self.level:7}  {printable(place + self.what)}{below}"


def ok(kind: Kind, what: str, where: str = "") -> Finding:
    """Something that is as it should be."""
    return Finding(level="ok", kind=kind, what=what, where=where)


def note(kind: Kind, what: str, where: str = "", fix: str = "") -> Finding:
    """Something worth knowing that needs no remedy."""
    return Finding(level="note", kind=kind, what=what, where=where, fix=fix)


def warning(kind: Kind, what: str, where: str, fix: str) -> Finding:
    """Something that works, but worse than it could."""
    return Finding(level="warning", kind=kind, what=what, where=where, fix=fix)


def error(kind: Kind, what: str, where: str, fix: str) -> Finding:
    """Something that must be put right."""
    return Finding(level="error", kind=kind, what=what, where=where, fix=fix)


def is_device_error(failure: BaseException | None) -> bool:
    """Whether the device or mount failed, not the file; looks at causes too."""
    seen = 0
    while failure is not None and seen < 8:  # noqa: PLR2004 - a chain of causes is short
        if isinstance(failure, OSError) and failure.errno in _DEVICE_ERRNOS:
            return True
        failure, seen = failure.__cause__, seen + 1
    return False


def device_hint(failure: BaseException) -> str | None:
    """What to do about a failing device; None for any other failure."""
    return KEEP_FILES if is_device_error(failure) else None


def from_os_error(failure: OSError, where: str) -> Finding:
    """The finding for a file operation that failed."""
    said = failure.strerror or str(failure)
    if is_device_error(failure):
        return error("device", f"reading failed: {said}.", where, KEEP_FILES)
    if isinstance(failure, PermissionError):
        fix = "Give your user the right to read it, for example with chmod u+rX."
        return error("machine", f"there is no permission: {said}.", where, fix)
    if isinstance(failure, FileNotFoundError):
        fix = "Check the path, and whether the drive that holds it is mounted."
        return error("not_found", "there is no such file or folder.", where, fix)
    return error("machine", f"it cannot be read: {said}.", where, "Check the file and its drive.")


def from_error(failure: ColibriError, where: str, fix: str) -> Finding:
    """The finding for an error of ours; `where` and `fix` where it names none itself."""
    place = failure.where or where
    if is_device_error(failure):
        return error("device", failure.message, place, KEEP_FILES)
    kinds: tuple[tuple[type[ColibriError], Kind], ...] = (
        (IntegrityError, "integrity"),
        (ModelNotFoundError, "not_found"),
        (UsageError, "settings"),
        (ResourceError, "machine"),
    )
    kind: Kind = next((name for type_, name in kinds if isinstance(failure, type_)), "model")
    return error(kind, failure.message, place, failure.hint or fix)


def size_text(size: int) -> str:
    """Bytes for people: GB of 1e9, or MB of 1e6 below half of one."""
    if size < 0.5e9:  # noqa: PLR2004 - the text above says it
        return f"{size / 1e6:.2f} MB"
    return f"{size / 1e9:.2f} GB"


def worst(found: Iterable[Finding]) -> Level:
    """The highest level; `ok` for nothing."""
    return max((item.level for item in found), key=LEVELS.index, default="ok")


def exit_code(found: Iterable[Finding]) -> int:
    """0 without an error; else the code of the gravest kind."""
    kinds = {item.kind for item in found if item.level == "error"}
    return next((code for kind, code in EXIT_CODES.items() if kind in kinds), 0)
