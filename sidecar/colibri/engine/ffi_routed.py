"""Which experts the tokens of one session are routed to.

For: `ffi.Session`, which is one of these; measurements read it through the worker. Not for: use
counts of the whole engine (`experts`). Thread rule: as `ffi.Session`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.engine.cvalues import Call, ffi, lib


class RoutedCalls:
    """See the module's text."""

    engine: Any

    def _alive(self) -> Any:
        raise NotImplementedError

    def count(self, first: int) -> None:
        """From now on counts which experts tokens at position `first` and behind it are routed to;
        negative = no longer. Drops a parked chunk. EngineError for a model without experts.
        """
        call = Call()
        call.check(lib.colibri_session_count(self._alive(), first, call.text, call.len))

    def counts(self) -> NDArray[np.uint32]:
        """The counts so far, uint32 [layers and MTP layers, experts] (the MTP layers' are 0)."""
        out = np.empty(self.engine.expert_shape, np.uint32)
        call = Call()
        call.check(
            lib.colibri_session_counts(
                self._alive(), ffi.from_buffer("uint32_t[]", out), out.size, call.text, call.len
            )
        )
        return out
