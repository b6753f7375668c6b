"""What the starter model says about Colibri is true of the program, and measured fairly."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable
from difflib import SequenceMatcher

import click
import pytest

from colibri.cli import COMMANDS, coli
from colibri.settings import TABLE
from starter import freetext, phrasings, questions
from starter.conversations import Fact, held_back, load_facts
from starter.greetings import GREETINGS, GREETINGS_HELD
from starter.reword import plain, reword, rewordings

FACTS = load_facts()
# Commands of issues that are still open; the app and its pages come with them.
PLANNED = {"web"}


def _commands() -> set[str]:
    context, found = click.Context(coli), set(COMMANDS)
    for name in COMMANDS:
        inner = getattr(coli.get_command(context, name), "commands", {})
        found |= {f"{name} {each}" for each in inner}
    return found


def _unknown_commands(text: str) -> list[str]:
    """Commands in a text that the program does not have."""
    known = _commands() | PLANNED
    found = re.findall(r"\bcoli ((?!is\b)[a-z]+)(?: (?!do\b|for\b)([a-z]+))?", text)
    groups = {name.split()[0] for name in known if " " in name}
    return [
        f"{name} {inner}"
        for name, inner in found
        if f"{name} {inner}" not in known and (name not in known or (inner and name in groups))
    ]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.id)
def test_facts_name_only_what_exists(fact: Fact) -> None:
    flags = {flag for setting in TABLE for flag in setting.flags} | {"--json", "--host"}
    variables = {setting.env for setting in TABLE} | {"COLIBRI_MODELS_DIR", "COLIBRI_HOME"}
    for text in (fact.answer, *fact.ask, *fact.held):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= flags, text
        assert set(re.findall(r"\bCOLI(?:BRI)?_[A-Z_]+", text)) <= variables, text
        assert not _unknown_commands(text)


def _without_fields(text: str) -> str:
    return re.sub(r"\{\w+\}", "{}", text)


def test_what_is_asked_in_training_is_never_what_is_measured() -> None:
    """Requests are reworded by rules, so the lists alone do not show it."""
    held = held_back(FACTS)
    assert len(held) > len(FACTS)
    rng = random.Random(3)  # noqa: S311
    for fact in FACTS:
        for text in fact.ask:
            assert not {plain(reword(text, held, rng)) for _ in range(4)} & held
    # The check can fail: without the list, some of them come out.
    made = {plain(form) for fact in FACTS for text in fact.ask for form in rewordings(text)}
    assert made & held


def test_other_words_ask_for_the_same_fact() -> None:
    answers = {plain(text): fact.answer for fact in FACTS for text in (*fact.ask, *fact.held)}
    for fact in FACTS:
        for form in (form for text in fact.ask for form in rewordings(text)):
            assert answers.get(plain(form), fact.answer) == fact.answer, form


def test_rewordings_are_sentences_with_their_fields() -> None:
    rng = random.Random(5)  # noqa: S311
    made = {reword("What is {a}?", (), rng) for _ in range(300)}
    assert len(made) > 20
    assert all(text.count("{a}") == 1 for text in made)
    assert "Tell me what {a} is." in made


def _nearly(one: str, other: str) -> bool:
    """Whether two texts differ in a word or two of many."""
    words = (plain(one).split(), plain(other).split())
    return SequenceMatcher(None, *words).ratio() > 0.78


def _edited(asked: Iterable[str], held: Iterable[str]) -> list[tuple[str, str]]:
    held = list(held)
    return [(one, other) for one in asked for other in held if _nearly(one, other)]


def test_no_wording_is_both_trained_and_held() -> None:
    """Differences of case and signs do not count, nor does a word changed here and there."""
    held = held_back(FACTS)
    asked = [text for fact in FACTS for text in fact.ask] + [text for text, _ in GREETINGS]
    asked += [
        text
        for wordings in vars(phrasings).values()
        if isinstance(wordings, phrasings.Wordings)
        for text in wordings.trained
    ]
    assert len(asked) > 2000
    assert not {plain(text) for text in asked} & held
    assert plain(FACTS[0].held[0].upper()) in held
    assert not [pair for fact in FACTS for pair in _edited(fact.ask, fact.held)]
    assert _edited(["What makes my answers so slow?"], ["What makes the answers so slow?"])


def test_requests_that_cannot_be_served_are_no_others() -> None:
    """Nothing is answered in one way here and in another there."""
    trained = {_without_fields(text) for text in (*freetext.TRAINED.patterns, *freetext.WORDY)}
    held = {plain(text) for text in freetext.HELD}
    assert len(held) == len(freetext.HELD) >= 400
    assert not trained & held
    rng = random.Random(2)  # noqa: S311
    made = {plain(freetext.TRAINED.make(rng)) for _ in range(8000)}
    served = {plain(text) for fact in FACTS for text in (*fact.ask, *fact.held)}
    served |= {plain(text) for text, _ in (*GREETINGS, *GREETINGS_HELD)}
    assert len(made) > 2000
    assert not made & held
    assert not (made | held) & served


def test_one_question_has_one_answer() -> None:
    answers: dict[str, str] = {}
    pairs = [(text, fact.answer) for fact in FACTS for text in (*fact.ask, *fact.held)]
    for text, answer in (*pairs, *GREETINGS, *GREETINGS_HELD):
        assert answers.setdefault(plain(text), answer) == answer, text


def test_facts_are_short_and_many() -> None:
    assert len(FACTS) >= 100
    assert all(len(fact.answer) <= 125 and len(fact.ask) >= 15 and fact.held for fact in FACTS)


def test_the_docs_say_the_same() -> None:
    written = questions.PAGE.read_text("utf-8")
    assert written == questions.render(FACTS), "run `python -m starter.questions`"
    changed = [dataclasses.replace(FACTS[0], answer="Something else."), *FACTS[1:]]
    assert written != questions.render(changed)
