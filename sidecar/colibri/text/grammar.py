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

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from llguidance import LLMatcher, LLTokenizer

from colibri.engine.answer import Grammar
from colibri.errors import ModelError
from colibri.text.arguments import Tools
from colibri.text.tokenizer import Tokenizer

# What all schemas of one grammar may have together. The library prepares a grammar in the worker,
# between the steps of other answers, in a time that grows with the square of these: for 4,000
# optional properties 6 s, for 8,000 more than the 30 s after which the engine counts as hung.
_MAX_CHARS: Final = 1 << 17
_MAX_PARTS: Final = 2000
_MAX_NAME: Final = 1024
# A weak model that may call again does so without end.
_MAX_CALLS: Final = 16
_MAX_DEPTH: Final = 64
_COMBINED: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_OTHERS: Final = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_ANY_TEXT: Final = "/(.|\\n)*/"
_ANY_OBJECT: Final = '%json {"type": "object"}'
_MAX_NOTE: Final = 300
# Between the signs of JSON. A weak model that may write blanks without end does so.
_BLANKS: Final = r"[\x20\x0A\x0D\x09]{1,32}"


class Syntax(msgspec.Struct, frozen=True):
    """How a model writes: its dialect's name, the ids of those markers that are control tokens
    (`Tokenizer.control_ids`), and whether the answer begins inside the reasoning.
    """

    dialect: str
    tokens: Mapping[str, int] = {}
    reasoning: bool = False


def json_object(syntax: Syntax, *, tools: Tools | None = None, many: bool = True) -> Grammar:
    """Any JSON object; `tools` and `many` as for a schema."""
    return json_schema({"type": "object"}, syntax, tools=tools, many=many)


def json_schema(
    schema: Any, syntax: Syntax, *, tools: Tools | None = None, many: bool = True
) -> Grammar:
    """JSON that follows a schema, or calls of `tools` in its place; several only with `many`.

    Objects that list their properties have no others, unless the schema says a word on them: so do
    other servers read schemas, and a weak model would make up properties without end.
    """
    writer = _Writer(syntax)
    rule = writer.json(_closed(schema))
    if rule is None:
        return Grammar(notes=tuple(writer.notes))
    calls = writer.calls(tools, list(tools.names), many) if tools else ""
    return writer.answer(json_rule=rule, calls=calls)


def tool_calls(tools: Tools, syntax: Syntax, *, name: str | None = None, many: bool) -> Grammar:
    """At least one call, of the tool `name` or of any; further ones only with `many`."""
    names = [name] if name is not None else list(tools.names)
    writer = _Writer(syntax)
    calls = writer.calls(tools, names, many)
    if not calls:
        return Grammar(notes=("there is no such tool to call.",))
    return writer.answer(calls=calls)


