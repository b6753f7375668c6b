"""POST /v1/messages and /v1/messages/count_tokens over the scripted engine.

Covers R033, R034, R036, R037, R038, R046, R048, R049, R076, R082, R084, R085, R089.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from colibri.engine.fake import Script
from colibri.engine.protocol import Done, Usage
from colibri.text import tokenizer
from colibri.text.tokenizer import Tokenizer
from tests.support.fakeserver import MODEL_ID, FakeServer, chat_model, served_model, text_of
from tests.support.messages import USER, WEATHER, events_of, gathered, messages_body, request_bytes

Start = Callable[..., FakeServer]
PATH = "/v1/messages"


def ask(server: FakeServer, path: str = PATH, **fields: Any) -> dict[str, Any]:
    """The message of an answer that is not streamed."""
    response = server.post(path, messages_body(**fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(server: FakeServer, path: str = PATH, **fields: Any) -> dict[str, Any]:
    """The error of a request that is refused with 400, in Anthropic's shape."""
    response = server.post(path, messages_body(**fields))
    assert response.status_code == 400, response.text
    data = response.json()
    assert data["type"] == "error"
    assert data["error"]["type"] == "invalid_request_error"
    assert data["request_id"] == response.headers["x-request-id"]
    error: dict[str, Any] = data["error"]
    return error


def same(message: dict[str, Any]) -> dict[str, Any]:
    """What must be equal in two answers to the same request."""
    return {key: value for key, value in message.items() if key not in ("id", "usage")}


# ---- answers -------------------------------------------------------------------------------------


def test_R033_a_message_is_answered_whole(server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    response = server.post(PATH + "?beta=true", messages_body(model="claude-sonnet-4-5"))
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["x-colibri-queue-wait-ms"]) >= 0
    answer = response.json()
    assert re.fullmatch(r"msg_[0-9a-f]{24}", answer.pop("id"))
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL_ID,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 20,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", ["/messages", "/v1/messages", "/v1/v1/messages"])
def test_base_urls_with_v1_forgotten_or_doubled_work(server: FakeServer, path: str) -> None:
    """R037: and query strings are ignored."""
    assert ask(server, f"{path}?beta=true&x=1")["type"] == "message"
    assert server.post(f"{path}/count_tokens?beta=true", messages_body()).status_code == 200


