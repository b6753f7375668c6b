"""Token soup through the engine loop: whatever a model writes, an answer keeps its promises.

R062 R072 R073 R085, with stop texts, limits, budgets, grammars, drafts and neighbours.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest

from colibri.engine import fake
from colibri.engine.answer import AnswerForm, CallArguments, CallStart, Grammar, Text
from colibri.engine.fake import FakeBackend, Options, Script, marked
from colibri.engine.fake_text import DIALECTS, tokens_of
from colibri.engine.protocol import Done, Submit, Tokens
from colibri.text import grammar
from colibri.text.grammar import Syntax
from colibri.text.parts import joined
from tests.support.engineloop import EngineLoop, parts_of
from tests.text import answers

JOBS = 700  # of each dialect
_STOPS = ("now", "</think>", "<", "</tool_call>", "Rome", "\n\n", "<|user|>", "x")
_SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"enum": ["x", "<t"]}}}
_JUNK = (b"\xf0\x9f", b"\x98", b"\xff", "\ufdd0", "\x00", "\ud7ff", b"\xed\xa0\x80")


def soup(random_: random.Random, dialect: str) -> tuple[str | bytes, ...]:
    """An answer in pieces of any size, its markers as control tokens or not, junk between."""
    text = answers.random_answer(random_, DIALECTS[dialect]).replace("\ufdd0", "")
    pieces: list[str | bytes] = []
    for piece in marked(text, dialect) if random_.random() < 0.8 else (text,):
        if piece.startswith("\ufdd0"):
            pieces.append(piece)
        else:
            pieces += [part for part in answers.cut(piece, random_) if part]
    for _ in range(random_.choice((0, 0, 1, 3))):
        pieces.insert(random_.randint(0, len(pieces)), random_.choice(_JUNK))
    return tuple(pieces) or ("",)


def demanded(random_: random.Random, dialect: str, reasoning: bool) -> Grammar:
    syntax = Syntax(dialect, tokens_of(DIALECTS[dialect]), reasoning)
    kind = random_.random()
    if kind < 0.7:
        return Grammar()
    if kind < 0.85:
        return grammar.json_schema(_SCHEMA, syntax)
    return grammar.tool_calls(answers.TOOLS, syntax, many=random_.random() < 0.5)


def form(random_: random.Random, dialect: str) -> AnswerForm:
    reasoning = dialect != "inkling" and random_.random() < 0.4
    return AnswerForm(
        parse=random_.random() < 0.95,
        tools=random_.choice(((), (answers.WEATHER, answers.NOW))),
        reasoning=reasoning,
        reasoning_budget=random_.choice((None, None, 0, 3, 20)),
        grammar=demanded(random_, dialect, reasoning),
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_R073_no_answer_fails_or_breaks_a_promise(dialect: str) -> None:
    random_ = random.Random(17)  # noqa: S311
    backend = FakeBackend(Options(dialect=dialect, drafts=2))
    loop = EngineLoop(backend, parallel=5)
    reasons = set()
    try:
        for _ in range(JOBS // 5):
            sent: dict[str, Submit] = {}
            for _ in range(5):
                hits = random_.choice(((True,), (True, False), (False,)))
                pieces = soup(random_, dialect)
                backend.enqueue(Script(pieces=pieces, hits=hits))
                fields = {
                    "answer": form(random_, dialect),
                    "max_tokens": random_.choice((1, 5, 60, 400)),
                    "stops": tuple(random_.sample(_STOPS, random_.choice((0, 0, 1, 3)))),
                    "ignore_leading_stop": random_.random() < 0.3,
                }
                name = loop.submit(fake.encode("hi"), **fields)
                sent[name] = Submit(job=name, prompt=[], temperature=0, top_p=1, seed=1, **fields)
            for name, events in loop.ends(*sent).items():
                done, wanted = events[-1], sent[name]
                assert isinstance(done, Done), (done, wanted)
                reasons.add(done.finish_reason)
                check(events, done, wanted)
    finally:
        loop.close()
    assert reasons == {"stop", "length", "tool_calls"}


def check(events: list[object], done: Done, wanted: Submit) -> None:
    told = [event for event in events if isinstance(event, Tokens)]
    parts = parts_of(told)
    if wanted.answer.parse:
        answers.check(parts)
    assert all(event.parts for event in told)
    counts = [event.generated for event in told]
    assert counts == sorted(counts) and (not counts or counts[-1] <= done.usage.completion)
    assert 0 <= done.usage.reasoning <= done.usage.completion <= wanted.max_tokens
    calls = [part for part in parts if isinstance(part, CallStart)]
    assert (done.finish_reason == "tool_calls") <= bool(calls)
    assert len(done.generated) == (
        done.usage.completion if calls and done.finish_reason == "tool_calls" else 0
    )
    text = "".join(part.text for part in parts if isinstance(part, Text))
    if not wanted.ignore_leading_stop:
        assert not [stop for stop in wanted.stops if stop in text and not reaches_over(parts, stop)]
    if not wanted.answer.parse:
        assert not [part for part in parts if not isinstance(part, Text)]
    if "start: r1\n" in wanted.answer.grammar.source and done.finish_reason == "stop":
        # JSON from the first token on, cut by no stop text.
        assert wanted.stops or isinstance(json.loads(text), dict)
    for index, _ in enumerate(calls):
        pieces = [p.text for p in parts if isinstance(p, CallArguments) and p.index == index]
        assert isinstance(json.loads("".join(pieces)), dict)


def reaches_over(parts: list[object], stop: str) -> bool:
    """Whether a stop text comes about only where a call or reasoning stands between its letters."""
    runs = itertools.groupby(joined(parts), key=lambda part: isinstance(part, Text))
    return not any(stop in "".join(p.text for p in run) for is_text, run in runs if is_text)
