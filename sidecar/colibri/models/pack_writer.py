"""Writing our packed container so that a kill at any moment costs one shard at most.

For: the converter. Everything is written into `OUT.partial` beside the target: each shard as a
temporary file that is renamed when complete, then a state file that remembers its hashes, and the
index last. Only a complete and verified folder is renamed to OUT, so OUT never exists
half-finished. A later run with the same source and parameters continues; with others it refuses.
`add` puts further tensors into a finished container the same way: files first, index last.

Format: see `packed.py`. Thread rule: one writer per target, enforced by a lock file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import filelock

from colibri import regular
from colibri.errors import IntegrityError, ResourceError, UsageError
from colibri.families.values import parse_object
from colibri.models import packed
from colibri.models.pack_shards import (
    Item,
    Shard,
    header,
    make_ahead,
    plan,
    sync_folder,
    write_shard,
)

SHARD_BYTES: Final = 4 << 30
LOCK_NAME: Final = ".convert.lock"
_SPARE_DISK: Final = 64 << 20
_MOST_THREADS: Final = 8
_REPLACED: Final = ".colibri-replaced"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One conversion. `metadata` are the small files of the model folder, by name.

    `fingerprint` is everything that must be equal for an interrupted run to be continued. `threads`
    0 = one per processor, at most 8.
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
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Addition:
    """Tensors for a finished container: those whose names start with `prefix`, in files of their
    own called `packed-LABEL...`. `job.metadata` are the small files to replace.
    """

    job: Job
    label: str
    prefix: str


def write(job: Job, progress: Progress | None = None, checking: Progress | None = None) -> None:
    """Writes or continues a conversion; on return OUT is complete. `progress` counts bytes written,
    `checking` bytes read back.

    UsageError when OUT is finished already (without `overwrite`) or an interrupted run had other
    parameters; ResourceError when the disk is too small; IntegrityError when what was written does
    not read back.
    """
    out = job.out
    partial, old = _beside(out, ".partial"), _beside(out, _REPLACED)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(_beside(out, LOCK_NAME)):
        if _finish_publishing(job, out, old):
            return
        _check_target(job)
        shards = plan(job.items, "packed", job.shard_bytes)
        state = _load_state(partial, job)
        _check_space(partial if partial.exists() else out.parent, partial, shards, state)
        partial.mkdir(exist_ok=True)
        _write_shards(partial, job, shards, state, progress)
        for name, data in job.metadata.items():
            _write_file(partial / name, data)
        _write_file(partial / packed.INDEX_NAME, _index(job, shards, state))
        if job.verify:
            _verify(partial, state, checking)
        _publish(partial, out, old)


def add(
    addition: Addition, progress: Progress | None = None, checking: Progress | None = None
) -> None:
    """Adds tensors to the finished container `job.out`, or replaces them if `job.overwrite`.

    Other files of the container are not touched. The index is replaced when everything else is in
    place, so a kill leaves the container as it was or complete. Errors as `write`.
    """
    job, out = addition.job, addition.job.out
    staging = _beside(out, f".{addition.label}.partial")
    with _locked(_beside(out, LOCK_NAME)):
        path = out / packed.INDEX_NAME
        index = parse_object(regular.read_file(path), str(path))
        if _is_added(index, staging):
            _clean_up(out, staging, index, addition.label)
            return
        if staging.exists() and not any(staging.iterdir()):
            staging.rmdir()
        if not job.overwrite and any(_names(index, addition.prefix)):
            raise UsageError(
                f"the container holds {addition.prefix}* already.",
                where=str(out),
                hint="Give --overwrite to replace them.",
            )
        shards = plan(job.items, _stem(index, addition.label), job.shard_bytes)
        state = _load_state(staging, job)
        _check_space(out, staging, shards, state)
        staging.mkdir(exist_ok=True)
        _write_shards(staging, job, shards, state, progress)
        _write_file(staging / packed.INDEX_NAME, _index(job, shards, state))
        if job.verify:
            _verify(staging, state, checking)
        added = parse_object((staging / packed.INDEX_NAME).read_bytes(), str(staging))
        for shard in shards:
            (staging / shard.name).replace(out / shard.name)
        sync_folder(out)
        for name, data in job.metadata.items():
            _write_file(out / name, data)
        merged = _merge(index, added, addition.prefix) | dict(job.info)
        _write_file(path, _dump(merged))
        sync_folder(out)
        _clean_up(out, staging, merged, addition.label)


def _names(index: Mapping[str, Any], prefix: str) -> Iterator[str]:
    return (
        name for key in ("tensors", "experts") for name in index[key] if name.startswith(prefix)
    )


def _stem(index: Mapping[str, Any], label: str) -> str:
    """Start of the names of new files: one that the index does not use yet."""
    used = {entry["name"].rsplit("-", 1)[0] for entry in index["files"]}
    number, stem = 1, f"packed-{label}"
    while stem in used:
        number += 1
        stem = f"packed-{label}{number}"
    return stem


def _is_added(index: Mapping[str, Any], staging: Path) -> bool:
    """Whether a killed run had come as far as replacing the index."""
    path = staging / packed.INDEX_NAME
    if not path.exists():
        return False
    staged = parse_object(regular.read_file(path), str(path))
    names = {entry["name"] for entry in index["files"]}
    return all(entry["name"] in names for entry in staged["files"]) and all(
        index[key].get(name, {}).get("hash") == entry["hash"]
        for key in ("tensors", "experts")
        for name, entry in staged[key].items()
    )


def _merge(index: dict[str, Any], added: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The index with the entries under `prefix` replaced; files that nothing uses any more go."""
    entries = {
        key: {name: entry for name, entry in index[key].items() if not name.startswith(prefix)}
        for key in ("tensors", "experts")
    }
    used = sorted({entry["file"] for table in entries.values() for entry in table.values()})
    moved = {old: new for new, old in enumerate(used)}
    merged = {**index, "files": [index["files"][old] for old in used] + added["files"]}
    for key, table in entries.items():
        kept = {name: {**entry, "file": moved[entry["file"]]} for name, entry in table.items()}
        new = {
            name: {**entry, "file": entry["file"] + len(used)} for name, entry in added[key].items()
        }
        merged[key] = kept | new
    return merged


