"""Reasoning on or off: what a template is told, and how the prompt that it renders must end.

For: the HTTP side, around `ChatTemplate.render`. Templates differ in how they are asked to let the
model think: a switch, a word for how much, an opened think block, nothing. What is asked for holds
in any case, and the prompt does not contradict itself. Not for: reading the reasoning (`parts`) or
ending it (`reasoning`). Thread rule: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from colibri.text.template import ChatTemplate, Rendered

_START, _END = "<think>", "</think>"
# Names that templates use for the switch.
_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORT: Final = "reasoning_effort"
_WORDS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_QUOTED: Final = re.compile(rf"['\"]({'|'.join(_WORDS)})['\"]", re.IGNORECASE)


def effort_words(source: str) -> tuple[str, ...]:
    """The efforts that a template's source tells apart, lowest first."""
    found = {match.lower() for match in _QUOTED.findall(source)}
    return tuple(word for word in _WORDS if word in found)


def nearest(effort: str, known: Collection[str]) -> str:
    """The word among `known` that is nearest to an effort; of two the higher one. Words that nobody
    knows stay what they are.
    """
    ranks = [_WORDS.index(word) for word in known]
    if not ranks or effort.lower() not in _WORDS:
        return effort
    wanted = _WORDS.index(effort.lower())
    return _WORDS[min(ranks, key=lambda rank: (abs(rank - wanted), -rank))]


def variables(template: ChatTemplate, *, thinking: bool, effort: str | None) -> dict[str, Any]:
    """What the template is told. Without thinking, a template that has no switch but speaks of an
    effort gets the lowest that it knows.
    """
    told: dict[str, Any] = {name: thinking for name in _SWITCHES if name in template.variable_names}
    if _EFFORT not in template.variable_names:
        return told
    known = effort_words(template.source)
    if thinking and effort is not None:
        asked = [word for word in known if word != "none"]
        told[_EFFORT] = nearest(effort, asked)
    elif not thinking and not told and known:
        told[_EFFORT] = known[0]
    return told


def finished(
    template: ChatTemplate, rendered: Rendered, *, thinking: bool, compact: bool
) -> tuple[Rendered, bool]:
    """(prompt, whether it ends inside the reasoning). Without thinking, a think block that the
    template leaves open is closed, and one that it does not write is written empty if the model
    knows such blocks: else the model would begin one. `compact`: the model writes no line breaks
    around its reasoning.
    """
    text = rendered.marked
    bare = text.rstrip()
    if bare.endswith(_START):
        if thinking:
            return rendered, True
        broken = "" if compact else "\n\n"
        # What the template has written behind the marker stays.
        before = broken[: max(len(broken) - (len(text) - len(bare)), 0)]
        return _longer(rendered, f"{before}{_END}{broken}"), False
    switched = any(name in template.variable_names for name in _SWITCHES)
    if thinking or switched or bare.endswith(_END) or not template.writes(_START, _END):
        return rendered, False
    broken = "" if compact else "\n\n"
    return _longer(rendered, f"{_START}{broken}{_END}{broken}"), False


def _longer(rendered: Rendered, end: str) -> Rendered:
    return Rendered(rendered.text + end, rendered.marked + end, rendered.guard)
