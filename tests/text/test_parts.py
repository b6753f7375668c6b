"""Answers become parts: the same for every cutting, nothing lost, no model text can raise."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.engine.answer import CallArguments, CallEnd, CallStart, Part, Reasoning, Text
from colibri.families import FAMILIES
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.llama import LLAMA
from colibri.text.arguments import Tools
from colibri.text.detok import Detokenizer
from colibri.text.dialect import GLM, HERMES, INKLING, Dialect
from colibri.text.parts import MARK, MarkFilter
from colibri.text.tokenizer import from_json
from tests.models import files
from tests.text.answers import (
    DIALECTS,
    GLM_CALL,
    HERMES_CALL,
    INKLING_CALL,
    NOW,
    TOOLS,
    WEATHER,
    check,
    cut,
    mark,
    parse,
    random_answer,
)

SCALE = float(os.environ.get("COLIBRI_TEST_SCALE", "1"))
ROME = '{"city": "Rome", "days": 3}'


def call(index: int, name: str, arguments: str, *, complete: bool = True) -> list[Part]:
    """The parts of one call."""
    return [
        CallStart(index, f"call_{index}", name),
        CallArguments(index, arguments),
        CallEnd(index, complete),
    ]


def glm(text: str, **options: object) -> list[Part]:
    return parse(GLM, [text], **options)


def hermes(text: str, **options: object) -> list[Part]:
    return parse(HERMES, [text], **options)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_10000_random_cuttings_give_the_same_parts(dialect: Dialect) -> None:
    """R058, R073: whatever the model writes, streamed equals whole and nothing raises."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED", "7"))
    random_ = random.Random(seed)  # noqa: S311
    for number in range(int(1100 * SCALE)):
        text = random_answer(random_, dialect)
        tokens = dialect.markers if number % 3 == 0 else ()
        text = mark(text, tokens) if number % 2 == 0 else text
        options = {"reasoning": number % 4 == 0, "tokens": tokens}
        whole = parse(dialect, [text], **options)
        check(whole)
        for _ in range(3):
            pieces = cut(text, random_)
            assert parse(dialect, pieces, **options) == whole, (seed, text, pieces)
        assert parse(dialect, list(text), **options) == whole, (seed, text)


@settings(max_examples=300)
@given(
    st.sampled_from(DIALECTS),
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(GLM.markers + INKLING.markers))),
    st.booleans(),
)
def test_any_pieces_give_the_parts_of_the_whole(
    dialect: Dialect, pieces: list[str], reasoning: bool
) -> None:
    whole = parse(dialect, ["".join(pieces)], reasoning=reasoning)
    check(whole)
    assert parse(dialect, pieces, reasoning=reasoning) == whole


@settings(max_examples=200)
@given(st.sampled_from(DIALECTS), st.text())
def test_text_without_markers_comes_out_as_it_went_in(dialect: Dialect, text: str) -> None:
    """Without tools nothing is held back for layout, and nothing is dropped."""
    text = text.replace("<", "").replace(MARK, "")
    assert parse(dialect, list(text), tools=Tools()) == ([Text(text)] if text else [])


def test_glm_reasoning_text_and_calls() -> None:
    assert glm("plan</think>The answer is 4.", reasoning=True) == [
        Reasoning("plan"), Text("The answer is 4."),
    ]  # fmt: skip
    assert glm("plan</think>ok" + GLM_CALL, reasoning=True) == [
        Reasoning("plan"), Text("ok"), *call(0, "weather", ROME),
    ]  # fmt: skip
    assert glm("x</think><tool_call>now</tool_call>", reasoning=True) == [
        Reasoning("x"), *call(0, "now", "{}"),
    ]  # fmt: skip
    assert glm("never closes", reasoning=True) == [Reasoning("never closes")]
    assert glm("no reasoning") == [Text("no reasoning")]


