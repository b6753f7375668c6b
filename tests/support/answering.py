"""Answers over the scripted engine: one loop, one script, the parts that are told.

For: the tests of `engine.answer` in `tests/unit`, whose fixture `start` opens the loops. Threads:
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from colibri.engine import fake
from colibri.engine.answer import (
    AnswerForm,
    CallArguments,
    CallStart,
    Part,
)
from colibri.engine.fake import FakeBackend, Script
from colibri.engine.protocol import Done, Event
from tests.support.engineloop import EngineLoop, parts_of
from tests.text.answers import GLM_CALL, HERMES_CALL, INKLING_CALL, NOW, WEATHER

TOOLS = (WEATHER, NOW)
CALLS = {"glm": GLM_CALL, "hermes": HERMES_CALL, "inkling": INKLING_CALL}
ARGUMENTS = {"city": "Rome", "days": 3}
FORM = AnswerForm(parse=True, tools=TOOLS)
THINKING = AnswerForm(parse=True, tools=TOOLS, reasoning=True)

Open = Callable[..., EngineLoop]


def run(loop: EngineLoop, *pieces: str | bytes, **fields: object) -> tuple[list[Part], Done]:
    """Parts and end of the answer that consists of these pieces."""
    script = Script(pieces=pieces)
    events = run_script(loop, script, **fields)
    done = events[-1]
    assert isinstance(done, Done), done
    return parts_of(events), done


def run_script(loop: EngineLoop, script: Script, **fields: object) -> list[Event]:
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    backend.enqueue(script)
    job = loop.submit(fake.encode("hi"), **{"answer": FORM, **fields})
    return loop.ends(job)[job]


def calls_of(parts: list[Part]) -> list[tuple[str, Any]]:
    """(name, arguments) of each call."""
    found = []
    for part in parts:
        if isinstance(part, CallStart):
            texts = [
                p.text for p in parts if isinstance(p, CallArguments) and p.index == part.index
            ]
            found.append((part.name, json.loads("".join(texts))))
    return found
