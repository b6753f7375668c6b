"""An unfinished prefill chunk of a session, in pieces: out of the engine and back into it.

For: `ffi.Session`, which is one of these, and `parking`, which keeps chunks on disk. Not for: when
and where they are kept. Pieces: 0, 1, ... the KV of a layer, `ROWS` the rows between two layers.
Thread rule: as `ffi.Session`.
"""

from __future__ import annotations

from typing import Any

from colibri.engine.cvalues import Buffer, Call, Tokens, ffi, int32_array, lib
from colibri.engine.status import ChunkState


class ChunkCalls:
    """See the module's text."""

    def _alive(self) -> Any:
        raise NotImplementedError

    def chunk(self) -> ChunkState:
        """What there is of an unfinished chunk, in progress or parked."""
        raw = ffi.new("colibri_chunk *")
        raw.struct_size = ffi.sizeof("colibri_chunk")
        lib.colibri_session_chunk(self._alive(), raw)
        return ChunkState(raw.first, raw.tokens, raw.layers, bool(raw.between))

    def pause(self, on: bool) -> None:
        """Whether prefill steps return early where the rows can be exported."""
        lib.colibri_session_pause(self._alive(), on)

    def chunk_bytes(self, piece: int) -> int:
        """Bytes of a piece of the chunk; 0 = there is no such piece."""
        return int(lib.colibri_session_chunk_bytes(self._alive(), piece))

    def export_chunk(self, piece: int, out: Buffer) -> None:
        """Copies a piece, `chunk_bytes` long, into `out`."""
        target = ffi.from_buffer(out, require_writable=True)
        call = Call()
        call.check(
            lib.colibri_session_export_chunk(
                self._alive(), piece, target, len(target), call.text, call.len
            )
        )

    def import_chunk(self, tokens: Tokens, layers: int) -> None:
        """Makes room for a chunk with so many finished layers; then `fill_chunk` takes its pieces
        0, 1, ... and ROWS, in this order, which leaves it parked.
        """
        ids = int32_array(tokens)
        call = Call()
        call.check(
            lib.colibri_session_import_chunk(
                self._alive(),
                ffi.from_buffer("int32_t[]", ids),
                len(ids),
                layers,
                call.text,
                call.len,
            )
        )

    def fill_chunk(self, piece: int, data: Buffer) -> None:
        """Puts a piece back that was exported after exactly the tokens of this chunk."""
        source = ffi.from_buffer(data)
        call = Call()
        call.check(
            lib.colibri_session_fill_chunk(
                self._alive(), piece, source, len(source), call.text, call.len
            )
        )
