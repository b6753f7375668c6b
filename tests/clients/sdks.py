"""Steps of the SDKs: OpenAI and Anthropic for JavaScript, LiteLLM over both dialects.

For: `tests.clients.run`. A step gets the stage, says what it saw, and raises StepError when that is
not what a user of the client should see. Answers of the real server are those of SmolLM2:
only what a grammar or the protocol guarantees is asked of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from colibri.engine.fake import Script
from tests.clients import environments
from tests.clients.stage import Stage, StepError, need

PROGRAMS = Path(__file__).parent / "programs"
Step = Callable[[Stage], str]

CALL = (
    "<tool_call>", '{"name": "get_weather", "arguments": {"city": ', '"Os', 'lo"}}', "</tool_call>",
)  # fmt: skip
ROUND_TRIP = (Script(pieces=CALL), Script(pieces=("It is ", "sunny.")))


class Program:
    """A client's program: runs one step against a base URL, gives its JSON object."""

    def __init__(self, client: str, command: list[str], suffix: str, extra: list[str]) -> None:
        self.client = client
        self._command = command
        self._suffix = suffix  # between the server's address and the routes
        self._extra = extra

    def __call__(self, stage: Stage, step: str, url: str, *more: str) -> Any:
        environment = environments.Environment(self.client)
        home = stage.home(self.client)
        arguments = [step, url + self._suffix, *self._extra, *more]
        output = stage.run(
            self.client,
            [*self._command, *arguments],
            home,
            {"CLIENT_FOLDER": str(environment.folder)},
        )
        if output.code:
            raise StepError(output.all[-1500:])
        return json.loads(output.text.strip().splitlines()[-1])


def _text(seen: Any) -> str:
    need(seen["text"], seen)
    return str(seen["text"])


def steps(program: Program, *, stops: bool, streams_tools: bool) -> Iterator[tuple[str, Step]]:
    """The steps that all SDKs share. `stops`: the dialect knows stop texts."""

    def chat(stage: Stage) -> str:
        seen = program(stage, "chat", stage.real.url)
        need("Paris" in _text(seen), seen)
        need(seen["reason"] in ("stop", "end_turn"), seen)
        return repr(seen["text"])

    def stream(stage: Stage) -> str:
        seen = program(stage, "stream", stage.real.url)
        need("Paris" in _text(seen), seen)
        need(seen.get("same", True), seen)
        return json.dumps({k: v for k, v in seen.items() if k in ("chunks", "events", "reason")})

    def stop(stage: Stage) -> str:
        seen = program(stage, "stop", stage.real.url)
        if stops:
            need(_text(seen).endswith("is"), seen)
            need(seen["reason"] == "stop", seen)
        else:
            need(seen["status"] == 400 and "stop_sequences" in seen["message"], seen)
        return str(seen)

    def overflow(stage: Stage) -> str:
        seen = program(stage, "overflow", stage.real.url)
        need("32768" in str(seen), seen)
        need(seen.get("error") in (None, "ContextWindowExceededError"), seen)
        need(seen.get("status") in (None, 400), seen)
        return str(seen)[:150]

    def busy(stage: Stage) -> str:
        with stage.busy() as server:
            seen = program(stage, "busy", server.url)
            need(seen["text"] == "ok", seen)
            turned_away = server.scheduler.counters().rejected
        return f"{turned_away} times 429, then an answer"

    def tools(stage: Stage) -> str:
        found = []
        for mode in ("whole", "stream") if streams_tools else ("whole",):
            with stage.scripted(*ROUND_TRIP) as server:
                seen = program(stage, "tools", server.url, mode)
            need(seen["cities"] == ["Oslo"] and seen["text"] == "It is sunny.", (mode, seen))
            found.append(mode)
        return " and ".join(found)

    def forced(stage: Stage) -> str:
        seen = program(stage, "forced", stage.real.url)
        arguments = seen["input"] if "input" in seen else json.loads(seen["arguments"])
        need(seen["name"] == "get_weather" and isinstance(arguments["city"], str), seen)
        need(seen["reason"] in ("tool_calls", "tool_use"), seen)
        return str(arguments)[:80]

    yield from {
        "chat": chat, "stream": stream, "stop": stop, "overflow": overflow, "busy queue": busy,
        "tools": tools, "forced call": forced,
    }.items()  # fmt: skip


def javascript(program: Program) -> Iterator[tuple[str, Step]]:
    """The steps that only the JavaScript programs have."""

    def models(stage: Stage) -> str:
        seen = program(stage, "models", stage.real.url)
        need(seen["ids"] == [seen["one"]], seen)
        return str(seen["one"])

    def abort(stage: Stage) -> str:
        with stage.scripted(Script(pieces=("x ",), repeat=True, token_ms=5)) as server:
            program(stage, "abort", server.url)
            server.wait_for(active=0, cancelled=1)
        return "the job ended with the client"

    def shaped(stage: Stage) -> str:
        seen = program(stage, "json", stage.real.url)
        value = json.loads(_text(seen))
        need(list(value) == ["city", "letters"] and value["city"] in ("Paris", "Rome"), seen)
        return str(value)

    yield from {"models": models, "abort": abort, "JSON schema": shaped}.items()


def _count(program: Program) -> Step:
    def count(stage: Stage) -> str:
        seen = program(stage, "count", stage.real.url)
        need(seen["counted"] == seen["used"], seen)
        return f"{seen['counted']} tokens, as the answer's usage says"

    return count


def clients() -> dict[str, list[tuple[str, Step]]]:
    """Every SDK and its steps."""
    openai = Program("openai-js", ["node", str(PROGRAMS / "openai.mjs")], "/v1", [])
    anthropic = Program("anthropic-js", ["node", str(PROGRAMS / "anthropic.mjs")], "", [])
    python = ["python", str(PROGRAMS / "litellm_steps.py")]
    lite_openai = Program("litellm", python, "/v1", ["openai"])
    lite_anthropic = Program("litellm", python, "", ["anthropic"])
    return {
        "openai-js": [
            *steps(openai, stops=True, streams_tools=True), *javascript(openai),
        ],
        "anthropic-js": [
            *steps(anthropic, stops=False, streams_tools=True), *javascript(anthropic),
            ("count", _count(anthropic)),
        ],
        "litellm": [
            *steps(lite_openai, stops=True, streams_tools=False),
            *((f"anthropic/: {name}", step)
              for name, step in steps(lite_anthropic, stops=False, streams_tools=False)
              # It hides the field's name behind its own message, and does not retry at all.
              if name not in ("stop", "busy queue")),
        ],
    }  # fmt: skip
