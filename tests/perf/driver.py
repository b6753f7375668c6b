"""The parent's end of a driver process (see `driver_loop.py`).

For: `run.py` and `kl.py`. One `Driver` = one child with one loaded model; commands are answered in
order. Close it (or use `with`), or the child is left to notice the end of its input.
Threads: one caller at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.perf.rows import Timing

ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """A child process that computes on command."""

    def __init__(
        self, name: str, command: list[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self._log_path = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                text=True,
            )

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """One command and its answer. RuntimeError if the driver failed or died."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError(f"{self.name}: the driver has no pipes")
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.name}: the driver ended during '{op}'; see {self._log_path}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise RuntimeError(f"{self.name}: {op}: {answer['error']}")
        return answer

    def time(self, op: str, **arguments: Any) -> Timing:
        """A command that is timed inside the driver."""
        answer = self.call(op, **arguments)
        return Timing(answer["tokens"], answer["wall"], answer["cpu"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
