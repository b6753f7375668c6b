"""Unfinished prefill chunks on disk, in pieces.

For: the engine loop (`colibri.engine.parking`): a chunk of a large model takes minutes to an hour,
and whatever ends the process then costs only the layers since the last save. Not for: whole blocks
(`store`), and what pieces mean.

    parked/00000007-ID/   rows       between two layers: which, and all tokens of the chunk
                          lead       the block where the chunk begins, if it begins inside one
                          kv-NNN     what a finished layer keeps of the chunk's positions

    piece   head: magic "COLIKVC1", bytes of the meta, bytes of the payload, CRC-32 of both
            meta (msgpack: root of the store, id of the chunk, name of the piece, and for rows the
            chunk), payload, CRC-32 over head, meta and payload

A chunk is named by the block before it and its tokens, so a piece that is there already is the one
that would be written. Every piece is replaced at once, `rows` after what it builds on: a kill
leaves the save before it. What is damaged is a miss, and the chunk is forgotten. The few newest
chunks are kept, within a quarter of the store's budget.

Nothing here raises for what disks do. Threads: `find`, `begin`, `read` and `covered` from the loop,
`write` and `remove` from the writer's thread.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from colibri.kv import blocks, files
from colibri.kv.segments import PIECE, Pace
from colibri.kv.store import PrefixStore

log = logging.getLogger(__name__)

NAME: Final = "parked"
ROWS: Final = "rows"
LEAD: Final = "lead"
MOST: Final = 4
_SHARE: Final = 4  # of the store's budget
_MAGIC: Final = b"COLIKVC1"
_HEAD: Final = struct.Struct("<8sQQ")
_CRC: Final = struct.Struct("<I")
_MOST_META: Final = 16 << 20
_FOLDER: Final = re.compile(r"(\d{8,12})-([0-9a-f]{64})\Z")


def kv_name(layer: int) -> str:
    """The piece with what a layer keeps."""
    return f"kv-{layer:03}"


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a chunk and what is before them: `first` tokens in all, of which `tokens` begins
    with those behind the last whole block, number `start` and later; `parent` is that block.
    """

    parent: bytes
    start: int
    first: int
    tokens: bytes
    layers: int = 0

    @property
    def id(self) -> bytes:
        place = struct.pack("<QQ", self.start, self.first)
        return hashlib.blake2b(
            b"chunk\0" + self.parent + place + self.tokens, digest_size=blocks.ID_BYTES
        ).digest()

    @property
    def end(self) -> int:
        """Tokens up to its end."""
        return self.start + len(self.tokens) // 4


class _Meta(msgspec.Struct, frozen=True, array_like=True):
    root: bytes
    id: bytes
    piece: str
    chunk: Chunk | None


class Parked:
    """A chunk that is, or will be, on disk. `chunk.layers` says what `rows` on disk stand for, 0
    before there are any.
    """

    def __init__(self, chunk: Chunk, folder: Path) -> None:
        self.chunk = chunk
        self.folder = folder
        self.pieces: dict[str, int] = {}  # bytes of their files
        self.dropped = threading.Event()


