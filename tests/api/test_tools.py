"""Tools, forms of answers and reasoning on /v1/chat/completions, over the scripted engine.

Covers R010, R013, R014, R024, R025, R026, R028, R056, R057, R058, R060, R061, R062, R064, R065,
R066, R068, R069, R070, R072, R081.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from colibri.engine import fake
from colibri.engine.fake import Script
from tests.support.fakeserver import MODEL_ID, FakeServer, chat_body, chat_model, text_of

Start = Callable[..., FakeServer]
DIALECTS = ("glm", "hermes", "inkling")


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


READ = tool("read", path={"type": "string"}, offset={"type": "integer"})
NOW = tool("now")


def glm_call(name: str, **values: str) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()
    )
    return f"<tool_call>{name}{pairs}</tool_call>"


def hermes_call(name: str, **values: Any) -> str:
    call = json.dumps({"name": name, "arguments": values})
    return f"<tool_call>\n{call}\n</tool_call>"


def inkling_call(name: str, **values: Any) -> str:
    body = json.dumps({"name": name, "args": values})
    return f"<|message_model|>{name}<|content_invoke_tool_json|>{body}<|end_message|>"


def said(dialect: str, text: str) -> str:
    """A text as a model of the dialect says it."""
    if dialect != "inkling":
        return text
    return f"<|message_model|><|content_text|>{text}<|end_message|>"


def called(dialect: str, name: str, **values: Any) -> str:
    if dialect == "glm":
        shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        return glm_call(name, **shown)
    return (hermes_call if dialect == "hermes" else inkling_call)(name, **values)


def thought(dialect: str, text: str) -> str:
    """Reasoning as a model of the dialect writes it behind a prompt that asks for it."""
    if dialect == "inkling":
        return f"<|message_model|><|content_thinking|>{text}<|end_message|>"
    return f"{text}</think>" if dialect == "glm" else f"<think>\n{text}\n</think>\n\n"


def letters(text: str, dialect: str) -> tuple[str, ...]:
    """The pieces of an answer, letter by letter, markers as the dialect has them."""
    if dialect == "hermes":
        return tuple(text)
    pieces = fake.marked(text, dialect)
    return tuple(
        part for piece in pieces for part in ([piece] if piece[0] == fake.control("")[0] else piece)
    )


def serve(
    start: Start, dialect: str, *answers: str, pieces: str = "letters", **options: Any
) -> Any:
    cut = letters if pieces == "letters" else fake.marked
    scripts = [
        Script(pieces=(answer,) if pieces == "whole" else cut(answer, dialect))
        for answer in answers
    ]
    return start(*scripts, dialect=dialect, model=chat_model(dialect), **options)


def gathered(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream that takes ids and names from first pieces only (R066)."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert not (delta.get("content") and delta.get("tool_calls"))
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", []):
                if piece["index"] not in message["calls"]:
                    assert piece["type"] == "function"
                    assert piece["function"]["arguments"] == ""
                    name = piece["function"]["name"]
                    message["calls"][piece["index"]] = {"id": piece["id"], "name": name, "args": ""}
                else:
                    assert set(piece) == {"index", "function"}
                    assert set(piece["function"]) == {"arguments"}
                    message["calls"][piece["index"]]["args"] += piece["function"]["arguments"]
            message["finish"] = choice["finish_reason"]
    return message


def both(server: FakeServer, content: str = "hi", **fields: Any) -> tuple[Any, Any]:
    """The same request whole and streamed: (choice, gathered)."""
    response = server.chat(content, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0], gathered(server.chunks(content, **fields))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_R065_R066_R068_R069_calls_are_the_same_whole_and_streamed(
    start: Start, dialect: str
) -> None:
    """R070: two calls of one tool stay two; arguments are the text of an object."""
    answer = said(dialect, "Let me look.") + "".join(
        called(dialect, *call, **values)
        for call, values in (
            (("read",), {"path": "a.txt", "offset": 3}),
            (("read",), {"path": "b"}),
            (("now",), {}),
        )
    )
    server = serve(start, dialect, answer, answer)
    choice, streamed = both(server, tools=[READ, NOW])
    assert choice["finish_reason"] == streamed["finish"] == "tool_calls"
    assert choice["message"]["content"] == streamed["content"] == "Let me look."
    calls = choice["message"]["tool_calls"]
    found = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
    ]
    assert found == [("read", {"path": "a.txt", "offset": 3}), ("read", {"path": "b"}), ("now", {})]
    assert [(c["name"], json.loads(c["args"])) for c in streamed["calls"].values()] == found
    assert list(streamed["calls"]) == [0, 1, 2]
    assert all(call["type"] == "function" for call in calls)
    ids = [call["id"] for call in calls] + [call["id"] for call in streamed["calls"].values()]
    assert len(set(ids)) == 6 and all(ids)


def test_a_message_that_only_calls_has_no_content(start: Start) -> None:
    server = serve(start, "glm", glm_call("now"), glm_call("now"))
    choice, streamed = both(server, tools=[NOW])
    assert choice["message"]["content"] is None
    assert streamed["content"] == ""


@pytest.mark.parametrize("dialect", ["glm", "hermes"])
def test_R056_R057_the_declared_type_decides(start: Start, dialect: str) -> None:
    spec = tool(
        "order",
        sku={"type": "string"}, phone={"type": "string"}, n={"type": "integer"},
        ok={"type": "boolean"}, skip={"type": "array"}, most={"type": "number"},
    )  # fmt: skip
    values = {"sku": "731", "phone": "0044", "n": "7", "ok": "true", "skip": "[]", "most": "10"}
    answer = called(dialect, "order", **values)
    choice, streamed = both(serve(start, dialect, answer, answer), tools=[spec])
    (call,) = choice["message"]["tool_calls"]
    expected = {"sku": "731", "phone": "0044", "n": 7, "ok": True, "skip": [], "most": 10}
    assert json.loads(call["function"]["arguments"]) == expected
    assert json.loads(streamed["calls"][0]["args"]) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1000])
def test_R058_unions_and_references_are_the_same_for_every_cutting(start: Start, size: int) -> None:
    spec = tool(
        "f",
        a={"type": ["string", "null"]},
        b={"anyOf": [{"type": "integer"}, {"type": "string"}]},
        c={"$ref": "#/$defs/E"},
    )
    spec["function"]["parameters"]["$defs"] = {"E": {"enum": ["red", "blue"]}}
    pieces = letters(glm_call("f", a="null", b="3", c="red"), "glm")
    joined: list[str] = []
    for piece in pieces:  # control tokens stay tokens, letters come in pieces of `size`
        plain = not piece.startswith(fake.control(""))
        if plain and joined and joined[-1][0] != fake.control("")[0] and len(joined[-1]) < size:
            joined[-1] += piece
        else:
            joined.append(piece)
    server = start(Script(pieces=tuple(joined)), dialect="glm", model=chat_model("glm"))
    streamed = gathered(server.chunks(tools=[spec]))
    assert json.loads(streamed["calls"][0]["args"]) == {"a": None, "b": 3, "c": "red"}


def test_R060_names_and_strings_stream_while_an_integer_waits(start: Start) -> None:
    server = serve(start, "glm", glm_call("read", path="x" * 200, offset="12"))
    deltas = [
        piece
        for chunk in server.chunks(tools=[READ])
        for piece in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert deltas[0]["function"] == {"name": "read", "arguments": ""}
    assert sum("x" in piece["function"]["arguments"] for piece in deltas) > 100


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>",
    ],
)
def test_R061_a_name_ends_at_the_first_tag_or_line(start: Start, text: str) -> None:
    choice, streamed = both(
        serve(start, "glm", text, text), tools=[tool("weather", city={"type": "string"})]
    )
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == streamed["calls"][0]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}


@pytest.mark.parametrize("dialect", ["glm", "hermes"])
@pytest.mark.parametrize("inside", ["", "\n", "unknown", "{}"])
def test_R062_an_empty_or_unknown_call_is_text_and_leaves_nothing_behind(
    start: Start, dialect: str, inside: str
) -> None:
    answer = f"<tool_call>{inside}</tool_call>"
    server = serve(start, dialect, answer, answer, "fine")
    choice, streamed = both(server, tools=[NOW])
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == streamed["finish"] == "stop"
    assert choice["message"]["content"] == streamed["content"]
    assert inside.strip() in choice["message"]["content"]
    assert choice["message"]["content"].strip()
    assert server.chat(tools=[NOW]).json()["choices"][0]["message"]["content"] == "fine"


def test_R072_broken_arguments_are_no_servers_error(start: Start) -> None:
    answer = '<tool_call>\n{"name": "read", "arguments": {"path": "a'
    choice, streamed = both(serve(start, "hermes", answer, answer), tools=[READ])
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "a"}
    assert json.loads(streamed["calls"][0]["args"]) == {"path": "a"}


# ---- which calls are wanted


@pytest.mark.parametrize("dialect", DIALECTS)
def test_R064_none_hides_the_tools(start: Start, dialect: str) -> None:
    """And what looks like a call is then text."""
    server = serve(start, dialect, called(dialect, "now"), pieces="marked")
    prompts = spied(server)
    choice = server.chat(tools=[NOW], tool_choice="none").json()["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert "now" not in prompts[0]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"read", "now"}),
        ({"type": "function", "function": {"name": "now"}}, {"now"}),
        ({"type": "function", "name": "read"}, {"read"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
            {"now"},
        ),
    ],
    ids=["required", "named", "flat", "allowed"],
)
@pytest.mark.parametrize("thinking", [False, True])
def test_R064_a_demanded_call_is_made_whatever_the_model_wants_to_say(
    start: Start, dialect: str, choice: Any, names: set[str], thinking: bool
) -> None:
    prose = thought(dialect, "Hm.") + said(dialect, "No, never.") if thinking else "No, never."
    server = serve(start, dialect, prose)
    fields = {"tool_choice": choice, "max_tokens": 400, "enable_thinking": thinking}
    answer = server.chat(tools=[READ, NOW], **fields).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    call = answer["message"]["tool_calls"][0]["function"]
    assert call["name"] in names
    assert isinstance(json.loads(call["arguments"]), dict)


def test_R064_auto_and_parallel_and_strict_are_accepted(start: Start) -> None:
    strict = {**NOW, "function": {**NOW["function"], "strict": True}}
    server = serve(start, "hermes", *["ok"] * 4)
    for fields in (
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"tool_choice": None},
    ):
        assert server.chat(tools=[strict], **fields).status_code == 200


def test_without_parallel_calls_a_demanded_one_stays_alone(start: Start) -> None:
    two = hermes_call("now") + "\n" + hermes_call("now")
    server = serve(start, "hermes", two, two)
    for parallel, calls in ((True, 2), (False, 1)):
        fields = {"tool_choice": "required", "parallel_tool_calls": parallel}
        message = server.chat(tools=[NOW], **fields).json()["choices"][0]["message"]
        assert len(message["tool_calls"]) == calls


def test_R028_unknown_kinds_of_tools_are_left_out_with_one_line(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = serve(start, "hermes", hermes_call("now"))
    tools = [{"type": "web_search"}, NOW, {"type": "custom", "custom": {"name": "x"}}]
    message = server.chat(tools=tools).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "now"
    assert sum("a tool is left out" in record.message for record in caplog.records) == 2


# ---- histories


def spied(server: FakeServer) -> list[str]:
    """The texts of the prompts that are asked for from now on."""
    prompts: list[str] = []
    admit = server.scheduler.admit

    def spy(request: Any, gone: Any) -> Any:
        known = fake.tokenizer(server.dialect)
        data = [
            known.token_bytes(token, keep_special=True) or server.backend.piece(token)
            for token in request.prompt
        ]
        prompts.append(b"".join(data).decode())
        return admit(request, gone)

    server.scheduler.admit = spy  # type: ignore[method-assign]
    return prompts


def replay(message: dict[str, Any], result: Any = "12:00") -> list[dict[str, Any]]:
    """A conversation in which a message of the server comes back."""
    call = (message.get("tool_calls") or [{"id": "c1"}])[0]
    return [
        {"role": "user", "content": "time?"},
        message,
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_R013_the_server_accepts_its_own_answer_replayed(
    start: Start, dialect: str, stream: bool
) -> None:
    server = serve(start, dialect, thought(dialect, "Hm.") + called(dialect, "now"), "ok", "ok")
    prompts = spied(server)
    first = server.chat("time?", tools=[NOW], enable_thinking=True).json()["choices"][0]["message"]
    assert first["reasoning_content"].strip() == "Hm."
    body = {"messages": replay(first), "tools": [NOW], "stream": stream}
    assert server.post("/v1/chat/completions", body).status_code == 200
    assert prompts[1].index("time?") < prompts[1].rindex("now") < prompts[1].index("12:00")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("content", [None, "", "missing"])
def test_R013_R014_null_missing_and_empty_content_are_the_same(
    start: Start, dialect: str, content: Any
) -> None:
    server = serve(start, dialect, "ok")
    prompts = spied(server)
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    if content == "missing":
        del message["content"]
    parts = [{"type": "text", "text": "12:"}, {"type": "text", "text": "00"}]
    response = server.post("/v1/chat/completions", {"messages": replay(message, parts)})
    assert response.status_code == 200
    assert prompts[0].index("time?") < prompts[0].index("now") < prompts[0].index("12:")


def test_results_come_in_the_order_of_their_calls(start: Start) -> None:
    """Calls that run side by side end in any order, and GLM's template does not show the ids."""
    server = serve(start, "glm", "ok")
    prompts = spied(server)
    call = {"type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "times?"},
        {"role": "assistant", "tool_calls": [{**call, "id": name} for name in ("a", "b", "c")]},
        {"role": "tool", "content": "of none"},
        *({"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in "cab"),
        {"role": "user", "content": "well?"},
    ]
    assert server.post("/v1/chat/completions", {"messages": turns}).status_code == 200
    places = [prompts[0].index(f"of {name}") for name in ("a", "b", "c", "none")]
    assert places == sorted(places)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("arguments", ["[true]", "5", '"text"', [True], "no json", {"a": 1}, None])
def test_R010_replayed_arguments_of_any_kind(start: Start, dialect: str, arguments: Any) -> None:
    server = serve(start, dialect, "ok")
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert server.post("/v1/chat/completions", {"messages": replay(message)}).status_code == 200


def test_calls_and_results_in_their_older_names_are_the_same(start: Start) -> None:
    server = serve(start, "glm", "ok")
    prompts = spied(server)
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": ""}},
        {"role": "function", "name": "now", "content": "12:00"},
    ]
    assert server.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    assert "<tool_call>now</tool_call>" in prompts[0]
    assert "<tool_response>12:00</tool_response>" in prompts[0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_replayed_call_is_what_was_generated_to_the_last_token(
    start: Start, dialect: str
) -> None:
    """However the client writes the arguments, and without the reasoning."""
    answer = thought(dialect, "A long thought. " * 20) + called(dialect, "read", path="a", offset=1)
    server = serve(start, dialect, answer, "ok", pieces="marked")
    first = server.chat("read", tools=[READ], enable_thinking=True).json()
    held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    message = first["choices"][0]["message"]
    call = message["tool_calls"][0]
    call["function"]["arguments"] = '{ "offset":1,\n"path":"a" }'
    messages = [
        {"role": "user", "content": "read"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "text"},
    ]
    body = {"messages": messages, "tools": [READ], "enable_thinking": True}
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    # The last token of an answer was drawn and never computed.
    assert held - usage["prompt_tokens_details"]["cached_tokens"] <= 1
    assert usage["prompt_tokens"] > held


# ---- forms


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("thinking", [False, True])
def test_R024_R025_a_schema_holds_behind_the_reasoning(
    start: Start, dialect: str, thinking: bool
) -> None:
    prose = said(dialect, "Sure, here it is.")
    answer = (thought(dialect, "Not JSON.") if thinking else "") + prose
    server = serve(start, dialect, answer, answer)
    fields = {"response_format": JSON_SCHEMA, "enable_thinking": thinking, "max_tokens": 300}
    choice, streamed = both(server, **fields)
    assert choice["finish_reason"] == streamed["finish"] == "stop"
    assert choice["message"]["content"] == streamed["content"]
    assert set(json.loads(choice["message"]["content"])) == {"a"}
    if thinking and dialect != "hermes":
        assert choice["message"]["reasoning_content"].strip() == "Not JSON."


@pytest.mark.parametrize("dialect", DIALECTS)
def test_with_tools_a_form_still_lets_the_model_call_them(start: Start, dialect: str) -> None:
    """As agents do that want JSON at the end."""
    server = serve(start, dialect, called(dialect, "now"), said(dialect, "Prose."))
    fields = {"response_format": JSON_SCHEMA, "tools": [NOW], "max_tokens": 300}
    choice = server.chat(**fields).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "now"
    choice = server.chat(**fields).json()["choices"][0]
    content = choice["message"]["content"]
    assert choice["finish_reason"] == "tool_calls" or set(json.loads(content)) == {"a"}


def test_R026_an_answer_in_json_ends_when_its_object_closes(start: Start) -> None:
    server = serve(start, "hermes", '{"key": 1} and then prose without end')
    choice = server.chat(response_format={"type": "json_object"}).json()["choices"][0]
    assert choice["message"]["content"] == '{"key": 1}'
    assert choice["finish_reason"] == "stop"


def test_a_schema_that_cannot_be_used_is_told_in_the_log_and_answered(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(start, "hermes", "whatever")
    schema = {"type": "object", "$ref": "#/nope"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert server.chat(response_format=form).status_code == 200
    assert "enforced in part" in caplog.text


# ---- reasoning


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": None}, False),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"enabled": True}}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 500}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True, "other": 1}}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
    ],
)
def test_reasoning_is_on_only_when_asked_for(
    start: Start, dialect: str, fields: dict[str, Any], asked: bool
) -> None:
    server = serve(start, dialect, said(dialect, "ok"), pieces="marked")
    prompts = spied(server)
    assert server.chat(**fields).status_code == 200
    (prompt,) = prompts
    if dialect == "inkling":
        assert ("level: 0<" not in prompt) is asked
    elif dialect == "glm":
        assert prompt.endswith("<think>" if asked else "<think></think>")
    else:
        assert "Thinking" not in prompt


@pytest.mark.parametrize("dialect", DIALECTS)
def test_reasoning_never_is_in_the_content(start: Start, dialect: str) -> None:
    answer = thought(dialect, "Because.") + said(dialect, "So.")
    server = serve(start, dialect, answer, answer)
    choice, streamed = both(server, enable_thinking=True)
    message = choice["message"]
    assert (message["reasoning_content"].strip(), message["content"].strip()) == ("Because.", "So.")
    assert streamed["reasoning"] == message["reasoning_content"]
    assert streamed["content"] == message["content"]


def test_R081_a_limit_inside_the_reasoning_is_told(start: Start) -> None:
    server = serve(start, "glm", "thinking " * 20, "thinking " * 20)
    body = {"enable_thinking": True, "max_tokens": 10}
    choice = server.chat(**body).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert choice["message"]["reasoning_content"]
    assert choice["x_colibri_notice"]["code"] == "reasoning_cut"
    last = server.chunks(**body)[-1]["choices"][0]
    assert last["finish_reason"] == "length"
    assert last["x_colibri_notice"]["code"] == "reasoning_cut"


def test_reasoning_tokens_are_counted(start: Start) -> None:
    answer = thought("glm", "one two") + "three"
    server = serve(start, "glm", answer, pieces="marked")
    usage = server.chat(enable_thinking=True).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    assert usage["completion_tokens"] == 3


def test_a_role_marker_ends_a_chat_of_glm_and_a_leading_one_is_ignored(start: Start) -> None:
    """R001: also as letters; the client's own stops take their place."""
    server = serve(
        start, "glm", "<|user|>\nfine<|user|>invented", "a END b<|user|>c", pieces="whole"
    )
    assert text_of(server.chunks()).strip() == "fine"
    assert server.chat(stop=["END"]).json()["choices"][0]["message"]["content"] == "a "


def test_models_are_compared_only_when_told_to(start: Start) -> None:
    server = start(strict_model=True)
    for name in ("other", None):
        response = server.post("/v1/chat/completions", chat_body(model=name))
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert server.post("/v1/completions", {"prompt": "x", "model": name}).status_code == 404
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            assert server.post(path, chat_body(model=name)).status_code == 404
    assert server.chat().status_code == 200
    assert server.get("/v1/models/other").status_code == 404
    assert server.get(f"/v1/models/{MODEL_ID}").status_code == 200


def test_a_model_is_found_under_every_name_that_a_request_may_use(server: FakeServer) -> None:
    """Clients look a model up before they use it: what a request takes must be found."""
    for name in ("claude-sonnet-4-5", "openai/gpt-5", MODEL_ID):
        assert server.get(f"/v1/models/{name}").json()["id"] == MODEL_ID
        assert server.chat(model=name).json()["model"] == MODEL_ID
        anthropic = server.get(f"/v1/models/{name}", headers={"anthropic-version": "2023-06-01"})
        assert (anthropic.json()["type"], anthropic.json()["id"]) == ("model", MODEL_ID)


def test_R008_R009_models_have_both_dialects_shapes_and_every_name_of_the_context(
    server: FakeServer,
) -> None:
    (model,) = server.get("/v1/models?limit=1000").json()["data"]
    names = ("context_length", "context_window", "max_model_len", "max_context_length")
    assert [model[name] for name in (*names, "max_output_tokens")] == [4096] * 5
    headers = {"anthropic-version": "2026-10-21"}
    listed = server.get("/v1/models", headers=headers).json()
    assert listed["has_more"] is False
    assert listed["first_id"] == listed["last_id"] == listed["data"][0]["id"] == model["id"]
    assert listed["data"][0]["type"] == "model"
    one = server.get(f"/v1/models/{model['id']}", headers=headers).json()
    assert one == listed["data"][0]
    assert server.get(f"/v1/models?after_id={model['id']}", headers=headers).json()["data"] == []
    assert server.get(f"/v1/models?limit={'9' * 5000}").json()["data"] == [model]
    for bad in ("x", "0", "00", "-1", "²"):
        assert server.get(f"/v1/models?limit={bad}").status_code == 400
