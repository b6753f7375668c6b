"""Generated answers for the tests of parsers: made of markers and their pieces, cut anywhere.

For: `test_parts.py` and the fuzz target. Our own words; no model was asked.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from colibri.engine.answer import CallArguments, CallEnd, CallStart, Part
from colibri.text.arguments import Tools
from colibri.text.dialect import GLM, HERMES, INKLING, Dialect
from colibri.text.parts import MARK, joined

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": ["string", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "colour": {"$ref": "#/$defs/Colour"},
                "skip": {"type": "array", "items": {"type": "string"}},
            },
            "$defs": {"Colour": {"enum": ["red", "green"]}},
        },
    },
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
TOOLS = Tools([WEATHER, NOW])
DIALECTS = (GLM, HERMES, INKLING)

GLM_CALL = (
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)
HERMES_CALL = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
)
INKLING_CALL = (
    "<|message_model|>weather<|content_invoke_tool_json|>"
    '{"name":"weather","args":{"city":"Rome","days":3}}<|end_message|>'
)
_WORDS = (
    "weather", "now", "nowhere", "city", "days", "unit", "either", "null", "3", "x", "Rome", "\n",
    " ", "\\n", "\n\n\n", "<", "</", "é😀", '"', "\\", "{", "}", "[1]", ":", ",", ", ", "<|",
    "<tool", "</think", '{"name": "now"', ', "arguments": {', '"city": "', '"days": "2"', MARK,
    '"unit": nu', "\\ud83d", "\\ude00", "\\u00", '{"arguments": {"city": "a"}, ',
    '"name": "weather"}', '"name": "wea', '{"name": "weather", "arguments": "{}"}',
    '{"name":"now","args":{"a":"b', GLM_CALL, HERMES_CALL, INKLING_CALL, '{"name":"', "weatherman",
    '"now', "k" * 1030,
)  # fmt: skip


def numbered() -> Callable[[], str]:
    """Ids of calls that are the same in every run."""
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def mark(text: str, markers: Iterable[str]) -> str:
    """The text as it comes from a detokeniser for which these markers are control tokens."""
    for marker in markers:
        text = text.replace(marker, MARK + marker)
    return text


def random_answer(random_: random.Random, dialect: Dialect) -> str:
    """An answer that is seldom a valid one."""
    words = [*_WORDS, *dialect.markers, *dialect.markers, *dialect.markers]
    return "".join(random_.choice(words) for _ in range(random_.randint(0, 14)))


def cut(text: str, random_: random.Random) -> list[str]:
    """The text in pieces, mostly short."""
    pieces, at = [], 0
    while at < len(text):
        size = random_.choice((0, 1, 1, 1, 2, 3, 5, 9, 40))
        pieces.append(text[at : at + size])
        at += size
    return pieces


def parse(dialect: Dialect, pieces: Sequence[str], **options: Any) -> list[Part]:
    """All parts of an answer, neighbours joined."""
    parser = dialect.parser(options.pop("tools", TOOLS), new_id=numbered(), **options)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.flush()])


def check(parts: Sequence[Part]) -> None:
    """Raises AssertionError when the parts break a promise of `colibri.text.parts`."""
    current: CallStart | None = None
    written, count, ids = "", 0, set()
    for part in parts:
        if isinstance(part, CallStart):
            assert current is None, "a call begins inside another"
            assert part.index == count, "the indices do not ascend"
            assert part.name in TOOLS, "a call of a tool that is not declared"
            assert part.id not in ids, "an id twice"
            ids.add(part.id)
            current, written = part, ""
        elif isinstance(part, CallArguments):
            assert current is not None, "arguments without a call"
            assert part.index == current.index, "arguments of another call"
            written += part.text
        elif isinstance(part, CallEnd):
            assert current is not None, "an end without a call"
            assert isinstance(json.loads(written), dict), "arguments that are no object"
            current, count = None, count + 1
        else:
            assert current is None, "text inside a call"
            assert MARK not in part.text, "a mark in the text"
    assert current is None, "a call without an end"
