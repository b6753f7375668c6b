"""Every way in which a request can be wrong, and the one shape of the answer.

Covers R002, R010, R012, R020, R024, R030, R054, R082, R132.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from colibri.engine.fake import Script
from colibri.engine.protocol import Sink, Submit
from tests.support.fakeserver import FakeServer, chat_body

Start = Callable[..., FakeServer]


def check_shape(data: Any) -> dict[str, Any]:
    """The one shape of an error; returns its inside."""
    assert list(data) == ["error"]
    error: dict[str, Any] = data["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["code"], str)
    return error


WRONG_FIELDS = [
    ("messages", {"role": "user", "content": "hi"}),
    ("messages", "hi"),
    ("messages", None),
    ("messages", []),
    ("messages[0]", ["hi"]),
    ("messages[0].role", [{"content": "hi"}]),
    ("messages[0].role", [{"role": 1, "content": "hi"}]),
    ("messages[0].role", [{"role": "robot", "content": "hi"}]),
    ("messages[0].content", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages[0].content[0]", [{"role": "user", "content": ["hi"]}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": "input_audio"}]}]),
    ("messages[0].content[0].text", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
    ("model", 5),
    ("stream", "yes"),
    ("stream", 1),
    ("stream_options", True),
    ("stream_options.include_usage", {"include_usage": "yes"}),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "many"),
    ("max_tokens", True),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", [5]),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("top_p", -0.5),
    ("top_p", 1.5),
    ("top_p", {}),
    ("seed", 2**64),
    ("seed", 1.5),
    ("seed", "x"),
    ("stop", 5),
    ("stop[0]", [5]),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("n", 2),
    ("n", 0),
    ("logprobs", True),
    ("top_logprobs", 3),
    ("frequency_penalty", 0.5),
    ("presence_penalty", -1),
    ("logit_bias", {"50256": -100}),
    ("functions", [{"name": "f"}]),
    ("response_format", "json_object"),
    ("response_format", {"type": "regex"}),
    ("response_format.json_schema", {"type": "json_schema"}),
    ("response_format.json_schema", {"type": "json_schema", "json_schema": "x"}),
    ("response_format.json_schema.schema", {"type": "json_schema", "json_schema": {}}),
    (
        "response_format.json_schema.schema",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": [1]}},
    ),
    ("tools", "x"),
    ("tool_choice", "sometimes"),
    ("tool_choice", 5),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "unknown"}}),
    ("tool_choice", {"type": "custom", "custom": {"name": "c"}}),
    ("tool_choice.function.name", {"type": "function"}),
    ("tool_choice.function.name", {"type": "function", "function": {"name": ""}}),
    ("tool_choice.allowed_tools.tools", {"type": "allowed_tools", "allowed_tools": {}}),
    (
        "tool_choice.allowed_tools.mode",
        {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}},
    ),
    ("reasoning_effort", 5),
    ("reasoning.effort", {"effort": 5}),
    ("parallel_tool_calls", "yes"),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("enable_thinking", "yes"),
    ("cache_slot", 1),
    ("x_colibri_ignore_leading_stop", "yes"),
]


@pytest.mark.parametrize(("param", "value"), WRONG_FIELDS)
def test_a_wrong_or_unsupported_field_is_a_400_that_names_it(
    server: FakeServer, param: str, value: object
) -> None:
    """R002, R012, R024: in both modes, before anything is generated, and the server goes on."""
    field = param.partition(".")[0].partition("[")[0]
    for stream in (False, True) if field != "stream" else (False,):
        response = server.post("/v1/chat/completions", {**chat_body(stream=stream), field: value})
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/json"
        error = check_shape(response.json())
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert field in error["message"]
    assert server.backend.samplings == []
    assert server.chat().status_code == 200


def test_messages_that_are_no_array_are_told_so(server: FakeServer) -> None:
    """R012."""
    response = server.post("/v1/chat/completions", {"messages": {"role": "user", "content": "hi"}})
    assert "must be an array" in response.json()["error"]["message"]


@pytest.mark.parametrize("arguments", ["[true]", "5", '"text"', [True], "not json", {"a": 1}, None])
def test_replayed_tool_calls_never_make_a_server_error(
    server: FakeServer, arguments: object
) -> None:
    """R010, R013: whatever the call holds, the history is accepted."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    for stream in (False, True):
        body = {"messages": messages, "stream": stream}
        assert server.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("messages[1].role", {"role": "robot", "content": "x"}),
        ("messages[1].content", {"role": "user"}),
        ("messages[1].content", {"role": "user", "content": None}),
        ("messages[1].content", {"role": "user", "content": 5}),
        ("messages[1].content[0]", {"role": "user", "content": [{"type": "image_url"}]}),
        ("messages[1].content[0]", {"role": "user", "content": [{"type": "input_audio"}]}),
        ("messages[1].content[0].text", {"role": "tool", "content": [{"type": "text"}]}),
        ("messages[1].tool_calls", {"role": "assistant", "tool_calls": {}}),
        (
            "messages[1].tool_calls[0].function.name",
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
        ),
        (
            "messages[1].tool_calls[0]",
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "c"}}]},
        ),
        ("messages[1].reasoning_content", {"role": "assistant", "reasoning_content": ["x"]}),
    ],
)
def test_a_wrong_message_is_a_400_that_names_its_place(
    server: FakeServer, param: str, message: dict[str, object]
) -> None:
    """R012, R132: images and audio are named, not ignored."""
    messages = [{"role": "user", "content": "hi"}, message]
    response = server.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400
    assert check_shape(response.json())["param"] == param
    assert server.backend.samplings == []


