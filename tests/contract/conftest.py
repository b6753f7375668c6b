"""Fixtures of the contract tests: official clients against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.fakeserver import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(server: FakeServer) -> Iterator[openai.OpenAI]:
    """The official client as users configure it: base URL and a dummy key."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="local", max_retries=0) as made:
        yield made
