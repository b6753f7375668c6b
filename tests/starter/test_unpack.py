"""The shipped weights as numbers again, from which a tune goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from colibri.models.container import open_folder
from starter import vocabulary
from starter.build import SHIPPED
from starter.unpack import moved, tensors

GROUP = 64


def test_every_weight_comes_back_as_it_was_rounded() -> None:
    named = tensors(SHIPPED)
    entries = open_folder(SHIPPED).tensors
    assert named.keys() == {entry.name for entry in entries}
    assert all(named[e.name].shape == (e.rows, e.cols) for e in entries)
    assert all(np.isfinite(values).all() and values.any() for values in named.values())
    experts = [name for name in named if ".1.mlp.experts." in name]
    assert len(experts) == 32 * 3
    for name in experts:
        groups = named[name].reshape(-1, GROUP)
        # int4: sixteen steps of one width, the largest of them seven.
        steps = groups / (np.abs(groups).max(1, keepdims=True) / 7)
        assert np.abs(steps - steps.round()).max() < 1e-4
    # int8 has more of them.
    rows = named["model.embed_tokens.weight"]
    assert np.unique(rows[100].round(7)).size > 16


def test_tokens_of_another_tokenizer_take_their_rows_along() -> None:
    stored = json.loads((SHIPPED / "tokenizer.json").read_text("utf-8"))
    # The shipped tokenizer with one number cut in two again, as it was once.
    vocabulary, merges = stored["model"]["vocab"], stored["model"]["merges"]
    number = vocabulary.pop("47")
    vocabulary["kolibri"] = number
    stored["model"]["merges"] = [merge for merge in merges if "".join(merge) != "47"]
    old = Tokenizer.from_str(json.dumps(stored))
    new = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    rows = np.random.default_rng(0).standard_normal((new.get_vocab_size(), 8)).astype(np.float32)
    result = moved(rows, old, new, np.random.default_rng(1))
    others = [n for n in range(len(rows)) if n != number]
    assert np.array_equal(result[others], rows[others])
    four, seven = (rows[vocabulary[digit]] for digit in "47")
    mixed = (2 * four + seven) / 3
    assert 0 < np.abs(result[number] - mixed).max() < 5 * mixed.std()


def test_two_digit_numbers_become_tokens_and_nothing_else_moves(tmp_path: Path) -> None:
    rng = random.Random(3)  # noqa: S311
    words = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(500)]
    path = tmp_path / "tokenizer.json"
    made = vocabulary.train((" ".join(rng.sample(words, 20)) for _ in range(300)), path)
    assert all(len(made.encode(number).ids) == 1 for number in vocabulary.NUMBERS)
    assert all(made.decode(made.encode(word).ids) == word for word in words)
    stored = json.loads(path.read_text("utf-8"))
    ids = dict(stored["model"]["vocab"])
    assert sorted(ids.values()) == list(range(len(ids)))
    vocabulary.whole_numbers(stored)
    assert stored["model"]["vocab"] == ids  # all there already: nothing to give up
