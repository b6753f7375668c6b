"""The declared type of a parameter decides what its value becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.engine.answer import CallArguments, CallEnd, CallStart, Part
from colibri.text.arguments import (
    ANY,
    CallWriter,
    Tools,
    ValueType,
    json_of_text,
    parse_json,
    quote,
)


def typed(schema: Any, raw: str, defs: Any = None) -> Any:
    """The value that a text becomes under a schema, written in whole and letter by letter."""
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": defs or {}}
    tools = Tools([{"name": "t", "parameters": parameters}])
    results = []
    for pieces in ([raw], list(raw)):
        out: list[Part] = []
        writer = CallWriter(tools, 0, lambda: "id", out)
        writer.begin("t")
        writer.open_value("p")
        for piece in pieces:
            writer.text(piece)
        writer.close_value()
        writer.finish(True)
        results.append("".join(part.text for part in out if isinstance(part, CallArguments)))
    assert results[0] == results[1]
    return json.loads(results[0])["p"]


STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        (STRING, "731", "731"),
        (STRING, "0044", "0044"),
        (STRING, "true", "true"),
        (STRING, '{"a": 1}', '{"a": 1}'),
        (STRING, " a\n", " a\n"),
        (STRING, "null", "null"),
        (INTEGER, "7", 7),
        (INTEGER, " 7\n", 7),
        (INTEGER, '"7"', 7),
        (INTEGER, "7.0", 7),
        (INTEGER, "two", "two"),
        (INTEGER, "", ""),
        ({"type": "number"}, "10", 10),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "array"}, "[]", []),
        ({"type": "array"}, "['a', \"b\", None, (1, 2,)]", ["a", "b", None, [1, 2]]),
        ({"type": "array"}, "['it\\'s \"so\"']", ['it\'s "so"']),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"items": {}}, "[1]", [1]),
        ({"properties": {}}, '{"b": 2}', {"b": 2}),
    ],
)
def test_R056_R057_the_declared_type_decides(schema: Any, raw: str, value: Any) -> None:
    assert typed(schema, raw) == value


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nul", "nul"),
        ({"type": ["string", "null"]}, "nullable", "nullable"),
        ({"anyOf": [STRING, NULL]}, "null", None),
        ({"anyOf": [STRING, NULL]}, "12", "12"),
        ({"type": "string", "nullable": True}, "x", "x"),
        ({"anyOf": [INTEGER, STRING]}, "3", 3),
        ({"anyOf": [INTEGER, STRING]}, "3.5", "3.5"),
        ({"anyOf": [INTEGER, STRING]}, "three", "three"),
        ({"oneOf": [INTEGER, NULL]}, "None", None),
        ({"type": ["integer", "string"]}, "12", 12),
        ({"$ref": "#/$defs/E"}, "red", "red"),
        ({"$ref": "#/$defs/N"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
        ({"$ref": "#/nope"}, "5", 5),
        ({"$ref": "elsewhere.json"}, "x", "x"),
        ({"allOf": [{"$ref": "#/$defs/N"}, {"minimum": 3}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": [1, "1", None]}, "1", 1),
        ({"enum": ["a", 2, None]}, "a", "a"),
        ({"enum": ["a", 2, None]}, "null", None),
        ({"enum": [True, "1"]}, "1", "1"),
        ({"const": 4}, "4", 4),
    ],
)
def test_R058_unions_references_and_enums(schema: Any, raw: str, value: Any) -> None:
    defs = {"E": {"enum": ["red", "green"]}, "N": INTEGER, "Loop": {"$ref": "#/$defs/Loop"}}
    assert typed(schema, raw, defs) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("x", "x"), ("10", 10), ("[]", []), ("true", True), ("null", None), ('"x"', '"x"'),
        ("NaN", "NaN"),
    ],
)  # fmt: skip
def test_R057_an_undeclared_parameter_is_a_string_unless_it_is_other_json(
    raw: str, value: Any
) -> None:
    assert typed(True, raw) == value
    assert typed({}, raw) == value


def test_schemas_of_any_shape_are_survived() -> None:
    for parameters in (None, 3, "x", [], {"properties": []}, {"properties": {"p": 3}}):
        tools = Tools([{"name": "t", "parameters": parameters}])
        assert tools.value_type("t", "p") == ANY
    deep: Any = STRING
    for _ in range(200):
        deep = {"anyOf": [deep]}
    assert Tools([{"name": "t", "parameters": {"properties": {"p": deep}}}]).value_type("t", "p")
    assert not Tools([{"name": ""}, {"name": None}, {"type": "web_search"}, {"function": {}}])


def test_properties_behind_references_and_combinations_are_found() -> None:
    parameters = {
        "$ref": "#/$defs/Root",
        "$defs": {
            "Root": {"allOf": [{"properties": {"p": STRING}}, {"properties": {"q": INTEGER}}]}
        },
    }
    tools = Tools([{"function": {"name": "t", "parameters": parameters}}])
    assert tools.value_type("t", "p") == ValueType(frozenset({"string"}))
    assert tools.value_type("t", "q") == ValueType(frozenset({"integer"}))
    assert tools.value_type("t", "r") == ANY
    extra = Tools([{"name": "t", "input_schema": {"additionalProperties": INTEGER}}])
    assert extra.value_type("t", "any") == ValueType(frozenset({"integer"}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
TYPES = st.none() | st.frozensets(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]),
    min_size=1,
)


@given(st.text() | JSON.map(json.dumps), TYPES)
def test_every_text_becomes_valid_json_under_every_type(
    raw: str, types: frozenset[str] | None
) -> None:
    parse_json(json_of_text(raw, ValueType(types)))


@given(st.text(), st.integers(0, 20))
def test_a_string_escaped_in_pieces_equals_the_whole(text: str, at: int) -> None:
    assert quote(text) == quote(text[:at])[:-1] + quote(text[at:])[1:]
    assert json.loads(quote(text)) == text


@pytest.mark.parametrize("text", ["1e999", "NaN", "-Infinity", "[" * 100_000, "1" * 5000, "\ud800"])
def test_json_that_no_client_can_read_is_text(text: str) -> None:
    assert json_of_text(text, ANY).startswith('"')
    json_of_text(text, ANY).encode()


def test_a_writer_gives_start_arguments_and_end() -> None:
    out: list[Part] = []
    writer = CallWriter(Tools([{"name": "t"}]), 3, lambda: "id", out)
    writer.begin("t")
    writer.json_value("a", "[1,  2]")
    writer.json_value("b", "[1")  # cut off
    writer.json_value("a", "3")
    writer.finish(True)
    assert out == [
        CallStart(3, "id", "t"),
        CallArguments(3, '{"a": [1,  2]'),
        CallArguments(3, "}"),
        CallEnd(3),
    ]
