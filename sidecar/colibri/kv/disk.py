"""Store, writer and slot files of one model, opened together.

For: a backend, which knows the model and hands this to the engine loop (`colibri.engine.persist`).
Not for: `coli cache`, which looks without a model (`inventory`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from colibri.kv.slots import SlotFiles
from colibri.kv.store import PrefixStore
from colibri.kv.writer import Writer

# Of the state directory of a model.
FOLDER: Final = "prefix-store"


class Disk:
    """What the engine loop needs of the disk. `buffer` is room for one block, the loop's own."""

    def __init__(self, state: Path, fingerprint: str, block: tuple[int, int], budget: int) -> None:
        """`block` is (tokens, bytes) of one, `budget` in bytes. What disks do raises nothing."""
        tokens, size = block
        self.store = PrefixStore(state / FOLDER, fingerprint, tokens, size, budget)
        self.writer = Writer(self.store)
        self.files = SlotFiles(state, fingerprint, tokens)
        self.buffer = memoryview(bytearray(size))
