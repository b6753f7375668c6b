"""The loop both sides of the comparison run: a command as a JSON line in, an answer out.

For: `ours_driver.py` and `peer_driver.py`, each a process that loads one model once and then is
timed again and again; the parent alternates between them. Standard library only: the peer's
environment holds nothing of ours.
Not for: deciding what to measure.

A command is {"op": name, ...}; the answer is {"ok": true, ...} or {"ok": false, "error": text}.
Diagnostics belong on standard error; standard output carries answers only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def timed(tokens: int, work: Callable[[], None]) -> dict[str, Any]:
    """Runs `work`; returns tokens, wall seconds and CPU seconds of all threads of the process."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {
        "tokens": tokens,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
    }


def fixed_ids(n: int, vocab: int, seed: int) -> list[int]:
    """`n` token ids that look like text to nobody but are the same on both sides."""
    ids, state = [], seed
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        ids.append((state >> 33) % vocab)
    return ids


def serve(handlers: dict[str, Handler]) -> None:
    """Answers commands until `quit` or the end of input; a failing command does not end it."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "quit":
            return
        try:
            answer = {"ok": True, **handlers[command["op"]](command)}
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
