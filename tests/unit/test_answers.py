"""What the engine loop tells of an answer: text, reasoning and calls, over the scripted engine.

R054 a call is cut by no stop text, R062 R073 no state and no failure by a model's text, R069 how an
answer with calls ends, R072 broken calls, R084 characters in bytes, R085 the end goes through the
whole chain, R086 nothing behind a stop text.
"""

from __future__ import annotations

from typing import Any

import pytest

from colibri.engine import fake
from colibri.engine.answer import (
    AnswerForm,
    CallEnd,
    CallStart,
    Reasoning,
    Text,
)
from colibri.engine.fake import FakeBackend, Script, control, marked
from colibri.engine.fake_text import CONTROL_IDS
from colibri.engine.protocol import Done, Failed, Tokens
from tests.support.answering import (
    ARGUMENTS,
    CALLS,
    FORM,
    THINKING,
    TOOLS,
    Open,
    calls_of,
    run,
    run_script,
)
from tests.support.engineloop import parts_of, text_of
from tests.text.answers import GLM_CALL, HERMES_CALL

# ---- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("dialect", ["glm", "hermes", "inkling"])
def test_R069_a_call_is_told_in_parts_and_is_the_reason_of_the_end(
    start: Open, dialect: str, size: int
) -> None:
    pieces = [
        piece[at : at + size] if not piece.startswith(control("")) else piece
        for piece in (marked(CALLS[dialect], dialect) if dialect != "hermes" else (HERMES_CALL,))
        for at in range(0, len(piece) if not piece.startswith(control("")) else 1, size)
    ]
    parts, done = run(start(dialect), *pieces)
    assert calls_of(parts) == [("weather", ARGUMENTS)]
    assert parts[-1] == CallEnd(0, complete=True)
    assert done.finish_reason == "tool_calls"
    assert len(done.generated) == done.usage.completion == len(pieces)


@pytest.mark.parametrize("end_id", sorted(fake.END_IDS))
def test_R069_R146_every_end_ends_an_answer_with_calls_alike(start: Open, end_id: int) -> None:
    script = Script(pieces=marked(GLM_CALL, "glm"), end_id=end_id)
    done = run_script(start("glm"), script)[-1]
    assert isinstance(done, Done) and done.finish_reason == "tool_calls"


def test_R069_a_stop_text_behind_a_call_leaves_it_a_call(start: Open) -> None:
    parts, done = run(start(), HERMES_CALL, "\n\nEND more", stops=("END",))
    assert calls_of(parts) == [("weather", ARGUMENTS)]
    assert done.finish_reason == "tool_calls"
    assert not [part for part in parts if isinstance(part, Text) and "more" in part.text]


def test_a_call_that_is_cut_by_the_limit_ends_with_length_and_valid_arguments(
    start: Open,
) -> None:
    parts, done = run(start(), HERMES_CALL[:-40], "...", max_tokens=1)
    assert done.finish_reason == "length"
    assert calls_of(parts)[0][0] == "weather"
    assert parts[-1] == CallEnd(0, complete=False)


def test_R070_two_calls_are_two_calls(start: Open) -> None:
    parts, _ = run(start(), HERMES_CALL + HERMES_CALL)
    assert calls_of(parts) == [("weather", ARGUMENTS)] * 2
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [part.index for part in starts] == [0, 1]
    assert starts[0].id != starts[1].id


def test_without_tools_a_call_is_text(start: Open) -> None:
    parts, done = run(start(), HERMES_CALL, answer=AnswerForm(parse=True))
    assert parts == [Text(HERMES_CALL)]
    assert (done.finish_reason, done.generated) == ("stop", ())


def test_a_legacy_completion_is_all_text(start: Open) -> None:
    text = f"<think>so</think>\n{HERMES_CALL}"
    for dialect in ("hermes", "glm", "inkling"):
        parts, done = run(start(dialect), text, answer=AnswerForm())
        assert parts == [Text(text)]
        assert (done.finish_reason, done.usage.reasoning) == ("stop", 0)


def test_R062_nothing_of_an_answer_is_left_in_the_next(start: Open) -> None:
    loop = start()
    for _ in range(3):
        parts, done = run(loop, "<tool_call>\n</tool_call>", "<tool_ca")
        assert not calls_of(parts)
        assert done.finish_reason == "stop"
        assert run(loop, "Hello <b>")[0] == [Text("Hello <b>")]
        assert run(loop, "a", "X", stops=("XY",))[0] == [Text("aX")]
        assert run(loop, b"\xf0\x9f", max_tokens=1)[0] == []
        assert run(loop, "Y!", stops=("XY",))[0] == [Text("Y!")]


