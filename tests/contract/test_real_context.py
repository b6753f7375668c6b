"""What clients see of context that is kept: `coli serve`, SmolLM2, the official client.

Covers R018, R042, R044, R052, R053, R090, R105, R108, R113, R117.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.serveprocess import ServeProcess, serve

TIMEOUT = 60
BLOCK = 128
RULES = "You are a careful assistant. Answer in one short sentence. " * 30
CITIES = [{"role": "system", "content": RULES}, {"role": "user", "content": "Name a city."}]
BILLING = "x-anthropic-billing-header: cc_version=2.{0}; cc_entrypoint={1}; cch={2};\n"

pytestmark = pytest.mark.e2e


class Client:
    """Greedy answers and their usage."""

    def __init__(self, running: ServeProcess) -> None:
        self.running = running
        self.api = openai.OpenAI(
            base_url=f"{running.url}/v1", api_key="local", max_retries=0, timeout=TIMEOUT
        )

    def ask(self, messages: list[dict[str, Any]], **fields: Any) -> tuple[str, int, int]:
        """Text, tokens of the prompt and how many of them were cached."""
        values = {"temperature": 0, "max_tokens": 24, **fields}
        answer = self.api.chat.completions.create(model="any", messages=messages, **values)
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        return answer.choices[0].message.content or "", answer.usage.prompt_tokens, cached

    def stream(self, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
        """The same, streamed."""
        chunks = list(
            self.api.chat.completions.create(
                model="any",
                messages=messages,
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        usage = chunks[-1].usage
        assert usage
        assert usage.prompt_tokens_details
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        return text, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


@contextmanager
def opened(model: Path, state: Path, *arguments: str) -> Iterator[Client]:
    with serve(model, "--state-dir", str(state), *arguments) as running:
        client = Client(running)
        try:
            yield client
        finally:
            client.api.close()


@pytest.fixture(scope="module")
def client(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with opened(smollm2_folder, tmp_path_factory.mktemp("state")) as made:
        yield made


def reply(messages: list[dict[str, Any]], text: str, question: str) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": text}
    return [*messages, said, {"role": "user", "content": question}]


def test_R108_the_next_turn_reads_only_the_last_answer_and_the_question(client: Client) -> None:
    text, first, _ = client.ask(CITIES)
    _, second, cached = client.ask(reply(CITIES, text, "And another one?"))
    assert cached >= first
    _, third, cached = client.ask(reply(CITIES, text + "\n", "And another one?"))
    assert cached >= first
    assert third >= second


def test_R018_streamed_and_whole_tell_the_same_cached_tokens(client: Client) -> None:
    messages = [*CITIES[:1], {"role": "user", "content": "Name a colour."}]
    cold = client.ask(messages)
    whole = client.ask(messages)
    assert whole == client.stream(messages) == (cold[0], cold[1], cold[1] - 1)


def test_R042_R044_a_volatile_billing_line_costs_nothing(client: Client) -> None:
    def asked(line: str) -> list[dict[str, Any]]:
        system = [{"type": "text", "text": line}, {"type": "text", "text": "Be kind. " * 200}]
        return [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]

    first = client.ask(asked(BILLING.format(1, "cli", "aaaaa").strip()))
    second = client.ask(asked(BILLING.format(2, "sdk-cli", "bbbbb").strip()))
    assert second == (first[0], first[1], first[1] - 1)


def test_R105_two_new_conversations_share_their_system_prompt(client: Client) -> None:
    system = {"role": "system", "content": "Speak like a pirate, matey. " * 40}
    _, prompt, _ = client.ask([system, {"role": "user", "content": "Who are you?"}])
    text, _, cached = client.ask([system, {"role": "user", "content": "What do you eat?"}])
    assert cached > prompt - 30
    again, _, _ = client.ask([system, {"role": "user", "content": "What do you eat?"}])
    assert text == again


def test_R052_R090_a_prompt_given_up_by_the_client_is_not_read_again(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    """Finished chunks count as cached in the retry, and each retry gets further."""
    long = [{"role": "user", "content": "Tell me about numbers. " + "one two three four " * 450}]
    body = {"messages": long, "max_tokens": 8, "temperature": 0, "stream": True}
    with opened(smollm2_folder, tmp_path, "--prefill-chunk", str(BLOCK)) as client:
        for wanted in (2 * BLOCK, 5 * BLOCK):
            with (
                httpx.Client(base_url=client.running.url, timeout=TIMEOUT) as http,
                http.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                assert answer.status_code == 200
                _wait_read(http, wanted)
        text, prompt, cached = client.ask(long, max_tokens=8)
        assert prompt > cached >= 5 * BLOCK
        assert client.ask(long, max_tokens=8) == (text, prompt, prompt - 1)


def _wait_read(http: httpx.Client, tokens: int) -> None:
    """Until so many tokens of the running request's prompt have been read."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        running = http.get("/health").json()["requests"]
        if running and running[0]["prompt_tokens_done"] >= tokens:
            return
        time.sleep(0.005)
    pytest.fail("the prompt was not read")


def test_R053_an_abandoned_turn_leaves_its_prompt_ready(client: Client) -> None:
    messages = [{"role": "user", "content": "List many animals. " * 60}]
    stream = client.api.chat.completions.create(
        model="any", messages=messages, temperature=0, max_tokens=400, stream=True
    )
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    _, prompt, cached = client.ask(messages, max_tokens=4)
    assert cached == prompt - 1


@pytest.mark.parametrize("death", ["told to stop", "killed"])
def test_R113_R117_after_a_restart_the_conversation_goes_on(
    smollm2_folder: Path, tmp_path: Path, death: str
) -> None:
    """Of server or engine process: cached is what the disk has, and the answer is the same."""
    with opened(smollm2_folder, tmp_path / "state") as client:
        text, first, cached = client.ask(CITIES)
        assert cached == 0
        messages = reply(CITIES, text, "Where is it?")
        expected, _, _ = client.ask(messages)
        if death == "killed":
            _kill_when_saved(client, tmp_path / "state")
            answer = _ask_again(client, messages)
            assert answer[0] == expected
            assert answer[2] >= first // BLOCK * BLOCK
            return
    with opened(smollm2_folder, tmp_path / "state") as client:
        again, prompt, cached = client.ask(messages)
        assert again == expected
        assert prompt > cached >= first, "to the last token that was held"


def _kill_when_saved(client: Client, state: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not (state / ".coli_kv").exists():
        assert time.monotonic() < end, "the slot was never saved"
        time.sleep(0.05)
    pid = httpx.get(f"{client.running.url}/health", timeout=TIMEOUT).json()["engine"]["pid"]
    os.kill(pid, signal.SIGKILL)


def _ask_again(client: Client, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    """The request may still meet the dead process; it must then be told so."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            return client.ask(messages)
        except openai.InternalServerError:
            assert time.monotonic() < end
            time.sleep(0.1)