def test_inkling_reasoning_text_and_calls() -> None:
    text = (
        "<|message_model|><|content_thinking|>plan<|end_message|><|message_model|>"
        "<|content_text|>Done.<|end_message|>" + INKLING_CALL + "<|content_model_end_sampling|>"
    )
    expected = [Reasoning("plan"), Text("Done."), *call(0, "weather", ROME)]
    assert parse(INKLING, [text]) == expected
    # The prompt may have opened the message already.
    assert parse(INKLING, [text.removeprefix("<|message_model|>")]) == expected
    assert parse(INKLING, ["Just an answer"]) == [Text("Just an answer")]


def test_an_inkling_payload_that_is_no_call_is_shown() -> None:
    head = "<|message_model|>weather<|content_invoke_tool_json|>"
    for payload in ('{"name":"weather"', '{"name":"weather","args":[1]}', "NaN", '{"args":{}}'):
        assert parse(INKLING, [head + payload + "<|end_message|>"]) == [Text(payload)]


def test_hermes_reasoning_text_and_calls() -> None:
    text = "<think>\nhm\n</think>\n\nok\n" + HERMES_CALL + "\n" + HERMES_CALL
    assert hermes(text) == [
        Reasoning("hm"), Text("ok"), *call(0, "weather", ROME), *call(1, "weather", ROME),
    ]  # fmt: skip
    assert hermes("<think>\n\n</think>\n\nHello") == [Text("Hello")]
    assert hermes("Use the <think> tag") == [Text("Use the <think> tag")]


def test_R060_the_name_comes_first_and_strings_stream_while_numbers_wait() -> None:
    """R066 as well: the start carries the name and no arguments."""
    parser = GLM_MOE_DSA.parts([WEATHER])
    assert parser.push("<tool_call>weather") == []  # may still become a longer name
    start = parser.push("<arg_key>")
    assert [type(part) for part in start] == [CallStart]
    assert parser.push("city</arg_key><arg_value>Ro") == [CallArguments(0, '{"city": "Ro')]
    assert parser.push("m") == [CallArguments(0, "m")]
    assert parser.push("e</arg_value><arg_key>days</arg_key><arg_value>1") == [
        CallArguments(0, 'e"')
    ]
    assert parser.push("2") == []
    assert parser.push("</arg_value></tool_call>") == [
        CallArguments(0, ', "days": 12}'),
        CallEnd(0),
    ]
    assert parser.flush() == []


def test_R060_strings_stream_inside_json_as_well() -> None:
    parser = LLAMA.parts([WEATHER])
    parser.push('<tool_call>{"name": "weather", "arguments": {"city": ')
    assert parser.push('"a\\') == [CallArguments(0, '{"city": "a')]
    assert parser.push("n") == [CallArguments(0, "\\n")]
    assert parser.push("\\ud83d") == []
    assert parser.push("\\ude00b") == [CallArguments(0, "😀b")]


def test_only_true_beginnings_of_markers_are_held_back() -> None:
    parser = GLM_MOE_DSA.parts([WEATHER])
    assert parser.push("a < b") == [Text("a < b")]
    assert parser.push(" <tool") == []
    assert parser.push("box>") == [Text(" <toolbox>")]
    # Without tools there is nothing to wait for.
    assert GLM_MOE_DSA.parts().push("a<tool_call>now") == [Text("a<tool_call>now")]


@pytest.mark.parametrize("gap", ["", "\n", " ", "\\n"])
@pytest.mark.parametrize("end", ["</tool_call>", ""])
def test_R061_the_name_ends_at_the_first_tag_or_blank(gap: str, end: str) -> None:
    text = (
        f"<tool_call>weather{gap}<arg_key>city</arg_key>{gap}<arg_value>Rome</arg_value>{gap}{end}"
    )
    assert glm(text) == call(0, "weather", '{"city": "Rome"}', complete=bool(end))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call></tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>nowhere</tool_call>",
        "<tool_call>nowhere<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call>now and then",
        "<tool_call>weath",
        "<tool_call>",
    ],
)
def test_R062_empty_and_undeclared_calls_are_text(text: str) -> None:
    assert glm(text) == [Text(text)]