def _clean_up(out: Path, staging: Path, index: Mapping[str, Any], label: str) -> None:
    """Removes the files of an earlier addition that the index does not name any more, and the
    folder of this one; its index goes last, so that a kill here is completed by the next run.
    """
    names = {entry["name"] for entry in index["files"]}
    for path in out.glob(f"packed-{label}*.safetensors*"):
        if path.name not in names:
            path.unlink()
    for path in staging.iterdir():
        if path.name != packed.INDEX_NAME:
            path.unlink()
    (staging / packed.INDEX_NAME).unlink()
    staging.rmdir()


def _verify(folder: Path, state: dict[str, Any], checking: Progress | None) -> None:
    """IntegrityError when a byte differs; the files at fault will be written again."""
    differing = packed.differing(folder, checking)
    if differing:
        for name, _ in differing:
            state["shards"].pop(name, None)
        _write_file(folder / packed.STATE_NAME, _dump(state))
        raise IntegrityError(
            f"what was written does not read back: {differing[0][1]}.",
            where=str(folder),
            hint="Check the disk and convert again.",
        )


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
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def _finish_publishing(job: Job, out: Path, old: Path) -> bool:
    """Completes what a kill during `_publish` left. True when OUT is this very conversion."""
    if old.exists() and not out.exists():
        old.rename(out)  # killed between the two renames of an overwriting run
    elif old.exists():
        shutil.rmtree(old)
    path = out / packed.STATE_NAME
    if not path.exists():
        return False
    state = parse_object(regular.read_file(path), str(path))
    path.unlink()
    return bool(state.get("fingerprint") == _as_json(job.fingerprint))


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


def _as_json(value: Any) -> Any:
    """A value as it comes back from a JSON file."""
    return json.loads(json.dumps(value))


def _load_state(partial: Path, job: Job) -> dict[str, Any]:
    """Hashes of the shards that an interrupted run has finished, by file name."""
    path = partial / packed.STATE_NAME
    fingerprint = _as_json(job.fingerprint)
    if not path.exists():
        if partial.exists() and any(not item.name.endswith(".tmp") for item in partial.iterdir()):
            raise UsageError(
                "the folder for unfinished work holds files that are not ours.",
                where=str(partial),
                hint="Move them away, or choose another target.",
            )
        return {"fingerprint": fingerprint, "shards": {}}
    state = parse_object(regular.read_file(path), str(path))
    if state.get("fingerprint") != fingerprint or not isinstance(state.get("shards"), dict):
        raise UsageError(
            "an interrupted conversion with another source or other parameters lies there.",
            where=str(partial),
            hint="Repeat that one, or delete the folder to start anew.",
        )
    return state


def _check_space(place: Path, partial: Path, shards: list[Shard], state: dict[str, Any]) -> None:
    """ResourceError when the disk of `place` cannot take what is still to be written."""
    for path in partial.glob("*.tmp"):
        path.unlink()
    needed = sum(shard.end for shard in shards if shard.name not in state["shards"]) + _SPARE_DISK
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ResourceError(
            f"the disk has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed.",
            where=str(place),
            hint="Free some space, or choose a folder on another disk.",
        )


def _write_shards(
    partial: Path, job: Job, shards: list[Shard], state: dict[str, Any], progress: Progress | None
) -> None:
    _write_file(partial / packed.STATE_NAME, _dump(state))
    total = sum(item.bytes for item in job.items)
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    threads = job.threads or min(_MOST_THREADS, _processors())
    pool = ThreadPoolExecutor(threads, "colibri-convert")
    try:
        for shard in shards:
            path = partial / shard.name
            size = len(header(shard)) + shard.end
            if _is_written(state["shards"].get(shard.name), shard, path, size):
                advance(sum(item.bytes for item, _ in shard.placed))
                continue
            made = make_ahead(pool, 2 * threads, [item for item, _ in shard.placed])
            state["shards"][shard.name] = write_shard(path, shard, made, advance)
            _write_file(partial / packed.STATE_NAME, _dump(state))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ResourceError(
            "the disk is full.",
            where=str(partial),
            hint="Free some space and give the same command again; it goes on where it stopped.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _is_written(hashes: Any, shard: Shard, path: Path, size: int) -> bool:
    """Whether an earlier run has finished a file: its hashes are known and its size is right."""
    names = {item.name for item, _ in shard.placed}
    if not isinstance(hashes, dict) or hashes.keys() != names:
        return False
    return path.is_file() and path.stat().st_size == size


def _processors() -> int:
    """Processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this operating system
        return os.cpu_count() or 1


def _index(job: Job, shards: list[Shard], state: dict[str, Any]) -> bytes:
    files, tensors, experts = [], {}, {}
    for number, shard in enumerate(shards):
        data_start = len(header(shard))
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
    """The last step: the finished folder takes the name of the target.

    The state file goes last, so that a kill before that is completed and not repeated.
    """
    if out.exists():
        if any(out.iterdir()):
            out.rename(old)
        else:
            out.rmdir()
    partial.rename(out)
    sync_folder(out.parent)
    if old.exists():
        shutil.rmtree(old)
    (out / packed.STATE_NAME).unlink()
