"""Changing single values of a TOML file that a person wrote, leaving all else as it stands.

For: `coli tune --apply`. Not for: reading settings (`colibri.settings`). The result is parsed again
and must differ from the old content in nothing but the wanted values; a file that cannot be edited
with certainty (inline tables, text over several lines at that place) is refused, never guessed at.
Thread rule: pure functions, and one writer that replaces the file whole.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri.errors import UsageError

_HEADER = re.compile(r"\s*\[\s*(?P<name>[\w.-]+)\s*\]\s*(#.*)?\Z")
_ANY_HEADER = re.compile(r"\s*\[")


def literal(value: Any) -> str:
    """A value as TOML: bool, int, float or text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if any(ord(letter) < 0x20 or letter in '"\\\x7f' for letter in text):  # noqa: PLR2004 - controls
        raise UsageError(f"the value {text!r} cannot be written.", where="config file")
    return f'"{text}"'


def edit(text: str, values: Mapping[str, Any], where: str) -> str:
    """The file's text with `section.name` keys set. UsageError when that is not certain."""
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"cannot be read as TOML: {error}.", where=where) from error
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(newline)
    for key, value in values.items():
        section, _, name = key.partition(".")
        lines = _set(lines, section, name, literal(value))
    result = newline.join(lines)
    wanted = _merged(before, values)
    try:
        after = tomllib.loads(result)
    except tomllib.TOMLDecodeError:
        after = {}
    if after != wanted:
        shown = ", ".join(f"{key} = {literal(value)}" for key, value in values.items())
        raise UsageError(
            "the file is written in a way that cannot be changed safely.",
            where=where,
            hint=f"Set by hand: {shown}",
        )
    return result


def _merged(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = dict(tree)
    for key, value in values.items():
        section, _, name = key.partition(".")
        inner = result.get(section)
        result[section] = {**inner, name: value} if isinstance(inner, dict) else {name: value}
    return result


def _set(lines: list[str], section: str, name: str, value: str) -> list[str]:
    """Replaces the value where the key stands, else adds it to its section, else the section."""
    own = re.compile(rf"(?P<head>\s*{re.escape(name)}\s*=\s*)")
    dotted = re.compile(rf"(?P<head>\s*{re.escape(section)}\s*\.\s*{re.escape(name)}\s*=\s*)")
    current, last = "", -1
    for place, line in enumerate(lines):
        header = _HEADER.match(line)
        if header is not None:
            current = header["name"]
            if current == section:
                last = place
            continue
        if _ANY_HEADER.match(line):
            current = "\0"  # an array of tables, a quoted name: not ours
            continue
        found = own.match(line) if current == section else None
        if found is None and current == "":
            found = dotted.match(line)
        if found is not None:
            return [*lines[:place], found["head"] + value + _comment(line), *lines[place + 1 :]]
        if current == section and line.strip():
            last = place
    if last >= 0:
        return [*lines[: last + 1], f"{name} = {value}", *lines[last + 1 :]]
    ended = [*lines[:-1]] if lines and not lines[-1] else [*lines]
    gap = [""] if ended and ended[-1].strip() else []
    return [*ended, *gap, f"[{section}]", f"{name} = {value}", ""]


def _comment(line: str) -> str:
    """The comment behind a simple value, with the blanks before it."""
    match = re.search(r"""(?:"[^"]*"|'[^']*'|[^#"'\s=]+)(\s*#.*)?\s*\Z""", line)
    return match[1] or "" if match else ""


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Sets values in a file, which is made if there is none. Temporary file, then renamed.

    Raises UsageError as `edit`, and for a file that cannot be read or written.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        content = edit(text, values, str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()  # a link stays one
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        try:
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                os.chmod(temporary, mode)  # noqa: PTH101 - before any content
                stream.write(content)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file cannot be changed: {error}.", where=str(path)) from error
