"""Parts of an answer as Anthropic's blocks and events, whole and streamed.

Covers R045, R060, R065, R066, R068, R069, R081.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from colibri.api.anthropic import convert
from colibri.api.anthropic.encode import Encoder
from colibri.engine.answer import (
    CallArguments,
    CallEnd,
    CallStart,
    Notice,
    Part,
    Reasoning,
    Text,
)
from colibri.engine.protocol import Accepted, Done, FinishReason, Usage
from tests.support.messages import gathered, parse_events

USAGE = Usage(prompt=50, cached=30, completion=9, reasoning=4)
CALLS: list[Part] = [
    Reasoning("I think, "),
    Reasoning("I am."),
    Text("Let me "),
    Text("look."),
    CallStart(0, "call_a", "weather"),
    CallArguments(0, '{"city":"'),
    CallArguments(0, 'Oslo"}'),
    CallEnd(0),
    CallStart(1, "call_b", "weather"),
    CallArguments(1, "{}"),
    CallEnd(1, complete=False),
    Text("Well."),
]


def done(reason: FinishReason = "stop", notice: Notice | None = None) -> Done:
    return Done(
        job="j", finish_reason=reason, usage=USAGE, prefill_ms=1, decode_ms=1, notice=notice
    )


def whole(parts: Sequence[Part], end: Done, *, omit: bool = False) -> dict[str, Any]:
    encoder = Encoder("j", "m", 50, omit=omit)
    answer: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(encoder.whole(parts, end)))
    return answer


def streamed(
    batches: Sequence[Sequence[Part]], end: Done, *, omit: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    encoder = Encoder("j", "m", 50, omit=omit)
    data = encoder.start(Accepted(job="j", prompt=50, cached=30))
    for batch in batches:
        data += encoder.parts(batch)
    return parse_events((data + encoder.finish(end)).decode())


def test_R068_calls_text_and_reasoning_are_blocks_in_their_order() -> None:
    answer = whole(CALLS, done("tool_calls"))
    assert answer["content"] == [
        {
            "type": "thinking",
            "thinking": "I think, I am.",
            "signature": convert.seal("I think, I am."),
        },
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "call_b", "name": "weather", "input": {}},
        {"type": "text", "text": "Well."},
    ]
    assert answer["usage"] == {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 30,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    }


@pytest.mark.parametrize("omit", [False, True])
def test_R069_a_stream_gathers_to_the_whole_answer_for_every_cutting(
    seeded: random.Random, omit: bool
) -> None:
    expected = whole(CALLS, done("tool_calls"), omit=omit)
    for _ in range(200):
        batches: list[list[Part]] = [[]]
        for part in CALLS:
            if seeded.random() < 0.5:
                batches.append([])
            batches[-1].append(part)
        assert gathered(streamed(batches, done("tool_calls"), omit=omit)) == expected


def test_R066_a_call_begins_with_its_name_and_no_arguments() -> None:
    """R060: and the pieces of its arguments follow as they come."""
    events = streamed([CALLS[4:8]], done("tool_calls"))
    assert events[1][1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "call_a", "name": "weather", "input": {}},
    }
    assert [event[1]["delta"]["partial_json"] for event in events[2:4]] == ['{"city":"', 'Oslo"}']


def test_reasoning_ends_with_a_signature() -> None:
    events = streamed([CALLS[:3]], done())
    kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert kinds == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]


def test_reasoning_that_is_to_be_omitted_is_only_signed() -> None:
    events = streamed([CALLS[:3]], done(), omit=True)
    kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert kinds == ["signature_delta", "text_delta"]
    (block, _) = gathered(events)["content"]
    assert block["thinking"] == ""
    assert convert.recover(block["signature"]) == "I think, I am."


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use")],
)
def test_R069_reasons_are_the_same_in_both_modes(reason: FinishReason, expected: str) -> None:
    assert whole([Text("a")], done(reason))["stop_reason"] == expected
    assert gathered(streamed([[Text("a")]], done(reason)))["stop_reason"] == expected


@pytest.mark.parametrize(
    "part", [Text("a"), Reasoning("a"), CallStart(0, "c", "t")], ids=["text", "thinking", "call"]
)
def test_R045_an_open_block_is_closed_whatever_it_is(part: Part) -> None:
    events = streamed([[part]], done("length"))
    names = [name for name, _ in events]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop") == 1


def test_R081_a_notice_is_told_in_both_modes() -> None:
    notice = Notice(code="reasoning_cut", message="max_tokens came before the answer.")
    told = {"code": "reasoning_cut", "message": "max_tokens came before the answer."}
    parts = [Reasoning("hm")]
    assert whole(parts, done("length", notice))["x_colibri_notice"] == told
    assert gathered(streamed([parts], done("length", notice)))["x_colibri_notice"] == told
    assert "x_colibri_notice" not in whole(parts, done("length"))


def test_empty_parts_open_no_block() -> None:
    events = streamed([[Text(""), Reasoning("")]], done())
    assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]


def test_numbers_keep_every_digit() -> None:
    """R065: what was streamed and what is sent whole say the same."""
    parts = [
        CallStart(0, "c", "t"),
        CallArguments(0, '{"a":123456789012345678901234567890,"b":1.10,"c":1e400}'),
        CallEnd(0),
    ]
    encoder = Encoder("j", "m", 50)
    data = msgspec.json.encode(encoder.whole(parts, done("tool_calls")))
    assert b'"input":{"a":123456789012345678901234567890,"b":1.10,"c":1e400}' in data


def test_what_is_cached_is_told_at_the_end_if_it_was_not_known_at_the_beginning() -> None:
    encoder = Encoder("j", "m", 50)
    (start,) = parse_events(encoder.start(None).decode())
    usage = start[1]["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (50, 0)
