"""Whatever JSON a client puts into a request, the answer is 200 or a 400 that explains itself.

Covers R010, R012, R072, R132.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from flask.testing import FlaskClient
from hypothesis import strategies as st

from colibri.api.app import create_app
from colibri.api.openai.schemas import ChatRequest, CompletionRequest
from tests.support.fakeserver import FakeServer, chat_body

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
def client() -> Iterator[FlaskClient]:
    server = FakeServer()
    server.start()
    yield create_app(server.services).test_client()
    server.stop()


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
