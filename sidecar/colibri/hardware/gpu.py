"""Which NVIDIA GPUs there are, asked so that a broken driver can neither hang nor crash us.

For: `coli doctor`, and the monitor where the driver's library cannot be asked (`nvml`). Not for:
computing on a GPU, which this engine does not do. GPUtil is asked first (it knows where Windows
keeps nvidia-smi), but it waits for ever for a driver that hangs, divides by a memory size of zero
and lets "[N/A]" through as NaN. So nvidia-smi is first called once with a time limit; only if it
answers is GPUtil used, in a thread with a limit of its own, and what it cannot read is filled in
from nvidia-smi's own answer. Every number is finite or None. Thread rule: any thread; a GPUtil call
that hangs leaves one sleeping daemon thread behind.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

TIMEOUT_SECONDS: Final = 5.0
_LAST_WAIT_SECONDS: Final = 1.0
_FIELDS: Final = ("index", "name", "driver_version", "memory.total", "memory.used", "memory.free")
_MIB: Final = 1 << 20


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None where the driver does not tell. Sizes in bytes, `load` 0 to 1."""

    index: int
    name: str
    driver: str
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    load: float | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `problem` is empty, or one sentence about a driver that does not answer."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


# Runs a command line with a time limit: (exit code, output). Raises OSError or TimeoutExpired.
Run = Callable[[Sequence[str], float], tuple[int, str]]


def run_limited(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Runs a program and gives its exit code and what it printed.

    One that is late is killed, and left behind if even that does not end it: a driver that hangs
    in the kernel cannot be waited for.
    """
    with open_process(command) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, output.decode("utf-8", "replace")


@contextlib.contextmanager
def open_process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child whose output is ours; at the end it is waited for, but not for long."""
    process = subprocess.Popen(  # noqa: S603 - the driver's own tool, found on the path
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WAIT_SECONDS)


def number(value: object) -> float | None:
    """A finite number, whatever a driver wrote; None for "[N/A]", NaN, infinity, nonsense."""
    try:
        result = float(str(value).strip())
    except ValueError:
        return None
    return result if math.isfinite(result) and result >= 0 else None


def _bytes(mebibytes: object) -> int | None:
    result = number(mebibytes)
    return None if result is None else int(result * _MIB)


def _share(value: object) -> float | None:
    result = number(value)
    return None if result is None else min(result, 1.0)


def parse(text: str) -> tuple[Gpu, ...]:
    """GPUs in the CSV of nvidia-smi (`_FIELDS`, no header, no units); other lines are skipped."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(_FIELDS):
            continue
        # A name may hold a comma; the other fields cannot.
        head, tail = cells[0], cells[-(len(_FIELDS) - 2) :]
        if not head.isdecimal():
            continue
        title = ", ".join(cells[1 : -len(tail)])
        found.append(
            Gpu(
                index=int(head),
                name=title or "unknown",
                driver=tail[0],
                memory_total=_bytes(tail[1]) or None,
                memory_used=_bytes(tail[2]),
                memory_free=_bytes(tail[3]),
            )
        )
    return tuple(found)


def merge(own: Sequence[Gpu], theirs: Sequence[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    """GPUtil's answer, filled in from nvidia-smi's own where it has no finite number."""
    by_index = {gpu.index: gpu for gpu in own}
    merged: dict[int, Gpu] = dict(by_index)
    for item in theirs:
        index = number(item.get("id"))
        if index is None:
            continue
        known = by_index.get(int(index))
        total, used, free = (
            _bytes(item.get(key)) for key in ("memoryTotal", "memoryUsed", "memoryFree")
        )
        merged[int(index)] = Gpu(
            index=int(index),
            name=str(item.get("name") or (known.name if known else "unknown")),
            driver=str(item.get("driver") or (known.driver if known else "")),
            memory_total=total or (known.memory_total if known else None),
            memory_used=used if used is not None else (known.memory_used if known else None),
            memory_free=free if free is not None else (known.memory_free if known else None),
            load=_share(item.get("load")),
        )
    return tuple(merged[index] for index in sorted(merged))


def ask_gputil() -> list[dict[str, Any]]:
    """What GPUtil says, as plain values. Raises whatever GPUtil raises."""
    gputil = _import_gputil()
    names = ("id", "name", "driver", "memoryTotal", "memoryUsed", "memoryFree", "load")
    return [{name: getattr(gpu, name, None) for name in names} for gpu in gputil.getGPUs()]


def _import_gputil() -> Any:
    """GPUtil wants `distutils`, which newer Pythons lack: it gets the one function it calls."""
    package, spawn = types.ModuleType("distutils"), types.ModuleType("distutils.spawn")
    spawn.find_executable = shutil.which  # type: ignore[attr-defined]
    package.spawn = spawn  # type: ignore[attr-defined]
    kept = {name: sys.modules.get(name) for name in ("distutils", "distutils.spawn")}
    sys.modules.update({"distutils": package, "distutils.spawn": spawn})
    try:
        import GPUtil  # noqa: PLC0415 - only with what it needs in place
    finally:
        for name, module in kept.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
    return GPUtil


def _limited(
    work: Callable[[], list[dict[str, Any]]], seconds: float
) -> list[dict[str, Any]] | None:
    """Result of `work`, or None when it raises or is late; it then sleeps on in its thread."""
    result: list[list[dict[str, Any]]] = []

    def call() -> None:
        try:
            result.append(work())
        except Exception:
            # GPUtil raises anything from ValueError to ZeroDivisionError.
            result.clear()

    thread = threading.Thread(target=call, name="gputil", daemon=True)
    thread.start()
    thread.join(seconds)
    return result[0] if result else None


def probe(
    run: Run = run_limited,
    gputil: Callable[[], list[dict[str, Any]]] = ask_gputil,
    *,
    tool: str | None = None,
    seconds: float = TIMEOUT_SECONDS,
) -> Gpus:
    """The GPUs of this machine; never raises and takes at most twice `seconds`."""
    tool = tool or shutil.which("nvidia-smi")
    if tool is None:
        # GPUtil also knows where Windows keeps the tool; without it, it answers at once.
        found = _limited(gputil, seconds)
        return Gpus(gpus=merge((), found or []))
    command = [tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        code, text = run(command, seconds)
    except subprocess.TimeoutExpired:
        return Gpus(problem=f"nvidia-smi did not answer within {seconds:g} s")
    except OSError as error:
        return Gpus(problem=f"nvidia-smi cannot be run: {error.strerror or error}")
    own = parse(text)
    if code != 0 or not own:
        said = " ".join(text.split())[:200]
        if "no devices" in said.lower():
            return Gpus()
        return Gpus(problem=f"nvidia-smi answers: {said or f'exit code {code}'}")
    return Gpus(gpus=merge(own, _limited(gputil, seconds) or []))