def test_R072_a_call_that_breaks_off_is_no_failure(start: Open) -> None:
    parts, done = run(start(), '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro')
    assert calls_of(parts) == [("weather", {"city": "Ro"})]
    assert parts[-1] == CallEnd(0, complete=False)
    assert done.finish_reason == "tool_calls"


# ---- reasoning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "pieces"),
    [
        ("hermes", ("I think", " so.", "\n</think>\n\n", "Yes.")),
        ("glm", ("I think", " so.", control("</think>"), "Yes.")),
    ],
)
def test_reasoning_is_told_apart_from_the_text_and_counted(
    start: Open, dialect: str, pieces: tuple[str, ...]
) -> None:
    parts, done = run(start(dialect), *pieces, answer=THINKING)
    assert parts == [Reasoning("I think so."), Text("Yes.")]
    assert (done.usage.completion, done.usage.reasoning) == (4, 3)
    assert done.notice is None


def test_reasoning_that_the_model_begins_itself_is_counted_too(start: Open) -> None:
    parts, done = run(start(), "<think>", "hm", "</think>", "Yes.")
    assert parts == [Reasoning("hm"), Text("Yes.")]
    assert done.usage.reasoning == 3


def test_inkling_says_itself_what_is_reasoning(start: Open) -> None:
    text = (
        "<|message_model|><|content_thinking|>hm<|end_message|>"
        "<|message_model|><|content_text|>Yes.<|end_message|>"
    )
    parts, done = run(start("inkling"), *marked(text, "inkling"))
    assert parts == [Reasoning("hm"), Text("Yes.")]
    assert done.usage.reasoning == 3


def test_letters_of_a_control_token_are_text(start: Open) -> None:
    """A file that speaks about the markers can be shown, and written."""
    parts, _ = run(start("glm"), "Write <think> and </think> and <tool_call>now</tool_call>.")
    assert parts == [Text("Write <think> and </think> and <tool_call>now</tool_call>.")]


# ---- stop texts ----------------------------------------------------------------------------------


def test_R054_a_turn_that_opens_a_call_is_cut_by_no_role_marker(start: Open) -> None:
    """GLM chat has these stops unless the client names some; the call writes them into a file."""
    call = (
        "<tool_call>weather<arg_key>city</arg_key>"
        "<arg_value><|user|> and <|observation|></arg_value></tool_call>"
    )
    for before in ("", "\n", "I look. "):
        parts, done = run(
            start("glm"),
            *marked(before + call, "glm"),
            stops=("<|user|>", "<|observation|>"),
            ignore_leading_stop=True,
        )
        assert calls_of(parts) == [("weather", {"city": "<|user|> and <|observation|>"})]
        assert done.finish_reason == "tool_calls"


def test_stop_texts_cut_visible_text_only(start: Open) -> None:
    pieces = ("I END so", "</think>", "A B END C")
    parts, done = run(start(), *pieces, answer=THINKING, stops=("END",))
    assert parts == [Reasoning("I END so"), Text("A B ")]
    assert done.finish_reason == "stop"


def test_leading_stop_texts_are_ignored_behind_the_reasoning_too(start: Open) -> None:
    pieces = ("so", "</think>", "\n\n", "END", " A", "END", "B")
    parts, _ = run(start(), *pieces, answer=THINKING, stops=("END",), ignore_leading_stop=True)
    assert parts == [Reasoning("so"), Text(" A")]


def test_a_stop_text_does_not_reach_over_a_call(start: Open) -> None:
    parts, _ = run(start(), "A", "B", HERMES_CALL, "C", stops=("BC",))
    assert [part.text for part in parts if isinstance(part, Text)] == ["AB", "C"]


@pytest.mark.parametrize("tail", ["</think", "<tool_", "XXXX", "<tool_call>\n"])
def test_R085_what_is_held_back_goes_through_the_whole_chain_at_the_end(
    start: Open, tail: str
) -> None:
    for pieces in (("a ", tail), tuple("a " + tail)):
        parts, _ = run(start(), *pieces, stops=("XXXXXXXXXX",))
        assert [type(part) for part in parts] == [Text]
        assert parts[0] == Text(f"a {tail}")


