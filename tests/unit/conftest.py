"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from colibri.engine.fake import FakeBackend, Options
from tests.support.answering import Open
from tests.support.engineloop import EngineLoop


@pytest.fixture
def start() -> Iterator[Open]:
    """Starts loops over the scripted engine."""
    loops: list[EngineLoop] = []

    def start_one(dialect: str = "hermes", parallel: int = 1, **options: Any) -> EngineLoop:
        backend = FakeBackend(Options(dialect=dialect, **options))
        loops.append(EngineLoop(backend, parallel))
        return loops[-1]

    yield start_one
    for loop in loops:
        loop.close()
