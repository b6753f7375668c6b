"""Tools, reasoning and forms of answers on /v1/messages, as agents use them, over the scripted
engine.

Covers R036, R040, R041, R046, R054, R062, R069, R072, R074, R081, R109.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from colibri.api.anthropic import convert, handler
from colibri.engine.fake import Script, marked
from tests.api.test_tools import DIALECTS, called, said, serve, thought
from tests.support.fakeserver import FakeServer, chat_model
from tests.support.messages import USER, WEATHER, events_of, gathered, messages_body, parse_events

Start = Callable[..., FakeServer]
PATH = "/v1/messages"
TOOLS = [
    WEATHER,
    {
        "name": "read",
        "description": "Reads a file.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}},
            "required": ["path"],
            "additionalProperties": False,
        },
        "strict": True,
        "cache_control": {"type": "ephemeral"},
    },
    {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
]


def ask(server: FakeServer, **fields: Any) -> dict[str, Any]:
    """The message, whole or gathered from a stream."""
    response = server.post(PATH, messages_body(**{"max_tokens": 2000, **fields}))
    assert response.status_code == 200, response.text
    return gathered(events_of(response)) if fields.get("stream") else response.json()


def plain(message: dict[str, Any]) -> list[Any]:
    """The content without ids."""
    return [{key: block[key] for key in block if key != "id"} for block in message["content"]]


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(b["name"], b["input"]) for b in message["content"] if b["type"] == "tool_use"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_R069_an_answer_is_the_same_whole_and_streamed(start: Start, dialect: str) -> None:
    answer = (
        thought(dialect, "I must look.")
        + said(dialect, "Let me look.")
        + called(dialect, "read", path="a.txt", offset=3)
        + called(dialect, "weather", city="Oslo")
    )
    server = serve(start, dialect, answer, answer)
    fields: dict[str, Any] = {"tools": TOOLS, "thinking": {"type": "enabled"}}
    whole, streamed = ask(server, **fields), ask(server, stream=True, **fields)
    assert plain(whole) == plain(streamed)
    assert whole["stop_reason"] == streamed["stop_reason"] == "tool_use"
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][0]["thinking"].strip() == "I must look."
    assert whole["content"][1]["text"].strip() == "Let me look."
    assert calls(whole) == [
        ("read", {"path": "a.txt", "offset": 3}),
        ("weather", {"city": "Oslo"}),
    ]
    assert len({block["id"] for block in whole["content"][2:]}) == 2
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_R041_a_session_of_an_agent(start: Start, dialect: str) -> None:
    """The structure of what Claude Code sends: blocks and strings change places, cache marks move,
    a billing line changes, reasoning comes back unseen, and still nothing is read again.
    """
    first = (
        thought(dialect, "I have to read it.")
        + said(dialect, "Let me look.")
        + called(dialect, "read", path="a.txt")
        + called(dialect, "weather", city="Oslo")
    )
    second = thought(dialect, "Now I know.") + said(dialect, "It says no.")
    server = serve(start, dialect, first, second, context=30_000)
    fields: dict[str, Any] = {
        "max_tokens": 32_000,
        "metadata": {"user_id": "{}"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "tools": TOOLS,
        "stream": True,
    }
    rules = "Work with care. " * 40

    def system(mark: str) -> list[dict[str, Any]]:
        line = f"x-anthropic-billing-header: cc_version=2; cc_entrypoint=cli; cch={mark};"
        return [
            {"type": "text", "text": line},
            {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
        ]

    asked = {
        "role": "user",
        "content": [{"type": "text", "text": "<reminder>"}, {"type": "text", "text": "read it"}],
    }
    block = [{"type": "text", "text": "Skills: none.", "cache_control": {"type": "ephemeral"}}]
    message = ask(
        server, system=system("a"), messages=[asked, {"role": "system", "content": block}], **fields
    )
    assert message["stop_reason"] == "tool_use"
    assert message["content"][0]["thinking"] == ""
    assert convert.recover(message["content"][0]["signature"]).strip() == "I have to read it."
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": ids[1], "content": "rain", "is_error": False},
        {
            "type": "tool_result",
            "tool_use_id": ids[0],
            "content": [{"type": "text", "text": "no"}],
            "cache_control": {"type": "ephemeral"},
        },
    ]
    again = ask(
        server,
        system=system("b"),
        messages=[
            asked,
            {"role": "system", "content": "Skills: none."},
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": results},
        ],
        **fields,
    )
    assert again["content"][-1]["text"] == "It says no."
    assert again["stop_reason"] == "end_turn"
    usage, before = again["usage"], message["usage"]
    held = before["input_tokens"] + before["cache_read_input_tokens"] + before["output_tokens"]
    # All that was held but the last token, whose KV is not computed before it is needed.
    assert usage["cache_read_input_tokens"] >= held - 1
    assert usage["input_tokens"] < 200


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_R036_without_the_field_there_is_no_thinking(
    start: Start, dialect: str, stream: bool
) -> None:
    server = serve(start, dialect, said(dialect, "4"))
    message = ask(server, stream=stream, max_tokens=50)
    assert plain(message) == [{"type": "text", "text": "4"}]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_R081_a_limit_inside_the_reasoning_is_told(start: Start, stream: bool) -> None:
    server = serve(start, "glm", "I think and think and think")
    message = ask(server, stream=stream, max_tokens=9, thinking={"type": "enabled"})
    assert message["stop_reason"] == "max_tokens"
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert message["x_colibri_notice"]["code"] == "reasoning_cut"


def test_a_budget_ends_the_reasoning_and_the_answer_follows(start: Start) -> None:
    server = serve(start, "glm", "I think and think and think")
    message = ask(server, thinking={"type": "enabled", "budget_tokens": 6}, max_tokens=100)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "I thin"
    assert message["x_colibri_notice"]["code"] == "reasoning_budget"
    assert message["stop_reason"] == "end_turn"


def test_R054_an_answer_that_begins_with_a_call_is_not_cut(start: Start) -> None:
    """Chats of GLM end at its markers of roles; none of them touches a call."""
    inside = called("glm", "read", path="<|user|> and <|observation|>")
    server = serve(start, "glm", inside)
    message = ask(server, tools=TOOLS)
    assert calls(message) == [("read", {"path": "<|user|> and <|observation|>"})]


@pytest.mark.parametrize("text", ["<tool_call></tool_call>", "<tool_call>nobody</tool_call>"])
def test_R062_a_call_of_nothing_is_text_and_leaves_nothing_behind(start: Start, text: str) -> None:
    server = serve(start, "glm", text, called("glm", "read", path="a"))
    message = ask(server, tools=TOOLS)
    assert [block["type"] for block in message["content"]] == ["text"]
    assert message["stop_reason"] == "end_turn"
    assert calls(ask(server, tools=TOOLS)) == [("read", {"path": "a"})]


@pytest.mark.parametrize("stream", [False, True])
def test_R072_a_call_that_breaks_off_is_an_answer(start: Start, stream: bool) -> None:
    broken = '<tool_call>\n{"name": "read", "arguments": {"path": "a.tx'
    server = serve(start, "hermes", broken)
    message = ask(server, stream=stream, tools=TOOLS)
    assert calls(message) == [("read", {"path": "a.tx"})]


ODD_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"p": {"type": "string", "pattern": "^(?!x)", "format": "uri"}},
        "$ref": "#/nope",
    },
    {"type": "object", "properties": {"p": {"$ref": "https://example.org/else.json"}}},
    {"type": "no such type", "properties": []},
    {},
]


@pytest.mark.parametrize("schema", ODD_SCHEMAS)
@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "any"}])
def test_R040_a_schema_that_cannot_be_used_degrades(
    start: Start, schema: dict[str, Any], choice: Any
) -> None:
    server = serve(start, "glm", called("glm", "t", p="http://a"))
    tools = [{"name": "t", "input_schema": schema}]
    message = ask(server, tools=tools, tool_choice=choice)
    assert [name for name, _ in calls(message)] == ["t"]


@pytest.mark.parametrize("schema", ODD_SCHEMAS)
def test_R040_a_form_that_cannot_be_enforced_is_told_in_the_log(
    start: Start, schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = serve(start, "glm", '{"p": 1}')
    form = {"type": "json_schema", "schema": schema}
    message = ask(server, output_config={"format": form}, max_tokens=500)
    assert message["content"]
    if schema:
        assert "form" in caplog.text


def test_a_form_holds_behind_the_reasoning(start: Start) -> None:
    server = serve(start, "glm", 'Well.</think>{"a": 3} and more')
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    message = ask(
        server,
        thinking={"type": "adaptive"},
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert json.loads(message["content"][1]["text"]) == {"a": 3}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_form_leaves_room_for_a_call_unless_tools_are_off(start: Start, dialect: str) -> None:
    """The form is that of the answer; an agent's model looks something up before it answers."""
    wanted = called(dialect, "read", path="a.txt")
    server = serve(start, dialect, wanted, wanted, wanted)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "schema": schema}}
    for choice in ({}, {"tool_choice": {"type": "auto"}}):
        message = ask(server, tools=TOOLS, output_config=form, **choice)
        assert [name for name, _ in calls(message)] == ["read"]
        assert message["stop_reason"] == "tool_use"
    silent = ask(server, tools=TOOLS, output_config=form, tool_choice={"type": "none"})
    assert calls(silent) == []
    assert silent["content"][0]["text"].lstrip().startswith("{")


