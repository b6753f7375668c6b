"""Whatever JSON a client puts into a request, the answer is 200 or a 400 that explains itself.

Covers R010, R012, R072, R132.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from flask.testing import FlaskClient
from hypothesis import strategies as st

from colibri.api.anthropic import handler as messages
from colibri.api.app import create_app
from colibri.api.openai import handler as chat
from colibri.api.openai.schemas import ChatRequest, CompletionRequest
from colibri.engine.protocol import Submit, read_frame, write_frame
from colibri.scheduler.generation import request_command
from colibri.text.arguments import Tools
from tests.support.fakeserver import FakeServer, chat_body, chat_model

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "name", "x"]), inner)
    ),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | ANY_JSON,
        "content": st.text() | ANY_JSON,
        "tool_calls": ANY_JSON,
        "tool_call_id": ANY_JSON,
        "name": ANY_JSON,
    },
)
EXAMPLES = hypothesis.settings(max_examples=150)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def client(server: FakeServer) -> FlaskClient:
    return create_app(server.services).test_client()


def check(client: FlaskClient, path: str, body: Any) -> None:
    response = client.post(path, data=json.dumps(body), content_type="application/json")
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        error = response.get_json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"


@EXAMPLES
@hypothesis.given(field=st.sampled_from(ChatRequest.__struct_fields__), value=ANY_JSON)
def test_any_value_in_any_field_of_a_chat(client: FlaskClient, field: str, value: Any) -> None:
    hypothesis.assume(not (field == "stream" and value is True))
    check(client, "/v1/chat/completions", {**chat_body(), field: value})


@EXAMPLES
@hypothesis.given(field=st.sampled_from(CompletionRequest.__struct_fields__), value=ANY_JSON)
def test_any_value_in_any_field_of_a_completion(
    client: FlaskClient, field: str, value: Any
) -> None:
    hypothesis.assume(not (field == "stream" and value is True))
    check(client, "/v1/completions", {"prompt": "x", field: value})


@EXAMPLES
@hypothesis.given(messages=st.lists(MESSAGE, max_size=4))
def test_any_conversation(client: FlaskClient, messages: list[Any]) -> None:
    check(client, "/v1/chat/completions", {"messages": messages})


@EXAMPLES
@hypothesis.given(body=ANY_JSON)
def test_any_body(client: FlaskClient, body: Any) -> None:
    check(client, "/v1/chat/completions", body)


@pytest.mark.parametrize(
    "number",
    [10**30, -(10**30), 10**500, 2**64 - 1, -(2**63), 7],
    ids=lambda number: str(number)[:8],
)
@pytest.mark.parametrize("dialect", [chat.prepare_chat, messages.prepare], ids=["chat", "messages"])
def test_a_tool_may_bound_its_numbers_as_it_likes(
    server: FakeServer, dialect: Any, number: int
) -> None:
    """JSON has whole numbers of any size; what goes to the engine's process has 64 bits."""
    schema = {"type": "object", "properties": {"a": {"enum": [number]}, "b": {"maximum": number}}}
    tool = {"name": "f", "input_schema": schema, "parameters": schema}
    data = json.dumps({**chat_body(), "tools": [tool]}).encode()
    stream = io.BytesIO()
    write_frame(stream, request_command(dialect(data, server.services).generation))
    stream.seek(0)
    sent = Tools(read_frame(stream, Submit).answer.tools)
    assert sent.value_type("f", "a").types == frozenset({"integer"})
    if -(2**63) <= number < 2**64:
        assert sent.schema("f") == schema


def test_what_is_nested_deeply_is_answered_or_refused() -> None:
    """Also between what can be read and what can be written, in a model whose template knows
    nothing of tools: the tools, and the arguments of calls, become text there.
    """
    server = FakeServer(model=chat_model("hermes"), context=100_000)
    server.start()
    try:
        client = create_app(server.services).test_client()
        statuses = set()
        for depth in range(850, 1000, 5):
            function = '{"name": "f", "parameters": DEEP, "arguments": DEEP}'
            function = function.replace("DEEP", '{"a": ' * depth + "1" + "}" * depth)
            user = '{"role": "user", "content": "hi"}'
            calls = f'{{"role": "assistant", "tool_calls": [{{"function": {function}}}]}}'
            for fields in (
                f'"messages": [{user}], "tools": [{{"function": {function}}}]',
                f'"messages": [{user}, {calls}]',
            ):
                response = client.post(
                    "/v1/chat/completions",
                    data=f'{{"max_tokens": 1, {fields}}}',
                    content_type="application/json",
                )
                statuses.add(response.status_code)
    finally:
        server.stop()
    assert statuses == {200, 400}
