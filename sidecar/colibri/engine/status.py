"""The engine's status codes as Python exceptions.

For: everyone who calls the engine or speaks of its failures; imports without the compiled
extension. Not for: errors of the HTTP side or of model files, which have their own types.

    EngineError            code + one sentence from the engine: what, where, what to do
      EngineCancelled      a prefill was cancelled; carries how far it came
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class Status(IntEnum):
    """`colibri_status` of the header."""

    OK = 0
    INVALID = 1
    IO = 2
    FORMAT = 3
    MEMORY = 4
    CANCELLED = 5
    CONTEXT = 6
    NUMERIC = 7
    UNSUPPORTED = 8


# The piece of a chunk that is its rows; 0, 1, ... are what layers keep.
ROWS: Final = -1


class ChunkState(msgspec.Struct, frozen=True):
    """An unfinished prefill chunk: `first` tokens before it, its own (0 = there is none, or none
    that can still leave the engine), layers that are finished, and whether its rows stand between
    two of them now.
    """

    first: int
    tokens: int
    layers: int
    between: bool


class PrefillProgress(msgspec.Struct, frozen=True):
    """Where a prefill stands after a step: tokens of this prefill, layers of the current chunk.

    `fraction` is the share of all its work that is done, `resumed` what a parked chunk brought of
    it. Bytes are those read from disk for it so far, and an estimate of those to come.
    """

    finished: bool
    tokens_done: int
    tokens_total: int
    layer: int
    n_layers: int
    fraction: float = 0.0
    resumed: float = 0.0
    bytes_read: int = 0
    bytes_left: int = 0


class EngineError(Exception):
    """The engine refused or failed; nothing has changed except as its message says.

    `code` is a `Status`, `message` the engine's English sentence.
    """

    def __init__(self, code: Status, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineCancelled(EngineError):
    """A prefill step was cancelled. `progress` tells how many tokens the session now holds."""

    def __init__(self, message: str, progress: PrefillProgress) -> None:
        super().__init__(Status.CANCELLED, message)
        self.progress = progress
