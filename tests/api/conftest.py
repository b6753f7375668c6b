"""Fixtures of the API tests: servers over the scripted engine that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fakeserver import FakeServer


@pytest.fixture
def start() -> Iterator[Callable[..., FakeServer]]:
    """Starts servers with given scripts and settings."""
    servers: list[FakeServer] = []

    def start_one(*scripts: Any, **options: Any) -> FakeServer:
        server = FakeServer(*scripts, **options)
        servers.append(server)
        server.start()
        return server

    yield start_one
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Callable[..., FakeServer]) -> FakeServer:
    """A server with default settings, whose answers are "ok" unless a test enqueues others."""
    return start()
