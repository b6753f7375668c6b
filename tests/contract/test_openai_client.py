"""The official `openai` client, streaming and not, against the server.

Covers R013, R016, R017, R018, R024, R026, R029, R056, R064, R065, R066, R068, R069, R126.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Literal

import openai
import pydantic
import pytest

from colibri.engine.fake import Script
from tests.support.fakeserver import MODEL_ID, FakeServer

USER = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "0047", "days": 2}}\n</tool_call>'


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL_ID
    assert client.models.retrieve(MODEL_ID).owned_by == "colibri"
    assert client.models.retrieve("unknown/model").id == MODEL_ID


def test_a_chat_is_answered(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    answer = client.chat.completions.create(
        model="any", messages=USER, temperature=0, max_completion_tokens=20, seed=1, user="me"
    )
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_the_loop_of_the_documentation_works(client: openai.OpenAI, server: FakeServer) -> None:
    """R017: choices[0] of every chunk, default options."""
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    text = ""
    reasons = []
    ids = set()
    for chunk in client.chat.completions.create(model="any", messages=USER, stream=True):
        text += chunk.choices[0].delta.content or ""
        reasons.append(chunk.choices[0].finish_reason)
        ids.add(chunk.id)
    assert text == "Hello"
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert len(ids) == 1


def test_the_stream_helper_gathers_text_and_usage(
    client: openai.OpenAI, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    with client.chat.completions.stream(
        model="any", messages=USER, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert "content.delta" in kinds
    assert answer.choices[0].message.content == "Hello"
    assert answer.usage
    assert answer.usage.completion_tokens == 2


def test_stops_cut_the_text(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("A ", "END", " B")))
    answer = client.chat.completions.create(model="any", messages=USER, stop=["END"])
    assert answer.choices[0].message.content == "A "


def test_legacy_completions_work_in_both_modes(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")), Script(pieces=("Hel", "lo")))
    whole = client.completions.create(model="any", prompt="x", max_tokens=10)
    assert whole.choices[0].text == "Hello"
    stream = client.completions.create(model="any", prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI, server: FakeServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="any", messages=USER, n=2)
    assert bad.value.param == "n"
    assert bad.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens"):
        client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "x" * 5000}], stream=True
        )
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="x")
    server.backend.enqueue(Script(fail_at=0))
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.chat.completions.create(model="any", messages=USER)


def test_an_error_in_a_stream_is_raised_by_the_client(
    client: openai.OpenAI, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("a", "b"), fail_at=1))
    stream = client.chat.completions.create(model="any", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="not finite"):
        list(stream)


def test_closing_a_stream_early_frees_the_slot(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=1))
    with client.chat.completions.create(model="any", messages=USER, stream=True) as stream:
        next(iter(stream))
    server.wait_for(active=0, cancelled=1)


def test_a_wrong_key_is_an_authentication_error() -> None:
    server = FakeServer(api_key="secret")
    server.start()
    try:
        for key, fine in (("secret", True), ("wrong", False)):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if fine:
                    assert client.models.list().data
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()
    finally:
        server.stop()


# ---- tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_R013_a_tool_is_called_and_its_result_is_answered(
    client: openai.OpenAI, server: FakeServer, stream: bool
) -> None:
    """R065, R069: and what the client keeps of the answer is accepted as it is."""
    server.backend.enqueue(Script(pieces=tuple(CALL)), Script(pieces=("Sunny.",)))
    if stream:
        with client.chat.completions.stream(model="any", messages=USER, tools=[WEATHER]) as events:
            names = [event.type for event in events]
            choice = events.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.delta" in names
    else:
        choice = client.chat.completions.create(
            model="any", messages=USER, tools=[WEATHER]
        ).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "0047", "days": 2}
    history = [
        *USER,
        choice.message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    again = client.chat.completions.create(model="any", messages=history, tools=[WEATHER])
    assert again.choices[0].message.content == "Sunny."


def test_R066_R068_two_calls_gather_by_index_in_the_naive_way(
    client: openai.OpenAI, server: FakeServer
) -> None:
    """As the documentation does: name and id from the first chunk, arguments added from all."""
    server.backend.enqueue(Script(pieces=tuple(CALL + "\n" + CALL)))
    calls: dict[int, dict[str, str]] = {}
    for chunk in client.chat.completions.create(
        model="any", messages=USER, tools=[WEATHER], stream=True
    ):
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.function
            if delta.index not in calls:
                assert (delta.type, delta.function.arguments) == ("function", "")
                calls[delta.index] = {"id": delta.id or "", "name": delta.function.name or ""}
                calls[delta.index]["arguments"] = ""
            calls[delta.index]["arguments"] += delta.function.arguments or ""
    assert list(calls) == [0, 1]
    assert len({call["id"] for call in calls.values()}) == 2
    for call in calls.values():
        assert call["name"] == "weather"
        assert json.loads(call["arguments"]) == {"city": "0047", "days": 2}


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
def test_R064_every_choice_of_tools_is_taken(
    client: openai.OpenAI, server: FakeServer, choice: Any
) -> None:
    server.backend.enqueue(Script(pieces=tuple(CALL)))
    answer = client.chat.completions.create(
        model="any",
        messages=USER,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_call_that_is_demanded_is_made_also_if_the_model_would_rather_talk(
    client: openai.OpenAI, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("I would rather talk.",) * 20))
    answer = client.chat.completions.create(
        model="any", messages=USER, tools=[WEATHER], tool_choice="required", max_tokens=500
    )
    assert answer.choices[0].message.tool_calls
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"
    assert "city" in json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


# ---- forms of answers ----------------------------------------------------------------------------


class City(pydantic.BaseModel):
    """What the form of an answer asks for."""

    name: str
    people: int
    side: Literal["north", "south"]


def test_R024_the_parse_helper_gives_an_object(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(
        Script(pieces=('{"name": "Oslo", "people": 7, "side": "north"}', " and more"))
    )
    answer = client.chat.completions.parse(model="any", messages=USER, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Oslo", people=7, side="north")
    assert answer.choices[0].finish_reason == "stop"


def test_R024_a_schema_is_followed_also_if_the_model_would_rather_talk(
    client: openai.OpenAI, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("I would rather talk.",) * 50))
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="any",
        messages=USER,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["a"], int)


def test_R026_an_object_ends_the_answer(client: openai.OpenAI, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=('{"a": [1, {"b": 2}]}', '{"c": 3}')))
    answer = client.chat.completions.create(
        model="any", messages=USER, response_format={"type": "json_object"}
    )
    assert json.loads(answer.choices[0].message.content or "") == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}},
    ],
)
def test_a_form_that_is_none_is_refused_by_name(client: openai.OpenAI, wrong: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="any", messages=USER, response_format=wrong)
    assert (bad.value.param or "").startswith("response_format")


def test_a_busy_server_is_asked_again() -> None:
    """A 429 with the time to wait is retried by the client itself."""
    busy = FakeServer(Script(pieces=("x",), repeat=True, token_ms=5), max_queue=0)
    busy.start()
    try:
        with openai.OpenAI(base_url=f"{busy.url}/v1", api_key="local", max_retries=0) as client:
            stream = client.chat.completions.create(model="any", messages=USER, stream=True)
            next(iter(stream))
            busy.wait_for(active=1)
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="any", messages=USER)
            threading.Timer(0.5, stream.close).start()
            answer = client.with_options(max_retries=5).chat.completions.create(
                model="any", messages=USER
            )
        assert answer.choices[0].message.content == "ok"
    finally:
        busy.stop()
    assert busy.scheduler.counters().rejected >= 2
