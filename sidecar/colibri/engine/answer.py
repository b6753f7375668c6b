"""What an answer consists of, and what it is asked to look like: values that both sides share.

For: the protocol, the parsers and grammars (`colibri.text`) and the dialects' encoders. Order of
one call: `CallStart`, pieces of `CallArguments` that together are one JSON object, `CallEnd`; calls
never overlap. Thread rule: immutable values.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Visible text of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """Text of the model's reasoning."""

    text: str


class CallStart(msgspec.Struct, frozen=True, tag="call_start"):
    """A call of the declared tool `name` begins. `index` counts from 0, `id` is unique."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, tag="call_arguments"):
    """A piece of the JSON object of arguments of call `index`."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True, tag="call_end"):
    """Call `index` has all its arguments. `complete` is False when the model did not finish it and
    the arguments were closed for it.
    """

    index: int
    complete: bool = True


Part: TypeAlias = Text | Reasoning | CallStart | CallArguments | CallEnd


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like; an empty `source` enforces nothing. `notes` say what of the
    request is not enforced.
    """

    source: str = ""
    notes: tuple[str, ...] = ()


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is read and what it must look like.

    Without `parse` all of it is text (legacy completions). `tools` are the usable tools, as
    `history.usable_tools` gives them: calls of others are text. `reasoning`: the prompt ends inside
    the reasoning, which may take `reasoning_budget` tokens (None: no limit of its own). `grammar`
    masks what is drawn; an empty one masks nothing. With `one_call` the answer ends behind its
    first call.
    """

    parse: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    reasoning: bool = False
    reasoning_budget: int | None = None
    grammar: Grammar = Grammar()
    one_call: bool = False


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the client should know about an answer that ended well: `reasoning_loop` or
    `reasoning_budget` (the reasoning was ended for the model), `reasoning_cut` (the answer's limit
    came before its visible part), `reasoning_only` (the model ended its turn before it).
    """

    code: str
    message: str
