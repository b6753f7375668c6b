"""A process that stores conversations for ever, until it is killed. Run by test_kills.

Prints the number of a turn when its blocks and its slot's file have been saved.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from colibri.kv import blocks, files
from colibri.kv.slots import SlotFiles, SlotState
from colibri.kv.writer import Job, Writer
from tests.kv.make import (
    FINGERPRINT,
    STRIDE,
    TOKENS,
    ids_of,
    open_store,
    payload_of,
    put_tail,
    tokens_of,
)

BUDGET = 80 * STRIDE
# A kill loses nothing that was written; a life that waits for no device meets more kinds of kills.
WITHOUT_SYNC = 0.8
SYSTEM_PROMPT = (1, 2, 3)


def conversation(turn: int, rng: random.Random) -> list[int]:
    """A conversation that begins like all others, and somewhat like its neighbours."""
    return tokens_of(*SYSTEM_PROMPT, 10 + turn % 5, *(rng.randrange(100, 104) for _ in range(4)))


def main() -> None:
    folder, rng = Path(sys.argv[1]), random.Random(sys.argv[2])  # noqa: S311
    if rng.random() < WITHOUT_SYNC:
        files.DataFile.sync = lambda _: None  # type: ignore[method-assign]
    store = open_store(folder / "blocks", BUDGET)
    slots = SlotFiles(folder, FINGERPRINT, TOKENS)
    writer = Writer(store)
    assert store.state == "ready", store.note
    print("ready", flush=True)
    held: list[bytes] = []
    for turn in range(1 << 30):
        tokens = conversation(turn, rng)
        for part in store.missing(tokens):
            own = blocks.block_id(part.parent, blocks.pack_tokens(part.tokens))
            writer.submit(Job(part.parent, part.tokens, payload_of(own)))
        assert writer.flush(60)
        # A conversation's end, which most turns replace.
        put_tail(store, [*tokens, 7, 8, turn % 3][: len(tokens) + 2 + turn % 2])
        ids = ids_of(store, tokens)
        store.hold(ids[-1])
        held.append(ids[-1])
        if all(store.holds(own) for own in ids):
            state = SlotState(tokens=(*tokens, turn), blocks=tuple(ids), draft=b"%d" % turn)
            assert slots.save(turn % 2, state)
            print(turn, flush=True)
        if len(held) > 2:
            store.release(held.pop(0))
        if rng.random() < 0.02:
            store.clear()


if __name__ == "__main__":
    main()
