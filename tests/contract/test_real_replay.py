"""A call that comes back in other words is not computed again: the whole way, on real models.

In two dialects, whose calls differ in everything: SmolLM2, and a small GLM of noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from colibri.models import synthetic
from colibri.models.synthetic import Shape
from tests.support.serveprocess import serve

TIMEOUT = 60
SCHEMA = {
    "type": "object",
    "properties": {"path": {"enum": ["a.txt", "b.txt"]}, "n": {"enum": [1, 2]}},
    "required": ["path", "n"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]


@pytest.fixture(params=["smollm2", "glm"])
def model(request: pytest.FixtureRequest, smollm2_folder: Path, tmp_path: Path) -> Path:
    if request.param == "smollm2":
        return smollm2_folder
    shape = Shape(layers=2, hidden=64, experts=8, top_k=2, expert_ffn=64)
    synthetic.make(tmp_path / "model", shape)
    return tmp_path / "model"


@pytest.mark.e2e
def test_the_next_turn_computes_only_what_is_new(model: Path) -> None:
    with serve(model, "--ctx", "2048") as running:

        def chat(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
            body = {"messages": messages, "tools": TOOLS, "temperature": 0, **fields}
            url = f"{running.url}/v1/chat/completions"
            answer = httpx.post(url, json=body, timeout=TIMEOUT)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        ask = [{"role": "user", "content": "Read the file, please."}]
        first = chat(ask, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
        (call,) = first["choices"][0]["message"]["tool_calls"]
        held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        values = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(values.items())), indent=3)
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "It is empty."}
        usage = chat([*ask, turn, result], max_tokens=2)["usage"]
        # The last token of an answer was drawn and never computed.
        assert held - usage["prompt_tokens_details"]["cached_tokens"] <= 1
        # The same words under an id that no answer had are words, and read again.
        call["id"] = "call_of_another"
        turn, result = {**turn, "tool_calls": [call]}, {**result, "tool_call_id": call["id"]}
        other = chat([*ask, turn, result], max_tokens=2)["usage"]
        assert held - other["prompt_tokens_details"]["cached_tokens"] > 1
