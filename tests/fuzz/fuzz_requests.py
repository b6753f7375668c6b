"""Hostile request bodies of both dialects: from bytes to the prompt, as far as no engine is needed.

Schemas, native request, template, tokenizer, grammar. A mutator that knows JSON keeps most inputs
well-formed, so that the fuzzer gets past the parser; the seeds have the structure of what real
clients send. A request may be refused with a 4xx, and nothing else may be raised.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri.api", "colibri.text", "colibri.models.served"]):
    from colibri.api.anthropic import handler as anthropic
    from colibri.api.openai import handler as openai

from colibri.errors import RequestError
from tests.clients import bodies
from tests.fuzz import target
from tests.support import textmodels

_LARGEST_SEED = 4000  # bytes: larger ones are slow and teach the fuzzer nothing new
_NESTED: Any = []
for _ in range(70):
    _NESTED = [_NESTED]
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 63, -(1 << 63), 1 << 70, 0.5, 1e308, "", "x", "\ud800", "\0",
    "<|user|>", "</think>", "<tool_call>", "\ufdd0", [], {}, [[]], [{}], {"": {}}, {"type": []},
    {"type": "text"}, {"type": "text", "text": 1}, {"type": "function", "function": {}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"$ref": "#/$defs/a"}, {"enum": []},
    {"type": "string", "pattern": "("}, {"allOf": [{"not": {}}]}, "required", "auto", "none",
    "tool", "assistant", "system", "developer", "user", "{", '{"a": 1}', _NESTED, "é" * 300,
)  # fmt: skip


def read(data: bytes, folder: Path) -> None:
    del folder
    if not data:
        return
    services = textmodels.services(("hermes", "glm")[data[0] >> 1 & 1])
    prepare = (openai.prepare_chat, anthropic.prepare, anthropic.count, openai.prepare_completion)[
        data[0] >> 2 & 3
    ]
    try:
        prepare(data[1:], services)
    except RequestError:
        return


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of every value below this one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        found.append((value, key))
        if isinstance(inner, dict | list):
            _places(inner, found)
    return found


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """The input with one to three values replaced, removed, doubled or moved."""
    rng = random.Random(seed)  # noqa: S311
    try:
        body = json.loads(data[1:])
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict | list) or not body or rng.random() < 0.2:
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(rng.randint(1, 3)):
        places = _places(body, [])
        if not places:
            break
        container, key = rng.choice(places)
        other, source = rng.choice(places)
        action = rng.randrange(5)
        if action == 0:
            # A copy: a value that is changed in one input must not come back in the next.
            container[key] = copy.deepcopy(rng.choice(_ODD))
        elif action == 1:
            del container[key]
        elif action == 2 and isinstance(container, list):
            container.append(json.loads(json.dumps(container[key])))
        elif action == 3:
            container[key] = json.loads(json.dumps(other[source]))
        elif isinstance(container[key], str):
            container[key] += rng.choice([t for t in _ODD if isinstance(t, str)])
    changed = bytes([data[0] ^ (1 << rng.randrange(8) if rng.random() < 0.1 else 0)])
    return (changed + json.dumps(body).encode())[:max_size]


def seeds() -> dict[str, bytes]:
    """A request of every kind that clients send, for both models."""
    found = {}
    for name in bodies.names():
        recorded = bodies.build(name)
        text = json.dumps(recorded.body).encode()
        if recorded.method == "POST" and len(text) < _LARGEST_SEED:
            route = 3 if "prompt" in recorded.body else int(recorded.dialect == "anthropic")
            for model in (0, 1):
                found[f"{name.replace('/', '-')}-{model}"] = bytes([route << 2 | model << 1]) + text
    return found


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    target.run(read, seeds(), mutate)
