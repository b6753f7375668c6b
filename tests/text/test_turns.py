"""A conversation that goes on renders to the same tokens up to its last answer.

Covers R042, R044, R105, R106, R108, R109 as far as they are about text: what a client sends again
must meet the tokens that were computed, or they are read again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colibri.engine.slots import common_prefix
from colibri.families.glm_template import TEMPLATE
from colibri.models import synthetic
from colibri.models.model import open_text
from colibri.text.history import prepare
from colibri.text.template import ChatTemplate
from colibri.text.tokenizer import from_json
from colibri.text.volatile import stable_message, stable_system

TOKENIZER = from_json(synthetic._tokenizer().to_str().encode(), "tokenizer.json")
GLM = ChatTemplate(TEMPLATE, TOKENIZER, where="built-in template")
ASK = [
    {"role": "system", "content": "You are an agent. " * 20},
    {"role": "user", "content": "Read the file."},
]
REASONING = "First I look, then I think, and then I know."
ANSWER = "It holds 3 lines.\n\nThe second one is empty.\n"
NEXT = {"role": "user", "content": "And now?"}
BILLING = "x-anthropic-billing-header: cc_version={}; cc_entrypoint={}; cch={};"


def said(**fields: str) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def computed(template: ChatTemplate, generated: str) -> list[int]:
    """Tokens that a slot holds after the first answer: the prompt and what was generated."""
    prompt = template.encode(template.render(ASK))
    return prompt + template._tokenizer.encode(generated, markers=True)


def again(template: ChatTemplate, turn: dict[str, Any]) -> list[int]:
    return template.encode(template.render([*ASK, turn, NEXT]))


@pytest.mark.parametrize(
    "turn",
    [
        said(content=ANSWER),
        said(content=ANSWER.rstrip("\n")),
        said(content="\n" + ANSWER),
        said(content=f"<think>{REASONING}</think>{ANSWER}"),
        said(content=f"{REASONING}</think>\n\n{ANSWER}"),
        said(content=ANSWER, reasoning_content=REASONING),
    ],
    ids=["stripped", "no newline", "one newline more", "inline", "as streamed", "apart"],
)
def test_R108_however_the_last_answer_comes_back_only_it_is_read_again(
    turn: dict[str, Any],
) -> None:
    prompt = GLM.encode(GLM.render(ASK))
    held = computed(GLM, f"{REASONING}</think>{ANSWER}")
    resent = again(GLM, turn)
    assert common_prefix(held, resent) >= len(prompt)
    # R109: what is new is about as long as the visible answer and the next question.
    new = len(resent) - common_prefix(held, resent)
    assert new <= len(TOKENIZER.encode(ANSWER)) + len(TOKENIZER.encode(str(NEXT["content"]))) + 8


def test_an_answer_without_reasoning_is_not_read_again_at_all() -> None:
    """What is generated behind the generation prompt is what the history says of it."""
    answer = ANSWER.strip()
    held = computed(GLM, f"</think>{answer}")
    assert common_prefix(held, again(GLM, said(content=answer))) == len(held)


def test_reasoning_kept_by_the_client_and_asked_for_is_not_read_again() -> None:
    answer = ANSWER.strip()
    held = computed(GLM, f"{REASONING}</think>{answer}")
    resent = GLM.render(
        [*ASK, said(content=answer, reasoning_content=REASONING), NEXT],
        variables={"clear_thinking": False},
    )
    assert common_prefix(held, GLM.encode(resent)) == len(held)


def test_R109_the_second_to_last_answer_stays_as_it_was() -> None:
    """Rendered as history once, an answer is rendered so in every turn that follows."""
    two = [*ASK, said(content=ANSWER), NEXT]
    second = GLM.encode(GLM.render(two))
    third = GLM.encode(GLM.render([*two, said(content="Yes.", reasoning_content=REASONING), NEXT]))
    assert common_prefix(second, third) == len(second)


@pytest.mark.parametrize("answer", ["Paris.", "Paris.\n", " Paris", "Zwölf\n\n- a\n- b", "a  b"])
def test_chatml_history_is_what_was_generated(smollm2_folder: Path, answer: str) -> None:
    """SmolLM2's own template and its vocabulary with merges: no boundary moves."""
    template = open_text(smollm2_folder).template
    assert template is not None
    held = computed(template, answer)
    assert common_prefix(held, again(template, said(content=answer))) == len(held)