@pytest.mark.parametrize(
    "body",
    [
        "", "{}", "[]", "null", '{"name": null}', '{"name": ""}', '{"name": "nowhere"}',
        '{"name": 1}', '{"arguments": {}}', '{"name": "now", "arguments": [true]}',
        '{"name": "now", "arguments": 3}', '{"name": "now", "arguments": "[1]"}',
        '{"name": "now", "arguments": "no json"}',
        "now", '"now"', "{'name': 'now'}",
    ],
)  # fmt: skip
def test_R062_json_that_names_no_declared_tool_is_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert hermes(text) == [Text(text)]


def test_R065_arguments_that_are_missing_null_or_a_string_become_an_object() -> None:
    for arguments in ("", ', "arguments": null', ', "arguments": {}', ', "arguments": "{}"'):
        text = '<tool_call>{"name": "now"' + arguments + "}</tool_call>"
        assert hermes(text) == call(0, "now", "{}")
    inner = '"{\\"city\\": \\"a</tool_call>b\\"}"'
    text = '<tool_call>{"name": "weather", "arguments": ' + inner + "}</tool_call>"
    assert hermes(text) == call(0, "weather", '{"city": "a</tool_call>b"}')


def test_arguments_before_the_name_are_kept_for_it() -> None:
    text = '<tool_call>{"arguments": {"city": "Rome", "days": "3"}, "name": "weather"}</tool_call>'
    assert hermes(text) == call(0, "weather", ROME)


def test_R056_json_of_another_type_than_declared_is_brought_into_it() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": 731, "days": "7"}}</tool_call>'
    assert hermes(text) == call(0, "weather", '{"city": "731", "days": 7}')


def test_R070_calls_one_after_the_other_do_not_glue() -> None:
    """R068: ascending index, an id each."""
    assert glm(GLM_CALL + GLM_CALL) == call(0, "weather", ROME) + call(1, "weather", ROME)
    unclosed = GLM_CALL.removesuffix("</tool_call>")
    assert glm(unclosed + GLM_CALL) == call(0, "weather", ROME) + call(1, "weather", ROME)
    unclosed = HERMES_CALL.removesuffix("</tool_call>")
    assert hermes(unclosed + HERMES_CALL) == call(0, "weather", ROME) + call(1, "weather", ROME)


def test_R068_ids_are_unique_in_real_parsers() -> None:
    parts = [*GLM_MOE_DSA.parts([NOW]).push("<tool_call>now</tool_call>" * 50)]
    ids = [part.id for part in parts if isinstance(part, CallStart)]
    assert len(set(ids)) == 50
    assert all(id_.startswith("call_") and len(id_) == 29 for id_ in ids)


def test_R072_arguments_that_break_off_are_closed() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Ro'
    assert hermes(text) == call(0, "weather", '{"city": "Ro"}', complete=False)
    assert hermes(text + "\\") == call(0, "weather", '{"city": "Ro\\\\"}', complete=False)
    text = "<tool_call>weather<arg_key>city</arg_key><arg_value>Ro"
    assert glm(text) == call(0, "weather", '{"city": "Ro"}', complete=False)
    assert glm(text + "</tool_call>\n") == call(0, "weather", '{"city": "Ro"}')


def test_wrong_escapes_and_line_breaks_in_json_are_taken_as_meant() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "C:\\dir\\u00\n\\ud83d."}}'
    parts = hermes(text + "</tool_call>")
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
    assert json.loads(arguments) == {"city": "C:\\dir\\u00\n\ufffd."}


