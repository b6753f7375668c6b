"""The model that a server offers, as the HTTP side needs it: names, limits, defaults, prompts.

For: the API, which gets one of these and never sees folders, tokenizers or families. Not for: the
engine's side of the same model (`models.backend`). Thread rule: immutable; the functions may be
called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One served model. `context` is the most tokens of prompt and answer together.

    `render` turns messages (role, content) into token ids, or is None for models without chat;
    `encode` does so for plain text, in which nothing becomes a control token. Both raise
    RequestError for what the model cannot take. `temperature` and `top_p` are what the model's
    makers recommend, None where they say nothing. `created` is a Unix time.
    """

    id: str
    family: str
    context: int
    vocab: int
    render: Callable[[Sequence[Message]], list[int]] | None
    encode: Callable[[str], list[int]]
    temperature: float | None = None
    top_p: float | None = None
    created: int = field(default_factory=lambda: int(time.time()))