def test_R086_nothing_behind_a_stop_text_is_told(start: Open) -> None:
    parts, done = run(start(), "mon, tue, thu", ", fri", HERMES_CALL, stops=("thu",))
    assert parts == [Text("mon, tue, ")]
    assert (done.finish_reason, done.usage.completion) == ("stop", 1)


# ---- events --------------------------------------------------------------------------------------


def test_only_what_can_be_told_is_an_event(start: Open) -> None:
    script = Script(pieces=("<tool", "_call>\n{", '"name": "no', 'w"', ', "arguments": {', "}}"))
    events = [e for e in run_script(start(), script) if isinstance(e, Tokens)]
    assert all(event.parts for event in events)
    assert [type(part) for e in events for part in e.parts][:1] == [CallStart]


def test_R084_each_of_several_jobs_has_its_own_open_character(start: Open) -> None:
    loop = start(parallel=4)
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    backend.enqueue(
        *(Script(pieces=(b"\xf0", b"\x9f", b"\x98", bytes([128 + n]))) for n in range(4))
    )
    jobs = [loop.submit(fake.encode(f"p{n}"), answer=FORM) for n in range(4)]
    texts = {text_of(events) for events in loop.ends(*jobs).values()}
    assert texts == {chr(0x1F600 + n) for n in range(4)}