def test_reasoning_that_is_not_shown_is_no_silence(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "HEARTBEAT_SECONDS", 0.0)
    server = serve(start, "glm", "thinking</think>done")
    body = messages_body(stream=True, thinking={"type": "adaptive", "display": "omitted"})
    events = events_of(server.post(PATH, body))
    names = [name for name, _ in events]
    assert names.count("ping") > 5
    assert gathered(events)["content"][1] == {"type": "text", "text": "done"}


def test_R074_a_failure_inside_a_call_is_an_error_and_the_next_try_is_fine(start: Start) -> None:
    pieces = marked(called("glm", "read", path="abcdef"), "glm")
    whole = Script(pieces=pieces)
    server = start(Script(pieces=pieces, fail_at=5), whole, dialect="glm", model=chat_model("glm"))
    body = messages_body(stream=True, tools=TOOLS)
    events = parse_events(server.post(PATH, body).text)
    assert [name for name, _ in events][-1] == "error"
    assert "message_stop" not in [name for name, _ in events]
    server.wait_for(active=0, failed=1)
    message = ask(server, stream=True, tools=TOOLS)
    assert calls(message) == [("read", {"path": "abcdef"})]


def test_a_count_has_the_tools_and_the_reasoning_in_it(start: Start) -> None:
    server = serve(start, "glm", "ok", "ok")

    def count(**fields: Any) -> int:
        body = {"messages": [USER], **fields}
        return int(server.post(f"{PATH}/count_tokens", body).json()["input_tokens"])

    assert count(tools=TOOLS) > count() + 100
    assert count(tools=TOOLS, tool_choice={"type": "none"}) == count()
    assert count(thinking={"type": "adaptive"}) != count()
    for fields in ({"tools": TOOLS}, {"tools": TOOLS, "thinking": {"type": "adaptive"}}):
        usage = ask(server, **fields, max_tokens=1)["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count(**fields)
