"""Traces of routed experts: what each decode step of each layer asked for, and their files.

For: recording (`models.backend`), the simulator (`models.policy`) and tests. Not for: how a policy
uses them. The format is in docs/formats.md; files come from anywhere, so every line is checked and
a wrong one is refused by its number. Threads: values are immutable; one writer per file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from colibri.engine.experts import Records
from colibri.errors import ModelError, UsageError

MAGIC: Final = "colibri-trace"
VERSION: Final = 1
HEAD: Final = 4  # step, layer, rows, number of experts
_HEADER_WORDS: Final = 4
_MOST_LAYERS: Final = 65_536
_MOST_NUMBER: Final = (1 << 31) - 1
_MOST_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Trace:
    """Records as `colibri_policy_replay` takes them, and the shape of the model they are from."""

    name: str
    layers: int
    experts: int
    records: Records

    def pairs(self) -> int:
        """Different (layer, expert) pairs of layers that appear: what a full cache would hold."""
        return len({int(self.records[at + 1]) for at in self.starts()}) * self.experts

    def starts(self) -> Iterator[int]:
        """Where each record begins."""
        at = 0
        while at < len(self.records):
            yield at
            at += HEAD + int(self.records[at + 3])


class TraceWriter:
    """Appends records to a file, one line each; the file is begun anew."""

    def __init__(self, path: Path, layers: int, experts: int) -> None:
        try:
            self._file: TextIO = path.open("w", encoding="ascii", newline="\n")
            self._file.write(f"{MAGIC} {VERSION} {layers} {experts}\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"the trace cannot be written: {error.strerror or error}.", where=str(path)
            ) from error

    def write(self, records: Records) -> None:
        """Appends whole records. Raises OSError when the disk is full."""
        at, words = 0, records.tolist()
        while at < len(words):
            end = at + HEAD + words[at + 3]
            line = [*words[at : at + 3], *words[at + HEAD : end]]
            self._file.write(" ".join(map(str, line)) + "\n")
            at = end
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def save(path: Path, trace: Trace) -> None:
    """Writes a whole trace."""
    writer = TraceWriter(path, trace.layers, trace.experts)
    try:
        writer.write(trace.records)
    finally:
        writer.close()


def load(path: Path) -> Trace:
    """Reads a trace. Raises ModelError with file and line for what is no trace."""
    try:
        with path.open(encoding="ascii", errors="replace") as stream:
            layers, experts = _header(stream.readline(), path)
            words = _words(stream, path, layers, experts)
    except OSError as error:
        raise UsageError(
            f"the trace cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    return Trace(path.stem, layers, experts, words)


def _header(line: str, path: Path) -> tuple[int, int]:
    words = line.split()
    numbers = [int(word) for word in words[1:] if word.isdigit() and len(word) <= _MOST_DIGITS]
    if len(words) != _HEADER_WORDS or words[0] != MAGIC or len(numbers) != _HEADER_WORDS - 1:
        raise ModelError(
            f"this is no trace: the first line must be `{MAGIC} {VERSION} LAYERS EXPERTS`.",
            where=str(path),
            hint="Record one with `coli serve --trace FILE`.",
        )
    version, layers, experts = numbers
    if version != VERSION or not (0 < layers <= _MOST_LAYERS and 0 < experts <= _MOST_LAYERS):
        raise ModelError(
            f"a trace of version {version} with {layers} layers of {experts} experts cannot be "
            "replayed.",
            where=str(path),
        )
    return layers, experts


def _words(stream: TextIO, path: Path, layers: int, experts: int) -> Records:
    words: list[int] = []
    for number, line in enumerate(stream, 2):
        try:
            record = [int(word) for word in line.split()]
        except ValueError:
            record = []
        if len(record) < HEAD - 1 or not all(0 <= word <= _MOST_NUMBER for word in record):
            raise ModelError(
                "a line must be `step layer rows expert ...`, all whole numbers.",
                where=f"{path}, line {number}",
            )
        if record[1] >= layers or len(record) - (HEAD - 1) > experts:
            raise ModelError(
                f"the record does not fit {layers} layers of {experts} experts.",
                where=f"{path}, line {number}",
            )
        words += [*record[: HEAD - 1], len(record) - (HEAD - 1), *record[HEAD - 1 :]]
    return np.array(words, np.int32)
