"""Grammars: answers that must be JSON, follow a schema, or call a tool - as masks over the tokens.

For: the HTTP side, which builds a `Grammar` from a request (`json_object`, `json_schema`,
`tool_calls`) and so learns at once whether it compiles, and the worker, which keeps one `Matcher`
per answer:

    matcher = masks.matcher(grammar)         None: nothing to enforce
    sampling.mask = matcher.mask()           before a token is drawn
    matcher.accept(token)                    for each token of the answer
    draft = matcher.fork()                   masks of draft positions; or accept and `rollback(n)`

A grammar covers the whole answer, the reasoning before it included if the prompt has opened it: no
constraint holds there. What a schema asks for and the library does not know is left out, with a
note; what cannot be compiled at all is not enforced, with a note (`notes`, to be logged). A tool's
name is enforced in any case. Not for: reading the answer (`parts.py`), which stays the same. Thread
rule: a grammar is a value, `Masks` is shared by threads, a matcher has one owner.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from llguidance import LLMatcher, LLTokenizer

from colibri.errors import ModelError
from colibri.text.arguments import Tools
from colibri.text.tokenizer import Tokenizer

_MAX_SCHEMA_CHARS: Final = 1 << 20
_ANY_TEXT: Final = "/(.|\\n)*/"
_ANY_OBJECT: Final = '%json {"type": "object"}'
_MAX_NOTE: Final = 300
# Between the signs of JSON. A weak model that may write blanks without end does so.
_BLANKS: Final = r"[\x20\x0A\x0D\x09]{1,32}"


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like; an empty `source` enforces nothing. `notes` say what of the
    request is not enforced.
    """

    source: str = ""
    notes: tuple[str, ...] = ()


class Syntax(msgspec.Struct, frozen=True):
    """How a model writes: its dialect's name, the ids of those markers that are control tokens
    (`Tokenizer.control_ids`), and whether the answer begins inside the reasoning.
    """

    dialect: str
    tokens: Mapping[str, int] = {}
    reasoning: bool = False


def json_object(syntax: Syntax) -> Grammar:
    """Any JSON object."""
    return json_schema({"type": "object"}, syntax)


def json_schema(schema: Any, syntax: Syntax) -> Grammar:
    """JSON that follows a schema."""
    writer = _Writer(syntax)
    rule = writer.json(schema)
    if rule is None:
        return Grammar(notes=tuple(writer.notes))
    return writer.answer(rule)


def tool_calls(tools: Tools, syntax: Syntax, *, name: str | None = None, many: bool) -> Grammar:
    """At least one call, of the tool `name` or of any; further ones only with `many`."""
    names = [name] if name is not None else list(tools.names)
    writer = _Writer(syntax)
    calls = [writer.call(tools.schema(each), each) for each in names if each in tools]
    if not calls:
        return Grammar(notes=("there is no such tool to call.",))
    rule = writer.rule(" | ".join(calls))
    between = writer.between()
    return writer.answer(f"{rule} ({between} {rule})*" if many else rule, calls=True)


