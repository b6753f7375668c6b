"""Writing our packed container so that a kill at any moment costs one shard at most.

For: the converter. Everything is written into `OUT.partial` beside the target: each shard as a
temporary file that is renamed when complete, then a state file that remembers its hashes, and the
index last. Only a complete and verified folder is renamed to OUT, so OUT never exists
half-finished. A later run with the same source and parameters continues; with others it refuses.
Format: see `packed.py`. Thread rule: one writer per target, enforced by a lock file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import filelock
import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format, Layout
from colibri.errors import IntegrityError, ModelError, ResourceError, UsageError
from colibri.families.values import parse_object
from colibri.models import formats, packed

SHARD_BYTES: Final = 4 << 30
STATE_NAME: Final = ".convert.json"
LOCK_NAME: Final = ".convert.lock"
# Large enough to matter for direct reads; smaller matrices only need the kernels' alignment.
_PAGE_ALIGNED_FROM: Final = 64 << 10
_PAGE: Final = packed.EXPERT_ALIGNMENT
_LINE: Final = 64
_SPARE_DISK: Final = 64 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor to write: its stamp. `name` is the full name, or inside an expert the name after
    it.
    """

    name: str
    format: Format
    group: int
    rows: int
    cols: int
    layout: Layout

    @property
    def bytes(self) -> int:
        """Bytes in the container."""
        if self.layout == Layout.PLAIN:
            return formats.plain_bytes(self.format, self.rows, self.cols)
        return formats.packed_bytes(self.format, self.group, self.rows, self.cols)

    def stamp(self) -> dict[str, Any]:
        """What the index says about it, place and hash aside."""
        return {"format": self.format.name, "group": self.group, "shape": [self.rows, self.cols]}


@dataclass(frozen=True, slots=True)
class Item:
    """What lies contiguously: one tensor, or the three matrices of an expert. `make` gives their
    bytes.
    """

    name: str
    parts: tuple[Part, ...]
    is_expert: bool
    make: Callable[[], Sequence[NDArray[np.uint8]]]

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def alignment(self) -> int:
        """Where it may start."""
        if self.is_expert or self.bytes >= _PAGE_ALIGNED_FROM:
            return _PAGE
        return _LINE


@dataclass(frozen=True, slots=True)
class Job:
    """One conversion. `metadata` are the small files of the model folder, by name.

    `fingerprint` is everything that must be equal for an interrupted run to be continued.
    """

    out: Path
    family: str
    items: tuple[Item, ...]
    metadata: Mapping[str, bytes]
    info: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    overwrite: bool = False
    verify: bool = True
    shard_bytes: int = SHARD_BYTES


@dataclass(slots=True)
class _Shard:
    """A planned file: items with their offsets from the start of the data."""

    name: str
    placed: list[tuple[Item, int]] = field(default_factory=list)
    end: int = 0


def write(job: Job, progress: Progress | None = None) -> None:
    """Writes or continues a conversion; on return OUT is complete.

    UsageError when OUT is finished already (without `overwrite`) or an interrupted run had other
    parameters; ResourceError when the disk is too small; IntegrityError when what was written does
    not read back.
    """
    out = job.out
    partial, old = _beside(out, ".partial"), _beside(out, ".old")
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(_beside(out, LOCK_NAME)):
        if old.exists() and not out.exists():
            old.rename(out)  # a kill between the two renames of an overwriting run
        _check_target(job)
        partial.mkdir(exist_ok=True)
        shards = _plan(job)
        state = _load_state(partial, job)
        _check_space(partial, shards, state)
        _write_shards(partial, job, shards, state, progress)
        for name, data in job.metadata.items():
            _write_file(partial / name, data)
        _write_file(partial / packed.INDEX_NAME, _index(job, shards, state))
        if job.verify:
            problems = packed.verify(partial)
            if problems:
                raise IntegrityError(
                    f"what was written does not read back: {problems[0]}.",
                    where=str(partial),
                    hint="Check the disk and convert again.",
                )
        (partial / STATE_NAME).unlink()
        _publish(partial, out, old)


def _beside(out: Path, suffix: str) -> Path:
    return out.with_name(out.name + suffix)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(
            "another conversion writes to this folder.",
            where=str(path),
            hint="Wait until it is done.",
        ) from None
    try:
        yield
        path.unlink(missing_ok=True)
    finally:
        lock.release()


def _check_target(job: Job) -> None:
    out = job.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / packed.INDEX_NAME).is_file():
        raise UsageError(
            "the folder exists and is no container of ours.",
            where=str(out),
            hint="Choose another one.",
        )
    if not job.overwrite:
        raise UsageError(
            "a finished container is already there.",
            where=str(out),
            hint="Give --overwrite to replace it.",
        )


