"""Incremental detokenising: whole characters only, whatever the tokens cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.text.detok import Detokenizer
from colibri.text.tokenizer import Tokenizer, from_json
from tests.models import files


def build() -> Tokenizer:
    return from_json(json.dumps(files.tokenizer()).encode(), "tokenizer.json")


TOKENIZER = build()
EMOJI = TOKENIZER.encode("😀")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_R084_a_character_of_four_byte_tokens_arrives_whole_or_not_at_all(cut: int) -> None:
    assert len(EMOJI) == 4
    whole, torn = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER)
    assert [whole.push([token]) for token in EMOJI] == ["", "", "", "😀"]
    assert "".join(torn.push([token]) for token in EMOJI[:cut]) + torn.flush() == ""


def test_R084_two_requests_do_not_share_their_open_bytes() -> None:
    one, two = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER)
    assert one.push(EMOJI[:2]) + two.push(TOKENIZER.encode("hi")) == "hi"
    assert one.push(EMOJI[2:]) == "😀"


def test_bytes_that_are_no_character_become_one_replacement_mark() -> None:
    detok = Detokenizer(TOKENIZER)
    text = detok.push(EMOJI[:2]) + detok.push(TOKENIZER.encode("a"))
    assert text == "\ufffda"


def test_control_tokens_vanish_unless_they_are_kept() -> None:
    end, think = TOKENIZER.token_id("<|im_end|>"), TOKENIZER.token_id("<think>")
    assert end is not None and think is not None
    ids = [think, *TOKENIZER.encode("hi"), end]
    assert Detokenizer(TOKENIZER).push(ids) == "<think>hi"
    assert Detokenizer(TOKENIZER, keep_special=True).push(ids) == "<think>hi<|im_end|>"


@pytest.mark.parametrize("token", [-1, 10**9, 2**40])
def test_an_id_outside_the_vocabulary_gives_no_text(token: int) -> None:
    assert Detokenizer(TOKENIZER).push([token]) == ""


@given(st.text(max_size=60), st.data())
def test_every_split_of_the_ids_gives_the_text_that_was_encoded(
    text: str, data: st.DataObject
) -> None:
    ids = TOKENIZER.encode(text)
    detok = Detokenizer(TOKENIZER)
    out, at = [], 0
    while at < len(ids):
        step = data.draw(st.integers(1, 5))
        out.append(detok.push(ids[at : at + step]))
        at += step
    assert "".join(out) + detok.flush() == text
    assert TOKENIZER.decode(ids) == text
