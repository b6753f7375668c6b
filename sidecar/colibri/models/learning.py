"""What an open engine learns about its experts while it works, and what it does with that.

For: the model's backend, which calls it between steps, while idle and at the end. Not for: the
counts' file (`usage`), traces' files (`trace`), or any decision about the cache. Nothing here can
change a token. Threads: the engine's.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from colibri.engine import experts, ffi
from colibri.models.model import Model
from colibri.models.trace import TraceWriter
from colibri.models.usage import Keeper, ModelShape

log = logging.getLogger(__name__)

# Room for the requests of some long slices of a prompt between two looks: 4 MB.
_TRACE_WORDS: Final = 1 << 20


class Learning:
    """Starts the cache with the counts of earlier runs; keeps counts, and a trace if asked to.

    Raises UsageError if the trace cannot be written.
    """

    def __init__(
        self,
        engine: ffi.Engine,
        model: Model,
        folder: Path,
        *,
        state_dir: str | None = None,
        trace: str | None = None,
    ) -> None:
        geometry = model.geometry
        self._engine = engine
        self._shape = ModelShape(
            family=model.text.family.name,
            layers=geometry.n_layers,
            mtp=geometry.n_mtp_layers,
            experts=geometry.n_experts,
        )
        self._keeper = Keeper(folder, state_dir, self._shape)
        if self._keeper.before.counts.any():
            experts.set_usage(engine, self._keeper.before.counts)
        self._cold = True
        self._lost = 0
        self._trace: TraceWriter | None = None
        if trace:
            layers = self._shape.layers + self._shape.mtp
            self._trace = TraceWriter(Path(trace), layers, self._shape.experts)
            experts.record(engine, _TRACE_WORDS)

    @property
    def learnt(self) -> experts.Counts:
        """Counts of earlier runs, [layers and MTP layers, experts]."""
        return self._keeper.before.counts

    def after_step(self) -> None:
        """Between two steps: takes what the trace's ring holds."""
        if self._trace is None:
            return
        records, lost = experts.recorded(self._engine, _TRACE_WORDS)
        if lost > self._lost:
            log.warning("the trace lacks %d requests of long prompts", lost - self._lost)
            self._lost = lost
        try:
            self._trace.write(records)
        except OSError as error:
            log.warning("the trace ends here, it cannot be written: %s", error.strerror or error)
            self._end_trace()

    def idle(self, max_ms: int) -> bool:
        """Saves new counts, then loads hot experts into free slots; whether more is left to do."""
        self.after_step()
        self._save()
        self._cold = self._cold and not experts.warm(self._engine, max_ms)
        return self._cold

    def close(self) -> None:
        """Before the engine closes."""
        self.after_step()
        self._save()
        if self._trace is not None:
            self._end_trace()

    def _save(self) -> None:
        layers = self._shape.layers + self._shape.mtp
        self._keeper.save(experts.usage(self._engine, layers, self._shape.experts))

    def _end_trace(self) -> None:
        if self._trace is not None:
            experts.record(self._engine, 0)
            trace, self._trace = self._trace, None
            with contextlib.suppress(OSError):  # what the last flush could not write stays lost
                trace.close()