class _Writer:
    """Writes one grammar in the library's language. Rules are numbered: `r1`, `r2`..."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._lines: list[str] = []
        self.notes: list[str] = []

    def rule(self, body: str, attributes: str = "") -> str:
        """Adds a rule and returns its name."""
        name = f"r{len(self._lines) + 1}"
        self._lines.append(f"{name}{attributes}: {body}")
        return name

    def marker(self, text: str) -> str:
        """A marker of the dialect: a control token, or its letters."""
        token = self._syntax.tokens.get(text)
        return f"<[{token}]>" if token is not None else _literal(text)

    def text_until(self, marker: str) -> str:
        """Any text and the marker that ends it."""
        if marker in self._syntax.tokens:
            return f"{self.rule(_ANY_TEXT)} {self.marker(marker)}"
        return self.rule(_ANY_TEXT, f"[suffix={_literal(marker)}]")

    def answer(self, body: str, *, calls: bool = False) -> Grammar:
        """The whole grammar, its reasoning first; `calls`: the body consists of calls."""
        opened = self._syntax.reasoning
        if self._syntax.dialect == "inkling":
            body = self._inkling_answer(body, calls)
        elif opened:
            body = f"{self.text_until('</think>')} /\\s{{0,4}}/ {body}"
        start = f"start: {body}"
        return Grammar("\n".join([start, *self._lines]) + "\n", tuple(self.notes))

    def _inkling_answer(self, body: str, calls: bool) -> str:
        """The messages of Inkling: the prompt may have opened the first one, thinking may come."""
        model = self.marker("<|message_model|>")
        thought = f"{self.marker('<|content_thinking|>')} {self.text_until('<|end_message|>')}"
        if not calls:
            body = f"{self.marker('<|content_text|>')} {body} {self.marker('<|end_message|>')}"
        return f"{model}? ({thought} {model})? {body}"

    # ---- JSON

    def json(self, schema: Any, what: str = "the schema") -> str | None:
        """JSON that follows a schema; None when it cannot be compiled."""
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            text = ""
        if not text or len(text) > _MAX_SCHEMA_CHARS or not isinstance(schema, dict | bool):
            self._note(what, "it is no JSON schema of a usable size")
            return None
        options = {"x-guidance": {"lenient": True, "whitespace_pattern": _BLANKS}}
        body = f"%json {json.dumps({**schema, **options} if isinstance(schema, dict) else schema)}"
        failed, messages = LLMatcher.validate_grammar_with_warnings(f"start: {body}\n")
        if failed:
            self._note(what, messages[0])
            return None
        for message in messages:
            self._note(what, message)
        return self.rule(body)

    def _note(self, what: str, why: str) -> None:
        why = " ".join(why.split())[:_MAX_NOTE]
        self.notes.append(f"{what} is not enforced in full: {why.removesuffix('.')}.")

    def _any_object(self) -> str:
        return self.rule(_ANY_OBJECT)

    # ---- calls

    def call(self, schema: Any, name: str) -> str:
        """One call of a tool, with its end."""
        schema = {"type": "object"} if schema is None else schema
        if self._syntax.dialect == "glm":
            return self._glm_call(schema, name)
        what = f"the schema of tool {name!r}"
        arguments = self.json(_as_object(schema), what) or self._any_object()
        quoted = json.dumps(name, ensure_ascii=False)
        if self._syntax.dialect == "inkling":
            opening = [_literal(name), self.marker("<|content_invoke_tool_json|>")]
            before, after, end = '{"name":' + quoted + ',"args":', "}", "<|end_message|>"
        else:
            opening = [self.marker("<tool_call>")]
            before, after = '\n{"name": ' + quoted + ', "arguments": ', "}\n"
            end = "</tool_call>"
        body = [*opening, _literal(before), arguments, _literal(after), self.marker(end)]
        return self.rule(" ".join(body))

    def between(self) -> str:
        """What may stand between two calls."""
        if self._syntax.dialect == "inkling":
            return self.marker("<|message_model|>")
        return "" if self._syntax.dialect == "glm" else _literal("\n")

    def _glm_call(self, schema: Any, name: str) -> str:
        tools = Tools([{"name": name, "parameters": schema}])
        properties, required, rest = _properties(schema)
        pieces = [self.marker("<tool_call>"), _literal(name)]
        for key, value in properties.items():
            pair = self._glm_pair(tools, name, key, value, rest)
            pieces.append(pair if key in required else f"{pair}?")
        pieces.append(self.marker("</tool_call>"))
        return self.rule(" ".join(pieces))

    def _glm_pair(
        self, tools: Tools, name: str, key: str, schema: Any, rest: Mapping[str, Any]
    ) -> str:
        head = [self.marker("<arg_key>"), _literal(key), self.marker("</arg_key>")]
        head.append(self.marker("<arg_value>"))
        want = tools.value_type(name, key)
        words = [word for word in want.enum or () if isinstance(word, str) and word]
        if words and len(words) == len(want.enum or ()):
            value = f"({' | '.join(map(_literal, words))}) {self.marker('</arg_value>')}"
        elif want.types is None or "string" in want.types:
            value = self.text_until("</arg_value>")
        else:
            whole = {**rest, **schema} if isinstance(schema, dict) else schema
            rule = self.json(whole, f"parameter {key!r} of tool {name!r}")
            rule = rule or self.rule('%json {"type": ["object", "array", "number", "boolean"]}')
            value = f"{rule} {self.marker('</arg_value>')}"
        return self.rule(" ".join([*head, value]))


def _as_object(schema: Any) -> Any:
    """A schema of arguments that says nothing about its type means an object."""
    if isinstance(schema, dict) and not {"type", "$ref", "allOf", "anyOf", "oneOf"} & schema.keys():
        return {**schema, "type": "object"}
    return schema


def _properties(schema: Any) -> tuple[dict[str, Any], frozenset[str], dict[str, Any]]:
    """(properties in their order, required names, definitions that they may refer to)."""
    if not isinstance(schema, dict):
        return {}, frozenset(), {}
    found = schema.get("properties")
    properties = dict(found) if isinstance(found, dict) else {}
    names = schema.get("required")
    required = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for name in required:
        properties.setdefault(name, {})
    properties = {key: value for key, value in properties.items() if key.strip()}
    rest = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return properties, frozenset(required), rest


def _literal(text: str) -> str:
    """A literal of the grammar's language."""
    return json.dumps(text, ensure_ascii=False)


