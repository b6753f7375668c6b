"""The file that a measurement grows in: one line for each prompt, so that a kill loses at most one.

For: `coli atlas run`, which appends, and `coli atlas analyze`, which reads. It lies beside
`.coli_usage`. Lines are JSON; counts are the little-endian u16 of all experts, row by row,
compressed, in base64. A last line that was cut short is dropped; anything else that is wrong is
refused by its number, because it did not come from a kill. Thread rule: one `Run` per file and
process, a lock of the system keeps others away.

    {"atlas": 1, "model": ..., "weights": ..., "layers": [...], "cols": n,
     "per_token": k, "topics": [...], "tokens": n}
    {"key": ..., "topic": ..., "set": "a", "prompt": "...", "answer": "..."}
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import filelock
import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri import regular
from colibri.errors import ModelError, ResourceError, UsageError
from colibri.models.atlas.measure import Counts, Measured
from colibri.models.atlas.topics import MOST_TOPICS, Prompt, is_name

NAME: Final = ".coli_atlas"
VERSION: Final = 1
_MOST_CELLS: Final = 1 << 22
_MOST_LINE: Final = 32 << 20
_MOST_COUNT: Final = 65_535


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the measurements of a file have in common. `model` is for people, `weights` says which
    weights were measured ("" where a server's were and nobody knows), `tokens` the longest answer;
    a token leaves `per_token` counts in each layer.
    """

    atlas: int
    model: str
    weights: str
    layers: tuple[int, ...]
    cols: int
    per_token: int
    topics: tuple[str, ...]
    tokens: int


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    topic: str
    set: Literal["a", "b"]
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured prompt: counts [layers, cols] of its tokens and of its answer's."""

    key: str
    topic: str
    set: str
    prompt: Counts
    answer: Counts


@dataclass(frozen=True, slots=True)
class Measurement:
    """A file's content."""

    header: Header
    samples: tuple[Sample, ...]


def load(path: Path) -> Measurement:
    """Reads a file. Raises ModelError with the line that is wrong, UsageError if there is none."""
    measurement, _ = _read(path)
    if measurement is None:
        raise ModelError("no prompt has been measured yet.", where=str(path))
    return measurement


def _read(path: Path) -> tuple[Measurement | None, int]:
    """The content, None while there is none, and the bytes of the lines that are whole."""
    try:
        data = regular.read_file(path)
    except OSError as error:
        raise UsageError(
            f"the measurement cannot be read: {error.strerror or error}.",
            where=str(path),
            hint="`coli atlas run` makes one.",
        ) from error
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].splitlines()
    if not lines:
        return None, 0
    header = _header(lines[0], path)
    samples: dict[str, Sample] = {}
    for number, line in enumerate(lines[1:], 2):
        sample = _sample(line, header, f"{path}, line {number}")
        samples[sample.key] = sample
    return Measurement(header, tuple(samples.values())), whole


def _header(line: bytes, path: Path) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"this is no measurement of an atlas: {error}.", where=str(path)) from None
    if header.atlas != VERSION:
        raise ModelError(
            f"version {header.atlas} of a measurement cannot be read here.", where=str(path)
        )
    fine = (
        0 < header.cols * len(header.layers) <= _MOST_CELLS
        and 0 < header.per_token <= header.cols
        and all(0 <= layer <= _MOST_COUNT for layer in header.layers)
        and list(header.layers) == sorted(set(header.layers))
        and 0 < len(header.topics) <= MOST_TOPICS
        and len(set(header.topics)) == len(header.topics)
        and all(is_name(name) for name in header.topics)
    )
    if not fine:
        raise ModelError("the first line does not make sense.", where=str(path))
    return header


def _sample(line: bytes, header: Header, where: str) -> Sample:
    try:
        if len(line) > _MOST_LINE:
            raise ValueError("the line is too long")
        read = msgspec.json.decode(line, type=_Line)
        if read.topic not in header.topics:
            raise ValueError("the topic is unknown")
        prompt, answer = (_unpack(text, header) for text in (read.prompt, read.answer))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(
            f"the measurement is damaged: {error}.",
            where=where,
            hint="Begin anew with `coli atlas run --restart`.",
        ) from None
    return Sample(read.key, read.topic, read.set, prompt, answer)


