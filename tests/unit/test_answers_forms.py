"""What the engine loop tells of an answer whose form is demanded, over the scripted engine.

R024 R025 R026 JSON of a schema, R064 calls that are demanded.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from colibri.engine import fake
from colibri.engine.answer import (
    AnswerForm,
    CallEnd,
    Grammar,
    Part,
    Reasoning,
    Text,
)
from colibri.engine.fake import FakeBackend, Script, control, marked
from colibri.engine.fake_text import DIALECTS, tokens_of
from colibri.text import grammar
from colibri.text.arguments import Tools
from colibri.text.grammar import Syntax
from tests.support.answering import (
    TOOLS,
    Open,
    calls_of,
    run,
)
from tests.support.engineloop import text_of

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
OBJECT = {"type": "object", "additionalProperties": False}
DIALECT_NAMES = ["glm", "hermes", "inkling"]


def syntax(dialect: str, *, reasoning: bool = False) -> Syntax:
    return Syntax(dialect, tokens_of(DIALECTS[dialect]), reasoning)


def json_form(dialect: str, schema: Any = SCHEMA, *, reasoning: bool = False) -> AnswerForm:
    demanded = grammar.json_schema(schema, syntax(dialect, reasoning=reasoning))
    return AnswerForm(parse=True, reasoning=reasoning, grammar=demanded)


def call_form(dialect: str, name: str | None, *, many: bool = False) -> AnswerForm:
    demanded = grammar.tool_calls(Tools(TOOLS), syntax(dialect), name=name, many=many)
    return AnswerForm(parse=True, tools=TOOLS, grammar=demanded)


def said(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("dialect", DIALECT_NAMES)
def test_R024_a_model_that_wants_to_write_prose_writes_json(
    start: Open, dialect: str, drafts: int
) -> None:
    loop = start(dialect, drafts=drafts)
    for pieces in (("Sure! Here it is.",), ('{"b": "x"}',), ("{" * 40,), (b"\xff\xfe" * 30,)):
        parts, done = run(loop, *pieces, answer=json_form(dialect))
        value = json.loads(said(parts))
        assert set(value) == {"a"} and isinstance(value["a"], int)
        assert (done.finish_reason, done.notice) == ("stop", None)


def test_what_the_grammar_allows_is_what_the_model_writes(start: Open) -> None:
    text = '{"a": 12}'
    for drafts in (0, 3):
        parts, done = run(start(drafts=drafts), text, answer=json_form("hermes"))
        assert said(parts) == text
        assert done.usage.completion == len(text)


def test_R026_the_answer_ends_where_its_object_closes(start: Open) -> None:
    loop = start()
    parts, done = run(loop, '{"a": 1}\n\nI hope this helps!', answer=json_form("hermes"))
    assert said(parts) == '{"a": 1}'
    assert (done.finish_reason, done.usage.completion) == ("stop", len('{"a": 1}'))
    # The last token is the limit, too: the object is whole all the same.
    _, done = run(loop, '{"a": 1}', answer=json_form("hermes"), max_tokens=len('{"a": 1}'))
    assert done.finish_reason == "stop"


def test_R025_the_constraint_holds_behind_the_reasoning(start: Open) -> None:
    for dialect, end in (("hermes", ("</think>\n",)), ("glm", (control("</think>"),))):
        form = json_form(dialect, reasoning=True)
        parts, done = run(start(dialect), "I {think} [", *end, "Well: 1", answer=form)
        thought, value = parts
        assert thought == Reasoning("I {think} [")
        assert isinstance(value, Text) and set(json.loads(value.text)) == {"a"}
        assert done.finish_reason == "stop"


@pytest.mark.parametrize("dialect", ["hermes", "glm"])
def test_R025_a_reasoning_that_has_to_end_is_followed_by_the_demanded_form(
    start: Open, dialect: str
) -> None:
    form = msgspec.structs.replace(json_form(dialect, reasoning=True), reasoning_budget=9)
    parts, done = run(start(dialect), "thinking and thinking", answer=form)
    assert parts[0] == Reasoning("thinking")
    assert set(json.loads(said(parts))) == {"a"}
    assert done.notice is not None and done.notice.code == "reasoning_budget"
    assert done.finish_reason == "stop"


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("dialect", DIALECT_NAMES)
@pytest.mark.parametrize("name", ["now", "weather", None])
def test_R064_a_demanded_call_is_made(
    start: Open, dialect: str, name: str | None, drafts: int
) -> None:
    loop = start(dialect, drafts=drafts)
    parts, done = run(loop, "I would rather talk.", answer=call_form(dialect, name))
    (call,) = calls_of(parts)
    assert call[0] == (name or call[0])
    assert done.finish_reason == "tool_calls"
    assert parts[-1] == CallEnd(0, complete=True)


def test_R064_further_calls_only_where_they_are_welcome(start: Open) -> None:
    two = marked("<tool_call>now</tool_call>" * 2, "glm")
    for many in (False, True):
        parts, _ = run(start("glm"), *two, answer=call_form("glm", "now", many=many))
        assert len(calls_of(parts)) == 1 + many


def test_inkling_may_think_before_a_demanded_call_and_is_ended_there_too(start: Open) -> None:
    form = msgspec.structs.replace(call_form("inkling", "now"), reasoning_budget=5)
    text = "<|message_model|><|content_thinking|>thinking and thinking"
    parts, done = run(start("inkling"), *marked(text, "inkling"), answer=form)
    assert isinstance(parts[0], Reasoning) and parts[0].text.startswith("thin")
    assert calls_of(parts) == [("now", {})]
    assert (done.finish_reason, done.notice is not None) == ("tool_calls", True)


def test_the_limit_cuts_a_demanded_form(start: Open) -> None:
    parts, done = run(start(), '{"a": 123456}', answer=json_form("hermes"), max_tokens=8)
    assert (said(parts), done.finish_reason) == ('{"a": 12', "length")


def test_stop_texts_cut_a_demanded_form(start: Open) -> None:
    parts, done = run(start(), '{"a": 123456}', answer=json_form("hermes"), stops=("34",))
    assert (said(parts), done.finish_reason) == ('{"a": 12', "stop")


def test_a_grammar_that_cannot_be_used_constrains_nothing(
    start: Open, caplog: pytest.LogCaptureFixture
) -> None:
    form = AnswerForm(parse=True, grammar=Grammar(source="start: nonsense("))
    parts, done = run(start(), "prose", answer=form)
    assert (said(parts), done.finish_reason) == ("prose", "stop")
    assert "not enforced" in caplog.text


def test_a_grammar_that_is_given_up_in_mid_answer_ends_no_answer(
    start: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The library's limits show only when the object has been opened."""
    schema = {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(1500)}}
    parts, done = run(start(), '{"x and prose', answer=json_form("hermes", schema))
    assert said(parts).startswith("{")
    assert done.finish_reason == "stop"
    assert "enforced no longer" in caplog.text