def test_a_value_may_speak_about_tool_calls() -> None:
    inner = "write <tool_call> and </tool_call> like this"
    text = f"<tool_call>weather<arg_key>city</arg_key><arg_value>{inner}</arg_value></tool_call>"
    assert glm(text) == call(0, "weather", json.dumps({"city": inner}))
    text = f'<tool_call>{{"name": "weather", "arguments": {{"city": "{inner}"}}}}</tool_call>'
    assert hermes(text) == call(0, "weather", json.dumps({"city": inner}))


def test_of_a_repeated_argument_the_first_stays_and_nameless_ones_vanish() -> None:
    pair = "<arg_key>city</arg_key><arg_value>{}</arg_value>"
    text = "<tool_call>weather" + pair.format("a") + pair.format("b")
    text += "<arg_key> </arg_key><arg_value>c</arg_value></tool_call>"
    assert glm(text) == call(0, "weather", '{"city": "a"}')
    text = (
        '<tool_call>{"name": "weather", "arguments": {"city": "a", "city": "b", "": 1}}</tool_call>'
    )
    assert hermes(text) == call(0, "weather", '{"city": "a"}')


def test_text_after_a_call_and_after_a_broken_one_is_kept() -> None:
    assert glm(GLM_CALL + "\nbye") == [*call(0, "weather", ROME), Text("bye")]
    text = "<tool_call>weather<arg_key>city</arg_key><arg_value>a</arg_value>oops</tool_call>."
    assert glm(text) == [*call(0, "weather", '{"city": "a"}', complete=False), Text("oops.")]


def test_calls_at_the_end_of_unclosed_reasoning_are_calls() -> None:
    text = "I will ask. " + GLM_CALL
    assert glm(text, reasoning=True) == [Reasoning("I will ask."), *call(0, "weather", ROME)]
    rehearsed = text + " or not</think>Hello"
    assert glm(rehearsed, reasoning=True) == [
        Reasoning("I will ask. " + GLM_CALL + " or not"), Text("Hello"),
    ]  # fmt: skip
    mentioned = "the <tool_call> marker </think>x"
    assert glm(mentioned, reasoning=True) == [Reasoning("the <tool_call> marker"), Text("x")]
    cut_off = GLM_CALL.removesuffix("</arg_value></tool_call>")
    assert glm(cut_off, reasoning=True) == [Reasoning(cut_off)]


def test_markers_that_are_control_tokens_count_only_as_such() -> None:
    tokens = GLM.markers
    assert glm(GLM_CALL, tokens=tokens) == [Text(GLM_CALL)]
    assert glm(mark(GLM_CALL, tokens), tokens=tokens) == call(0, "weather", ROME)
    value = "</arg_value></tool_call><tool_call>"
    marked = mark("<tool_call>weather<arg_key>city</arg_key><arg_value>", tokens)
    marked += value + mark("</arg_value></tool_call>", tokens)
    assert glm(marked, tokens=tokens) == call(0, "weather", json.dumps({"city": value}))
    spelled = '{"name":"weather","args":{"city":"<|end_message|>"}}'
    text = mark("<|message_model|>weather<|content_invoke_tool_json|>", INKLING.markers) + spelled
    text += mark("<|end_message|>", INKLING.markers)
    expected = call(0, "weather", '{"city": "<|end_message|>"}')
    assert parse(INKLING, [text], tokens=INKLING.markers) == expected


def test_the_detokeniser_marks_control_tokens_and_only_those() -> None:
    tokenizer = from_json(json.dumps(files.tokenizer(extra=GLM.markers[2:])).encode(), "t.json")
    ids = tokenizer.control_ids(GLM.markers)
    assert set(ids) >= set(GLM.markers[2:])
    detokenizer = Detokenizer(tokenizer, marks=ids.values())
    answer = [ids["<tool_call>"], *tokenizer.encode("now"), ids["</tool_call>"]]
    parser = GLM.parser(TOOLS, tokens=ids)
    parts = [part for token in answer for part in parser.push(detokenizer.push([token]))]
    assert [type(part) for part in parts] == [CallStart, CallArguments, CallEnd]
    spelled = tokenizer.encode("<tool_call>now</tool_call>")
    assert Detokenizer(tokenizer, marks=ids.values()).push(spelled) == "<tool_call>now</tool_call>"


