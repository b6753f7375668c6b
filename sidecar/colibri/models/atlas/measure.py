"""One prompt of a measurement: its tokens, where counting begins, and what came back.

For: `coli atlas run`, with an engine of its own, and the server, which measures for it. What is
counted begins behind what is the same in every prompt, the head of the chat template: the person's
text, the few tokens that close the turn, and the answer. Greedy, without reasoning, without drafts.
Thread rule: pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from colibri.engine.protocol import Routing
from colibri.engine.slots import common_prefix
from colibri.errors import EngineFailure
from colibri.models.served import Conversation, ServedModel

Counts = NDArray[np.uint32]

_MOST_BYTES: Final = 1 << 28
# Two texts that begin differently: what their prompts share is the template's.
_PROBES: Final = ("1", "z")


@dataclass(frozen=True, slots=True)
class Measured:
    """Counts [layers, cols] of a prompt and of its answer; `layers` are the model's numbers. A
    token leaves `per_token` in each layer.
    """

    layers: tuple[int, ...]
    cols: int
    per_token: int
    prompt: Counts
    answer: Counts


def tokens_of(model: ServedModel, text: str) -> tuple[list[int], int]:
    """The prompt's tokens and the position at which counting begins. Raises RequestError for what
    the model cannot take.
    """
    tokens = _tokens(model, text)
    heads = [common_prefix(tokens, _tokens(model, probe)) for probe in _PROBES]
    # A text that begins like one probe differs from the other.
    return tokens, min(*heads, len(tokens) - 1)


def _tokens(model: ServedModel, text: str) -> list[int]:
    if model.render is None:
        return model.encode(text, None)
    return model.render(Conversation(messages=[{"role": "user", "content": text}])).tokens


def measured(routing: Routing | None) -> Measured:
    """What a job has counted; layers that routed nothing, the MTP layer, are left out. Raises
    EngineFailure for a job that has counted nothing.
    """
    if routing is None:
        raise EngineFailure("the engine has counted nothing.")
    shape = (len(routing.layers), routing.cols)
    prompt = np.frombuffer(routing.prompt, "<u4").reshape(shape)
    answer = np.frombuffer(routing.answer, "<u4").reshape(shape)
    rows = np.flatnonzero(prompt.any(axis=1) | answer.any(axis=1))
    return Measured(
        layers=tuple(routing.layers[row] for row in rows),
        cols=routing.cols,
        per_token=routing.per_token,
        prompt=prompt[rows],
        answer=answer[rows],
    )


def to_wire(found: Measured) -> dict[str, Any]:
    """As JSON, for `from_wire` at the other end: counts are base64 of little-endian u32."""
    routing = Routing(
        layers=found.layers,
        cols=found.cols,
        per_token=found.per_token,
        prompt=found.prompt.astype("<u4").tobytes(),
        answer=found.answer.astype("<u4").tobytes(),
    )
    plain: dict[str, Any] = msgspec.to_builtins(routing)
    return plain


def from_wire(data: bytes) -> Measured:
    """Raises ValueError for what is no measurement."""
    routing = msgspec.json.decode(data, type=Routing)
    size = 4 * len(routing.layers) * routing.cols
    if not 0 < size <= _MOST_BYTES or {len(routing.prompt), len(routing.answer)} != {size}:
        raise ValueError("the counts do not fit their layers")
    return measured(routing)
