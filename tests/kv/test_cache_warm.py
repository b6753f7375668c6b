"""`coli cache warm`: a saved request is read ahead of time, by a server or by an engine of its own.

Covers R106: the long beginning of an agent's requests is there before its first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from colibri.cli import coli, saved_request
from colibri.engine.fake import Script
from colibri.errors import (
    ColibriError,
    EngineFailure,
    ModelNotFoundError,
    NetworkError,
    RequestError,
    ResourceError,
    UsageError,
)
from colibri.models.model import open_text
from tests.support import draftmodel
from tests.support.fakeserver import FakeServer
from tests.support.streamed import streamed

BODY: dict[str, Any] = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "You are an agent. " * 30},
        {"role": "user", "content": "Hello"},
    ],
    "max_completion_tokens": 4000,
    "temperature": 0.7,
}
BLOCK = 128


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    """Nobody answers on the configured address, whatever runs on this machine."""
    monkeypatch.setenv("COLI_PORT", str(free_port))


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("warm") / "model")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    made.start()
    yield made
    made.stop()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(coli, ["cache", "warm", *map(str, arguments)])


def told(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert found["schema"] == 1
    return dict(found)


def refused(kind: type[ColibriError], *arguments: object) -> str:
    error = run(*arguments).exception
    assert isinstance(error, kind), error
    return f"{error.where}: {error.message} {error.hint}"


def here(folder: Path, state: Path) -> tuple[object, ...]:
    return "--model", folder, "--state-dir", state, "--drafts", "0", "--ctx", 2000


# ---- an engine of its own ------------------------------------------------------------------------


def test_without_a_server_the_prompt_is_read_and_stored(
    folder: Path, body: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    found = told(body, *here(folder, state))
    assert found["server"] is None
    assert found["cached_tokens"] == 0
    assert found["stored_tokens"] == found["prompt_tokens"] > 500
    listed = CliRunner().invoke(
        coli, ["cache", "list", str(folder), "--state-dir", str(state), "--json"]
    )
    (store,) = json.loads(listed.stdout)["stores"]
    assert sum(prefix["tokens"] for prefix in store["prefixes"]) >= found["stored_tokens"]
    template = open_text(folder).template
    assert template is not None
    asked = [BODY["messages"][0], {"role": "user", "content": "What is new?"}]
    prompt = template.encode(template.render(asked))
    with streamed(folder, state) as engine:
        answer = engine.answer(prompt)
    assert answer.cached >= len(BODY["messages"][0]["content"]) // BLOCK * BLOCK
    with streamed(folder) as engine:
        assert answer.same == engine.answer(prompt).same


def test_what_is_stored_already_is_not_read_again(folder: Path, body: Path, tmp_path: Path) -> None:
    first = told(body, *here(folder, tmp_path))
    second = told(body, *here(folder, tmp_path))
    assert second["cached_tokens"] == first["stored_tokens"] - 1


def test_a_body_for_completions_is_read_too(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps({"prompt": "once upon a time " * 20}))
    assert told(path, *here(folder, tmp_path / "state"))["stored_tokens"] == len(
        "once upon a time " * 20
    )


def test_people_read_a_sentence_and_progress(folder: Path, body: Path, tmp_path: Path) -> None:
    result = run(body, *here(folder, tmp_path))
    assert "0 were known" in result.stdout
    assert "are on disk" in result.stdout
    assert "of 5" in result.stderr
    assert "tokens" in result.stderr
    assert run(body, *here(folder, tmp_path), "--quiet").stderr == ""


def test_nothing_is_read_for_nothing(folder: Path, body: Path, tmp_path: Path) -> None:
    told_off = refused(UsageError, body, *here(folder, tmp_path), "--prefix-store-gb", 0)
    assert "--prefix-store-gb" in told_off
    with streamed(folder, tmp_path):
        assert "--url" in refused(ResourceError, body, *here(folder, tmp_path))


# ---- a server ------------------------------------------------------------------------------------


def test_a_server_reads_it_and_says_what_it_knew(server: FakeServer, body: Path) -> None:
    found = told(body, "--url", server.url)
    assert found["server"] == server.url
    assert found["stored_tokens"] is None
    assert found["cached_tokens"] == 0
    again = told(body, "--url", server.url + "/v1/")
    assert again["cached_tokens"] == found["prompt_tokens"] - 1


def test_a_server_on_the_configured_address_is_found(
    server: FakeServer, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLI_PORT", server.url.rsplit(":", 1)[1])
    assert told(body)["server"] == server.url


def test_a_server_with_another_model_is_left_alone(
    server: FakeServer, folder: Path, body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLI_PORT", server.url.rsplit(":", 1)[1])
    assert told(body, *here(folder, tmp_path))["server"] is None


def test_a_servers_progress_is_shown(
    body: Path, monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    monkeypatch.setattr("colibri.cli.cache_warm._POLL_SECONDS", 0.05)
    server.backend.enqueue(Script(prefill_ms_per_token=2))
    assert "tokens" in run(body, "--url", server.url).stderr


def test_a_servers_refusal_is_told_in_its_words(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({**BODY, "functions": [{"name": "x"}]}))
    assert "'functions' is not supported" in refused(RequestError, path, "--url", server.url)


def test_a_failure_in_the_middle_is_told(server: FakeServer, body: Path) -> None:
    server.backend.enqueue(Script(fail_prefill="it broke"))
    assert "it broke" in refused(EngineFailure, body, "--url", server.url)


# ---- bodies of Anthropic's dialect ---------------------------------------------------------------

CLAUDE: dict[str, Any] = {
    "model": "any",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=aaaaa;"},
        {"type": "text", "text": "You are an agent. " * 30, "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    "thread": {"type": "create"},
    "top_k": 5,
    "stop_sequences": ["END"],
}


def test_a_body_of_anthropics_is_read_by_a_server(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "claude.json"
    path.write_text(json.dumps(CLAUDE))
    first = told(path, "--url", server.url)
    assert first["cached_tokens"] == 0
    assert server.backend.samplings[-1].temperature == 0
    second = told(path, "--url", server.url)
    assert second["cached_tokens"] > first["prompt_tokens"] - 20
    real = {key: CLAUDE[key] for key in ("model", "max_tokens", "system", "messages")}
    usage = server.post("/v1/messages", real).json()["usage"]
    assert usage["cache_read_input_tokens"] + usage["input_tokens"] == first["prompt_tokens"]
    assert usage["cache_read_input_tokens"] > first["prompt_tokens"] - 20


def test_a_body_of_anthropics_is_stored_without_a_server(folder: Path, tmp_path: Path) -> None:
    """The same text as in the other dialect makes the same prompt."""
    path = tmp_path / "claude.json"
    path.write_text(json.dumps(CLAUDE))
    found = told(path, *here(folder, tmp_path / "state"))
    assert found["stored_tokens"] > 500
    body = tmp_path / "openai.json"
    body.write_text(json.dumps(BODY))
    again = told(body, *here(folder, tmp_path / "state"))
    assert again["cached_tokens"] >= found["prompt_tokens"] // BLOCK * BLOCK
    assert again["prompt_tokens"] == found["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "chat"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "chat"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "messages"),
        ({"system": "s"}, "messages"),
        ({"thinking": {"type": "adaptive"}}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "chat"),
        ({"messages": ["odd", {"content": [1]}], "tools": "odd"}, "chat"),
    ],
)
def test_the_dialect_of_a_body_is_seen_from_its_fields(
    fields: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "body.json"
    path.write_text(json.dumps({"messages": [], **fields}))
    assert saved_request.load(str(path)).kind == kind


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no request"),
        ('{"model": "x"}', "no request"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_file_without_a_request_is_refused(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refused(UsageError, path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.json" in refused(UsageError, tmp_path / "nowhere.json")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "not a url"])
def test_a_url_where_nobody_answers_is_named(url: str, body: Path) -> None:
    assert url in refused(NetworkError, body, "--url", url)


def test_what_is_no_url_is_named(body: Path) -> None:
    assert "http://[::" in refused(UsageError, body, "--url", "http://[::")


def test_model_and_url_exclude_each_other(body: Path, server: FakeServer, folder: Path) -> None:
    assert "--url" in refused(UsageError, body, "--url", server.url, "--model", folder)


def test_without_server_and_model_the_hint_names_both(body: Path) -> None:
    assert "--model" in refused(ModelNotFoundError, body)
