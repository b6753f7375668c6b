"""What a model family declares about itself.

For: one descriptor per family (`llama.py`, `glm_moe_dsa.py`), found through `colibri.families`. A
descriptor turns a config into the engine's geometry and tells which tensors, with which logical
shapes, the weights must then hold. Not for: reading files (`colibri.models`) or computing anything.
Thread rule: frozen values and pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from colibri.engine.table import Geometry
from colibri.families.values import ConfigReader
from colibri.text.arguments import Tools
from colibri.text.dialect import HERMES, Dialect
from colibri.text.parts import PartsParser

# The engine's own bounds (weight.h) and what no real model passes by far.
MAX_ROWS: Final = 1 << 24
MAX_COLS: Final = 1 << 20
MAX_LAYERS: Final = 1024
MAX_HEADS: Final = 4096
MAX_HEAD_DIM: Final = 4096
MAX_EXPERTS: Final = 65_536
# Of all layers together; each is three tensors or more, which are looked up one by one.
MAX_ALL_EXPERTS: Final = 1 << 17
MAX_POSITION: Final = 1 << 27


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a family reads. Vectors have `rows` 1. `layer` is None outside the layers.

    `part` groups tensors that are present or absent together (`indexer`, `mtp`); `expert` is the
    number of a routed expert, else -1.
    """

    name: str
    rows: int
    cols: int
    layer: int | None = None
    part: str = "trunk"
    expert: int = -1

    @property
    def is_vector(self) -> bool:
        """Whether the published tensor has one dimension."""
        return self.rows == 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What models of a family can do beyond completing text; no tools: `tool_dialect` empty."""

    chat: bool = True
    reasoning: bool = False
    tool_dialect: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. All functions are pure.

    `geometry(reader)` checks every config value and raises ModelError naming file and key.
    `tensors(geometry)` yields every tensor of the complete model, optional parts included;
    `without(geometry, part)` gives the geometry of a model that lacks one of `optional_parts`.
    `model_id(geometry, folder)` is the default id or None for the folder's name. `end_tokens` are
    texts that end a turn wherever the tokenizer knows them as control tokens. `chat_stops` end a
    chat turn, also as plain text, if the client names no stop of its own.
    `builtin_template(folder)` serves containers that ship none, "" if there is none;
    `template_variables` are defaults that a request may override. `dialect` is how its models write
    reasoning and tool calls.
    """

    name: str
    model_types: frozenset[str]
    architectures: frozenset[str]
    capabilities: Capabilities
    geometry: Callable[[ConfigReader], Geometry]
    tensors: Callable[[Geometry], Iterator[TensorSpec]]
    without: Callable[[Geometry, str], Geometry]
    optional_parts: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    model_id: Callable[[Geometry, str], str | None] = field(default=lambda _geometry, _folder: None)
    chat_stops: tuple[str, ...] = ()
    builtin_template: Callable[[Path], str] = field(default=lambda _folder: "")
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    dialect: Dialect = HERMES

    def parts(
        self,
        tools: Iterable[Mapping[str, Any]] = (),
        *,
        reasoning: bool = False,
        tokens: Collection[str] = (),
    ) -> PartsParser:
        """The parser of one answer. `tools` as the request declares them, none when they may not be
        called; `reasoning`: the prompt ends inside the reasoning; `tokens`: the dialect's markers
        that are control tokens (`Tokenizer.control_ids`) and come marked from the detokeniser.
        """
        return self.dialect.parser(Tools(tools), reasoning=reasoning, tokens=tokens)

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json is this family's."""
        model_type = config.get("model_type")
        if isinstance(model_type, str):
            return model_type in self.model_types
        architectures = config.get("architectures")
        if not isinstance(architectures, list):
            return False
        return any(isinstance(item, str) and item in self.architectures for item in architectures)


def activation_is_silu(reader: ConfigReader) -> None:
    """Refuses every other activation of the MLP."""
    if reader.string("hidden_act", "silu") not in ("silu", "swish"):
        reader.unsupported("hidden_act", '"silu"')


def no_bias(reader: ConfigReader, *keys: str) -> None:
    """Refuses models with biased projections."""
    for key in keys:
        if reader.boolean(key, default=False):
            reader.unsupported(key, "projections without bias")


def rope_theta(reader: ConfigReader, default: float) -> float:
    """Base of the rotary embedding, from either place where configs keep it; scaled rope is
    refused.
    """
    source = reader
    for key in ("rope_parameters", "rope_scaling"):
        nested = reader.object(key)
        if nested is None:
            continue
        for name in ("rope_type", "type"):
            if nested.string(name, "default") != "default":
                nested.unsupported(name, "rotary embeddings without scaling")
        if nested.has("rope_theta"):
            source = nested
    return source.number("rope_theta", 1.0, 1e12, default)