class ParkedChunks:
    """See the module's text; `store` is the open store beside whose segments they lie."""

    def __init__(self, store: PrefixStore) -> None:
        self._store = store
        self._folder = store.folder / NAME
        self._known: dict[bytes, Parked] = {}  # oldest first
        self._guard = threading.Lock()
        self._number = 1
        if store.state == "ready" and self._folder.is_dir():
            self._load()

    @property
    def _usable(self) -> bool:
        return self._store.state == "ready"

    # ---- opening ----

    def _load(self) -> None:
        """Learns what is there; what cannot be used is deleted."""
        try:
            found = sorted(self._folder.iterdir())
        except OSError as error:
            log.warning("%s is ignored: %s", self._folder, error.strerror)
            return
        for path in found:
            match = _FOLDER.match(path.name)
            parked = self._open(path) if match else None
            if parked is None:
                shutil.rmtree(path, ignore_errors=True)
                continue
            self._number = max(self._number, 1 + int(path.name.partition("-")[0]))
            self._known[parked.chunk.id] = parked
            self._store.beside += sum(parked.pieces.values())
        while len(self._known) > MOST:
            self._forget(next(iter(self._known.values())))

    def _open(self, path: Path) -> Parked | None:
        try:
            meta = self._meta(path / ROWS)
            if meta is None or meta.chunk is None or meta.piece != ROWS:
                return None
            parked = Parked(meta.chunk, path)
            for file in path.iterdir():
                if file.name.endswith(".tmp"):
                    files.remove(file)
                else:
                    parked.pieces[file.name] = file.stat().st_size
        except OSError:
            return None
        sound = _can_be(meta.chunk) and kv_name(meta.chunk.layers - 1) in parked.pieces
        return parked if sound and meta.id == meta.chunk.id else None

    def _meta(self, path: Path) -> _Meta | None:
        """What a piece says it is; None if it is not of this store. Not its payload is checked."""
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) != _HEAD.size:
                return None
            magic, size, _ = _HEAD.unpack(head)
            if magic != _MAGIC or size > _MOST_META:
                return None
            body = file.read(size)
        try:
            meta = msgspec.msgpack.decode(body, type=_Meta)
        except (msgspec.DecodeError, RecursionError):
            return None
        return meta if meta.root == self._store.root else None

    # ---- the loop ----

    def find(self, prompt: Sequence[int]) -> Parked | None:
        """The chunk with rows on disk that `prompt` begins with and that has come furthest."""
        with self._guard:
            known = [
                one for one in self._known.values() if one.chunk.layers and not one.dropped.is_set()
            ]
        if not known:
            return None
        packed, step = blocks.pack_tokens(prompt), self._store.geometry.block_tokens
        parents = [self._store.root, *blocks.chain_ids(self._store.root, packed, step)]
        found = [
            one
            for one in known
            if one.chunk.end <= len(prompt)
            and one.chunk.start % step == 0
            and one.chunk.parent == parents[one.chunk.start // step]
            and packed[4 * one.chunk.start :].startswith(one.chunk.tokens)
        ]
        return max(found, key=lambda one: (one.chunk.first, one.chunk.layers), default=None)

    def begin(self, prompt: Sequence[int], first: int, end: int) -> Parked | None:
        """The place for the chunk of tokens `first` to `end` of `prompt`, with what of it is there
        already; None if nothing can be stored.
        """
        if not self._usable:
            return None
        step = self._store.geometry.block_tokens
        start = first // step * step
        parent = self._store.root
        for own in blocks.chain_ids(parent, blocks.pack_tokens(prompt[:start]), step):
            parent = own
        chunk = Chunk(parent, start, first, blocks.pack_tokens(prompt[start:end]))
        with self._guard:
            parked = self._known.get(chunk.id)
            if parked is None or parked.dropped.is_set():
                path = self._folder / f"{self._number:08}-{chunk.id.hex()}"
                self._number += 1
                parked = self._known[chunk.id] = Parked(chunk, path)
        return parked

    def read(self, parked: Parked, piece: str, into: memoryview) -> bool:
        """Fills `into` with a piece; True only if every byte was checked."""
        try:
            file = files.DataFile(parked.folder / piece)
        except OSError:
            return False
        try:
            said = _checked(file, into)
            file.forget(0, 0)
        except (OSError, msgspec.DecodeError, RecursionError):
            return False
        finally:
            file.close()
        if said is None or (said.root, said.id) != (self._store.root, parked.chunk.id):
            return False
        return said.piece == piece and (piece != ROWS or said.chunk == parked.chunk)

    def covered(self, tokens: Sequence[int]) -> list[Parked]:
        """Chunks that are no longer needed once all of `tokens` is stored in blocks."""
        packed, step = blocks.pack_tokens(tokens), self._store.geometry.block_tokens
        with self._guard:
            known = [one for one in self._known.values() if one.chunk.end <= len(tokens)]
        if not known:
            return []
        parents = [self._store.root, *blocks.chain_ids(self._store.root, packed, step)]
        return [
            one
            for one in known
            if one.chunk.parent == parents[one.chunk.start // step]
            and packed[4 * one.chunk.start :].startswith(one.chunk.tokens)
        ]

    # ---- the writer's thread ----

    def write(
        self, parked: Parked, piece: str, payload: memoryview, layers: int, pace: Pace
    ) -> bool:
        """Stores a piece; `layers` counts for rows. False, with the chunk forgotten, if that
        failed, or if the chunk has been forgotten before.
        """
        chunk = msgspec.structs.replace(parked.chunk, layers=layers) if piece == ROWS else None
        meta = msgspec.msgpack.encode(_Meta(self._store.root, parked.chunk.id, piece, chunk))
        head = _HEAD.pack(_MAGIC, len(meta), len(payload))
        size = len(head) + len(meta) + len(payload) + _CRC.size
        if parked.dropped.is_set() or not self._usable:
            return False
        if not self._make_room(parked, size, pace):
            self.remove(parked)
            return False
        try:
            self._replace(parked.folder / piece, head + meta, payload, pace)
        except OSError as error:
            log.warning("%s: an unfinished prompt is not kept: %s", parked.folder, error.strerror)
            self._store.beside -= size
            self.remove(parked)
            return False
        with self._guard:
            self._store.beside -= parked.pieces.pop(piece, 0)
            parked.pieces[piece] = size
            if chunk is not None:
                parked.chunk = chunk
        if parked.dropped.is_set():
            self.remove(parked)
        return True

    def _replace(self, path: Path, head: bytes, payload: memoryview, pace: Pace) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        files.remove(temporary)
        file = files.DataFile(temporary, create=True)
        try:
            file.write(0, memoryview(head))
            crc, at = zlib.crc32(head), len(head)
            for done in range(0, len(payload), PIECE):
                part = payload[done : done + PIECE]
                file.write(at + done, part)
                crc = zlib.crc32(part, crc)
                pace(len(part))
            file.write(at + len(payload), memoryview(_CRC.pack(crc)))
            file.forget(0, 0)
        finally:
            file.close()
        files.rename(temporary, path)

    def _make_room(self, parked: Parked, size: int, pace: Pace) -> bool:
        """Room for `size` bytes more: older chunks go, then blocks as the store sees fit."""
        limit = self._store.budget // _SHARE
        while True:
            with self._guard:
                others = [one for one in self._known.values() if one is not parked]
                held = sum(sum(one.pieces.values()) for one in self._known.values())
            if held + size <= limit and len(others) < MOST:
                break
            if not others:
                return False
            self.remove(others[0])
        return self._store.take_beside(size, pace)

    def remove(self, parked: Parked) -> None:
        """Forgets a chunk and deletes its files."""
        with self._guard:
            self._forget(parked)

    def _forget(self, parked: Parked) -> None:
        parked.dropped.set()
        if self._known.get(parked.chunk.id) is parked:
            del self._known[parked.chunk.id]
        self._store.beside -= sum(parked.pieces.values())
        parked.pieces.clear()
        shutil.rmtree(parked.folder, ignore_errors=True)


def _can_be(chunk: Chunk) -> bool:
    """Whether a chunk on disk can have this place, and is one that rows were saved of."""
    whole = len(chunk.tokens) % 4 == 0
    return whole and 0 <= chunk.start <= chunk.first < chunk.end < 1 << 31 and chunk.layers > 0


def _checked(file: files.DataFile, into: memoryview) -> _Meta | None:
    """Reads a piece whose payload is as long as `into`; None if a byte is not as it was written.
    Raises OSError and msgspec.DecodeError.
    """
    head = memoryview(bytearray(_HEAD.size))
    if file.read_into(0, head) != len(head):
        return None
    magic, size, payload = _HEAD.unpack(head)
    if magic != _MAGIC or size > _MOST_META or payload != len(into):
        return None
    meta, crc = memoryview(bytearray(size)), memoryview(bytearray(_CRC.size))
    if file.read_into(len(head), meta, into, crc) != size + len(into) + len(crc):
        return None
    if _CRC.unpack(crc)[0] != zlib.crc32(into, zlib.crc32(meta, zlib.crc32(head))):
        return None
    return msgspec.msgpack.decode(meta, type=_Meta)
