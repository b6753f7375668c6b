"""POST /v1/chat/completions and /v1/completions over the scripted engine.

Covers R001, R002, R004, R005, R006, R016, R017, R018, R020, R022, R029, R050, R076, R084, R086,
R089.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from colibri.api import follow
from colibri.engine.fake import Script
from tests.support.fakeserver import (
    MODEL_ID,
    FakeServer,
    chat_body,
    chat_model,
    chat_request,
    served_model,
    text_of,
)

Start = Callable[..., FakeServer]


def test_a_chat_is_answered_whole(server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    response = server.chat()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["x-colibri-queue-wait-ms"]) >= 0
    assert response.headers["x-request-id"].startswith("req_")
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL_ID
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 2,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_stream_has_one_id_a_role_first_and_one_choice_in_every_chunk(server: FakeServer) -> None:
    """R016, R017: nothing surprises a client that indexes choices[0]."""
    server.backend.enqueue(Script(pieces=("Hel", "lo")))
    chunks = server.chunks()
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == "Hello"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_a_usage_chunk_comes_only_when_asked_for(server: FakeServer) -> None:
    """R016."""
    asked = server.chunks(stream_options={"include_usage": True})
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 1
    assert all(chunk["choices"] for chunk in asked[:-1])
    assert all(chunk["choices"] for chunk in server.chunks(stream_options={"include_usage": False}))


def test_cached_tokens_are_the_same_streamed_and_whole(server: FakeServer) -> None:
    """R018."""
    server.chat("the same prompt")
    whole = server.chat("the same prompt").json()["usage"]
    streamed = server.chunks("the same prompt", stream_options={"include_usage": True})[-1]["usage"]
    assert whole["prompt_tokens_details"]["cached_tokens"] > 0
    assert whole == streamed


def test_times_are_told_where_counts_are(server: FakeServer) -> None:
    """The same names as llama.cpp's server has; a single token has no speed."""
    server.backend.enqueue(Script(pieces=("a", "b", "c"), prefill_ms=30, token_ms=20))
    asked = server.chunks("count", stream_options={"include_usage": True})
    assert all("timings" not in chunk for chunk in asked[:-1])
    usage, timings = asked[-1]["usage"], asked[-1]["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"] == 3
    assert timings["prompt_ms"] >= 30 and timings["predicted_ms"] >= 40
    after_the_first = 2 / timings["predicted_ms"] * 1000
    assert timings["predicted_per_second"] == pytest.approx(after_the_first, rel=0.01)
    read = timings["prompt_n"] / timings["prompt_ms"] * 1000
    assert timings["prompt_per_second"] == pytest.approx(read, rel=0.01)

    server.backend.enqueue(Script(pieces=("a",)))
    whole = server.chat("another").json()
    assert whole["timings"]["predicted_n"] == whole["usage"]["completion_tokens"] == 1
    assert whole["timings"]["predicted_per_second"] is None


