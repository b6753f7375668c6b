"""Unfinished chunks of prompts, saved now and then while they are read, and taken up again.

For: `persist`. A chunk of a model that streams from disk takes minutes to an hour; whatever ends
the process costs no more than the layers since the last save. Not for: files (`colibri.kv.parked`),
chunks that stay in memory (`native/src/prefill.c`).

    slice -> watch   what finished layers keep is copied out, a layer at a time; then, between two
                     layers, the rows; the writer's thread stores them in this order
    plan  -> find    a chunk that the prompt begins with
    step  -> fill    a piece at a time, into the session that holds what is before it

Saving begins once a chunk has taken `SECONDS` and repeats no more often, so a model that is quick
writes nothing. What does not fit into the writer's queue waits. Threads: the engine loop's.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from colibri.engine.backend import BackendSession
from colibri.engine.slots import Holding, Slot
from colibri.engine.status import ROWS, ChunkState, EngineError
from colibri.kv import parked as on_disk
from colibri.kv.blocks import unpack_tokens
from colibri.kv.disk import Disk
from colibri.kv.parked import LEAD, Parked, kv_name
from colibri.kv.writer import Piece

log = logging.getLogger(__name__)

SECONDS: Final = 10.0


class _Watched:
    """A chunk in progress and the session that computes it. `layers` and `lead`: handed to the
    writer; `rows`: layers that the last rows handed over stand for.
    """

    def __init__(self, session: BackendSession, state: ChunkState) -> None:
        self.session = session
        self.place = (state.first, state.tokens)
        self.parked: Parked | None = None
        self.off = False
        self.saved = time.monotonic()
        self.rows = self.layers = 0
        self.lead = False
        self.writing = False

    def begin(self, parked: Parked) -> None:
        """Its place on disk, which may hold some of it already."""
        self.parked = parked
        self.rows = self.layers = parked.chunk.layers
        self.lead = self.rows > 0


class Parking:
    """See the module's text."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._watched: dict[int, _Watched] = {}

    # ---- to disk ----

    def watch(self, slot: Slot, prompt: Sequence[int]) -> None:
        """After a slice of a prompt: saves of its chunk what is due."""
        session, state = slot.session, slot.session.chunk()
        watched, place = self._watched.get(slot.index), (state.first, state.tokens)
        if watched is not None and (watched.session, watched.place) != (session, place):
            del self._watched[slot.index]
            watched = None
        if state.tokens == 0:
            return
        if watched is None:
            watched = self._watched[slot.index] = _Watched(session, state)
            session.pause(False)
        if watched.off or time.monotonic() - watched.saved < SECONDS:
            return
        if watched.parked is None:
            parked = self._disk.parked.begin(prompt, state.first, state.first + state.tokens)
            if parked is not None:
                watched.begin(parked)
        try:
            if watched.parked is not None and not watched.parked.dropped.is_set():
                self._save(watched, watched.parked, state)
                return
        except EngineError as error:
            log.warning("an unfinished chunk is not kept on disk: %s", error.message)
        self._leave(watched)

    def _leave(self, watched: _Watched) -> None:
        """Nothing more of this chunk is saved."""
        watched.off = True
        watched.session.pause(False)

    def _save(self, watched: _Watched, parked: Parked, state: ChunkState) -> None:
        session = watched.session
        block = self._disk.store.geometry.block_tokens
        if not watched.lead:
            if state.first > parked.chunk.start:
                size = self._disk.store.geometry.block_bytes
                export = session.export_block
                if not self._give(watched, LEAD, size, state.first // block, export):
                    return
            watched.lead = True
        while watched.layers < state.layers:
            layer = watched.layers
            size = session.chunk_bytes(layer)
            if not self._give(watched, kv_name(layer), size, layer, session.export_chunk):
                return
            watched.layers += 1
        size = session.chunk_bytes(ROWS)
        if size > self._disk.writer.limit:
            self._leave(watched)
            return
        if state.between and state.layers > watched.rows and not watched.writing:
            watched.writing = True
            if self._give(watched, on_disk.ROWS, size, ROWS, session.export_chunk):
                watched.rows, watched.saved = state.layers, time.monotonic()
                session.pause(False)
                return
            watched.writing = False
        session.pause(True)

    def _give(
        self,
        watched: _Watched,
        name: str,
        size: int,
        piece: int,
        export: Callable[[int, memoryview], object],
    ) -> bool:
        """Copies a piece out for the writer; False while there is no room for it."""
        parked, chunks, layers = watched.parked, self._disk.parked, watched.layers
        if parked is None or self._disk.writer.room() < size:
            return False
        payload = memoryview(bytearray(size))
        export(piece, payload)

        def done(_stored: bytes | None) -> None:
            if name == on_disk.ROWS:
                watched.writing = False

        return self._disk.writer.submit(
            Piece(
                payload,
                lambda pace: chunks.write(parked, name, payload, layers, pace),
                done,
            )
        )

    def stored(self, tokens: Sequence[int]) -> None:
        """All of `tokens` is stored in blocks: chunks of it are not needed any more."""
        for parked in self._disk.parked.covered(tokens):
            parked.dropped.set()
            self._remove(parked)

    def _remove(self, parked: Parked) -> None:
        def remove(_pace: object) -> bool:
            self._disk.parked.remove(parked)
            return True

        self._disk.writer.submit(Piece(memoryview(b""), remove, None))

    # ---- from disk ----

    def find(
        self, prompt: Sequence[int], have: int, stored: int, session: BackendSession
    ) -> Filling | None:
        """The chunk on disk that helps a prompt of which `have` tokens are in the slot's `session`
        and `stored` on disk; None if there is none.
        """
        parked = self._disk.parked.find(prompt)
        if parked is None or parked.chunk.first < max(have, stored):
            return None
        if parked.chunk.first == have and session.parked:
            return None  # memory has as much at least
        return Filling(parked)

    def fill(self, filling: Filling, holding: Holding) -> bool:
        """One piece more; False when there is nothing left to do, or nothing that can be used."""
        parked, chunk, session = filling.parked, filling.parked.chunk, holding.session
        piece = filling.left.popleft() if filling.left else ""
        tokens = unpack_tokens(chunk.tokens)
        try:
            if piece == LEAD:
                inside = chunk.first - chunk.start
                if not self._disk.parked.read(parked, piece, self._disk.buffer):
                    return self._give_up(filling)
                session.import_block(tokens[:inside], self._disk.buffer)
                holding.history += tokens[:inside]
            elif piece:
                if not filling.begun:
                    session.import_chunk(tokens[chunk.first - chunk.start :], chunk.layers)
                    filling.begun = True
                number = ROWS if piece == on_disk.ROWS else chunk.layers - len(filling.left)
                payload = memoryview(bytearray(session.chunk_bytes(number)))
                if not self._disk.parked.read(parked, piece, payload):
                    return self._give_up(filling)
                session.fill_chunk(number, payload)
        except EngineError as error:
            log.warning("a chunk on disk cannot be used: %s", error.message)
            filling.left.clear()
        return bool(filling.left)

    def _give_up(self, filling: Filling) -> bool:
        log.warning("%s is damaged and is deleted", filling.parked.folder)
        filling.left.clear()
        self._remove(filling.parked)
        return False


class Filling:
    """A chunk on its way from disk; `left`: its pieces that are still to come."""

    def __init__(self, parked: Parked) -> None:
        chunk = parked.chunk
        lead = [LEAD] if chunk.first > chunk.start else []
        self.parked = parked
        self.begun = False
        self.left = deque([*lead, *map(kv_name, range(chunk.layers)), on_disk.ROWS])