# ---- matching ------------------------------------------------------------------------------------


class Masks:
    """The vocabulary of one model, prepared for masks. Costs a second for a large one.

    `vocab` is the model's own, padding included; `end_ids` may end an answer that is complete.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, end_ids: Collection[int]) -> None:
        self.vocab = vocab
        self._ends = sorted(end_ids)
        try:
            self._library = LLTokenizer(tokenizer.source, n_vocab=vocab, eos_token=self._ends)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"the tokenizer cannot be used for grammars: {str(error)[:_MAX_NOTE]}.",
                where=tokenizer.where,
            ) from None
        words = bytearray(4 * -(-vocab // 32))
        for token in self._ends:
            words[token // 8] |= 1 << token % 8
        self.end_mask = bytes(words)

    def matcher(self, grammar: Grammar) -> Matcher | None:
        """A matcher at the beginning of an answer; None when the grammar enforces nothing, or
        cannot be prepared.
        """
        if not grammar.source:
            return None
        matcher = LLMatcher(self._library, grammar.source, log_level=0)
        return None if matcher.is_error() else Matcher(self, matcher)

    def problem(self, grammar: Grammar) -> str:
        """Why `matcher` gives None for a grammar with a source; "" when it does not."""
        matcher = LLMatcher(self._library, grammar.source, log_level=0)
        return str(matcher.get_error())


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, masks: Masks, library: LLMatcher) -> None:
        self._masks = masks
        self._library = library

    @property
    def failed(self) -> str:
        """Why nothing is enforced any more; "" while all is well."""
        return str(self._library.get_error())

    @property
    def finished(self) -> bool:
        """Whether only the end of the answer may follow."""
        return not self.failed and self._library.is_stopped()

    def mask(self) -> bytes | None:
        """Which tokens may come next: bit i of 32-bit word i/32, little endian, padded to words.

        None when the library has given up (a limit of the grammar): nothing is enforced then.
        """
        if self._library.is_error():
            return None
        if self._library.is_stopped():
            return self._masks.end_mask
        # The library may append a word for a token of its own.
        mask = self._library.compute_bitmask()[: len(self._masks.end_mask)]
        if self._library.is_error():
            return None
        return mask if any(mask) else self._masks.end_mask

    def accept(self, token: int) -> bool:
        """The answer goes on with `token`; False when the grammar does not allow it, which leaves
        the matcher where it was.
        """
        if self._library.is_error():
            return True
        if self._library.is_stopped():
            return bool(self._masks.end_mask[token // 8] >> token % 8 & 1)
        taken = int(self._library.try_consume_tokens([token])) == 1
        return taken or self._library.is_error()  # it gave up here: everything is allowed

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that were accepted before the end."""
        if count and not self._library.is_error():
            self._library.rollback(count)

    def fork(self) -> Matcher:
        """A matcher of its own at the same place."""
        return Matcher(self._masks, self._library.deep_copy())
