"""Anthropic's blocks as the messages that templates read, and the way back of the reasoning.

Covers R028, R036, R038, R041, R042, R044, R046, R064.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from colibri.api import native
from colibri.api.anthropic import convert
from colibri.api.anthropic.schemas import CountRequest, MessagesRequest
from colibri.families.glm_template import TEMPLATE
from colibri.models import synthetic
from colibri.text.history import prepare, usable_tools
from colibri.text.template import ChatTemplate
from colibri.text.tokenizer import from_json
from tests.support.messages import USER, WEATHER

TOKENIZER = from_json(synthetic._tokenizer().to_str().encode(), "tokenizer.json")
GLM = ChatTemplate(TEMPLATE, TOKENIZER, where="built-in template")


def chat(**fields: Any) -> native.ChatInput:
    body = {"max_tokens": 10, "messages": [USER], **fields}
    return convert.chat_input(msgspec.convert(body, MessagesRequest))


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def use(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"id-{name}", "name": name, "input": arguments}


def result(name: str, content: Any = "fine", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"id-{name}", "content": content, **fields}


def rendered(asked: native.ChatInput) -> str:
    """What the GLM template writes."""
    tools, _ = usable_tools(asked.tools)
    messages, offered = prepare(asked.messages, tools, template_takes_tools=True)
    return GLM.render(messages, tools=offered).text


def test_texts_of_a_user_stand_on_lines_of_their_own_those_of_an_answer_do_not() -> None:
    messages = chat(
        messages=[user(text("a"), text("b")), said(text("c"), text("d")), USER]
    ).messages
    assert [message["content"] for message in messages] == ["a\nb", "cd", "hi"]


def test_strings_and_blocks_make_the_same_prompt() -> None:
    """What a client sends as blocks in one request comes as a string in the next one."""
    blocks = chat(
        system=[text("be brief")], messages=[user(text("hi")), said(text("yes")), user(text("go"))]
    )
    strings = chat(
        system="be brief",
        messages=[USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}],
    )
    assert rendered(blocks) == rendered(strings)


@pytest.mark.parametrize("entry", ["cli", "sdk-cli"])
def test_R042_R044_the_billing_line_never_reaches_the_prompt(entry: str) -> None:
    """As a block of its own, before the system text proper."""

    def prompt(mark: str) -> str:
        line = f"x-anthropic-billing-header: cc_version=1; cc_entrypoint={entry}; cch={mark};"
        return rendered(chat(system=[text(line), text("You are an agent."), text("Be brief.")]))

    assert prompt("aaaaa") == prompt("bbbbb")
    assert "<|system|>You are an agent.\nBe brief.<|user|>" in prompt("aaaaa")


def test_calls_and_results_reach_the_prompt_in_order() -> None:
    prompt = rendered(
        chat(
            tools=[WEATHER],
            messages=[
                USER,
                said(text("Let me look."), use("weather", city="Oslo", days=2)),
                user(result("weather", [text("sunny"), text("warm")])),
            ],
        )
    )
    assert (
        "Let me look.<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
        "<|observation|><tool_response>sunny\nwarm</tool_response><|assistant|>"
    ) in prompt


def test_results_come_in_the_order_of_their_calls_and_text_behind_them() -> None:
    messages = chat(
        messages=[
            USER,
            said(use("a"), use("b"), use("c")),
            user(text("and be quick"), result("c"), result("a"), text("please")),
            user(result("b")),
            said(text("done")),
            user(text("thanks")),
        ]
    ).messages
    assert [message.get("tool_call_id", message["content"]) for message in messages[2:]] == [
        "id-a",
        "id-c",
        "and be quick\nplease",
        "id-b",
        "done",
        "thanks",
    ]
    in_two = chat(messages=[USER, said(use("a"), use("b")), user(result("b")), user(result("a"))])
    assert [message["tool_call_id"] for message in in_two.messages[2:]] == ["id-a", "id-b"]


def test_results_of_unknown_calls_stay_behind_the_known_ones() -> None:
    messages = chat(
        messages=[USER, said(use("a")), user(result("x"), result("a"), result("y"))]
    ).messages
    assert [message["tool_call_id"] for message in messages[2:]] == ["id-a", "id-x", "id-y"]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (result("a", "done"), "done"),
        (result("a", None), ""),
        (result("a", []), ""),
        (result("a", "", is_error=True), "Error: the tool failed and says nothing else."),
        (result("a", "no such file", is_error=True), "Error: no such file"),
        (result("a", "<tool_use_error>no</tool_use_error>", is_error=True), None),
        (result("a", "Error: no", is_error=True), None),
        (result("a", "no error", is_error=False), "no error"),
        (
            result("a", [{"type": "tool_reference", "tool_name": "Fetch"}, text("x")]),
            "The tool Fetch can be called now.\nx",
        ),
    ],
)
def test_every_form_of_a_result_is_text(block: dict[str, Any], expected: str | None) -> None:
    messages = chat(messages=[USER, said(use("a")), user(block)]).messages
    assert messages[2]["role"] == "tool"
    assert messages[2]["content"] == (block["content"] if expected is None else expected)


def test_R046_reasoning_comes_back_as_the_reasoning_of_its_turn() -> None:
    thought = {"type": "thinking", "thinking": "First I look.", "signature": "anything"}
    answer = said(thought, text("ok"), use("weather", city="Oslo"))
    messages = chat(messages=[USER, answer, user(result("weather"))]).messages
    assert messages[1]["reasoning_content"] == "First I look."
    assert messages[1]["content"] == "ok"
    # In the middle of a turn the template shows it, behind the turn it does not.
    prompt = rendered(chat(messages=[USER, answer, user(result("weather"))]))
    assert "<think>First I look.</think>ok<tool_call>" in prompt
    later = rendered(chat(messages=[USER, answer, user(result("weather")), said(text("x")), USER]))
    assert "First I look." not in later


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "thinking", "thinking": "", "signature": "of another server"},
        {"type": "thinking", "thinking": "", "signature": None},
        {"type": "thinking", "thinking": "", "signature": "colibri-text:%%%"},
        {"type": "thinking", "thinking": "", "signature": "colibri-text:/w=="},
    ],
)
def test_reasoning_that_cannot_be_read_is_dropped(block: dict[str, Any]) -> None:
    messages = chat(messages=[USER, said(block, text("ok")), USER]).messages
    assert messages[1] == {"role": "assistant", "content": "ok"}


def test_reasoning_that_was_not_shown_comes_back_in_its_signature() -> None:
    thought = 'I think: "ä\n</think>" \N{GRINNING FACE}'
    assert convert.recover(convert.carry(thought)) == thought
    assert convert.recover(convert.seal(thought)) == ""
    block = {"type": "thinking", "thinking": "", "signature": convert.carry(thought)}
    messages = chat(messages=[USER, said(block, text("ok")), USER]).messages
    assert messages[1]["reasoning_content"] == thought


@pytest.mark.parametrize(
    ("thinking", "on", "budget"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "enabled"}, True, None),
        ({"type": "enabled", "budget_tokens": 2048}, True, 2048),
        ({"type": "adaptive"}, True, None),
        ({"type": "adaptive", "display": "omitted"}, True, None),
        ({"type": "adaptive", "display": "updates"}, True, None),
    ],
)
def test_R036_thinking_is_on_only_if_it_is_asked_for(
    thinking: dict[str, Any] | None, on: bool, budget: int | None
) -> None:
    asked = chat(thinking=thinking, output_config={"effort": "high"})
    assert (asked.thinking, asked.thinking_budget, asked.effort) == (on, budget, "high")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, native.ToolChoice()),
        ({"type": "auto"}, native.ToolChoice()),
        ({"type": "any"}, native.ToolChoice(mode="required")),
        ({"type": "none"}, native.ToolChoice(mode="none")),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            native.ToolChoice(mode="required", name="weather", parallel=False),
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            native.ToolChoice(parallel=False),
        ),
    ],
)
def test_R064_every_choice_of_tools(choice: Any, expected: native.ToolChoice) -> None:
    assert chat(tools=[WEATHER], tool_choice=choice).tool_choice == expected


def test_R028_tools_of_every_kind_and_what_is_offered_of_them() -> None:
    tools = [
        WEATHER,
        {"type": "custom", "name": "b", "input_schema": {"type": "object"}, "strict": True},
        {"name": "c", "description": "", "input_schema": {}, "defer_loading": True},
        {"name": "DeferredToolPlaceholder", "input_schema": {}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "namespace", "tools": []},
        {"name": "d", "cache_control": {"type": "ephemeral"}, "input_schema": {"type": "object"}},
        {},
    ]
    usable, left_out = usable_tools(chat(tools=tools).tools)
    assert [tool["function"]["name"] for tool in usable] == ["weather", "b", "c", "d"]
    assert usable[0]["function"]["parameters"] == WEATHER["input_schema"]
    assert len(left_out) == 3


def test_the_form_of_the_answer_may_stand_in_either_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "schema": schema}
    assert chat(output_config={"format": asked}).format == native.JsonFormat(schema=schema)
    assert chat(output_format=asked).format == native.JsonFormat(schema=schema)
    assert chat(output_config={"effort": "low"}).format is None


def test_a_count_takes_the_fields_of_a_generation() -> None:
    body = {"messages": [USER], "system": "s", "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    counted = convert.chat_input(msgspec.convert(body, CountRequest))
    asked = chat(**body)
    assert (counted.messages, counted.tools, counted.thinking) == (
        asked.messages,
        asked.tools,
        asked.thinking,
    )
