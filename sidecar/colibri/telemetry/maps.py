"""Maps of experts on the wire: a head and one row of bytes for each property, or what has changed.

For: the WebSocket. Not for: JSON (`GET /experts`). All numbers little-endian:

    0  magic "CBXM"     8  u32 rows     20  u32 base (delta: the seq it applies to)
    4  u8 version       12 u32 cols     24  u32 turn
    5  u8 1 full 2 delta 16 u32 seq     28  u32 n, cells that follow
    6  u16 0
    32 full   tier u8[n]    heat u8[n]   hits u16[n]
    32 delta  index u32[n]  hits u16[n]  tier u8[n]  heat u8[n]

Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from colibri.engine.protocol import ExpertMap

if TYPE_CHECKING:
    import numpy as np

MAGIC: Final = b"CBXM"
VERSION: Final = 1
FULL: Final = 1
DELTA: Final = 2
_HEAD: Final = struct.Struct("<4sBBHIIIIII")
_FULL_BYTES: Final = 4
_DELTA_BYTES: Final = 8


def full(found: ExpertMap, rows: int, cols: int, seq: int) -> bytes:
    """A whole map."""
    n = len(found.tiers)
    head = _HEAD.pack(MAGIC, VERSION, FULL, 0, rows, cols, seq, 0, found.turn, n)
    return b"".join((head, found.tiers, found.heat, found.hits))


def delta(
    found: ExpertMap, before: ExpertMap, size: tuple[int, int], seqs: tuple[int, int]
) -> bytes:
    """What has changed since `before` (rows and cols as `size`; `seqs` its seq and the new one);
    a whole map where that is shorter, and nothing (b"") where nothing has changed.
    """
    (rows, cols), (base, seq) = size, seqs
    if len(found.tiers) != len(before.tiers):
        return full(found, rows, cols, seq)
    import numpy as np  # noqa: PLC0415 - heavy

    new, old = _arrays(found), _arrays(before)
    changed = np.flatnonzero((new[0] != old[0]) | (new[1] != old[1]) | (new[2] != old[2]))
    if changed.size == 0 and found.turn == before.turn:
        return b""
    if changed.size * _DELTA_BYTES >= len(found.tiers) * _FULL_BYTES:
        return full(found, rows, cols, seq)
    head = _HEAD.pack(MAGIC, VERSION, DELTA, 0, rows, cols, seq, base, found.turn, changed.size)
    tiers, heat, hits = (array[changed] for array in new)
    return b"".join(
        (head, changed.astype("<u4").tobytes(), hits.tobytes(), tiers.tobytes(), heat.tobytes())
    )


def _arrays(found: ExpertMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import numpy as np  # noqa: PLC0415 - heavy

    return (
        np.frombuffer(found.tiers, np.uint8),
        np.frombuffer(found.heat, np.uint8),
        np.frombuffer(found.hits, "<u2"),
    )
