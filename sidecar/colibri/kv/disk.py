"""Store, writer and slot files of one model, opened together.

For: a backend, which knows the model and hands this to the engine loop (`colibri.engine.persist`).
Not for: `coli cache`, which looks without a model (`inventory`).
"""

from __future__ import annotations

from pathlib import Path

from colibri.kv.inventory import STORE_NAME
from colibri.kv.parked import ParkedChunks
from colibri.kv.slots import SlotFiles
from colibri.kv.store import PrefixStore
from colibri.kv.writer import DEFAULT_QUEUE_BYTES, Writer


class Disk:
    """What the engine loop needs of the disk. `buffer` is room for one block, the loop's own."""

    def __init__(
        self,
        state: Path,
        model: str,
        layout: str,
        block: tuple[int, int],
        budget: int,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
    ) -> None:
        """`model` names the weights, `layout` what their KV looks like; `block` is (tokens, bytes)
        of one, `budget` in bytes.

        Up to `queue_bytes` of memory, and at least four blocks, wait to be written. What disks do
        raises nothing.
        """
        tokens, size = block
        self.store = PrefixStore(state / STORE_NAME, f"{model} {layout}", tokens, size, budget)
        self.parked = ParkedChunks(self.store)
        self.writer = Writer(self.store, queue_bytes=max(queue_bytes, 4 * size))
        self.files = SlotFiles(state, model, tokens, layout)
        self.buffer = memoryview(bytearray(size))
