"""A model folder as everything the program needs of it: files, tokenizer, template, end tokens,
defaults.

For: the worker (engine inputs, detokenising), the HTTP side (prompts, capabilities) and the
commands. `open_text` reads no weights and is cheap; `open_model` adds the table of tensors. Thread
rule: pure functions over files; results are immutable.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from colibri.engine.table import Geometry, Tensor
from colibri.errors import ModelError
from colibri.families import Family, detect
from colibri.families.values import ConfigReader, parse_object, show
from colibri.models.container import ModelFiles, open_folder, read_config, read_file
from colibri.text import tokenizer as tokenizers
from colibri.text.template import ChatTemplate
from colibri.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

TEMPLATE_FILE: Final = "chat_template.jinja"
TOKENIZER_FILE: Final = "tokenizer.json"
SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the model's makers recommend; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text side of a model. `template` is None for models without chat.

    `end_ids` end a turn; never empty for a chat model. `bos_id` begins a text, None without one.
    `geometry` carries the vocabulary mask.
    """

    folder: Path
    family: Family
    geometry: Geometry
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: frozenset[int]
    bos_id: int | None
    model_id: str
    sampling: SamplingDefaults


@dataclass(frozen=True, slots=True)
class Model:
    """Files and text of one model. `geometry` is the one to hand to the engine."""

    files: ModelFiles
    text: ModelText
    geometry: Geometry

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that `tensors` index."""
        return self.files.paths

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The table to hand to the engine."""
        return self.files.tensors

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.text.tokenizer


def open_model(folder: Path, mirrors: Sequence[Path] = ()) -> Model:
    """Everything; ModelError names the file at fault. What is odd but usable is logged."""
    files = open_folder(folder, mirrors=mirrors)
    for note in files.notes:
        log.warning("%s: %s", folder.name, note)
    for place in files.places:
        what = "mirror" if place is not files.places[0] else "model"
        log.info("%s %s: %d of %d files", what, place.folder, place.files, len(files.paths))
        for shard in place.bad:
            log.warning("%s is left out: %s", place.folder / shard.name, shard.reason)
    text = open_text(folder)
    geometry = msgspec.structs.replace(files.geometry, vocab_used=text.geometry.vocab_used)
    return Model(files, text, geometry)


def open_text(folder: Path) -> ModelText:
    """Tokenizer, template, end ids and defaults; ModelError names the file at fault."""
    if not folder.is_dir():
        raise ModelError("there is no such folder.", where=str(folder))
    _, config = read_config(folder)
    family = detect(config.values, config.where)
    geometry = family.geometry(config)
    tokenizer = tokenizers.load(folder / TOKENIZER_FILE)
    if tokenizer.vocab_size > geometry.vocab:
        raise ModelError(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, but the model's vocab_size "
            f"is {geometry.vocab}.",
            where=tokenizer.where,
            hint="Copy tokenizer.json and config.json of the same model.",
        )
    if tokenizer.vocab_size < geometry.vocab:
        geometry = msgspec.structs.replace(geometry, vocab_used=tokenizer.vocab_size)
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    template = _template(folder, family, tokenizer, settings)
    end_ids = _end_ids(tokenizer, geometry.vocab, family, config, generation, settings)
    special = token_text(_optional(folder / SPECIAL_TOKENS_FILE), "eos_token")
    end_ids |= {token for token in [tokenizer.token_id(special)] if special and token is not None}
    if template is not None and not end_ids:
        raise ModelError(
            "no end-of-turn token is named in config.json, generation_config.json or "
            "tokenizer_config.json, so an answer would never end.",
            where=str(folder),
            hint='Add "eos_token_id" to generation_config.json.',
        )
    return ModelText(
        folder,
        family,
        geometry,
        tokenizer,
        template,
        frozenset(end_ids),
        _bos_id(tokenizer, geometry.vocab, config, settings),
        family.model_id(geometry, folder.name) or folder.resolve().name,
        _sampling(generation),
    )


def _optional(path: Path) -> ConfigReader:
    """A JSON object that may be absent; then it is empty."""
    values: dict[str, Any] = parse_object(read_file(path), str(path)) if path.exists() else {}
    return ConfigReader(values, str(path))


def token_text(settings: ConfigReader, key: str) -> str:
    """A token of tokenizer_config.json: a text, or an object with `content`; "" when absent."""
    value = settings.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None:
        return ""
    if not isinstance(value, str):
        settings.fail(key, "a token")
    return value


def _template(
    folder: Path, family: Family, tokenizer: Tokenizer, settings: ConfigReader
) -> ChatTemplate | None:
    path = folder / TEMPLATE_FILE
    if path.exists():
        try:
            source, where = read_file(path).decode("utf-8"), str(path)
        except UnicodeDecodeError as error:
            raise ModelError(
                f"the chat template is not UTF-8: {error.reason}.", where=str(path)
            ) from None
    else:
        source, where = named_template(settings), f"{settings.where} (chat_template)"
    if not source:
        source = family.builtin_template(folder.resolve())
        where = f"built-in template of {family.name}"
    if not source:
        return None
    keys = ("bos_token", "eos_token", "unk_token", "pad_token")
    variables: dict[str, Any] = {key: token_text(settings, key) for key in keys}
    variables.update(family.template_variables)
    return ChatTemplate(source, tokenizer, where=where, variables=variables)


def named_template(settings: ConfigReader) -> str:
    """The template in tokenizer_config.json: a text or a list of named ones; "" when absent."""
    value = settings.values.get("chat_template")
    if isinstance(value, list):
        named = {
            item["name"]: item.get("template")
            for item in value
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        value = named.get("default")
    if value is None:
        return ""
    if not isinstance(value, str):
        settings.fail("chat_template", "a text or a list of named templates with a default")
    return value


def _end_ids(
    tokenizer: Tokenizer,
    vocab: int,
    family: Family,
    config: ConfigReader,
    generation: ConfigReader,
    settings: ConfigReader,
) -> set[int]:
    """Every id that any of the files names as an end, and the family's own where they are control
    tokens.

    One list is not enough: quantized models pick a sibling of the listed end token.
    """
    ids = {*config.token_ids("eos_token_id", vocab), *generation.token_ids("eos_token_id", vocab)}
    text = token_text(settings, "eos_token")
    if text:
        token = tokenizer.token_id(text)
        if token is None:
            raise ModelError(
                f'"eos_token" is {show(text)}, which the tokenizer does not know.',
                where=settings.where,
            )
        ids.add(token)
    ids.update(
        token
        for token in map(tokenizer.token_id, family.end_tokens)
        if token is not None and token in tokenizer.special_ids
    )
    return ids


def _bos_id(
    tokenizer: Tokenizer, vocab: int, config: ConfigReader, settings: ConfigReader
) -> int | None:
    """The token that begins a text, None for models without one."""
    ids = config.token_ids("bos_token_id", vocab)
    text = token_text(settings, "bos_token")
    return ids[0] if ids else tokenizer.token_id(text) if text else None


def _sampling(generation: ConfigReader) -> SamplingDefaults:
    if not generation.boolean("do_sample", default=True):
        return SamplingDefaults(temperature=0.0)
    return SamplingDefaults(
        temperature=generation.number("temperature", 0.0, 100.0, None),
        top_p=generation.number("top_p", 1e-6, 1.0, None),
    )
