"""Files whose checksums are right and whose content is nonsense: ignored, never an exception."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.kv import blocks, index_file, slots
from colibri.kv.blocks import Geometry
from colibri.kv.chains import Block, Chains
from colibri.kv.slots import SlotFiles
from colibri.kv.store import describe
from tests.kv.make import BYTES, FINGERPRINT, TOKENS, open_store, put_all, read_all, tokens_of

GEOMETRY = Geometry(blocks.root_id(FINGERPRINT), TOKENS, BYTES)
VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=300) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.integers(0, 5), inner),
    max_leaves=12,
)
# Nearly right is more interesting than anything at all.
INDEXES = st.tuples(
    st.just(index_file.VERSION) | st.integers(),
    st.just(GEOMETRY.root),
    st.just(TOKENS),
    st.just(BYTES),
    st.dictionaries(st.integers(-2, 3), st.integers(-5, 5)),
    st.lists(st.binary(min_size=100, max_size=100), max_size=4).map(b"".join),
)


def sealed_page(content: bytes, seed: int) -> bytes:
    page = content[: blocks.PAGE - 4].ljust(blocks.PAGE - 4, b"\0")
    return page + zlib.crc32(page, seed).to_bytes(4, "little")


@given(content=st.binary(max_size=200), magic=st.sampled_from([b"COLIKVS1", b"COLIKVR1", b""]))
def test_a_sealed_page_of_nonsense_is_no_head_or_a_sane_one(content: bytes, magic: bytes) -> None:
    segment = blocks.decode_segment(memoryview(sealed_page(magic + content, 0)))
    assert segment is None or 0 < segment.geometry.block_tokens <= blocks.MOST_TOKENS
    page = sealed_page(magic + content, zlib.crc32(GEOMETRY.root))
    record = blocks.decode_record(memoryview(page), GEOMETRY)
    assert record is None or len(record.tokens) == 4 * TOKENS


@given(value=VALUES | INDEXES)
def test_a_store_opens_and_works_whatever_its_index_says(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("kv")
    try:
        body = msgspec.msgpack.encode(value)
    except OverflowError:
        return
    store = open_store(folder)
    put_all(store, tokens_of(1, 2))
    store.close()
    digest = hashlib.blake2b(body, digest_size=16).digest()
    (folder / index_file.NAME).write_bytes(digest + body)
    store = open_store(folder)
    assert store.state == "ready"
    read_all(store, tokens_of(1, 2))
    put_all(store, tokens_of(1, 2))
    assert read_all(store, tokens_of(1, 2)) == 2
    assert put_all(store, tokens_of(3)) != []
    store.list()
    store.close()


@given(value=VALUES)
def test_a_slot_file_of_nonsense_is_set_aside(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    folder: Path = tmp_path_factory.mktemp("slot")
    body = msgspec.msgpack.encode(value)
    head = slots._HEAD.pack(slots._MAGIC, slots.VERSION, len(body))
    (folder / slots.NAME).write_bytes(head + slots._hash(head, body) + body)
    assert SlotFiles(folder, FINGERPRINT, TOKENS).load(0) is None
    assert len(list(folder.glob(".coli_kv.*-1"))) == 1


def test_a_chain_that_goes_round_in_circles_is_listed_all_the_same() -> None:
    chains = Chains(GEOMETRY.root)
    for own, parent in ((b"a", b"b"), (b"b", b"a"), (b"c", b"a")):
        chains.add(Block(own, parent, 1, 0, 1, 0))
    chains.pins = frozenset((b"c",))
    (only,) = describe(chains, TOKENS)
    assert only.blocks == 3
    assert chains.kept() == {b"a", b"b", b"c"}
    chains.pins = frozenset()
    assert {block.id for block in chains.evict()} == {b"c"}