def test_a_model_cannot_forge_the_sign_of_control_tokens() -> None:
    tokenizer = from_json(json.dumps(files.tokenizer(extra=GLM.markers[2:])).encode(), "t.json")
    ids = tokenizer.control_ids(GLM.markers)
    detokenizer = Detokenizer(tokenizer, marks=ids.values())
    text = detokenizer.push(tokenizer.encode(MARK + "<tool_call>now")[:-1])
    assert MARK not in text and text.startswith("\ufffd<tool_call>")
    # An open character before a marker is no character; the marker stays whole.
    torn = [*tokenizer.encode("😀")[:2], ids["<tool_call>"], *tokenizer.encode("é")]
    pieces = [Detokenizer(tokenizer, marks=ids.values()).push(torn)]
    detokenizer = Detokenizer(tokenizer, marks=ids.values())
    pieces.append("".join(detokenizer.push([token]) for token in torn))
    assert pieces == [f"\ufffd{MARK}<tool_call>é"] * 2


GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_parses.json").read_text())["cases"]
REFERENCE_TOOLS = Tools(
    [
        {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"},
        }}},
        {"name": "now", "parameters": {"type": "object", "properties": {}}},
    ]
)  # fmt: skip


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["answer"][:40])
@pytest.mark.parametrize("marked", [False, True], ids=["letters", "tokens"])
def test_parses_equal_the_reference_for_every_cutting(case: dict[str, Any], marked: bool) -> None:
    dialect = GLM if case["dialect"] == "glm" else INKLING
    tokens = dialect.markers if marked else ()
    text = mark(case["answer"], tokens)
    cuttings = [[text], list(text), *([text[:at], text[at:]] for at in range(len(text)))]
    for pieces in cuttings:
        found: list[list[Any]] = []
        options = {"tools": REFERENCE_TOOLS, "reasoning": True, "tokens": tokens}
        for part in parse(dialect, pieces, **options):
            if isinstance(part, CallStart):
                found.append(["call", part.name])
            elif isinstance(part, CallArguments):
                found[-1].append(json.loads(part.text))
            elif not isinstance(part, CallEnd):
                found.append(["reasoning" if isinstance(part, Reasoning) else "text", part.text])
        assert found == case["parts"], pieces


def test_marks_without_a_marker_vanish() -> None:
    filter_ = MarkFilter(["<a>"])
    pieces = [filter_.push(piece, False) for piece in (f"x{MARK}", "y", f"{MARK}<", "a>z", MARK)]
    assert pieces == ["x", "y", "", f"{MARK}<a>z", ""]
    assert filter_.push("", True) == ""


def test_every_family_has_a_parser_and_no_state_survives_it() -> None:
    """R062: what one answer left open does not reach the next."""
    for family in FAMILIES:
        family.parts([NOW]).push("<tool_call>now<think>")
        assert family.parts([NOW]).push("Hello") == [Text("Hello")]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("reasoning", [False, True])
def test_long_hostile_answers_are_read_in_time(dialect: Dialect, reasoning: bool) -> None:
    """The slowest takes seconds; what grows with the square runs into the limit of every test."""
    for piece in (
        "<tool_call>", "<tool_call>weather<arg_key>city</arg_key><arg_value>", HERMES_CALL,
        '<tool_call>{"name": "weather", "arguments": {"skip": [', "\n", "<", "</think><think>",
        '<tool_call>{"arguments": {"city": "<tool_call>', INKLING_CALL, INKLING_CALL[:60],
    ):  # fmt: skip
        check(parse(dialect, [piece] * 3000, reasoning=reasoning))
