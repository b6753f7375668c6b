"""Small stores, chains of blocks, and payloads that can be checked by the block's id alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colibri.kv import blocks
from colibri.kv.store import PrefixStore

FINGERPRINT = "weights 1, tokenizer 1, layout 1"
TOKENS = 4
# Not a multiple of a page, so that padding is part of every test.
BYTES = 5000
STRIDE = 3 * 4096


def open_store(folder: Path, budget: int = 100 * STRIDE, **other: Any) -> PrefixStore:
    """A store of tiny blocks; `other` replaces arguments."""
    arguments: dict[str, Any] = {
        "fingerprint": FINGERPRINT,
        "block_tokens": TOKENS,
        "block_bytes": BYTES,
        "budget_bytes": budget,
        "spare_disk": 0,
    }
    return PrefixStore(folder, **{**arguments, **other})


def tokens_of(*numbers: int) -> list[int]:
    """Tokens of one block for every number."""
    return [10 * number + i for number in numbers for i in range(TOKENS)]


def payload_of(own: bytes, size: int = BYTES) -> memoryview:
    """The only payload that a block of this id may have in a test."""
    return memoryview(random.Random(own).randbytes(size))  # noqa: S311


def ids_of(store: PrefixStore, tokens: Sequence[int]) -> list[bytes]:
    """Ids of the whole blocks of `tokens`."""
    return list(blocks.chain_ids(store.root, blocks.pack_tokens(tokens), TOKENS))


def put_all(store: PrefixStore, tokens: Sequence[int]) -> list[bytes]:
    """Stores every whole block of `tokens` that is missing; returns the ids stored."""
    stored = []
    for part in store.missing(tokens):
        own = blocks.block_id(part.parent, blocks.pack_tokens(part.tokens))
        if store.put(part.parent, part.tokens, payload_of(own)) is not None:
            stored.append(own)
    return stored


def put_tail(store: PrefixStore, tokens: Sequence[int]) -> bytes | None:
    """Stores what is behind the last whole block of `tokens`, if it is missing; returns its id."""
    part = store.tail(tokens)
    if part is None:
        return None
    own = blocks.block_id(part.parent, blocks.pack_tokens(part.tokens))
    return store.put(part.parent, part.tokens, payload_of(own))


def read_tail(store: PrefixStore, tokens: Sequence[int]) -> int:
    """Reads the block that gives the last of what `find` promises for `tokens`; returns how many
    tokens that is, 0 if the last one is a whole block or cannot be read.
    """
    found = store.find(tokens)
    into = memoryview(bytearray(BYTES))
    if not found or found[-1][1] == TOKENS or not store.read(found[-1][0], into):
        return 0
    assert into == payload_of(found[-1][0].id), "a tail came back with another payload"
    return found[-1][1]


def read_all(store: PrefixStore, tokens: Sequence[int]) -> int:
    """Reads what matches `tokens` and checks it; returns how many blocks came back."""
    count = 0
    for ref in store.match(tokens):
        into = memoryview(bytearray(BYTES))
        if not store.read(ref, into):
            assert into == bytes(BYTES), "a block that was refused left bytes behind"
            break
        assert into == payload_of(ref.id), "a block came back with another payload"
        count += 1
    return count


def size_on_disk(folder: Path) -> int:
    """Bytes of the segment files."""
    return sum(path.stat().st_size for path in folder.glob("*.seg*"))


def fill(store: PrefixStore, first: int, count: int) -> None:
    """Conversations of two blocks each."""
    for number in range(first, first + count):
        put_all(store, tokens_of(1000 + number, 2000 + number))
