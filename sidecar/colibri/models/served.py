"""The model that a server offers, as the HTTP side needs it: names, defaults, prompts.

For: the API, which gets one of these and never sees folders, tokenizers or families. Not for: the
engine's side of the same model (`models.backend`), which alone knows how long a context fits.
Thread rule: immutable; the functions may be called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colibri.models.model import ModelText

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One served model.

    `render` turns messages (role, content) into token ids, or is None for models without chat;
    `encode` does so for plain text, in which nothing becomes a control token. Both raise
    RequestError for what the model cannot take. `temperature` and `top_p` are what the model's
    makers recommend, None where they say nothing. `created` is a Unix time.
    """

    id: str
    family: str
    vocab: int
    render: Callable[[Sequence[Message]], list[int]] | None
    encode: Callable[[str], list[int]]
    temperature: float | None = None
    top_p: float | None = None
    created: int = field(default_factory=lambda: int(time.time()))


def from_text(text: ModelText, model_id: str | None = None) -> ServedModel:
    """The served form of an opened model; `model_id` replaces its default name."""
    template = text.template

    def render(messages: Sequence[Message]) -> list[int]:
        assert template is not None  # noqa: S101 - handed out only with a template
        return template.encode(template.render(messages))

    return ServedModel(
        id=model_id or text.model_id,
        family=text.family.name,
        vocab=text.tokenizer.vocab_size,
        render=None if template is None else render,
        encode=text.tokenizer.encode,
        temperature=text.sampling.temperature,
        top_p=text.sampling.top_p,
    )
