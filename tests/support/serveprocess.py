"""`coli serve` as a user starts it: a process of its own, found through what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 30


@dataclass
class ServeProcess:
    """A running server. `announced` is all that it printed when it was ready."""

    process: subprocess.Popen[str]
    url: str
    announced: str
    log: Path

    def stop(self) -> int:
        """Ends it as a service manager does; returns its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)


@contextmanager
def serve(model: Path, *arguments: str, group: Path | None = None) -> Iterator[ServeProcess]:
    """Starts a server for a model folder on a free port and stops it afterwards. `group` is the
    file of a control group that it joins first.
    """
    command = [sys.executable, "-m", "colibri.cli", "serve", "--model", str(model), "--port", "0"]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*command, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "COLIBRI_HOME": folder,
                    # Not the model's own folder: what one test computed is not to serve another.
                    "COLI_STATE_DIR": str(Path(folder) / "learnt"),
                },
            )
        assert process.stdout
        try:
            # Two lines: where the server is, and how to ask it something.
            announced = process.stdout.readline() + process.stdout.readline()
            found = re.search(r"http://\S+", announced)
            assert found, f"the server did not start: {log.read_text()}"
            yield ServeProcess(process, found[0], announced, log)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(STOP_SECONDS)
            process.stdout.close()
