"""Reasoning that goes in circles is noticed; regular text is not taken for it (R145)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable

import pytest

from colibri.text.dialect import GLM, HERMES, INKLING
from colibri.text.reasoning import WINDOWS, LoopDetector, ReasoningWatch, closing
from colibri.text.tokenizer import from_json
from tests.models import files
from tests.text.corpus import harmless, sentence, tokens


def found_after(stream: Iterable[int], most: int = 20_000) -> int | None:
    """After how many tokens a loop is found."""
    detector = LoopDetector()
    for count, token in enumerate(itertools.islice(stream, most), 1):
        if detector.push(token) is not None:
            return count
    return None


@pytest.mark.parametrize("letters", [False, True], ids=["words", "letters"])
@pytest.mark.parametrize("seed", range(3))
def test_R145_regular_texts_are_no_loops(seed: int, letters: bool) -> None:
    for kind, text in harmless(seed):
        ids = tokens(text, letters=letters)
        assert len(ids) > 1500, kind
        assert found_after(ids) is None, kind


@pytest.mark.parametrize("length", [1, 2, 12, 50, 64])
def test_R145_a_short_cycle_is_found_at_once(length: int) -> None:
    after = found_after(itertools.cycle(range(length)))
    assert after is not None and after <= WINDOWS[0] + 8


@pytest.mark.parametrize("length", [100, 300, 500])
def test_a_long_cycle_is_found_after_eight_turns(length: int) -> None:
    after = found_after(itertools.cycle(range(length)))
    assert after is not None and 7 * length < after <= WINDOWS[1] + 8


def test_a_loop_is_found_after_a_long_sensible_beginning() -> None:
    beginning = tokens(dict(harmless(1))["prose"])
    after = found_after(itertools.chain(beginning, itertools.cycle(range(12))))
    assert after is not None
    assert len(beginning) < after <= len(beginning) + WINDOWS[0] + 8


def varied(seed: int, chance: float) -> Iterable[int]:
    """A cycle of 12 tokens; now and then another word of four, a word too much or too little."""
    random_ = random.Random(seed)  # noqa: S311
    while True:
        turn = list(range(12))
        if random_.random() < chance:
            turn[5] = random_.choice((100, 101, 102, 103))
        if random_.random() < chance / 4:
            turn.insert(3, 104)
        if random_.random() < chance / 4:
            del turn[8]
        yield from turn


@pytest.mark.parametrize("seed", range(5))
def test_R145_a_cycle_may_vary_a_little(seed: int) -> None:
    after = found_after(varied(seed, 0.3))
    assert after is not None and after < 3000


def test_a_paragraph_that_only_counts_on_is_a_loop() -> None:
    random_ = random.Random(4)  # noqa: S311
    body = " ".join(sentence(random_, 20) for _ in range(6))
    text = "\n".join(f"Attempt {n}. {body}" for n in range(60))
    assert found_after(tokens(text)) is not None


def test_memory_stays_bounded() -> None:
    detector = LoopDetector()
    for token in range(3 * WINDOWS[1]):
        detector.push(token)
    for window in detector._windows:
        assert len(window.grams) <= window.size and len(window.counts) <= window.size


def test_R145_the_budget_is_honoured_and_named() -> None:
    watch = ReasoningWatch(3)
    assert [watch.push(token) for token in (1, 2)] == [None, None]
    ending = watch.push(3)
    assert ending is not None and ending.kind == "budget" and "3 tokens" in ending.message
    assert all(ReasoningWatch(None).push(token) is None for token in range(100))


def test_R145_a_loop_is_named() -> None:
    watch = ReasoningWatch(100_000)
    ending = next(filter(None, map(watch.push, itertools.cycle(range(12)))))
    assert ending.kind == "loop" and "repeated itself" in ending.message


def test_the_end_of_reasoning_is_what_the_parser_takes_for_it() -> None:
    markers = (*GLM.markers[2:], *INKLING.markers)
    tokenizer = from_json(json.dumps(files.tokenizer(extra=markers)).encode(), "tokenizer.json")
    text = {
        d.name: tokenizer.decode(closing(d, tokenizer), keep_special=True)
        for d in (GLM, HERMES, INKLING)
    }
    assert text["glm"] == "</think>"
    assert text["hermes"] == "</think>\n\n"
    assert text["inkling"] == "<|end_message|><|message_model|><|content_text|>"