def test_tools_that_may_not_be_called_are_accepted(server: FakeServer) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert server.chat(tools=tools, tool_choice="none").status_code == 200


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": [1, "b"]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [10**6]}),
        ("suffix", {"prompt": "a", "suffix": "b"}),
        ("echo", {"prompt": "a", "echo": True}),
        ("best_of", {"prompt": "a", "best_of": 2}),
        ("logprobs", {"prompt": "a", "logprobs": 1}),
        ("max_tokens", {"prompt": "a", "max_tokens": 0}),
    ],
)
def test_a_wrong_field_of_the_legacy_route_is_named(
    server: FakeServer, param: str, fields: dict[str, object]
) -> None:
    """R030: suffix is refused, never ignored."""
    response = server.post("/v1/completions", fields)
    assert response.status_code == 400, response.text
    assert check_shape(response.json())["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": NaN}',
        b'{"temperature": 1e999, "messages": []}',
        b'{"seed": ' + b"9" * 5000 + b', "messages": []}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}',
        b'{"messages": [{"role": "user", "content": "cut off \\ud83d"}]} trailing',
    ],
)
def test_a_body_that_is_no_valid_request_is_a_400(server: FakeServer, body: bytes) -> None:
    """R132."""
    response = server.post(
        "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400, response.text
    check_shape(response.json())
    assert server.chat().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_a_400_before_any_header_of_a_stream(
    start: Start, stream: bool
) -> None:
    """R076, R082: in the words that clients look for."""
    server = start(context=100)
    response = server.chat("x" * 200, stream=stream)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = check_shape(response.json())
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        "This model's maximum context length is 100 tokens. However, your messages resulted in "
        "218 tokens. Please reduce the length of the messages."
    )


def test_a_prompt_that_leaves_room_for_one_token_is_served(start: Start) -> None:
    """R054: and one that leaves none is refused."""
    server = start(context=100)
    frame = len("user: \nassistant: ")
    assert server.chat("x" * (99 - frame)).json()["usage"]["completion_tokens"] == 1
    assert server.chat("x" * (100 - frame)).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("POST", "/v1/responses", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_routes_that_do_not_exist_answer_in_the_same_shape(
    server: FakeServer, method: str, path: str, status: int, code: str
) -> None:
    import httpx

    headers = {"Content-Type": "application/json"}
    response = httpx.request(method, server.url + path, headers=headers)
    assert response.status_code == status
    assert check_shape(response.json())["code"] == code
    assert response.headers["x-request-id"]
    assert ("Allow" in response.headers) == (status == 405)
    message = response.json()["error"]["message"]
    assert path in message
    assert ("/v1/openapi.json" if status == 404 else response.headers["Allow"]) in message


def test_models_carry_their_limits_under_the_names_clients_read(start: Start) -> None:
    """R008, R009."""
    server = start(context=3000, max_tokens=500)
    (model,) = server.get("/v1/models?limit=1000").json()["data"]
    assert model["object"] == "model"
    assert model["context_length"] == model["max_model_len"] == 3000
    assert model["max_output_tokens"] == 500
    assert server.get(f"/v1/models/{model['id']}").json() == model
    assert server.get("/health").json()["model"]["context_length"] == 3000
    assert server.chat("hi").status_code == 200


def test_an_engine_error_is_a_500_with_the_engines_sentence(start: Start) -> None:
    server = start(Script(pieces=("a", "b"), fail_at=1))
    response = server.chat()
    assert response.status_code == 500
    error = check_shape(response.json())
    assert error["code"] == "engine_numeric"
    assert "not finite" in error["message"]
    assert server.chat().status_code == 200


def test_an_engine_error_ends_a_stream_in_band(start: Start) -> None:
    """The chunks that came stay; the error follows them and the stream closes."""
    import json

    server = start(Script(pieces=("a", "b"), fail_at=1))
    response = server.chat(stream=True)
    assert response.status_code == 200
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert "[DONE]" not in events
    assert check_shape(json.loads(events[-1]))["code"] == "engine_numeric"
    assert '"content":"a"' in events[1]


def test_an_internal_error_tells_its_request_id_and_nothing_else(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted secret")

    monkeypatch.setattr(server.scheduler, "admit", broken)
    response = server.chat()
    assert response.status_code == 500
    error = check_shape(response.json())
    assert response.headers["x-request-id"] in error["message"]
    assert "planted" not in response.text
    assert "planted secret" in caplog.text


@pytest.mark.parametrize("budget", [1 << 31, 1 << 64, 10**30])
def test_a_reasoning_budget_of_any_size_is_no_error(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """A number that no 64 bits hold was a 500: it does not go through the pipe to the engine."""
    submit = server.engine.submit

    def through_the_pipe(command: Submit, sink: Sink) -> None:
        submit(msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Submit), sink)

    monkeypatch.setattr(server.engine, "submit", through_the_pipe)
    for fields in (
        {"reasoning": {"max_tokens": budget}},
        {"thinking": {"type": "enabled", "budget_tokens": budget}},
    ):
        answer = server.chat(**fields)
        assert answer.status_code == 200, answer.text
    thinking = {"type": "enabled", "budget_tokens": budget}
    answer = server.post("/v1/messages", chat_body(max_tokens=9, thinking=thinking))
    assert answer.status_code == 200, answer.text
