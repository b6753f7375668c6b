"""Reasoning on and off over templates of every kind. Covers R036, R081."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colibri.families import glm_template, inkling_template
from colibri.text import thinking
from colibri.text.template import ChatTemplate
from colibri.text.tokenizer import from_json
from tests.models import files
from tests.text.test_glm_template import MARKERS

TOKENIZER = from_json(
    json.dumps(files.tokenizer(extra=(*MARKERS, "<think>", "</think>"))).encode(), "tokenizer.json"
)
# A vocabulary that knows no think blocks.
PLAIN = from_json(
    json.dumps(files.tokenizer()).replace("think>", "thunk>").encode(), "tokenizer.json"
)
ASK = [{"role": "user", "content": "hi"}]
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n"
EMPTY = "<think>\n\n</think>\n\n"
QWEN = f"{TURN}{OPEN}{{% if enable_thinking is false %}}{EMPTY}{{% endif %}}{{% endif %}}"
ALWAYS = TURN + OPEN + "<think>\n{% endif %}"
TIGHT = TURN + OPEN + "<think>{% endif %}"
SILENT = TURN + OPEN + "{% endif %}"
SWITCH = TURN + OPEN + "{{ '<think>' if thinking else '</think>' }}{% endif %}"
WORDS = (
    "Effort {{ {'low': 1, 'medium': 2, 'high': 3}[reasoning_effort | default('high')] }}. " + TURN
)


def prompt(
    source: str, *, on: bool, effort: str | None = None, compact: bool = False, plain: bool = False
) -> tuple[str, bool]:
    template = ChatTemplate(source, PLAIN if plain else TOKENIZER, where="x")
    told = thinking.variables(template, thinking=on, effort=effort)
    rendered = template.render(ASK, variables=told)
    finished, inside = thinking.finished(template, rendered, thinking=on, compact=compact)
    assert finished.text == finished.guard.strip(finished.marked)
    return finished.text, inside


@pytest.mark.parametrize(
    ("source", "on", "off"),
    [
        (QWEN, ("assistant\n", False), ("assistant\n<think>\n\n</think>\n\n", False)),
        (ALWAYS, ("<think>\n", True), ("assistant\n<think>\n\n</think>\n\n", False)),
        (TIGHT, ("<think>", True), ("assistant\n<think>\n\n</think>\n\n", False)),
        (SILENT, ("assistant\n", False), ("assistant\n<think>\n\n</think>\n\n", False)),
        (SWITCH, ("<think>", True), ("assistant\n</think>", False)),
    ],
    ids=["switch", "always", "tight", "silent", "named thinking"],
)
def test_what_is_asked_for_holds_for_every_kind_of_template(
    source: str, on: tuple[str, bool], off: tuple[str, bool]
) -> None:
    for wanted, (end, inside) in ((True, on), (False, off)):
        text, found = prompt(source, on=wanted)
        assert text.endswith(end)
        assert found is inside


def test_a_model_that_knows_no_think_blocks_gets_none() -> None:
    for on in (True, False):
        assert prompt(SILENT, on=on, plain=True) == (prompt(SILENT, on=True)[0], False)


@pytest.mark.parametrize(
    ("effort", "line_52", "line_53"),
    [
        (None, "Max", "Max"),
        ("minimal", "High", "Low"),
        ("low", "High", "Low"),
        ("medium", "High", "High"),
        ("HIGH", "High", "High"),
        ("xhigh", "Max", "Max"),
        ("max", "Max", "Max"),
        ("unheard of", "Max", "Max"),
    ],
)
def test_an_effort_becomes_the_nearest_that_the_template_knows(
    effort: str | None, line_52: str, line_53: str
) -> None:
    for source, line in ((glm_template.TEMPLATE, line_52), (glm_template.TEMPLATE_53, line_53)):
        text, inside = prompt(source, on=True, effort=effort, compact=True)
        assert text == (
            f"[gMASK]<sop><|system|>Reasoning Effort: {line}<|user|>hi<|assistant|><think>"
        )
        assert inside


def test_R081_a_prompt_does_not_ask_for_much_reasoning_and_close_it() -> None:
    """The effort line goes, or says the least that the template can say."""
    assert prompt(glm_template.TEMPLATE, on=False, effort="high", compact=True) == (
        "[gMASK]<sop><|user|>hi<|assistant|><think></think>",
        False,
    )
    assert prompt(glm_template.TEMPLATE_53, on=False, compact=True) == (
        "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>hi<|assistant|><think></think>",
        False,
    )
    assert prompt(WORDS, on=False)[0].startswith("Effort 1. ")
    assert prompt(WORDS, on=True, effort="max")[0].startswith("Effort 3. ")


def test_inkling_is_told_an_effort_and_opens_its_reasoning_itself() -> None:
    line = "<|message_system|><|content_text|>Thinking effort level: {}<|end_message|>"
    asked = "<|message_user|><|content_text|>hi<|end_message|>"
    for on, effort, level in (
        (False, None, "0"),
        (False, "high", "0"),
        (True, "minimal", "0"),
        (True, "low", "0.2"),
        (True, "medium", "0.7"),
        (True, "max", "0.99"),
    ):
        text, inside = prompt(inkling_template.TEMPLATE, on=on, effort=effort, plain=True)
        assert (text, inside) == (line.format(level) + asked, False)


@pytest.mark.parametrize(
    ("folder", "is_53"),
    [
        ("/models/GLM-5.3-int4", True),
        ("/models/glm5.3", True),
        ("/models/GLM-5.2-int4", False),
        ("/models/glm-5", False),
        ("/models/mine", False),
        ("/cache/models--zai-org--GLM-5.3/snapshots/0123abcd", True),
        ("/srv/GLM-5.3/old/GLM-5.2", False),
        ("/srv/GLM-5.30", False),
    ],
)
def test_the_name_of_the_folder_tells_the_version(folder: str, is_53: bool) -> None:
    template = glm_template.builtin_template(Path(folder))
    assert template == (glm_template.TEMPLATE_53 if is_53 else glm_template.TEMPLATE)


def results(*ids: str | None, calls: tuple[str, ...] = ("a", "b")) -> list[dict[str, Any]]:
    called = [{"id": name, "function": {"name": f"tool_{name}", "arguments": {}}} for name in calls]
    told = [{"role": "tool", "tool_call_id": name, "content": f"r{name}"} for name in ids]
    return [*ASK, {"role": "assistant", "content": "", "tool_calls": called}, *told]


@pytest.mark.parametrize(
    ("messages", "order"),
    [
        (results("a", "b"), "ra rb"),
        (results("b", "a"), "ra rb"),
        (results("b"), "rb"),
        (results("b", None), "rb rNone"),
        (results("b", "b"), "rb rb"),
        (results("x", "a"), "rx ra"),
        (results("b", "a", calls=("a", "a", "b")), "rb ra"),
    ],
)
def test_glm_53_puts_results_into_the_order_of_their_calls_if_ids_tell_it(
    messages: list[dict[str, Any]], order: str
) -> None:
    template = ChatTemplate(glm_template.TEMPLATE_53, TOKENIZER, where="x")
    text = template.render(messages).text
    block = "".join(f"<tool_response>{word}</tool_response>" for word in order.split())
    assert f"<|observation|>{block}<|assistant|>" in text
