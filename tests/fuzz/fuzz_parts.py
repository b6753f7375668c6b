"""Hostile answers of a model: every dialect, any cutting, with and without control tokens."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri.text"]):
    from colibri.text import arguments, bodies, inkling, parts, tagged  # noqa: F401

from tests.fuzz import target
from tests.text import answers


def read(data: bytes, folder: Path) -> None:
    del folder
    if not data:
        return
    choice, text = data[0], data[1:].decode("utf-8", "ignore")
    dialect = answers.DIALECTS[choice % 3]
    tokens = dialect.markers if choice & 16 else ()
    if choice & 32:
        text = answers.mark(text, dialect.markers)
    options = {"reasoning": bool(choice & 8), "tokens": tokens}
    whole = answers.parse(dialect, [text], **options)
    answers.check(whole)
    pieces = answers.cut(text, random.Random(data))  # noqa: S311
    if answers.parse(dialect, pieces, **options) != whole:
        raise RuntimeError(f"cut into {pieces} the answer has other parts")


if __name__ == "__main__":
    calls = (answers.GLM_CALL, answers.HERMES_CALL, answers.INKLING_CALL)
    seeds = {
        f"{number}-{flags}": bytes([number + 48 * bool(flags) + 3 * 8]) + call.encode()
        for number, call in enumerate(calls)
        for flags in (0, 1)
    }
    target.run(read, seeds)