def test_a_stream_tells_the_same_with_every_event_in_its_place(server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")), Script(pieces=("Hel", "lo")))
    whole = ask(server)
    events = events_of(server.post(PATH, messages_body(stream=True)))
    assert [name for name, _ in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = gathered(events)
    assert same(message) == same(whole)
    # The second request found the first one's prompt, and says so from the beginning.
    usage = events[0][1]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 20
    assert usage["cache_read_input_tokens"] == message["usage"]["cache_read_input_tokens"] > 0
    assert message["usage"]["output_tokens"] == 2


def test_an_answer_without_text_has_no_block(server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=()), Script(pieces=()))
    assert ask(server)["content"] == []
    message = gathered(events_of(server.post(PATH, messages_body(stream=True))))
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_ends_an_answer_and_large_ones_are_clamped(
    server: FakeServer, stream: bool
) -> None:
    for limit, tokens, reason in ((3, 3, "max_tokens"), (128_000, 9, "end_turn")):
        server.backend.enqueue(Script(pieces=("x",) * 9))
        response = server.post(PATH, messages_body(max_tokens=limit, stream=stream))
        message = gathered(events_of(response)) if stream else response.json()
        assert message["usage"]["output_tokens"] == tokens
        assert message["stop_reason"] == reason


def test_R084_a_character_cut_into_bytes_arrives_whole(server: FakeServer) -> None:
    script = Script(pieces=(b"\xf0", b"\x9f", b"\x98", b"\x80"))
    server.backend.enqueue(script, script)
    assert ask(server)["content"][0]["text"] == "\N{GRINNING FACE}"
    assert ask(server, max_tokens=2)["content"] == []


def test_sampling_reaches_the_engine(start: Start) -> None:
    server = start(temperature=0.25)
    ask(server, temperature=0, top_p=0.5)
    assert (server.backend.samplings[-1].temperature, server.backend.samplings[-1].top_p) == (
        0,
        0.5,
    )
    ask(server)
    assert server.backend.samplings[-1].temperature == 0.25


def test_a_cache_slot_can_be_named(start: Start) -> None:
    server = start(kv_slots=2)
    ask(server, cache_slot=1)
    assert "cache_slot" in refused(server, cache_slot=2)["message"]


def test_any_model_name_is_served_and_the_answer_carries_the_real_one(server: FakeServer) -> None:
    for name in ("claude-opus-4-8", "", None):
        assert ask(server, model=name)["model"] == MODEL_ID


# ---- what clients send ---------------------------------------------------------------------------


def test_fields_that_change_nothing_are_accepted(server: FakeServer) -> None:
    """Refusing any of these kills a client that sends it by default."""
    fields: dict[str, Any] = {
        "metadata": {"user_id": '{"session_id":"0"}'},
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "safeguards": [{"type": "dangerous_tool_use", "classifier_context": {"v": 1}}],
        "cache_control": {"type": "ephemeral"},
        "stop_sequences": [],
        "top_k": None,
        "top_p": None,
        "temperature": 1.0,
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"},
        "tools": [],
        "tool_choice": None,
        "system": None,
        "stream": None,
        "thread": None,
        "mcp_servers": [],
        "container": None,
        "inference_geo": None,
        "diagnostics": None,
        "speed": "standard",
        "something_new": {"a": [1]},
    }
    assert ask(server, **fields)["content"] == [{"type": "text", "text": "ok"}]
    body = messages_body()
    del body["max_tokens"], body["model"]
    assert server.post(PATH, body).status_code == 200


@pytest.mark.parametrize("stop_sequences", [None, []])
@pytest.mark.parametrize("top_k", [None])
def test_empty_fields_that_would_be_refused_are_accepted(
    server: FakeServer, stop_sequences: object, top_k: object
) -> None:
    ask(server, stop_sequences=stop_sequences, top_k=top_k)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stop_sequences": ["END"]}, "stop_sequences"),
        ({"top_k": 40}, "top_k"),
        ({"top_k": 0}, "top_k"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [USER, {"role": "user", "content": [DOCUMENT]}]}, "messages[1].content[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]",
        ),
        ({"system": [IMAGE]}, "system[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user", "content": "hi"}}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tools": [{"name": "a", "input_schema": "none"}]}, "tools[0].input_schema"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
                    }
                ]
            },
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    server: FakeServer, fields: dict[str, Any], named: str
) -> None:
    for stream in (False, True):
        assert f"'{named}" in refused(server, stream=stream, **fields)["message"]
    counters = server.scheduler.counters()
    assert counters.completed + counters.failed + counters.active == 0


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_a_thread_is_refused_in_the_form_that_makes_clients_fall_back(
    server: FakeServer, thread: dict[str, str]
) -> None:
    error = refused(server, thread=thread)
    assert error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


