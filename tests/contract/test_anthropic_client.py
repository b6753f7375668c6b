"""The official `anthropic` client, streaming and not, against the server.

Covers R033, R045, R048, R064, R065, R066, R068, R069.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest

from colibri.engine.fake import Script
from tests.support.fakeserver import MODEL_ID, FakeServer
from tests.support.messages import USER, WEATHER

MODEL = "any-model"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture
def claude(server: FakeServer) -> Iterator[anthropic.Anthropic]:
    """The official client as users configure it: base URL and a dummy key."""
    with anthropic.Anthropic(base_url=server.url, api_key="local", max_retries=0) as made:
        yield made


def create(claude: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    values: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": [USER], **fields}
    message: anthropic.types.Message = claude.messages.create(**values)
    return message


def test_a_message_is_answered(claude: anthropic.Anthropic, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    message = create(claude, system="be brief", extra_body={"temperature": 0})
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello"}]
    assert (message.role, message.model, message.stop_reason) == ("assistant", MODEL_ID, "end_turn")
    assert message.usage.output_tokens == 2
    assert message._request_id is not None
    assert server.backend.samplings[-1].temperature == 0


def test_the_stream_helper_gathers_text_and_usage(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    with claude.messages.stream(model=MODEL, max_tokens=100, messages=[USER]) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "Hello"
    assert message.content[0].to_dict()["text"] == "Hello"
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 2)
    assert message.usage.input_tokens > 0


def test_the_plain_stream_is_a_sequence_of_events(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    kinds = [event.type for event in create(claude, stream=True)]  # type: ignore[attr-defined]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_answered(
    claude: anthropic.Anthropic, server: FakeServer, stream: bool
) -> None:
    server.backend.enqueue(Script(pieces=("Let me look.\n", *CALL)), Script(pieces=("Sunny.",)))
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "tools": [WEATHER]}
    if stream:
        with claude.messages.stream(messages=[USER], **fields) as events:
            message = events.get_final_message()
    else:
        message = create(claude, **fields)
    assert message.stop_reason == "tool_use"
    text, call = message.content
    assert (text.type, call.type) == ("text", "tool_use")
    assert (call.name, call.input) == ("weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    again = create(
        claude,
        messages=[
            USER,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ],
        **{**fields, "max_tokens": 100},
    )
    assert again.content[0].to_dict()["text"] == "Sunny."
    assert again.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "auto"},
        {"type": "any"},
        {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    ],
)
def test_every_choice_of_tools_is_taken_and_demanded_calls_are_made(
    claude: anthropic.Anthropic, server: FakeServer, choice: dict[str, Any]
) -> None:
    server.backend.enqueue(Script(pieces=tuple(CALL)))
    message = create(claude, tools=[WEATHER], tool_choice=choice, max_tokens=500)
    assert message.stop_reason == "tool_use"
    assert message.content[-1].to_dict()["input"] == {"city": "Oslo"}


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_ends_the_answer_if_more_are_not_wanted(
    claude: anthropic.Anthropic, server: FakeServer, stream: bool
) -> None:
    for alone, calls in ((True, 1), (False, 3)):
        server.backend.enqueue(Script(pieces=("Look: ", CALL + CALL, CALL)))
        choice: Any = {"type": "auto", "disable_parallel_tool_use": alone}
        fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 500}
        if stream:
            with claude.messages.stream(model=MODEL, messages=[USER], **fields) as events:
                message = events.get_final_message()
        else:
            message = create(claude, **fields)
        assert message.stop_reason == "tool_use"
        kinds = [block.type for block in message.content]
        assert kinds.count("tool_use") == calls


def test_with_the_choice_none_a_call_is_text(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=tuple(CALL)))
    message = create(claude, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=500)
    assert message.stop_reason == "end_turn"
    assert message.content[0].type == "text"


class Person(msgspec.Struct):
    """What the form of an answer asks for."""

    name: str
    age: int


def test_the_form_of_an_answer_is_enforced(claude: anthropic.Anthropic, server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=('{"name": "Ann", "age": 4}', " and more")))
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    message = create(claude, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert msgspec.json.decode(message.content[0].to_dict()["text"], type=Person).age == 4


def test_the_parse_helper_gives_an_object(claude: anthropic.Anthropic, server: FakeServer) -> None:
    import pydantic

    class City(pydantic.BaseModel):
        name: str
        people: int

    server.backend.enqueue(Script(pieces=('{"name": "Oslo", "people": 700000}',)))
    parsed = claude.messages.parse(
        model=MODEL, max_tokens=100, messages=[USER], output_format=City
    ).parsed_output
    assert parsed == City(name="Oslo", people=700_000)


def test_tokens_are_counted_as_they_are_used(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    """R048."""
    fields: dict[str, Any] = {"system": "be brief", "tools": [WEATHER], "messages": [USER]}
    counted = claude.messages.count_tokens(model=MODEL, **fields).input_tokens
    assert counted == create(claude, **fields).usage.input_tokens > 100


def test_reasoning_is_a_block_that_can_be_sent_back(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    server.backend.enqueue(Script(pieces=("<think>", "I think.", "</think>", "Yes.")))
    message = create(claude, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    thought, answer = message.content
    assert (thought.type, answer.type) == ("thinking", "text")
    assert thought.to_dict()["thinking"] == "I think."
    again = create(claude, messages=[USER, {"role": "assistant", "content": message.content}, USER])
    assert again.content[0].to_dict()["text"] == "ok"


# ---- errors --------------------------------------------------------------------------------------


def test_errors_are_the_clients_own_exceptions(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="'top_k'") as bad:
        create(claude, extra_body={"top_k": 4})
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096"):
        create(claude, messages=[{"role": "user", "content": "x" * 9000}])
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.list()
    server.backend.enqueue(Script(fail_at=0))
    with pytest.raises(anthropic.InternalServerError):
        create(claude)


def test_a_stream_that_fails_raises(claude: anthropic.Anthropic, server: FakeServer) -> None:
    """R045."""
    server.backend.enqueue(Script(pieces=("a", "b", "c"), fail_at=2))
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite"),
        claude.messages.stream(model=MODEL, max_tokens=100, messages=[USER]) as stream,
    ):
        stream.until_done()


def test_a_wrong_key_is_an_authentication_error() -> None:
    server = FakeServer(api_key="secret")
    server.start()
    try:
        for key in ("api_key", "auth_token"):
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **{key: "secret"}) as good:
                assert create(good).content
        with (
            anthropic.Anthropic(base_url=server.url, max_retries=0, api_key="other") as wrong,
            pytest.raises(anthropic.AuthenticationError),
        ):
            create(wrong)
    finally:
        server.stop()


def test_a_busy_server_is_asked_again(server: FakeServer) -> None:
    """A 429 with the time to wait is retried by the client itself."""
    busy = FakeServer(Script(pieces=("x",), repeat=True, token_ms=5), max_queue=0)
    busy.start()
    try:
        with anthropic.Anthropic(base_url=busy.url, api_key="local", max_retries=5) as claude:
            first = claude.messages.create(
                model=MODEL, max_tokens=4000, messages=[USER], stream=True
            )
            next(iter(first))
            busy.wait_for(active=1)
            with pytest.raises(anthropic.RateLimitError):
                create(claude.with_options(max_retries=0))
            threading.Timer(0.5, first.close).start()
            assert create(claude).content[0].to_dict()["text"] == "ok"
    finally:
        busy.stop()
    assert busy.scheduler.counters().rejected >= 2


# ---- threads -------------------------------------------------------------------------------------


def test_the_tool_runner_falls_back_from_threads(
    claude: anthropic.Anthropic, server: FakeServer
) -> None:
    """It asks for a thread first; refused in the right form, it sends everything itself."""
    cities: list[str] = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather."""
        cities.append(city)
        return "sunny"

    server.backend.enqueue(Script(pieces=tuple(CALL)), Script(pieces=("It is sunny.",)))
    runner = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, tools=[weather], messages=[USER]
    )
    message = runner.until_done()
    assert message.content[0].to_dict()["text"] == "It is sunny."
    assert cities == ["Oslo"]
    counters = server.scheduler.counters()
    assert counters.completed == 2