class _Writer:
    """Writes one grammar in the library's language. Rules are numbered: `r1`, `r2`..."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._lines: list[str] = []
        self._known: dict[str, str] = {}
        self._chars = self._parts = 0
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

    def answer(self, *, json_rule: str = "", calls: str = "") -> Grammar:
        """The whole grammar, its reasoning first: JSON or calls, whichever are given."""
        forms = [self._inkling_text(json_rule)] if json_rule else []
        forms += [calls] if calls else []
        body = forms[0] if len(forms) == 1 else "(" + " | ".join(forms) + ")"
        if self._syntax.dialect == "inkling":
            # The prompt may have opened the first message, thinking may come.
            model = self.marker("<|message_model|>")
            thought = f"{self.marker('<|content_thinking|>')} {self.text_until('<|end_message|>')}"
            body = f"{model}? ({thought} {model})? {body}"
        elif self._syntax.reasoning:
            body = f"{self.text_until('</think>')} /\\s{{0,4}}/ {body}"
        start = f"start: {body}"
        return Grammar("\n".join([start, *self._lines]) + "\n", tuple(self.notes))

    def _inkling_text(self, body: str) -> str:
        """A visible text; Inkling has messages around it."""
        if self._syntax.dialect != "inkling":
            return body
        return f"{self.marker('<|content_text|>')} {body} {self.marker('<|end_message|>')}"

    # ---- JSON

    def json(self, schema: Any, what: str = "the schema") -> str | None:
        """JSON that follows a schema; None when it cannot be compiled."""
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            text = ""
        if not text or not isinstance(schema, dict | bool):
            self._note(what, "it is no JSON schema")
            return None
        if text in self._known:
            return self._known[text]
        if not self._fits(what, _parts(schema), len(text)):
            return None
        options = {"x-guidance": {"lenient": True, "whitespace_pattern": _BLANKS}}
        body = f"%json {json.dumps({**schema, **options} if isinstance(schema, dict) else schema)}"
        failed, messages = _validated(f"start: {body}\n")
        if failed:
            self._note(what, messages[0])
            return None
        for message in messages:
            self._note(what, message)
        self._known[text] = self.rule(body)
        return self._known[text]

    def _fits(self, what: str, parts: int, chars: int) -> bool:
        """Takes this much of what a grammar may have; False, with a note, when it has it not."""
        if self._parts + parts > _MAX_PARTS or self._chars + chars > _MAX_CHARS:
            most = f"{_MAX_PARTS} parts and {_MAX_CHARS} characters"
            self._note(what, f"a request's schemas may have {most} together")
            return False
        self._parts += parts
        self._chars += chars
        return True

    def _note(self, what: str, why: str) -> None:
        why = "".join(sign if sign.isprintable() else " " for sign in why)
        why = " ".join(why.split())[:_MAX_NOTE]
        self.notes.append(f"{what} is not enforced in full: {why.removesuffix('.')}.")

    def _any_object(self) -> str:
        if _ANY_OBJECT not in self._known:
            self._known[_ANY_OBJECT] = self.rule(_ANY_OBJECT)
        return self._known[_ANY_OBJECT]

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

    def calls(self, tools: Tools, names: Iterable[str], many: bool) -> str:
        """Calls of these tools; "" if there are none."""
        each = []
        for name in names:
            if len(name) > _MAX_NAME:
                self._note("the list of tools", f"a name has more than {_MAX_NAME} characters")
            elif name in tools:
                each.append(self.call(tools.schema(name), name))
        if not each:
            return ""
        rule = self.rule(" | ".join(each))
        more = f" ({self.between()} {rule}){{0,{_MAX_CALLS - 1}}}"
        return rule + more if many else rule

    def between(self) -> str:
        """What may stand between two calls."""
        if self._syntax.dialect == "inkling":
            return self.marker("<|message_model|>")
        return "" if self._syntax.dialect == "glm" else _literal("\n")

    def _glm_call(self, schema: Any, name: str) -> str:
        tools = Tools([{"name": name, "parameters": schema}])
        properties, required, rest = _properties(schema)
        if not self._fits(
            f"the schema of tool {name!r}", len(properties), sum(map(len, properties))
        ):
            properties = {}
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


def _parts(schema: Any) -> int:
    """How many values a schema has that are no texts and no numbers: what is in it of schemas,
    groups of them and lists, however deep.
    """
    count, rest = 0, [schema]
    while rest:
        value = rest.pop()
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            count += 1
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count


def _as_object(schema: Any) -> Any:
    """A schema of arguments that says nothing about its type means an object, and one that lists
    parameters without a word on others has no others: a model that has to call makes them up.
    """
    if not isinstance(schema, dict):
        return schema
    if not _COMBINED & schema.keys() and "type" not in schema:
        schema = {**schema, "type": "object"}
    return {**schema, "additionalProperties": False} if _is_open(schema) else schema


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema lists properties and says nothing of others."""
    listed = isinstance(schema.get("properties"), dict)
    return listed and not (_COMBINED | _OTHERS) & schema.keys()


