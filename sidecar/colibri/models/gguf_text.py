"""From GGUF metadata to the files of a model folder: config, tokenizer, template, end ids.

For: the converter. Only dense models of architecture `llama` are taken over, which are the ones
whose graph the engine has; others are refused by name. Not for: tensor data. Thread rule: pure
functions.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from colibri.errors import ModelError
from colibri.families.values import show
from colibri.models.gguf import GgufFile

ARCHITECTURE: Final = "llama"
_CONTROL, _USER_DEFINED = 3, 4
_MAX_TOKENS: Final = 1 << 24

# Split patterns by the name of the pre-tokenizer. None = the GPT-2 pattern of ByteLevel itself.
_GPT4_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS: Final = {"type": "Digits", "individual_digits": True}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex
    }  # fmt: skip


def _split(pattern: str) -> list[dict[str, Any]]:
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        _byte_level(use_regex=False),
    ]


_PRE_TOKENIZERS: Final = {
    "default": [_byte_level(use_regex=True)],
    "gpt-2": [_byte_level(use_regex=True)],
    "smollm": [_DIGITS, _byte_level(use_regex=True)],
    "llama-bpe": _split(_GPT4_WORDS % "{1,3}"),
    "llama3": _split(_GPT4_WORDS % "{1,3}"),
    "glm4": _split(_GPT4_WORDS % "{1,3}"),
    "chatglm-bpe": _split(_GPT4_WORDS % "{1,3}"),
    "qwen2": _split(_GPT4_WORDS % ""),
}
_IGNORE_MERGES: Final = frozenset({"llama-bpe", "llama3"})


class _Metadata:
    """Typed access to the metadata; failures name file and key."""

    def __init__(self, file: GgufFile) -> None:
        self.values = file.metadata
        self.where = str(file.path)

    def fail(self, key: str, expected: str) -> NoReturn:
        raise ModelError(
            f"the metadata {key} must be {expected}, found {show(self.values.get(key))}.",
            where=self.where,
        )

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, "a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            self.fail(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of texts")
        return value


def check_architecture(file: GgufFile) -> None:
    """Refuses architectures that this converter does not take over."""
    found = _Metadata(file).text("general.architecture")
    if found != ARCHITECTURE:
        raise ModelError(
            f"the architecture is {show(found)}; conversion from GGUF takes {ARCHITECTURE}.",
            where=str(file.path),
            hint="Convert the model's Hugging Face folder instead.",
        )


def check_whole(file: GgufFile) -> None:
    """Refuses one part of a model that was split over several files."""
    parts = _Metadata(file).integer("split.count", 0)
    if parts > 1:
        raise ModelError(
            f"this file is one of {parts} parts; conversion takes a model in one file.",
            where=str(file.path),
            hint="Merge the parts first.",
        )


def config(file: GgufFile) -> dict[str, Any]:
    """config.json of the converted model; value ranges are checked by the family afterwards."""
    meta = _Metadata(file)
    scaling = meta.text("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise ModelError(
            f"the rotary embedding is scaled ({scaling}), which this engine does not compute.",
            where=meta.where,
        )
    if meta.integer("llama.expert_count", 0) > 0:
        raise ModelError(
            "this is a mixture of experts in the llama layout, which is not supported.",
            where=meta.where,
        )
    hidden = meta.integer("llama.embedding_length")
    heads = meta.integer("llama.attention.head_count")
    if heads < 1:
        meta.fail("llama.attention.head_count", "at least 1")
    head_dim = meta.integer("llama.attention.key_length", hidden // heads)
    if meta.integer("llama.rope.dimension_count", head_dim) != head_dim:
        meta.fail("llama.rope.dimension_count", f"the head size {head_dim}")
    result: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta.integer("llama.feed_forward_length"),
        "num_hidden_layers": meta.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.integer("llama.context_length"),
        "rms_norm_eps": meta.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("llama.rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": _vocab_size(file, meta),
        "attention_bias": False,
        "mlp_bias": False,
    }
    ids = end_ids(file)
    if ids:
        result["eos_token_id"] = ids if len(ids) > 1 else ids[0]
    for key in ("bos", "padding"):
        if f"tokenizer.ggml.{key}_token_id" in meta.values:
            name = "pad_token_id" if key == "padding" else f"{key}_token_id"
            result[name] = meta.integer(f"tokenizer.ggml.{key}_token_id")
    return result


def _vocab_size(file: GgufFile, meta: _Metadata) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("the tensor token_embd.weight is missing.", where=meta.where)
    return embedding.rows


def end_ids(file: GgufFile) -> list[int]:
    """End-of-text, end-of-turn and end-of-message ids that the file names."""
    meta = _Metadata(file)
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return sorted({meta.integer(key) for key in keys if key in meta.values})


def tokenizer(file: GgufFile) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE vocabulary; other kinds are refused by name."""
    meta = _Metadata(file)
    model = meta.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelError(
            f"the tokenizer is of kind {show(model)}; only byte-level BPE (gpt2) is taken over.",
            where=meta.where,
            hint="Give the tokenizer.json of the original model with --tokenizer.",
        )
    name = meta.text("tokenizer.ggml.pre", "default")
    if name not in _PRE_TOKENIZERS:
        raise ModelError(
            f"the pre-tokenizer {show(name)} is unknown; known: {', '.join(_PRE_TOKENIZERS)}.",
            where=meta.where,
            hint="Give the tokenizer.json of the original model with --tokenizer.",
        )
    tokens = meta.texts("tokenizer.ggml.tokens")
    if not 1 <= len(tokens) <= _MAX_TOKENS:
        meta.fail("tokenizer.ggml.tokens", "a list of tokens")
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelError("tokenizer.ggml.tokens holds a token twice.", where=meta.where)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(meta, tokens),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[name]},
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": name in _IGNORE_MERGES, "vocab": vocab, "merges": _merges(meta, vocab),
        },
    }  # fmt: skip


def _added(meta: _Metadata, tokens: list[str]) -> list[dict[str, Any]]:
    kinds = meta.values.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        meta.fail("tokenizer.ggml.token_type", f"a list of {len(tokens)} types")
    return [
        {
            "id": number, "content": tokens[number], "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": kind == _CONTROL,
        }
        for number, kind in enumerate(kinds)
        if kind in (_CONTROL, _USER_DEFINED) and tokens[number]
    ]  # fmt: skip


def _merges(meta: _Metadata, vocab: dict[str, int]) -> list[list[str]]:
    merges = []
    for text in meta.texts("tokenizer.ggml.merges"):
        # A merge is two tokens with one blank between; a byte-level token contains no blank.
        parts = text.split(" ")
        if len(parts) != 2 or not (set(parts) | {"".join(parts)}) <= vocab.keys():  # noqa: PLR2004
            raise ModelError(
                f"the merge {show(text)} joins tokens that the vocabulary lacks.", where=meta.where
            )
        merges.append(parts)
    return merges


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json: the texts of the tokens that templates use."""
    meta = _Metadata(file)
    tokens = meta.values.get("tokenizer.ggml.tokens")
    result: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        full = f"tokenizer.ggml.{key}_token_id"
        if full not in meta.values or not isinstance(tokens, list):
            continue
        number = meta.integer(full)
        if not 0 <= number < len(tokens):
            meta.fail(full, f"an id below {len(tokens)}")
        result[f"{name}_token"] = tokens[number]
    return result


def template(file: GgufFile) -> str:
    """The chat template, "" when the file has none."""
    return _Metadata(file).text("tokenizer.chat_template", "")