@pytest.mark.parametrize("stop", ["END", ["END"], ["x", "END"]])
def test_stop_as_text_and_as_list_cut_alike_in_both_modes(server: FakeServer, stop: object) -> None:
    """R002."""
    script = Script(pieces=("A ", "END", " B"))
    server.backend.enqueue(script, script)
    whole = server.chat(stop=stop).json()["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == ("A ", "stop")
    assert text_of(server.chunks(stop=stop)) == "A "


def test_counting_ends_just_before_the_stop_digit(server: FakeServer) -> None:
    """R001."""
    server.backend.enqueue(Script(pieces=tuple(f"{n}, " for n in range(1, 21))))
    answer = server.chat(stop=["5"], temperature=0, max_tokens=64).json()["choices"][0]
    assert answer["message"]["content"] == "1, 2, 3, 4, "
    assert answer["finish_reason"] == "stop"


def test_the_same_stop_filter_serves_the_legacy_route(server: FakeServer) -> None:
    """R004: the opening half of a stop string leaks on neither route."""
    script = Script(pieces=("I drink gre", "en te", "a daily"))
    server.backend.enqueue(script, script)
    body = {"prompt": "x", "stream": True, "stop": ["green tea"]}
    text = server.post("/v1/completions", body).text
    assert "".join(re.findall(r'"text":"([^"]*)"', text)) == "I drink "
    assert text_of(server.chunks(stop=["green tea"])) == "I drink "


def test_text_behind_a_stop_never_leaks(server: FakeServer) -> None:
    """R086."""
    script = Script(pieces=("mon, tue", ", wed, thu, ", "fri"))
    server.backend.enqueue(script, script)
    assert server.chat(stop=["thu"]).json()["choices"][0]["message"]["content"] == "mon, tue, wed, "
    assert text_of(server.chunks(stop=["thu"])) == "mon, tue, wed, "


def test_a_leading_stop_can_be_ignored_on_request(server: FakeServer) -> None:
    script = Script(pieces=("<|user|>", "\n", "answer", "<|user|>", "invented"))
    server.backend.enqueue(script, script)
    fields = {"stop": ["<|user|>"]}
    assert server.chat(**fields).json()["choices"][0]["message"]["content"] == ""
    ignoring = server.chat(**fields, x_colibri_ignore_leading_stop=True).json()
    assert ignoring["choices"][0]["message"]["content"].strip() == "answer"


def test_a_character_cut_into_bytes_arrives_whole(server: FakeServer) -> None:
    """R084."""
    script = Script(pieces=(b"\xf0", b"\x9f", b"\x98", b"\x80"))
    server.backend.enqueue(script, script, script)
    assert text_of(server.chunks()) == "\N{GRINNING FACE}"
    cut = server.chat(max_tokens=2).json()["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")


def test_without_max_tokens_the_answer_may_use_the_launch_cap(start: Start) -> None:
    """R005."""
    server = start(Script(pieces=("x",) * 600), max_tokens=2000)
    answer = server.chat().json()
    assert answer["usage"]["completion_tokens"] == 600
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_launch_cap_holds_against_larger_wishes(start: Start) -> None:
    """R006: and the reason says length."""
    server = start(Script(pieces=("x",) * 600), max_tokens=100)
    answer = server.chat(max_tokens=400).json()
    assert answer["usage"]["completion_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": 9, "max_tokens": 5}, 9),
        ({"max_tokens": None}, 50),
        ({"max_tokens": 10**9}, 50),
    ],
)
def test_the_newer_name_of_max_tokens_wins_and_large_wishes_are_clamped(
    server: FakeServer, fields: dict[str, object], tokens: int
) -> None:
    """R020."""
    server.backend.enqueue(Script(pieces=("x",) * 50))
    assert server.chat(**fields).json()["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize(
    ("launch", "model", "fields", "temperature"),
    [
        ({}, {}, {}, 1.0),
        ({}, {"temperature": 0.6}, {}, 0.6),
        ({"temperature": 0.25}, {"temperature": 0.6}, {}, 0.25),
        ({"temperature": 0.25}, {}, {"temperature": 0}, 0.0),
        ({"temperature": 0.25}, {}, {"temperature": 1.5}, 1.5),
    ],
)
def test_temperature_is_the_requests_else_the_launchs_else_the_models(
    start: Start,
    launch: dict[str, float],
    model: dict[str, float],
    fields: dict[str, float],
    temperature: float,
) -> None:
    """R022: one source of truth."""
    server = start(model=served_model(**model), **launch)
    server.chat(**fields)
    assert server.backend.samplings[-1].temperature == temperature


def test_seeds_reach_the_engine_and_absent_ones_differ(server: FakeServer) -> None:
    """R021, down to the engine; what the engine makes of them is its own test."""
    for seed in (42, 42, -1, 0):
        server.chat(seed=seed)
    server.chat()
    server.chat()
    seeds = [sampling.seed for sampling in server.backend.samplings[::2]]
    assert seeds[:4] == [42, 42, 2**64 - 1, 0]
    assert len(set(seeds[4:])) == 2


def test_unknown_optional_fields_are_ignored(server: FakeServer) -> None:
    """R029: what editors add from one day to the next."""
    fields = {
        "store": False,
        "metadata": {"a": 1},
        "include": [],
        "user": "me",
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "verbosity": "low",
        "prediction": None,
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tools": [],
        "tool_choice": "auto",
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "stop": None,
        "seed": None,
        "temperature": None,
        "top_p": None,
        "stream": None,
        "stream_options": None,
        "max_completion_tokens": None,
        "enable_thinking": False,
        "cache_slot": 0,
    }
    assert server.chat(**fields).status_code == 200


BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is ("}]


def test_an_answer_that_has_begun_goes_on_when_asked(server: FakeServer) -> None:
    def tokens(**fields: object) -> int:
        answer = server.post("/v1/chat/completions", {"messages": BEGUN, **fields})
        read: int = answer.json()["usage"]["prompt_tokens"]
        return read

    # A token of the scripted engine is a character.
    begun = len("user: hi\nassistant: The answer is (")
    assert tokens(continue_final_message=True) == begun
    # What has begun is not thought about any more.
    assert tokens(continue_final_message=True, enable_thinking=True) == begun
    # Without the wish the model answers anew, as with every server of this dialect.
    assert tokens() == begun + len("\nassistant: ")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"messages": BEGUN[:1]}, "invalid_value"),
        ({"messages": BEGUN[1:]}, "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter"),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(
    server: FakeServer, fields: dict[str, object], code: str
) -> None:
    body = {"messages": BEGUN, "continue_final_message": True, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("continue_final_message", code)


def test_a_model_that_writes_marks_before_its_text_refuses_to_go_on(start: Start) -> None:
    server = start(dialect="inkling", model=chat_model("inkling"))
    body = {"messages": BEGUN, "continue_final_message": True}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_parameter"


def test_any_model_name_is_served_and_the_answer_carries_the_real_one(server: FakeServer) -> None:
    for name in ("gpt-4o", "", None):
        assert server.chat(model=name).json()["model"] == MODEL_ID
    body = chat_body()
    del body["model"]
    assert server.post("/v1/chat/completions", body).json()["model"] == MODEL_ID


def test_all_kinds_of_text_content_and_roles_reach_the_prompt(server: FakeServer) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "developer", "content": "brief"},
        {"role": "user", "content": "one"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a", "cache_control": {}},
                {"type": "text", "text": "b"},
            ],
        },
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "answer", "refusal": None},
        {"role": "user", "content": "go"},
    ]
    prompts: list[list[int]] = []
    original = server.scheduler.admit

    def spy(request: object, gone: object) -> object:
        prompts.append(request.prompt)
        return original(request, gone)

    server.scheduler.admit = spy
    assert server.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    text = bytes(token - 10 for token in prompts[0]).decode()
    assert text == (
        "system: be\nsystem: brief\nuser: one\nuser: a\nb\nassistant: \nassistant: \n"
        "assistant: answer\nuser: go\nassistant: "
    )


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_base_urls_with_v1_forgotten_or_doubled_work(server: FakeServer, path: str) -> None:
    assert server.post(path + "?beta=true", chat_body()).status_code == 200


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [15, 16, 17], [[15, 16, 17]]])
def test_a_legacy_prompt_may_be_text_or_token_ids(server: FakeServer, prompt: object) -> None:
    answer = server.post("/v1/completions", {"prompt": prompt}).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "ok"