def _pack(counts: Counts) -> str:
    small = np.minimum(counts, _MOST_COUNT).astype("<u2").tobytes()
    return base64.b64encode(zlib.compress(small, 6)).decode("ascii")


def _unpack(text: str, header: Header) -> Counts:
    shape = (len(header.layers), header.cols)
    size = 2 * shape[0] * shape[1]
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"counts cannot be unpacked: {error}") from None
    if len(data) != size:
        raise ValueError("counts do not fit the layers of the first line")
    found: NDArray[np.uint32] = np.frombuffer(data, "<u2").reshape(shape).astype(np.uint32)
    return found


class Run:
    """Appends measurements to a file, or begins it; a context that holds the file's lock.

    `begin` says what is going to be measured: a file of something else is refused, so that counts
    of two models are never mixed. `done` are the keys of prompts that need no measuring.
    """

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        self.path = path
        self._restart = restart
        self._lock = filelock.FileLock(path.with_name(path.name + ".lock"), thread_local=False)
        self._header: Header | None = None
        self.done: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                "another `coli atlas run` measures this.", where=str(self.path)
            ) from None
        except OSError as error:
            raise self._cannot(error) from error
        try:
            self._open()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_why: object) -> None:
        self._release()

    def _release(self) -> None:
        lock = self.path.with_name(self.path.name + ".lock")
        with contextlib.suppress(OSError):
            lock.unlink(missing_ok=True)  # while it is held, so that nobody else's goes
        with contextlib.suppress(OSError):
            self._lock.release()

    def _open(self) -> None:
        if self._restart:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                raise self._cannot(error) from error
        if not self.path.exists():
            return
        found, whole = _read(self.path)
        try:
            os.truncate(self.path, whole)
        except OSError as error:
            raise self._cannot(error) from error
        if found is not None:
            self._header = found.header
            self.done = frozenset(sample.key for sample in found.samples)

    def check(self, *, weights: str, topics: Sequence[str], tokens: int) -> None:
        """Raises UsageError if the file holds something else than what is to be measured."""
        old = self._header
        if old is None:
            return
        different = [
            what
            for what, differs in (
                ("another model or other weights", bool(weights and old.weights != weights)),
                ("other topics", old.topics != tuple(topics)),
                (f"answers of {old.tokens} tokens", old.tokens != tokens),
            )
            if differs
        ]
        if different:
            raise UsageError(
                f"the measurement there is of {' and '.join(different)}.",
                where=str(self.path),
                hint="Give --restart to replace it, or --out for another file.",
            )

    def add(self, header: Header, prompt: Prompt, found: Measured) -> None:
        """Appends a prompt's counts; they are on the disk when this returns. `header` begins the
        file with the first one. Raises UsageError, ResourceError.
        """
        if self._header is None:
            self._append(msgspec.json.encode(header))
            self._header = header
        old = self._header
        if (found.layers, found.cols) != (old.layers, old.cols):
            raise UsageError(
                f"the model has other experts than the one measured there: {len(found.layers)} "
                f"layers of {found.cols}, not {len(old.layers)} of {old.cols}.",
                where=str(self.path),
                hint="Give --restart to replace it, or --out for another file.",
            )
        line = _Line(
            key=prompt.key,
            topic=prompt.topic,
            set="a" if prompt.set == "a" else "b",
            prompt=_pack(found.prompt),
            answer=_pack(found.answer),
        )
        self._append(msgspec.json.encode(line))
        self.done |= {prompt.key}

    def _append(self, line: bytes) -> None:
        try:
            with self.path.open("ab") as stream:
                stream.write(line + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise self._cannot(error) from error

    def _cannot(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"the measurement cannot be written: {error.strerror or error}.",
            where=str(self.path),
            hint="Check the disk's free room, or give another file with --out.",
        )
