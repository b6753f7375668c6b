"""A packed model's weights as numbers again: `python -m starter.unpack MODEL TOKENIZER OUT.npz`.

For: going on with the training of the model that is shipped, where the run that made it is gone
(`starter.train --warm OUT.npz`). Weights come back as they were rounded; where TOKENIZER is not
the model's own, the rows of tokens that it does not share begin as a mixture of their pieces. Runs
with the program's own packages, which the training does not have. Not for: anything that serves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from colibri.engine.packing import weight_unpack
from colibri.engine.table import Layout
from colibri.models.container import open_folder

_BY_TOKEN: Final = ("model.embed_tokens.weight", "lm_head.weight")
_SEED: Final = 5


def tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor, [rows, cols] by its published name; a vector has one row."""
    files = open_folder(folder)
    handles = [os.open(path, os.O_RDONLY) for path in files.paths]
    found = {}
    try:
        for entry in files.tensors:
            data = os.pread(handles[entry.file], entry.bytes, entry.offset)
            if entry.layout == Layout.PLAIN:
                values = np.frombuffer(data, np.float32).reshape(entry.rows, entry.cols)
            else:
                values = weight_unpack(entry.format, entry.group, entry.rows, entry.cols, data)
            found[entry.name] = values
    finally:
        for handle in handles:
            os.close(handle)
    return found


def moved(
    rows: NDArray[np.float32], old: Tokenizer, new: Tokenizer, rng: np.random.Generator
) -> NDArray[np.float32]:
    """A row per token [tokens, width], from the one tokenizer's ids to the other's. A token that
    only `new` has gets its pieces' rows, the first counting most, and noise of the same size: "34"
    and "43" must not begin alike.
    """
    result = np.empty((new.get_vocab_size(), rows.shape[1]), np.float32)
    for token, number in new.get_vocab().items():
        if (known := old.token_to_id(token)) is not None:
            result[number] = rows[known]
            continue
        pieces = rows[old.encode(new.decode([number]), add_special_tokens=False).ids]
        weights = 0.5 ** np.arange(len(pieces))
        mixed = (weights / weights.sum()) @ pieces
        result[number] = mixed + mixed.std() * rng.standard_normal(len(mixed))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json to go on with")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    named = tensors(given.model)
    old, new = (
        Tokenizer.from_file(str(path)) for path in (given.model / "tokenizer.json", given.tokenizer)
    )
    rng = np.random.default_rng(_SEED)
    for name in _BY_TOKEN:
        named[name] = moved(named[name], old, new, rng)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(given.out, **named)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