def test_a_long_prefill_sends_signs_of_life_without_visible_characters(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R050, R076, R089: the first chunk comes at once, empty ones follow, no character is added."""
    monkeypatch.setattr(follow.follow, "__defaults__", (0.05,))
    server = start(Script(prefill_ms=600_000))
    seen = b""
    with server.raw(chat_request(chat_body(stream=True))) as connection:
        while seen.count(b'"delta":{}') < 3:
            piece = connection.recv(1 << 16)
            assert piece, seen
            seen += piece
    assert b'"role":"assistant"' in seen.split(b"\n\n")[0]
    assert seen.count(b'"content"') == 1
    server.wait_for(active=0, cancelled=1)


def test_health_tells_how_far_a_running_request_is(start: Start) -> None:
    """R088."""
    server = start(Script(prefill_ms=600_000))
    with server.raw(chat_request(chat_body("a longer prompt", stream=True))) as connection:
        connection.recv(1 << 16)
        server.wait_for(active=1)
        (request,) = server.get("/health").json()["requests"]
        assert request["phase"] in ("waiting", "prefill")
        assert request["prompt_tokens"] == len("user: a longer prompt\nassistant: ")
    server.wait_for(active=0, cancelled=1)


def test_prompts_and_answers_are_never_logged(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    server.backend.enqueue(Script(pieces=("private answer",)), Script(fail_at=0))
    server.chat("private question")
    server.chat("private question")
    server.chat("private question", n=2)
    server.post("/v1/chat/completions", {"messages": [{"role": "private role", "content": "x"}]})
    server.get("/v1/models?private=query")
    assert "POST /v1/chat/completions 200" in caplog.text
    assert "private" not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("colibri")
    )


def test_health_tells_what_drafts_and_experts_do(start: Start) -> None:
    """R138: the state of drafts and why, the experts' counters, the request's own drafts."""
    server = start(
        Script(pieces=("x ",), repeat=True, token_ms=1, token_bytes=1000, draft_bytes=1), drafts=3
    )
    with server.raw(chat_request(chat_body(stream=True))) as connection:
        seen = b""
        while seen.count(b'"content":"x') < 40:
            seen += connection.recv(1 << 16)
        health = server.get("/health").json()
    drafts, experts = health["engine"]["drafts"], health["engine"]["experts"]
    assert drafts["on"] is True
    assert drafts["depth"] >= 1
    assert drafts["most"] == 3
    assert drafts["reason"].startswith("on: ")
    assert drafts["proposed"] >= drafts["accepted"] > 0
    assert drafts["acceptance"] == 1
    assert drafts["tokens_per_forward"] > 1
    assert experts["streaming"] is True
    assert experts["bytes_read"] > 1000
    (request,) = health["requests"]
    assert request["drafts_accepted"] > 0
    server.wait_for(active=0, cancelled=1)


def test_health_says_why_there_are_no_drafts(server: FakeServer) -> None:
    """R138."""
    engine = server.get("/health").json()["engine"]
    assert engine["drafts"]["on"] is False
    assert engine["drafts"]["reason"] == "off: no MTP layer"
    assert engine["experts"]["streaming"] is False


def test_a_streamed_answer_with_drafts_equals_the_one_without(start: Start) -> None:
    script = Script(pieces=tuple(f"{i} " for i in range(60)), hits=(True, True, False))
    plain, drafting = start(script), start(script, drafts=3)
    texts = [text_of(server.chunks(stop=["47"])) for server in (plain, drafting)]
    assert texts[0] == texts[1] == "".join(f"{i} " for i in range(47))
    usage = drafting.backend.decoded
    assert usage > 47, "rejected drafts were computed and not told"