def test_R105_a_shared_system_prompt_is_one_prefix() -> None:
    system = {"role": "system", "content": "Rules. " * 200}
    one, other = (
        GLM.encode(GLM.render([system, {"role": "user", "content": text}]))
        for text in ("Tell me a story.", "What is 2 + 2?")
    )
    assert common_prefix(one, other) > len(TOKENIZER.encode(str(system["content"])))


def test_R106_tools_stand_before_a_system_text_whose_date_changes() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool{i}", "parameters": {"type": "object"}}}
        for i in range(30)
    ]

    def prompt(day: str) -> list[int]:
        system = {"role": "system", "content": "Be brief. " * 50 + f"Today is {day}."}
        return GLM.encode(GLM.render([system, NEXT], tools=tools))

    first, second = prompt("Monday"), prompt("Tuesday")
    tail = len(TOKENIZER.encode("Tuesday.And now?")) + 8
    assert common_prefix(first, second) >= len(second) - tail


@pytest.mark.parametrize(
    "line",
    [
        BILLING.format("1", "cli", "bbbbb"),
        BILLING.format("2.1.332.0b8", "sdk-cli", "c0ffee"),
        "x-anthropic-billing-header: something else entirely",
        "X-Anthropic-Billing-Header:",
    ],
)
def test_R042_R044_a_billing_line_never_reaches_the_prompt(line: str) -> None:
    """Whatever its version, entry point or hash."""
    plain = [{"role": "system", "content": "You are Claude Code."}, NEXT]
    joined = [{"role": "system", "content": f"{line}\n\nYou are Claude Code."}, NEXT]
    parts = [
        {
            "role": "system",
            "content": [
                {"type": "text", "text": line},
                {"type": "text", "text": "You are Claude Code."},
            ],
        },
        NEXT,
    ]
    expected = GLM.render(plain).text
    assert GLM.render(joined).text == expected
    assert GLM.render(parts).text == expected


def test_a_billing_line_anywhere_else_is_text() -> None:
    line = BILLING.format("1", "cli", "aaaaa")
    asked = {"role": "user", "content": f"{line}\nWhat does this header mean?"}
    assert stable_message(asked) == asked
    quoted = f"Explain headers.\n{line}\n"
    assert stable_system(quoted) == quoted
    assert line in GLM.render([{"role": "system", "content": quoted}, asked]).text


def test_a_system_message_that_is_only_a_billing_line_is_empty() -> None:
    line = BILLING.format("1", "cli", "aaaaa")
    assert stable_system(line) == ""
    assert stable_message({"role": "system", "content": [{"text": line}]})["content"] == []
    for content in ("", None, [], [{"type": "image"}], ["text"]):
        message = {"role": "system", "content": content}
        assert stable_message(message) == message


def test_R042_claude_codes_own_body_differs_in_nothing_but_the_line() -> None:
    """Two requests of one session: the hash changes, the tokens do not."""
    system = "You are Claude Code, Anthropic's official CLI for Claude. " * 40
    prompts = {
        json.dumps(
            GLM.encode(
                GLM.render(
                    [
                        {"role": "system", "content": f"{BILLING.format(1, 'cli', h)}\n{system}"},
                        NEXT,
                    ]
                )
            )
        )
        for h in ("aaaaa", "bbbbb")
    }
    assert len(prompts) == 1


def test_R042_the_line_is_dropped_also_where_tools_are_written_before_it() -> None:
    """A template without tools gets them at the beginning of the system text."""
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]

    def system(mark: str) -> str:
        said = {"role": "system", "content": f"{BILLING.format(1, 'cli', mark)}\nBe brief."}
        messages, _ = prepare([said, NEXT], tools, template_takes_tools=False)
        return str(messages[0]["content"])

    assert system("aaaaa") == system("bbbbb")
    assert system("aaaaa").endswith("\n\nBe brief.")
