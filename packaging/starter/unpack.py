"""The weights of a packed model as numbers again: `python -m starter.unpack MODEL OUT.npz`.

For: going on with the training of the model that is shipped, where the run that made it is gone
(`starter.train --warm OUT.npz`). Weights come back as they were rounded. Runs with the program's
own packages, which the training does not have. Not for: anything that serves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri.engine.packing import weight_unpack
from colibri.engine.table import Layout
from colibri.models.container import open_folder


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(given.out, **tensors(given.model))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
