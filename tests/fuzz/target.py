"""Runs one atheris target: a scratch folder, seeds for an empty corpus, and what counts as a crash.

For: the `fuzz_*.py` scripts beside it, which `make test-long` starts with libFuzzer's own options.
A reader of untrusted files may raise `ColibriError`, nothing else; hangs and memory are libFuzzer's
limits. Not collected by pytest. Linux only.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import atheris

from colibri.errors import ColibriError


def run(
    read: Callable[[bytes, Path], None],
    seeds: Mapping[str, bytes],
    mutate: Callable[[bytes, int, int], bytes] | None = None,
) -> None:
    """Fuzzes `read(input, scratch folder)`. The last argument names the corpus folder.
    `mutate(input, largest size, seed)` replaces libFuzzer's own changes of bytes.
    """
    corpus = Path(sys.argv[-1])
    for name, seed in seeds.items():
        if corpus.is_dir() and not (corpus / name).exists():
            (corpus / name).write_bytes(seed)
    with tempfile.TemporaryDirectory(prefix="colibri-fuzz-") as scratch:

        def one_input(data: bytes) -> None:
            try:
                read(data, Path(scratch))
            except ColibriError as error:
                if not error.message:
                    raise RuntimeError("a refusal without a message") from error

        own = {} if mutate is None else {"custom_mutator": mutate}
        atheris.Setup(sys.argv, one_input, **own)
        atheris.Fuzz()