def test_broken_json_is_a_400_in_the_shape(server: FakeServer) -> None:
    for data in (b"", b"{", b"[]", b"null", b'{"messages":"\xff"}', b"[" * 100_000):
        response = server.post(PATH, content=data, headers={"Content-Type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_that_leaves_no_room_is_too_long_as_well(start: Start) -> None:
    """R054: refused before any work."""
    words = "x" * (64 - len("user: \nassistant: "))
    server = start(context=64)
    message = refused(server, messages=[{"role": "user", "content": words}])["message"]
    assert message == "prompt is too long: 64 tokens > 63 maximum"
    assert server.backend.samplings == []
    shorter = ask(server, messages=[{"role": "user", "content": words[1:]}])
    assert shorter["usage"]["output_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_R082_a_prompt_that_is_too_long_is_told_with_both_numbers(
    start: Start, stream: bool
) -> None:
    """R076: before any header of a stream."""
    server = start(context=64)
    response = server.post(
        PATH, messages_body(messages=[{"role": "user", "content": "x" * 100}], stream=stream)
    )
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    tokens = len("user: \nassistant: ") + 100
    assert response.json()["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {tokens} tokens > 64 maximum",
    }


def test_a_prompt_far_too_long_is_refused_before_it_is_read_to_its_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every route, with a number that is true; counting alone counts to the end."""
    server = start(context=100, model=chat_model("glm"), dialect="glm")
    words = "word " * 20_000
    messages = [{"role": "user", "content": words}]
    exact = server.post(f"{PATH}/count_tokens", {"messages": messages}).json()["input_tokens"]
    seen: list[int] = []
    encode = Tokenizer.encode

    def counted(self: Tokenizer, text: str, *, markers: bool = False) -> list[int]:
        seen.append(len(text))
        return encode(self, text, markers=markers)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    monkeypatch.setattr(tokenizer, "_PIECE", 4096)
    said = refused(server, messages=messages)["message"]
    found = re.fullmatch(r"prompt is too long: more than (\d+) tokens > 100 maximum", said)
    assert found
    assert 100 < int(found[1]) <= exact
    answer = server.post("/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert error["message"] == (
        "This model's maximum context length is 100 tokens. However, your messages resulted in "
        f"more than {found[1]} tokens. Please reduce the length of the messages."
    )
    assert sum(seen) < len(words) / 5
    assert server.backend.samplings == []


def test_R034_a_prompt_that_will_take_hours_is_warned_of_up_front(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, and in the first moments of a stream, where nothing becomes visible text."""
    server = start()
    usage = Usage(prompt=2000, cached=0, completion=1)
    for seconds, warned in ((2.0, False), (2e7, True)):
        done = Done(
            job="x", finish_reason="stop", usage=usage, prefill_ms=seconds * 1000, decode_ms=1
        )
        server.scheduler.patience.learn(done)
        events = events_of(server.post(PATH, messages_body(stream=True)))
        assert gathered(events)["content"] == [{"type": "text", "text": "ok"}]
        notices = [(n, data) for n, (_, data) in enumerate(events) if "x_colibri_notice" in data]
        assert [data["type"] for _, data in notices] == ["ping"] * warned
        chunks = server.chunks()
        assert text_of(chunks) == "ok"
        found = [c["choices"][0].get("x_colibri_notice") for c in chunks]
        assert [notice["code"] for notice in found if notice] == ["slow_prompt"] * warned
        assert ("will take about" in caplog.text) == warned
        assert ask(server)["stop_reason"] == "end_turn"
        if warned:
            first = next(n for n, (name, _) in enumerate(events) if name == "content_block_start")
            assert notices[0][0] < first
            assert found.index(next(filter(None, found))) == 1


def test_without_a_chat_template_the_refusal_says_so(start: Start) -> None:
    server = start(model=served_model(render=None))
    assert "chat template" in refused(server)["message"]
    assert "chat template" in refused(server, f"{PATH}/count_tokens")["message"]


def test_a_busy_server_answers_429_with_the_time_to_wait(start: Start) -> None:
    """R037."""
    server = start(Script(prefill_ms=600_000), max_queue=0)
    with server.raw(request_bytes(messages_body(stream=True))):
        server.wait_for(active=1)
        response = server.post(PATH, messages_body(stream=True))
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert int(response.headers["retry-after"]) > 0


# ---- counting ------------------------------------------------------------------------------------

CONVERSATION: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [WEATHER],
    "messages": [
        {"role": "user", "content": "How is it in Oslo?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I must ask.", "signature": "x"},
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}],
        },
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "And tomorrow?"},
    ],
}


@pytest.mark.parametrize(
    "fields", [{}, CONVERSATION, {**CONVERSATION, "thinking": {"type": "adaptive"}}]
)
def test_R048_a_count_is_what_the_same_body_uses(
    server: FakeServer, fields: dict[str, Any]
) -> None:
    body = messages_body(**{**fields, "max_tokens": 1})
    counted = server.post(f"{PATH}/count_tokens", body)
    assert counted.status_code == 200
    usage = server.post(PATH, body).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"]}
    again = server.post(PATH, body).json()["usage"]
    assert again["input_tokens"] + again["cache_read_input_tokens"] == usage["input_tokens"]
    assert again["cache_read_input_tokens"] > 0


