"""Our engine under test, driven through the binding as the engine worker drives it.

For: `run.py`, which starts
    python -m tests.perf.ours_driver MODEL THREADS CONTEXT fast|f32
Not for: the HTTP server; tokens are fixed, so a step is one engine call and no more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from colibri.engine.ffi import Engine
from colibri.engine.table import EngineOptions, Precision, Sampling
from colibri.models.model import open_model
from tests.perf.driver_loop import fixed_ids, serve, timed

MOST_SESSIONS = 8


class Ours:
    """One engine and one session, emptied before every run."""

    def __init__(self, path: str, threads: int, context: int, precision: str) -> None:
        self.model = open_model(Path(path))
        options = EngineOptions(
            precision=Precision.F32 if precision == "f32" else Precision.FAST,
            threads=threads,
            context=context,
            sessions=MOST_SESSIONS,
        )
        files = self.model.files
        self.engine = Engine(files.paths, self.model.geometry, files.tensors, options)
        self.session = self.engine.session()
        self.vocab = self.engine.vocab

    def prefill(self, command: dict[str, Any]) -> dict[str, Any]:
        ids = fixed_ids(command["tokens"], self.vocab, command["seed"])
        self.session.truncate(0)
        return timed(len(ids), lambda: self.session.prefill(ids))

    def decode(self, command: dict[str, Any]) -> dict[str, Any]:
        ids = fixed_ids(command["prompt"] + command["tokens"], self.vocab, command["seed"])
        prompt, rest = ids[: command["prompt"]], ids[command["prompt"] :]
        self.session.truncate(0)
        self.session.prefill(prompt)

        def run() -> None:
            for token in rest:
                self.engine.decode([self.session], [token])

        return timed(len(rest), run)

    def parallel(self, command: dict[str, Any]) -> dict[str, Any]:
        """`sessions` prompts of `prompt` tokens, then `steps` steps of all of them together."""
        n, steps = command["sessions"], command["steps"]
        ids = fixed_ids(n * (command["prompt"] + steps), self.vocab, command["seed"])
        sessions = [self.engine.session() for _ in range(n)]
        try:
            for session in sessions:
                session.prefill([ids.pop() for _ in range(command["prompt"])])

            def run() -> None:
                for step in range(steps):
                    self.engine.decode(sessions, ids[step * n : (step + 1) * n])

            return timed(n * steps, run)
        finally:
            for session in sessions:
                session.close()

    def logits(self, command: dict[str, Any]) -> dict[str, Any]:
        """Writes f32 [n, vocab] logits of every position of `ids` to the .npy file `out`."""
        ids = command["ids"]
        out = np.empty((len(ids), self.vocab), dtype=np.float32)
        self.session.truncate(0)
        self.session.prefill(ids, out)
        np.save(Path(command["out"]), out)
        return {}

    def tokenize(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"ids": self.model.text.tokenizer.encode(command["text"])}

    def sample(self, command: dict[str, Any]) -> dict[str, Any]:
        """`tokens` ids: one word, and what the model writes after it at temperature 1."""
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=command["seed"])
        ids = self.model.text.tokenizer.encode("The")
        self.session.truncate(0)
        self.session.prefill(ids)
        while len(ids) < command["tokens"]:
            ids.append(self.session.sample(sampling))
            self.engine.decode([self.session], [ids[-1]])
        return {"ids": ids}


def main() -> None:
    path, threads, context, precision = sys.argv[1:5]
    ours = Ours(path, int(threads), int(context), precision)
    serve(
        {
            "prefill": ours.prefill,
            "decode": ours.decode,
            "parallel": ours.parallel,
            "logits": ours.logits,
            "tokenize": ours.tokenize,
            "sample": ours.sample,
        }
    )


if __name__ == "__main__":
    main()
