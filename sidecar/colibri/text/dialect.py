"""The dialects by name: how a family writes reasoning and tool calls.

For: family descriptors (`Family.dialect`). A dialect's parser is made per answer; see `parts.py`.
Thread rule: constants.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

from colibri.text.arguments import Tools
from colibri.text.inkling import INKLING_MARKERS, inkling_parser
from colibri.text.parts import NewId, PartsParser, call_id
from colibri.text.tagged import GLM_MARKERS, HERMES_MARKERS, glm_parser, hermes_parser


class MakeParser(Protocol):
    """What builds a dialect's parser; see `TaggedParser`."""

    def __call__(
        self,
        tools: Tools,
        *,
        reasoning: bool = False,
        tokens: Collection[str] = (),
        new_id: NewId = call_id,
    ) -> PartsParser:
        """A parser for one answer."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """`markers` are the texts that structure an answer; those that a model's tokenizer has as
    control tokens go to the detokeniser (`marks`) and to the parser (`tokens`).
    """

    name: str
    markers: tuple[str, ...]
    parser: MakeParser


GLM: Final = Dialect("glm", GLM_MARKERS, glm_parser)
HERMES: Final = Dialect("hermes", HERMES_MARKERS, hermes_parser)
INKLING: Final = Dialect("inkling", INKLING_MARKERS, inkling_parser)
