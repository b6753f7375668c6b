"""A model folder as the engine behind the worker: weights, context, end ids, text.

For: the engine process and one-shot commands; the factory `open_backend` is what a `ChildSpec`
names. Not for: the HTTP side, which needs only the text of the same model (`models.served`).
Threads: as `EngineBackend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from colibri.engine import ffi
from colibri.engine.backend import BackendSession, Counters, TextStream
from colibri.engine.protocol import EngineInfo
from colibri.engine.table import EngineOptions, Isa, Precision
from colibri.errors import ResourceError
from colibri.hardware import memory
from colibri.models.model import Model, open_model
from colibri.text.detok import Detokenizer
from colibri.text.stop import StopFilter
from colibri.text.tokenizer import Tokenizer

# No agent works with less; a machine that cannot give this much cannot serve the model.
LEAST_CONTEXT: Final = 4096
# Share of the memory left beside the weights that an unasked-for context may take.
_KV_SHARE: Final = 0.5


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to open and how. Context 0 = what fits; budget 0 = measured here."""

    folder: str
    context: int = 0
    precision: str = "fast"
    isa: str = "auto"
    threads: int = 0
    memory_budget: int = 0


def choose_context(wanted: int, longest: int, kv_bytes_per_token: int, free: int | None) -> int:
    """Tokens of context: the wanted number, or what fits.

    `longest` is the model's own limit, `free` the bytes beside the weights (None = unlimited).
    Raises ResourceError, with numbers, when not even the smallest sensible context fits.
    """
    least = wanted or min(LEAST_CONTEXT, longest)
    if free is not None and least * kv_bytes_per_token > free:
        fits = max(free, 0) // max(kv_bytes_per_token, 1)
        raise ResourceError(
            f"a context of {least} tokens takes {least * kv_bytes_per_token / 1e9:.2f} GB; "
            f"beside the weights {max(free, 0) / 1e9:.2f} GB are free.",
            hint=f"Choose --ctx {fits} or less, or free some memory."
            if fits >= 1
            else "Free some memory, or choose a smaller model.",
        )
    if wanted or free is None:
        return wanted or longest
    fits = int(free * _KV_SHARE) // max(kv_bytes_per_token, 1)
    return min(longest, max(fits, least))


class _Text:
    """Detokeniser and stop filter of one job."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ignore_leading: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._filter = StopFilter(stops, ignore_leading=ignore_leading)

    @property
    def stopped(self) -> bool:
        return self._filter.matched is not None

    def push(self, token: int) -> str:
        return self._filter.push(self._detokenizer.push((token,)))

    def flush(self) -> str:
        return self._filter.push(self._detokenizer.flush()) + self._filter.flush()


class NativeBackend:
    """The C engine with one model. Raises what opening a model or an engine raises."""

    def __init__(self, options: Options) -> None:
        model = open_model(Path(options.folder))
        budget = options.memory_budget or memory.budget()
        base = EngineOptions(
            precision=Precision[options.precision.upper()],
            isa=Isa[options.isa.upper()],
            threads=options.threads,
            memory_budget=budget,
        )
        plan = ffi.plan(model.geometry, model.files.tensors, base)
        context = choose_context(
            options.context,
            model.geometry.max_position,
            plan.kv_bytes_per_token,
            budget - plan.weight_bytes if budget else None,
        )
        self._engine = ffi.Engine(
            model.files.paths,
            model.geometry,
            model.files.tensors,
            msgspec.structs.replace(base, context=context),
        )
        self._tokenizer = model.text.tokenizer
        self.end_ids = model.text.end_ids
        self.info = self._describe(model, budget, context)

    def _describe(self, model: Model, budget: int, context: int) -> EngineInfo:
        snapshot = self._engine.snapshot()
        return EngineInfo(
            context=context,
            vocab=model.geometry.vocab,
            isa=ffi.isa_name(snapshot.isa),
            precision=Precision(snapshot.precision).name.lower(),
            threads=snapshot.threads,
            weight_bytes=snapshot.weight_bytes,
            kv_bytes_per_token=snapshot.kv_bytes_per_token,
            memory_budget=budget,
        )

    def session(self) -> BackendSession:
        return self._engine.session()

    def decode(self, sessions: Sequence[BackendSession], tokens: Sequence[int]) -> None:
        # Every session of this backend is one of its engine's.
        self._engine.decode(cast(Sequence[ffi.Session], sessions), tokens)

    def counters(self) -> Counters:
        snapshot = self._engine.snapshot()
        return Counters(
            progress=snapshot.progress,
            prompt_tokens=snapshot.prompt_tokens,
            decoded_tokens=snapshot.decoded_tokens,
            weight_bytes=snapshot.weight_bytes,
            kv_bytes=snapshot.kv_bytes,
            scratch_bytes=snapshot.scratch_bytes,
        )

    def text(self, stops: Sequence[str], ignore_leading_stop: bool) -> TextStream:
        return _Text(self._tokenizer, stops, ignore_leading_stop)

    def close(self) -> None:
        self._engine.close()


def open_backend(options: dict[str, Any]) -> NativeBackend:
    """Factory for the engine process; `options` are those of `Options` as plain data."""
    return NativeBackend(msgspec.convert(options, Options))
