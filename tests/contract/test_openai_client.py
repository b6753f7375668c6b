"""The official `openai` client, streaming and not, against the server.

Covers R016, R017, R018, R029, R068, R126.
"""

from __future__ import annotations

import openai
import pytest

from colibri.engine.fake import Script
from tests.support.fakeserver import MODEL_ID, FakeServer

USER = [{"role": "user", "content": "hi"}]


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL_ID
    assert client.models.retrieve(MODEL_ID).owned_by == "colibri"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("unknown/model")


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
