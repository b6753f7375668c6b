"""The peer under test: llama.cpp through the low-level calls of llama-cpp-python.

For: `run.py`, which starts it with the interpreter of `build/bench-venv`:
    python -m tests.perf.peer_driver MODEL.gguf THREADS CONTEXT [MODE [CGROUP [SEQUENCES]]]
Not for: its Python sampler or chat layer; nothing of them runs here. Tokens are fixed, so a step
is one `llama_decode` and no more. Flash attention is on.

MODE says where the weights are: `default` (its own choice: mapped, and repacked into memory where
it can), `loaded` (read and repacked, not mapped), `mapped` (mapped and not repacked, the only mode
that runs a model larger than memory). CGROUP is the `cgroup.procs` file of a memory cgroup that
this process enters before it loads anything, or "-". SEQUENCES (1) run side by side and share
CONTEXT; with "u" behind the number they share one KV cache, else each has its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from tests.perf.driver_loop import fixed_ids, serve, timed

FLASH_ATTENTION_ON = 1
DEBUG = 1  # its log level; thousands of lines


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _to_stderr(level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    if level != DEBUG:
        sys.stderr.write(text.decode("utf-8", "replace"))


class Peer:
    """One model and one context; a fresh sequence for every run."""

    def __init__(
        self, path: str, threads: int, context: int, mode: str, sequences: str = "1"
    ) -> None:
        llama_cpp.llama_log_set(_to_stderr, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        if mode != "default":
            model_params.use_mmap = mode == "mapped"
            model_params.use_extra_bufts = mode == "loaded"
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"the peer could not load {path}; its log says why")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = context
        params.n_threads = threads
        params.n_threads_batch = threads
        params.n_seq_max = int(sequences.rstrip("u"))
        params.kv_unified = sequences.endswith("u")
        params.flash_attn_type = FLASH_ATTENTION_ON
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("the peer could not make a context; its log says why")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self.batch = llama_cpp.llama_batch_init(context, 0, 1)
        self.memory = llama_cpp.llama_get_memory(self.context)

    def step(self, ids: list[int], first: int, all_logits: bool = False) -> None:
        """Computes `ids` at positions first, first + 1, ...; logits of the last one or of all."""
        last = len(ids) - 1
        self._compute([(t, first + i, 0, all_logits or i == last) for i, t in enumerate(ids)])

    def _compute(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """One batch of rows: token, position, sequence, whether its logits are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        code = llama_cpp.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        llama_cpp.llama_synchronize(self.context)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self.memory, False)

    def prefill(self, command: dict[str, Any]) -> dict[str, Any]:
        ids = fixed_ids(command["tokens"], self.vocab, command["seed"])
        self.clear()
        return timed(len(ids), lambda: self.step(ids, 0))

    def decode(self, command: dict[str, Any]) -> dict[str, Any]:
        ids = fixed_ids(command["prompt"] + command["tokens"], self.vocab, command["seed"])
        prompt, rest = ids[: command["prompt"]], ids[command["prompt"] :]
        self.clear()
        self.step(prompt, 0)

        def run() -> None:
            for i, token in enumerate(rest):
                self.step([token], len(prompt) + i)

        return timed(len(rest), run)

    def parallel(self, command: dict[str, Any]) -> dict[str, Any]:
        """`sessions` prompts of `prompt` tokens, then `steps` steps of all of them together."""
        n, prompt, steps = command["sessions"], command["prompt"], command["steps"]
        ids = fixed_ids(n * (prompt + steps), self.vocab, command["seed"])
        self.clear()
        for sequence in range(n):
            self._compute([(ids.pop(), i, sequence, i == prompt - 1) for i in range(prompt)])

        def run() -> None:
            for step in range(steps):
                tokens = ids[step * n : (step + 1) * n]
                self._compute([(t, prompt + step, i, True) for i, t in enumerate(tokens)])

        return timed(n * steps, run)

    def logits(self, command: dict[str, Any]) -> dict[str, Any]:
        """Writes f32 [n, vocab] logits of every position of `ids` to the .npy file `out`."""
        ids = command["ids"]
        self.clear()
        self.step(ids, 0, all_logits=True)
        flat = llama_cpp.llama_get_logits(self.context)
        array = np.ctypeslib.as_array(flat, shape=(len(ids), self.vocab))
        np.save(Path(command["out"]), array)
        return {}

    def about(self, _command: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
            "vocab": self.vocab,
        }


def main() -> None:
    path, threads, context, *rest = sys.argv[1:]
    if len(rest) > 1 and rest[1] != "-":
        Path(rest[1]).write_text(str(os.getpid()), encoding="ascii")
    mode, sequences = [*rest[:1], "default"][0], [*rest[2:], "1"][0]
    peer = Peer(path, int(threads), int(context), mode, sequences)
    serve(
        {
            "prefill": peer.prefill,
            "decode": peer.decode,
            "parallel": peer.parallel,
            "logits": peer.logits,
            "about": peer.about,
        }
    )


if __name__ == "__main__":
    main()