def test_without_a_usable_vocabulary_nothing_is_enforced(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start()
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    monkeypatch.setattr(backend._answers, "_masks", lambda: None)
    parts, done = run(loop, "prose", answer=json_form("hermes"))
    assert (said(parts), done.finish_reason) == ("prose", "stop")


@pytest.mark.parametrize("drafts", [0, 3])
def test_jobs_side_by_side_have_each_its_own_grammar(start: Open, drafts: int) -> None:
    loop = start(parallel=6, drafts=drafts)
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    names = [f"key{n}" for n in range(5)]
    forms = [
        json_form("hermes", {"properties": {name: {}}, "required": [name], **OBJECT})
        for name in names
    ]
    for _ in range(6):
        backend.enqueue(Script(pieces=("word " * 9,)))
    jobs = [
        loop.submit(fake.encode(f"p{n}"), answer=form)
        for n, form in enumerate([*forms, AnswerForm(parse=True)])
    ]
    ends = loop.ends(*jobs)
    for name, job in zip(names, jobs, strict=False):
        assert set(json.loads(text_of(ends[job]))) == {name}
    assert text_of(ends[jobs[-1]]) == "word " * 9


def test_masks_are_given_to_each_draw(start: Open) -> None:
    loop = start()
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    run(loop, '{"a": 1}', answer=json_form("hermes"))
    run(loop, "free")
    masks = [sampling.mask for sampling in backend.samplings]
    assert [bool(mask) for mask in masks] == [True] * 8 + [False] * 2
    assert len({len(mask) for mask in masks[:8]}) == 1