def _plan(job: Job) -> list[_Shard]:
    """Distributes the items, in order, over files of at most `shard_bytes` (one item may exceed
    it).
    """
    shards: list[_Shard] = []
    for item in job.items:
        start = -(-shards[-1].end // item.alignment) * item.alignment if shards else 0
        if not shards or (shards[-1].placed and start + item.bytes > job.shard_bytes):
            shards.append(_Shard(f"packed-{len(shards):05d}.safetensors"))
            start = 0
        shards[-1].placed.append((item, start))
        shards[-1].end = start + item.bytes
    return shards


def _load_state(partial: Path, job: Job) -> dict[str, Any]:
    """Hashes of the shards that an interrupted run has finished, by file name."""
    path = partial / STATE_NAME
    fingerprint = json.loads(json.dumps(job.fingerprint))
    if not path.exists():
        state = {"fingerprint": fingerprint, "shards": {}}
        _write_file(path, _dump(state))
        return state
    state = parse_object(path.read_bytes(), str(path))
    if state.get("fingerprint") != fingerprint or not isinstance(state.get("shards"), dict):
        raise UsageError(
            "an interrupted conversion with another source or other parameters lies there.",
            where=str(partial),
            hint="Repeat that one, or delete the folder to start anew.",
        )
    return state


def _check_space(partial: Path, shards: list[_Shard], state: dict[str, Any]) -> None:
    needed = sum(shard.end for shard in shards if shard.name not in state["shards"]) + _SPARE_DISK
    free = shutil.disk_usage(partial).free
    if needed > free:
        raise ResourceError(
            f"the disk has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed.",
            where=str(partial),
        )


def _write_shards(
    partial: Path, job: Job, shards: list[_Shard], state: dict[str, Any], progress: Progress | None
) -> None:
    total = sum(item.bytes for item in job.items)
    done = 0
    for shard in shards:
        path = partial / shard.name
        header = _header(shard)
        size = len(header) + shard.end
        if shard.name not in state["shards"] or not path.exists() or path.stat().st_size != size:
            temporary = path.with_name(path.name + ".tmp")
            hashes = {}
            with temporary.open("wb") as stream:
                stream.write(header)
                for item, offset in shard.placed:
                    stream.write(bytes(len(header) + offset - stream.tell()))
                    hashes[item.name] = _write_item(stream, item)
                    done += item.bytes
                    if progress is not None:
                        progress(done, total)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
            state["shards"][shard.name] = hashes
            _write_file(partial / STATE_NAME, _dump(state))
        else:
            done += sum(item.bytes for item, _ in shard.placed)
            if progress is not None:
                progress(done, total)


def _write_item(stream: Any, item: Item) -> str:
    digest = packed.new_hash()
    made = item.make()
    if len(made) != len(item.parts):
        raise ValueError(f"{item.name}: made {len(made)} of {len(item.parts)} parts")
    for part, array in zip(item.parts, made, strict=True):
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
        if len(data) != part.bytes:
            raise ModelError(
                f"tensor {part.name}: {len(data):,} bytes were made, expected {part.bytes:,}."
            )
        stream.write(data)
        digest.update(data)
    return digest.hexdigest()


def _header(shard: _Shard) -> bytes:
    """The safetensors header, padded so that the data starts on a page; gaps become padding
    entries.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": packed.FORMAT_NAME}}
    end = 0
    for item, start in shard.placed:
        if start > end:
            entries[f"colibri.padding.{end}"] = _entry("U8", [start - end], end)
        end = start
        if item.is_expert:
            entries[item.name] = _entry("U8", [item.bytes], start)
        else:
            part = item.parts[0]
            plain = part.layout == Layout.PLAIN
            shape = (
                ([part.cols] if part.rows == 1 else [part.rows, part.cols])
                if plain
                else [part.bytes]
            )
            entries[item.name] = _entry(part.format.name if plain else "U8", shape, start)
        end += item.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return len(text).to_bytes(8, "little") + text


def _entry(dtype: str, shape: list[int], start: int) -> dict[str, Any]:
    size = {"F32": 4, "BF16": 2, "F16": 2}.get(dtype, 1)
    for extent in shape:
        size *= extent
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}


def _index(job: Job, shards: list[_Shard], state: dict[str, Any]) -> bytes:
    files, tensors, experts = [], {}, {}
    for number, shard in enumerate(shards):
        data_start = len(_header(shard))
        files.append({"name": shard.name, "bytes": data_start + shard.end})
        for item, offset in shard.placed:
            place = {
                "file": number,
                "offset": data_start + offset,
                "bytes": item.bytes,
                "hash": state["shards"][shard.name][item.name],
            }
            if item.is_expert:
                parts = [{"name": part.name, **part.stamp()} for part in item.parts]
                experts[item.name] = {**place, "parts": parts}
            else:
                layout = item.parts[0].layout.name.lower()
                tensors[item.name] = {**item.parts[0].stamp(), "layout": layout, **place}
    index = {
        "format": packed.FORMAT_NAME,
        "version": packed.VERSION,
        "family": job.family,
        **job.info,
        "files": files,
        "tensors": tensors,
        "experts": experts,
    }
    return _dump(index)


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _write_file(path: Path, data: bytes) -> None:
    """Replaces a file at once: a reader sees the old bytes or the new ones."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def _publish(partial: Path, out: Path, old: Path) -> None:
    """The last step: the finished folder takes the name of the target."""
    if out.exists():
        if any(out.iterdir()):
            if old.exists():
                shutil.rmtree(old)
            out.rename(old)
        else:
            out.rmdir()
    partial.rename(out)
    if old.exists():
        shutil.rmtree(old)