def _closed(schema: Any, depth: int = 0) -> Any:
    """The schema with every open object closed, but for those that `allOf` puts together."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    result = {**schema, "additionalProperties": False} if _is_open(schema) else dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            result[key] = {name: _closed(item, depth + 1) for name, item in schema[key].items()}
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            result[key] = [_closed(item, depth + 1) for item in schema[key]]
    if "items" in schema:
        result["items"] = _closed(schema["items"], depth + 1)
    return result


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


def _validated(source: str) -> tuple[bool, list[str]]:
    """Whether the library refuses the grammar, and what it says."""
    try:
        refused, messages = LLMatcher.validate_grammar_with_warnings(source)
    except BaseException as error:
        # A panic of compiled Rust is no `Exception`. A message that the library cuts inside a
        # letter of two bytes is enough for one.
        if type(error).__name__ != "PanicException":
            raise
        return True, [f"the grammar library failed on it: {error}"]
    return bool(refused), list(messages)


def _reason(library: LLMatcher) -> str:
    """Its sentence, without the dump of grammar and state that follows."""
    return str(library.get_error()).split("\n", 1)[0][:_MAX_NOTE]


def _bits(tokens: Iterable[int]) -> int:
    found = 0
    for token in tokens:
        found |= 1 << token
    return found


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
        self._size = 4 * -(-vocab // 32)
        self.end_mask = _bits(self._ends).to_bytes(self._size, "little")
        self._control = _bits(tokenizer.marker_ids | tokenizer.special_ids)
        self._tokenizer = tokenizer
        self._byte_ids: dict[bytes, int] | None = None

    def matcher(self, grammar: Grammar) -> Matcher | None:
        """A matcher at the beginning of an answer; None when the grammar enforces nothing, or
        cannot be prepared.
        """
        if not grammar.source:
            return None
        matcher = LLMatcher(self._library, grammar.source, log_level=0)
        return None if matcher.is_error() else Matcher(self, matcher)

    def honest(self, mask: bytes, library: LLMatcher) -> bytes:
        """The mask without control tokens that are not the grammar's own.

        Letters that a grammar demands - a name in a schema, say - are offered by the library as
        they would be tokenised, and that may be a control token, which it then does not accept.
        """
        found = int.from_bytes(mask, "little")
        doubtful = found & self._control
        while doubtful:
            lowest = doubtful & -doubtful
            doubtful ^= lowest
            if library.validate_tokens([lowest.bit_length() - 1]) != 1:
                found ^= lowest
                mask = b""
        if not found:  # it offered nothing else: the first of the letters, by itself
            token = self._byte_id(library.compute_ff_bytes()[:1])
            found = 0 if token is None else 1 << token
        return mask or found.to_bytes(self._size, "little")

    def _byte_id(self, byte: bytes) -> int | None:
        """The token that is this byte and nothing else."""
        if self._byte_ids is None:
            ids = range(self._tokenizer.vocab_size)
            tokens = {self._tokenizer.token_bytes(token): token for token in reversed(ids)}
            self._byte_ids = {data: token for data, token in tokens.items() if len(data) == 1}
        return self._byte_ids.get(byte)

    def problem(self, grammar: Grammar) -> str:
        """Why `matcher` gives None for a grammar with a source; "" when it does not."""
        return _reason(LLMatcher(self._library, grammar.source, log_level=0))


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, masks: Masks, library: LLMatcher) -> None:
        self._masks = masks
        self._library = library

    @property
    def failed(self) -> str:
        """Why nothing is enforced any more; "" while all is well."""
        return _reason(self._library)

    @property
    def finished(self) -> bool:
        """Whether only the end of the answer may follow."""
        return self._library.is_stopped() and not self._library.is_error()

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
        mask = self._masks.honest(mask, self._library)
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

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, one after the other, the grammar allows. Changes nothing."""
        if self._library.is_error():
            return len(tokens)
        if self._library.is_stopped():
            return 0
        known = list(itertools.takewhile(lambda token: token < self._masks.vocab, tokens))
        return int(self._library.validate_tokens(known))

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that were accepted before the end."""
        if count and not self._library.is_error():
            self._library.rollback(count)

    def fork(self) -> Matcher:
        """A matcher of its own at the same place."""
        return Matcher(self._masks, self._library.deep_copy())