def test_a_fault_of_ours_in_reading_one_answer_ends_that_one_only(
    start: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = start(parallel=2)
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    begin = backend.answer

    def answer(command: Any) -> Any:
        made = begin(command)
        if command.seed == 13:
            monkeypatch.setattr(made, "push", lambda _token: 1 / 0)
        return made

    monkeypatch.setattr(backend, "answer", answer)
    backend.enqueue(Script(pieces=("x",) * 50), Script(pieces=("y",) * 50))
    jobs = [loop.submit(fake.encode(f"p{n}"), answer=FORM, seed=12 + n) for n in range(2)]
    ends = loop.ends(*jobs)
    assert isinstance(ends[jobs[0]][-1], Done)
    failed = ends[jobs[1]][-1]
    assert isinstance(failed, Failed) and failed.code == "internal_error"
    assert "ZeroDivisionError" in caplog.text


# ---- reasoning that has to end -------------------------------------------------------------------

CYCLE = tuple(f"wait {n} " for n in range(12))


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("dialect", ["hermes", "glm"])
def test_R145_a_loop_in_the_reasoning_is_ended_and_named(
    start: Open, dialect: str, drafts: int
) -> None:
    """The scripted model goes on with its cycle behind the reasoning: then it is visible text, in
    which a loop may be what was asked for."""
    script = Script(pieces=CYCLE, repeat=True)
    loop = start(dialect, drafts=drafts)
    events = run_script(loop, script, answer=THINKING, max_tokens=700)
    thought, said = parts_of(events)
    done = events[-1]
    assert isinstance(done, Done) and isinstance(thought, Reasoning) and isinstance(said, Text)
    assert done.notice is not None and done.notice.code == "reasoning_loop"
    assert "repeated itself" in done.notice.message
    assert done.finish_reason == "length"
    assert done.usage.completion == 700
    # 512 sequences of 8 tokens and one more; then the marker, a letter a token with Hermes.
    assert done.usage.reasoning == 520 + (1 if dialect == "glm" else len("\n</think>"))
    assert thought.text.startswith("wait 0 wait 1 wait 2 ")
    assert thought.text.count("wait") == 520
    assert said.text.startswith("wait"), "the answer goes on where the script is"
    (slot,) = loop.worker._slots.slots
    closing = fake_closing(dialect)
    at = len(fake.encode("hi")) + 520
    assert slot.history[at : at + len(closing)] == closing


def fake_closing(dialect: str) -> list[int]:
    if dialect == "glm":
        return [CONTROL_IDS["</think>"]]
    return fake.encode("\n</think>\n\n")


@pytest.mark.parametrize("drafts", [0, 2])
def test_R145_the_budget_of_the_reasoning_is_kept_and_named(start: Open, drafts: int) -> None:
    pieces = tuple(f"step {n}. " for n in range(30))
    script = Script(pieces=pieces)
    events = run_script(
        start("glm", drafts=drafts),
        script,
        answer=AnswerForm(parse=True, reasoning=True, reasoning_budget=10),
    )
    done = events[-1]
    assert isinstance(done, Done)
    # One place of the script passes while the end is forced.
    assert parts_of(events) == [
        Reasoning("".join(pieces[:10]).rstrip()),
        Text("".join(pieces[11:])),
    ]
    assert done.notice is not None and done.notice.code == "reasoning_budget"
    assert "10 tokens" in done.notice.message
    assert (done.finish_reason, done.usage.reasoning) == ("stop", 11)


def test_a_budget_of_nothing_ends_the_reasoning_before_it_begins(start: Open) -> None:
    form = AnswerForm(parse=True, reasoning=True, reasoning_budget=0)
    parts, done = run(start("glm"), "skipped", "Yes.", answer=form)
    assert parts == [Text("Yes.")]
    assert done.notice is not None and done.notice.code == "reasoning_budget"


def test_a_budget_is_no_limit_for_what_is_no_reasoning(start: Open) -> None:
    form = AnswerForm(parse=True, reasoning=True, reasoning_budget=5)
    pieces = ("a", "b", control("</think>"), *("text ",) * 20)
    parts, done = run(start("glm"), *pieces, answer=form)
    assert parts == [Reasoning("ab"), Text("text " * 20)]
    assert done.notice is None


def test_a_budget_cuts_no_call_that_forgot_to_close_the_reasoning(start: Open) -> None:
    form = AnswerForm(parse=True, tools=TOOLS, reasoning=True, reasoning_budget=12)
    parts, done = run(start(), "I look.", *HERMES_CALL, answer=form)
    assert calls_of(parts) == [("weather", ARGUMENTS)]
    assert (done.finish_reason, done.notice) == ("tool_calls", None)
    # The call is none of the reasoning, but for the letters that told of it.
    assert done.usage.reasoning == 1 + len("<tool_call") < done.usage.completion


def test_what_only_looked_like_a_call_is_counted_as_reasoning(start: Open) -> None:
    for rest in ("</think>Yes.", ""):
        parts, done = run(start(), "a", *"<tool_call>\n{", rest, answer=THINKING, max_tokens=99)
        assert parts[0] == Reasoning("a<tool_call>\n{")
        assert done.usage.reasoning == done.usage.completion


def test_R081_an_answer_that_ends_inside_its_reasoning_says_so(start: Open) -> None:
    parts, done = run(start("glm"), "a", "b", "c", "d", answer=THINKING, max_tokens=3)
    assert parts == [Reasoning("abc")]
    assert done.finish_reason == "length"
    assert done.notice is not None and done.notice.code == "reasoning_cut"
    assert "3 tokens" in done.notice.message


def test_R025_a_turn_that_ends_inside_its_reasoning_says_so(start: Open) -> None:
    parts, done = run(start("glm"), "a", "b", answer=THINKING, max_tokens=30)
    assert parts == [Reasoning("ab")]
    assert done.finish_reason == "stop"
    assert done.notice is not None and done.notice.code == "reasoning_only"


def test_a_limit_behind_the_reasoning_is_no_news(start: Open) -> None:
    _, done = run(start("glm"), "a", control("</think>"), "c", "d", answer=THINKING, max_tokens=3)
    assert (done.finish_reason, done.notice) == ("length", None)


def test_an_open_character_is_dropped_where_the_reasoning_is_ended(start: Open) -> None:
    form = AnswerForm(parse=True, reasoning=True, reasoning_budget=3)
    for dialect in ("glm", "hermes"):
        parts, _ = run(start(dialect), "ab", "cd", b"\xf0\x9f", *["x"] * 30, answer=form)
        assert parts[0] == Reasoning("abcd")


def test_jobs_side_by_side_are_ended_each_at_its_own_place(start: Open) -> None:
    loop = start("glm", 4, drafts=3)
    backend = loop.worker._backend
    assert isinstance(backend, FakeBackend)
    budgets = [7, 20, 33, None]
    for _ in budgets:
        backend.enqueue(Script(pieces=tuple(f"{n} " for n in range(60))))
    jobs = [
        loop.submit(
            fake.encode(f"p{n}"),
            answer=AnswerForm(parse=True, reasoning=True, reasoning_budget=budget),
        )
        for n, budget in enumerate(budgets)
    ]
    ends = loop.ends(*jobs)
    for job, budget in zip(jobs, budgets, strict=True):
        done = ends[job][-1]
        assert isinstance(done, Done)
        assert done.usage.reasoning == (60 if budget is None else budget + 1)
        code = "reasoning_only" if budget is None else "reasoning_budget"
        assert done.notice is not None and done.notice.code == code
