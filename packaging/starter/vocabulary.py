"""The starter model's tokenizer: byte-level BPE with GLM's control tokens.

For: training it once and loading it again. Not for: the program, which reads the same
tokenizer.json through its own loader. The control tokens have the texts that GLM's chat format
uses; the pattern that cuts text into words is GLM's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE: Final = 4096
CONTROL: Final = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
)
NUMBERS: Final = tuple(str(number) for number in range(10, 100))
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(texts: Iterable[str], path: Path) -> Tokenizer:
    """Learns the merges from texts and writes tokenizer.json; the ids of `CONTROL` come first, and
    each of `NUMBERS` is one token.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(tokenizer.to_str())
    whole_numbers(stored)
    path.write_text(json.dumps(stored, ensure_ascii=False), "utf-8")
    return Tokenizer.from_file(str(path))


def whole_numbers(stored: dict[str, Any]) -> None:
    """Makes each of `NUMBERS` one token of a stored tokenizer (tokenizer.json). They take the ids
    of the tokens learnt last that no other is made of, so that all other ids stay. In two tokens a
    number was recalled with its digits swapped.
    """
    vocabulary, merges = stored["model"]["vocab"], stored["model"]["merges"]
    missing = [number for number in NUMBERS if number not in vocabulary]
    parts = {part for merge in merges for part in merge}
    leaves = [merge for merge in merges if "".join(merge) not in parts | set(NUMBERS)]
    given_up = leaves[len(leaves) - len(missing) :]
    stored["model"]["merges"] = [merge for merge in merges if merge not in given_up]
    for number, merge in zip(missing, given_up, strict=True):
        vocabulary[number] = vocabulary.pop("".join(merge))
        stored["model"]["merges"].append(list(number))
    stored["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