def test_R049_counts_take_no_turn_and_do_not_wait_for_one(start: Start) -> None:
    server = start(Script(prefill_ms=600_000), max_queue=0)
    answers: list[int] = []

    def count(number: int) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * number}], "tools": []}
        answers.append(server.post(f"{PATH}/count_tokens?beta=true", body).json()["input_tokens"])

    with server.raw(request_bytes(messages_body(stream=True))):
        server.wait_for(active=1)
        threads = [threading.Thread(target=count, args=(number,)) for number in range(25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.scheduler.counters().active == 1
    short = len("user: \nassistant: ")
    assert sorted(answers) == [short + number for number in range(25)]


def test_a_count_may_exceed_the_context(start: Start) -> None:
    server = start(context=64)
    body = {"messages": [{"role": "user", "content": "x" * 100}]}
    assert server.post(f"{PATH}/count_tokens", body).json()["input_tokens"] > 64
    assert server.post(f"{PATH}/count_tokens", {"messages": []}).status_code == 400


# ---- the prompt ----------------------------------------------------------------------------------


def prompt_of(server: FakeServer, **fields: Any) -> str:
    """The text that the fake model's template makes of a request."""
    prompts: list[list[int]] = []
    admit = server.scheduler.admit

    def spy(asked: Any, gone: Any) -> Any:
        prompts.append(asked.prompt)
        return admit(asked, gone)

    server.scheduler.admit = spy
    try:
        ask(server, **fields)
    finally:
        server.scheduler.admit = admit
    return bytes(token - 10 for token in prompts[0]).decode()


def test_R038_a_system_message_may_stand_anywhere(server: FakeServer) -> None:
    messages = [
        {"role": "system", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "go"},
    ]
    assert prompt_of(server, system="s", messages=messages) == (
        "system: s\nsystem: first\nuser: a\nb\nsystem: be brief\nuser: go\nassistant: "
    )


BEGUN = [USER, {"role": "assistant", "content": "The answer is ("}]


def test_the_beginning_of_an_answer_goes_on(server: FakeServer) -> None:
    """A conversation that ends with the assistant's words is an answer to be finished."""
    assert prompt_of(server, messages=BEGUN) == "user: hi\nassistant: The answer is ("
    blocks = [USER, {"role": "assistant", "content": [{"type": "text", "text": "The "}]}]
    assert prompt_of(server, messages=blocks) == "user: hi\nassistant: The "
    counted = server.post(f"{PATH}/count_tokens", {"messages": BEGUN}).json()
    assert counted["input_tokens"] == len("user: hi\nassistant: The answer is (")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": BEGUN, "thinking": {"type": "adaptive"}},
        {"messages": BEGUN[1:]},
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
                },
            ]
        },
    ],
)
def test_other_last_words_of_the_assistant_are_history(
    server: FakeServer, fields: dict[str, Any]
) -> None:
    assert prompt_of(server, **fields).endswith("\nassistant: ")


# ---- who may ask, and how ------------------------------------------------------------------------


def test_a_wrong_key_is_refused_and_both_headers_are_taken(start: Start) -> None:
    server = start(api_key="secret")
    assert server.post(PATH, messages_body()).json()["error"]["type"] == "authentication_error"
    for headers in (
        {"x-api-key": "secret", "anthropic-version": "2023-06-01"},
        {"Authorization": "Bearer secret", "anthropic-version": "2026-10-21"},
        {"x-api-key": "secret", "anthropic-version": "1999-01-01"},
    ):
        assert server.post(PATH, messages_body(), headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_method_is_a_405_in_the_shape(server: FakeServer, method: str) -> None:
    response = httpx.request(method, server.url + PATH, json={})
    assert response.status_code == 405
    assert response.headers["allow"] == "OPTIONS, POST"
    assert response.json()["type"] == "error"
