"""Steps of command-line clients: llm, aider, Claude Code, opencode.

For: `tests.clients.run`. They are driven as people do, with their own settings files and flags,
without a terminal. What they say of a small model's nonsense does not matter; that a turn ends,
that tools run, and what they make of an overflow or a busy server does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from colibri.engine.fake import Script
from tests.clients.sdks import Step
from tests.clients.stage import MODEL, Output, Stage, StepError, need

QUESTION = "What is the capital of France?"
LONG = "one two three " * 20000
_GREEDY = (QUESTION, "-o", "temperature", "0")


def _succeeded(output: Output, *pieces: str) -> None:
    need(output.code == 0, output.all)
    for piece in pieces:
        need(piece in output.text, output.all)


def _call(name: str, arguments: object) -> Script:
    body = json.dumps({"name": name, "arguments": arguments})
    return Script(pieces=("<tool_call>\n", body[:20], body[20:], "\n</tool_call>"))


# ---- llm -----------------------------------------------------------------------------------------


def _llm(stage: Stage, url: str, arguments: Sequence[str], text: str = "") -> Output:
    home = stage.home("llm")
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: {MODEL}\n  api_base: {url}/v1\n  api_key_name: local\n"
        "  supports_tools: true\n  supports_schema: true\n"
        f"- model_id: plain\n  model_name: {MODEL}\n  api_base: {url}/v1\n  api_key_name: local\n"
        "  completion: true\n"
    )
    (home / "keys.json").write_text('{"local": "local"}')
    environment = {
        "LLM_USER_PATH": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "local",
    }
    return stage.run("llm", ["llm", *arguments], home, environment, text=text)


def _llm_steps() -> list[tuple[str, Step]]:
    def chat(stage: Stage) -> str:
        output = _llm(
            stage,
            stage.real.url,
            ["-m", "local", "--no-stream", QUESTION, "-o", "temperature", "0"],
        )
        _succeeded(output, "Paris")
        return output.text.strip()

    def stream(stage: Stage) -> str:
        output = _llm(stage, stage.real.url, ["-m", "local", *_GREEDY])
        _succeeded(output, "Paris")
        return output.text.strip()

    def stop(stage: Stage) -> str:
        with stage.scripted(Script(pieces=("before", " the\n", "after"))) as server:
            output = _llm(stage, server.url, ["-m", "local", "x", "-o", "stop", "the"])
        _succeeded(output, "before")
        need("after" not in output.text, output.all)
        return output.text.strip()

    def completion(stage: Stage) -> str:
        output = _llm(stage, stage.real.url, ["-m", "plain", "1, 2, 3,", "-o", "max_tokens", "8"])
        _succeeded(output, "4")
        return output.text.strip()

    def schema(stage: Stage) -> str:
        arguments = [
            "-m",
            "local",
            "--schema",
            "city, letters int",
            *_GREEDY,
            "-o",
            "max_tokens",
            "300",
        ]
        output = _llm(stage, stage.real.url, arguments)
        _succeeded(output)
        value = json.loads(output.text)
        need(set(value) == {"city", "letters"} and isinstance(value["letters"], int), output.all)
        return output.text.strip()

    def tools(stage: Stage) -> str:
        scripts = (_call("llm_version", {}), Script(pieces=("It is ", "there.")))
        with stage.scripted(*scripts) as server:
            output = _llm(stage, server.url, ["-m", "local", "-T", "llm_version", "--td", "x"])
        _succeeded(output, "It is there.")
        need("0.36" in output.all, output.all)
        return "the tool ran, its result came back"

    def overflow(stage: Stage) -> str:
        output = _llm(stage, stage.real.url, ["-m", "local"], LONG)
        need(
            output.code != 0 and "maximum context length is 32768 tokens" in output.all, output.all
        )
        return output.errors.strip()[-120:]

    def busy(stage: Stage) -> str:
        with stage.busy() as server:
            output = _llm(stage, server.url, ["-m", "local", "x"])
            _succeeded(output, "ok")
            return f"{server.scheduler.counters().rejected} times 429, then an answer"

    def claude(stage: Stage) -> str:
        with stage.scripted(Script(pieces=("Hello ", "there."))) as server:
            output = _llm(stage, server.url, ["-m", "claude-opus-4.6", "hi"])
        _succeeded(output, "Hello there.")
        return output.text.strip()

    return list(
        {
            "chat": chat, "stream": stream, "stop": stop, "completion": completion,
            "JSON schema": schema, "tools": tools, "overflow": overflow, "busy queue": busy,
            "/v1/messages": claude,
        }.items()
    )  # fmt: skip


# ---- aider ---------------------------------------------------------------------------------------

_AIDER = (
    "aider", "--no-git", "--yes-always", "--no-check-update", "--analytics-disable",
    "--no-show-release-notes", "--no-show-model-warnings", "--no-pretty",
    "--no-suggest-shell-commands",
)  # fmt: skip
_EDIT = (
    "Here it is:\n\nhello.py\n```python\n<<<<<<< SEARCH\nprint('hello')\n=======\n"
    "print('good day')\n>>>>>>> REPLACE\n```\n"
)


def _aider(stage: Stage, url: str, *arguments: str, message: str = QUESTION) -> Output:
    home = stage.home("aider")
    work = home / "work"
    work.mkdir()
    (work / "hello.py").write_text("print('hello')\n")
    # It fetches a list of prices unless it has a fresh one.
    prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True)
    prices.write_text('{"none": {}}')
    environment = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "local"}
    command = [*_AIDER, "--model", f"openai/{MODEL}", "--message", message, *arguments]
    return stage.run("aider", command, home, environment, folder=work)


def _aider_steps() -> list[tuple[str, Step]]:
    def chat(stage: Stage) -> str:
        output = _aider(stage, stage.real.url, "--chat-mode", "ask", "--no-stream")
        _succeeded(output)
        need("Tokens:" in output.text, output.all)
        return output.text.strip().splitlines()[-1]

    def stream(stage: Stage) -> str:
        output = _aider(stage, stage.real.url, "--chat-mode", "ask", "--stream")
        _succeeded(output)
        need("Tokens:" in output.text, output.all)
        return output.text.strip().splitlines()[-1]

    def edit(stage: Stage) -> str:
        cut = [_EDIT[at : at + 7] for at in range(0, len(_EDIT), 7)]
        with stage.scripted(Script(pieces=tuple(cut))) as server:
            output = _aider(
                stage, server.url, "--edit-format", "diff", "hello.py", message="be polite"
            )
        _succeeded(output)
        text = (stage.folder / "aider" / "work" / "hello.py").read_text()
        need(text == "print('good day')\n", output.all)
        return "the file was edited"

    def overflow(stage: Stage) -> str:
        with stage.scripted(context=300) as server:
            output = _aider(stage, server.url, "--chat-mode", "ask")
        need(
            "maximum context length is 300" in output.all or "context window" in output.all,
            output.all,
        )
        return "the limit was told"

    def busy(stage: Stage) -> str:
        with stage.busy() as server:
            output = _aider(stage, server.url, "--chat-mode", "ask")
            _succeeded(output, "ok")
            return f"{server.scheduler.counters().rejected} times 429, then an answer"

    return list(
        {
            "chat": chat,
            "stream": stream,
            "edit": edit,
            "overflow": overflow,
            "busy queue": busy,
        }.items()
    )


# ---- Claude Code ---------------------------------------------------------------------------------


_PIECES = ("--output-format", "stream-json", "--verbose", "--include-partial-messages")


def _idle(stage: Stage) -> str:
    """Waits until the real server has nothing to do."""
    for _ in range(100):
        health = httpx.get(stage.real.url + "/health", timeout=60).json()["scheduler"]
        if not health["active"] and not health["queued"]:
            return "the server is idle"
        time.sleep(0.1)
    raise StepError(f"the server still works for a client that is gone: {health}")


def _claude(stage: Stage, url: str, prompt: str, *arguments: str, until: str = "") -> Output:
    home = stage.home("claude-code")
    work = home / "work"
    work.mkdir()
    (work / "note.txt").write_text("The code word is kingfisher.\n")
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "local",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768",
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
    }
    command = ["claude", "-p", prompt, *arguments]
    return stage.run("claude-code", command, home, environment, folder=work, until=until)


def _claude_steps() -> list[tuple[str, Step]]:
    def chat(stage: Stage) -> str:
        # So small a model may well talk on until its context is full: when it talks, the client is
        # ended, which must end the job.
        output = _claude(stage, stage.real.url, "say hi", *_PIECES, until="text_delta")
        need("text_delta" in output.text, output.all)
        return f"text came; {_idle(stage)}"

    def stream(stage: Stage) -> str:
        with stage.scripted(Script(pieces=("Good ", "day ", "to you."))) as server:
            output = _claude(stage, server.url, "say hi", *_PIECES)
        _succeeded(output, "Good day to you.", "text_delta")
        return "pieces and the whole text"

    def tools(stage: Stage) -> str:
        path = str(stage.folder / "claude-code" / "work" / "note.txt")
        scripts = (
            _call("Read", {"file_path": path}),
            Script(pieces=("The file was ", "read.")),
        )
        flags = ("--output-format", "stream-json", "--verbose")
        with stage.scripted(*scripts) as server:
            output = _claude(stage, server.url, "read note.txt", *flags)
        _succeeded(output, "kingfisher", "The file was read.")
        return "the file's text came back as the tool's result"

    def overflow(stage: Stage) -> str:
        with stage.scripted(context=4000) as server:
            output = _claude(stage, server.url, "say hi")
        need("too long" in output.all.lower() or "context" in output.all.lower(), output.all)
        return output.text.strip()[:120]

    def busy(stage: Stage) -> str:
        with stage.busy() as server:
            output = _claude(stage, server.url, "say hi")
            _succeeded(output, "ok")
            return f"{server.scheduler.counters().rejected} times 429, then an answer"

    def count(stage: Stage) -> str:
        with stage.scripted() as server:
            output = _claude(stage, server.url, "/context")
        _succeeded(output, "Context")
        return " ".join(output.text.split())[:120]

    return list(
        {
            "chat": chat, "stream": stream, "tools": tools, "count": count, "overflow": overflow,
            "busy queue": busy,
        }.items()
    )  # fmt: skip


# ---- opencode ------------------------------------------------------------------------------------


# What docs/clients.md advises for a slow computer: one tool, a short system prompt, no title.
_LEAN: dict[str, Any] = {
    "agent": {
        "build": {"prompt": "You are a coding agent.", "tools": {"*": False, "read": True}},
        "title": {"disable": True},
    }
}


def _opencode(
    stage: Stage,
    url: str,
    prompt: str,
    *arguments: str,
    until: str = "",
    context: int = 32768,
    settings: dict[str, Any] | None = None,
) -> Output:
    home = stage.home("opencode")
    work = home / "work"
    work.mkdir()
    (work / "note.txt").write_text("The code word is kingfisher.\n")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "local"},
        "models": {MODEL: {"limit": {"context": context, "output": 100}}},
    }
    (work / "opencode.json").write_text(
        json.dumps(
            {"autoupdate": False, "share": "disabled", "provider": {"local": provider}}
            | (settings or {})
        )
    )
    command = ["opencode", "run", "--model", f"local/{MODEL}", *arguments, prompt]
    return stage.run("opencode", command, home, folder=work, until=until)


def _opencode_chat(stage: Stage, settings: dict[str, Any]) -> str:
    """A turn on the real model, and what the server read for it. So small a model may go on calling
    tools: like Claude Code, the client is ended once a step of it is finished.
    """
    begin = time.time() * 1000
    output = _opencode(
        stage, stage.real.url, "say hi", "--format", "json", settings=settings, until="step_finish"
    )
    need("step_finish" in output.text, output.all)
    _idle(stage)
    listed = httpx.get(stage.real.url + "/api/requests", timeout=60).json()["requests"]
    sizes = [
        f"{entry['prompt_tokens']} tokens read in {(entry['prefill_ms'] or 0) / 1000:.1f} s"
        for entry in listed
        if entry["at_ms"] >= begin
    ]
    return f"a step was finished; {'; '.join(sizes)}"


def _opencode_steps() -> list[tuple[str, Step]]:
    def chat(stage: Stage) -> str:
        return _opencode_chat(stage, _LEAN)

    def every_tool(stage: Stage) -> str:
        return _opencode_chat(stage, {})

    def stream(stage: Stage) -> str:
        # The title and the task arrive together; whichever is first takes the first script.
        answer = Script(pieces=("Good ", "day ", "to you."))
        with stage.scripted(answer, answer) as server:
            output = _opencode(stage, server.url, "say hi")
        _succeeded(output, "Good day to you.")
        return "the whole text"

    def tools(stage: Stage) -> str:
        path = str(stage.folder / "opencode" / "work" / "note.txt")
        # Title and task arrive together. The title's call is text, since it declares no tools.
        call, answer = _call("read", {"filePath": path}), Script(pieces=("The file ", "was read."))
        with stage.scripted(call, call, answer, answer) as server:
            output = _opencode(stage, server.url, "read note.txt", "--format", "json")
        _succeeded(output, "kingfisher", "The file was read.")
        return "the file's text came back as the tool's result"

    def overflow(stage: Stage) -> str:
        # Its instructions fit, the message does not, and neither does the summary it then asks for.
        words = "one two three " * 7000
        with stage.scripted(context=60_000) as server:
            output = _opencode(stage, server.url, words, context=60_000)
        return _told(output, "maximum context length is 60000 tokens")

    def small(stage: Stage) -> str:
        # When not even its instructions fit, it would shorten and repeat without an end.
        with stage.scripted(context=4000) as server:
            output = _opencode(
                stage, server.url, "say hi", settings={"compaction": {"auto": False}}
            )
        return _told(output, "maximum context length is 4000 tokens")

    def busy(stage: Stage) -> str:
        with stage.busy() as server:
            output = _opencode(stage, server.url, "say hi")
            _succeeded(output, "ok")
            return f"{server.scheduler.counters().rejected} times 429, then an answer"

    return list(
        {
            "stream": stream, "tools": tools, "overflow": overflow, "context too small": small,
            "busy queue": busy, "chat": chat, "chat, every tool": every_tool,
        }.items()
    )  # fmt: skip


def _told(output: Output, text: str) -> str:
    """That a client gave up with this text."""
    need(output.code != 0 and text in output.all, output.all)
    return f"it ended and told: {text}"


def clients() -> dict[str, list[tuple[str, Step]]]:
    """Every command-line client and its steps."""
    return {
        "llm": _llm_steps(),
        "aider": _aider_steps(),
        "claude-code": _claude_steps(),
        "opencode": _opencode_steps(),
    }
