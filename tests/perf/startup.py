"""Times until something answers: the server with its model, and the command line's import.

For: `run.py`. Fresh processes; the caller throws the first sample away, so that the page cache
is warm.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from colibri.models.container import open_folder
from tests.models.test_glm52_container import write as write_headers
from tests.perf.driver import ROOT

READY_TIMEOUT = 60.0


def ready_seconds(model: Path, build: Path) -> tuple[float, float]:
    """From starting `coli serve` until /health says that the model is ready.

    Wall seconds, and CPU seconds of all processes including the stop; the latter do not grow when
    others use the cores.
    """
    cpu_before = _children_cpu()
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "colibri.cli",
        "serve",
        "--model",
        str(model),
        "--port",
        str(port),
    ]
    log = build / "bench-serve.log"
    # A data folder of its own, so that the user's settings neither help nor suffer.
    environment = {**os.environ, "COLIBRI_HOME": str(build / "bench-home")}
    with log.open("wb") as out:
        started = time.perf_counter()
        server = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
        try:
            while not _ready(port):
                if server.poll() is not None:
                    raise RuntimeError(f"coli serve ended ({server.returncode}); see {log}")
                if time.perf_counter() - started > READY_TIMEOUT:
                    raise RuntimeError(
                        f"coli serve was not ready after {READY_TIMEOUT} s; see {log}"
                    )
                time.sleep(0.01)
            wall = time.perf_counter() - started
        finally:
            server.terminate()
            server.wait(timeout=30)
    return wall, _children_cpu() - cpu_before


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def import_seconds() -> float:
    """Wall seconds of `import colibri.cli` in a fresh interpreter, without its own start."""
    code = (
        "import time; start = time.perf_counter(); import colibri.cli; "
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"import colibri.cli failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout)


def table_seconds(folder: Path) -> float:
    """Wall seconds of reading every header of a container with the 118,000 entries of the published
    GLM-5.2 one, from `folder` or written there first.
    """
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_headers(folder)
    started = time.perf_counter()
    open_folder(folder)
    return time.perf_counter() - started


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(json.load(answer).get("status") in {"ok", "ready"})
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
