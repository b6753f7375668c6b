"""Anthropic's dialect on a real model: `coli serve`, SmolLM2, the official client.

Covers R026, R036, R038, R042, R044, R048, R053, R069, R109.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.support.messages import WEATHER
from tests.support.serveprocess import serve

TIMEOUT = 120
RULES = "You are a careful assistant. Answer in one short sentence. " * 20
ASK = {"role": "user", "content": "How is the weather in Oslo?"}
CITY = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def claude(smollm2_folder: Path) -> Iterator[anthropic.Anthropic]:
    with (
        serve(smollm2_folder, "--ctx", "2048", "--kv-slots", "2") as running,
        anthropic.Anthropic(
            base_url=running.url, api_key="local", max_retries=0, timeout=TIMEOUT
        ) as client,
    ):
        yield client


def ask(claude: anthropic.Anthropic, messages: list[Any], **fields: Any) -> Any:
    values = {"model": "any", "max_tokens": 24, "extra_body": {"temperature": 0}, **fields}
    return claude.messages.create(messages=messages, **values)


def prompt(message: Any) -> int:
    """Tokens of a message's prompt."""
    return int(message.usage.input_tokens + message.usage.cache_read_input_tokens)


def test_a_count_is_exact_and_a_stream_says_the_same(claude: anthropic.Anthropic) -> None:
    """R048, R069: with tools, system text and several turns."""
    fields: dict[str, Any] = {"system": RULES, "tools": [WEATHER]}
    messages = [ASK, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "Yes?"}]
    counted = claude.messages.count_tokens(model="any", messages=messages, **fields).input_tokens
    whole = ask(claude, messages, **fields)
    assert prompt(whole) == counted
    with claude.messages.stream(
        model="any", max_tokens=24, messages=messages, extra_body={"temperature": 0}, **fields
    ) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [
        block.to_dict() for block in whole.content
    ]
    assert (prompt(streamed), streamed.stop_reason) == (counted, whole.stop_reason)
    assert streamed.usage.cache_read_input_tokens == counted - 1


@pytest.mark.parametrize("entry", ["cli", "sdk-cli"])
@pytest.mark.parametrize("tools", [[], [WEATHER]], ids=["without tools", "with tools"])
def test_R042_R044_a_billing_line_that_changes_costs_nothing(
    claude: anthropic.Anthropic, entry: str, tools: list[Any]
) -> None:
    answers = []
    for mark in ("aaaaa", "bbbbb"):
        line = f"x-anthropic-billing-header: cc_version=2; cc_entrypoint={entry}; cch={mark};"
        system = [{"type": "text", "text": line}, {"type": "text", "text": f"{entry}. {RULES}"}]
        answers.append(ask(claude, [ASK], system=system, tools=tools))
    first, second = answers
    assert prompt(first) == prompt(second)
    assert second.usage.cache_read_input_tokens == prompt(second) - 1
    assert first.content == second.content


def test_a_demanded_call_and_its_result_are_one_conversation(claude: anthropic.Anthropic) -> None:
    """R109: the client writes the call its own way, and only what is new is read."""
    fields: dict[str, Any] = {"system": RULES + "Tools.", "tools": [CITY], "max_tokens": 200}
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    first = ask(claude, [ASK], tool_choice=choice, **fields)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny", "is_error": False}
    history = [
        ASK,
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    second = ask(claude, history, **{**fields, "max_tokens": 24})
    held = prompt(first) + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens >= held - 1
    assert prompt(second) - second.usage.cache_read_input_tokens < 40


def test_R026_a_form_is_followed(claude: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"warm": {"type": "boolean"}, "city": {"enum": ["Oslo", "Rome"]}},
        "required": ["warm", "city"],
        "additionalProperties": False,
    }
    message = ask(
        claude,
        [ASK],
        max_tokens=200,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    data = json.loads(message.content[0].text)
    assert set(data) == {"warm", "city"}
    assert message.stop_reason == "end_turn"


def test_R036_R038_system_anywhere_and_no_reasoning_unasked(claude: anthropic.Anthropic) -> None:
    message = ask(claude, [ASK, {"role": "system", "content": "Be brief."}, ASK], max_tokens=16)
    assert [block.type for block in message.content] == ["text"]
    assert message.usage.output_tokens <= 16


def test_R053_an_answer_that_nobody_waited_for_makes_the_next_try_short(
    claude: anthropic.Anthropic,
) -> None:
    """A client gives up in the middle of an answer that is not streamed."""
    system = "Abandoned. " + RULES
    body = {"system": system, "messages": [ASK], "max_tokens": 1500, "temperature": 0}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    url = httpx.URL(str(claude.base_url))
    assert url.port

    def running() -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = httpx.get(url.join("/health")).json()["requests"]
        return requests

    deadline = time.monotonic() + TIMEOUT
    with socket.create_connection((url.host, url.port), TIMEOUT) as connection:
        connection.sendall(head.encode() + data)
        while not any(one["generated_tokens"] > 3 for one in running()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    while running():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    again = ask(claude, [ASK], system=system, max_tokens=8)
    assert again.usage.cache_read_input_tokens >= prompt(again) - 1
