"""Grammars: what the masks allow is always valid, in each dialect's own syntax."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from colibri.engine.answer import CallArguments, CallEnd, CallStart, Grammar, Part, Text
from colibri.text.arguments import Tools
from colibri.text.detok import Detokenizer
from colibri.text.dialect import GLM, HERMES, INKLING, Dialect
from colibri.text.grammar import Masks, Matcher, Syntax, json_object, json_schema, tool_calls
from colibri.text.parts import joined
from colibri.text.tokenizer import Tokenizer, from_json
from tests.models import files
from tests.text.answers import NOW, WEATHER

VOCAB = 320
TOOLS = Tools([WEATHER, NOW])
PARAMETERS: dict[str, Any] = WEATHER["function"]["parameters"]["properties"]  # type: ignore[index]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def build(extra: tuple[str, ...]) -> Tokenizer:
    return from_json(json.dumps(files.tokenizer(extra=extra)).encode(), "tokenizer.json")


MARKERS = (*GLM.markers[2:], *INKLING.markers)
TOKENS = build(MARKERS)  # every marker is a control token
LETTERS = build(())
END = TOKENS.token_id("<|im_end|>") or 0


def syntax(dialect: Dialect, tokenizer: Tokenizer, *, reasoning: bool = False) -> Syntax:
    return Syntax(dialect.name, tokenizer.control_ids(dialect.markers), reasoning)


def matcher(grammar: Grammar, tokenizer: Tokenizer) -> Matcher:
    masks = Masks(tokenizer, VOCAB, [END])
    found = masks.matcher(grammar)
    assert found is not None, masks.problem(grammar)
    return found


def allowed(mask: bytes | None) -> list[int]:
    assert mask is not None
    assert len(mask) == 4 * -(-VOCAB // 32)
    return [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]


def babble(grammar: Grammar, tokenizer: Tokenizer, seed: int) -> list[int]:
    """An answer drawn at random among what the masks allow, seldom a long text."""
    random_ = random.Random(seed)  # noqa: S311
    state = matcher(grammar, tokenizer)
    ids: list[int] = []
    closing = [t for t in range(VOCAB) if tokenizer.token_bytes(t) in (b'"', b"}", b"]")]
    closing += list(tokenizer.control_ids(MARKERS).values())
    for _ in range(3000):
        tokens = allowed(state.mask())
        assert tokens, "nothing is allowed"
        if END in tokens:
            return ids
        end = tokenizer.encode("</arg_value>")
        if random_.random() < 0.1 and all(map(state.fork().accept, end)):
            # Letters that end a free text are not found by chance.
            ids += [token for token in end if state.accept(token)]
            continue
        likely = [token for token in tokens if token in closing]
        token = random_.choice(likely if likely and random_.random() < 0.5 else tokens)
        assert state.accept(token)
        ids.append(token)
    raise AssertionError("the answer does not end")


def parts(dialect: Dialect, tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[Part]:
    control = tokenizer.control_ids(dialect.markers)
    detokenizer = Detokenizer(tokenizer, marks=control.values())
    parser = dialect.parser(TOOLS, tokens=control, **options)
    return joined([*parser.push(detokenizer.push(ids)), *parser.flush()])


@pytest.mark.parametrize("seed", range(5))
def test_R024_R026_whatever_is_drawn_is_json_of_the_schema(seed: int) -> None:
    plain = syntax(HERMES, LETTERS)
    value = json.loads(LETTERS.decode(babble(json_schema(SCHEMA, plain), LETTERS, seed)))
    assert set(value) == {"a"} and isinstance(value["a"], int)
    text = LETTERS.decode(babble(json_object(plain), LETTERS, seed))
    assert isinstance(json.loads(text), dict)


def test_blanks_in_json_come_to_an_end() -> None:
    blank = LETTERS.encode(" ")[0]
    for schema in (SCHEMA, {"type": "object"}):
        state = matcher(json_schema(schema, syntax(HERMES, LETTERS)), LETTERS)
        assert state.accept(LETTERS.encode("{")[0])
        count = 0
        while state.accept(blank):
            count += 1
        assert count == 32


def test_R026_the_answer_may_only_end_when_the_object_is_closed() -> None:
    state = matcher(json_object(syntax(HERMES, LETTERS)), LETTERS)
    for token in LETTERS.encode("{}"):
        assert END not in allowed(state.mask())
        assert state.accept(token)
    assert state.finished
    assert allowed(state.mask()) == [END]
    assert state.accept(END)
    assert not state.accept(END + 5)


@pytest.mark.parametrize("tokenizer", [TOKENS, LETTERS], ids=["tokens", "letters"])
@pytest.mark.parametrize("dialect", [GLM, HERMES, INKLING], ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_is_always_a_call(dialect: Dialect, tokenizer: Tokenizer, seed: int) -> None:
    if dialect is INKLING and tokenizer is LETTERS:
        return  # Inkling without its control tokens does not exist
    for name in ("weather", "now", None):
        grammar = tool_calls(TOOLS, syntax(dialect, tokenizer), name=name, many=False)
        found = parts(dialect, tokenizer, babble(grammar, tokenizer, seed))
        starts = [part for part in found if isinstance(part, CallStart)]
        assert len(starts) == 1
        assert starts[0].name == name or name is None
        assert not [part for part in found if isinstance(part, Text)]
        arguments = [part.text for part in found if isinstance(part, CallArguments)]
        value = json.loads("".join(arguments))
        assert isinstance(value.get("days", 1), int | float)
        known = PARAMETERS if starts[0].name == "weather" else {}
        assert value.keys() <= known.keys(), "a parameter that nobody declared"
        assert value.get("colour", "red") in ("red", "green")
        assert found[-1] == CallEnd(0, complete=True)


def test_several_calls_only_where_they_are_allowed() -> None:
    for dialect in (GLM, HERMES):
        one = "<tool_call>now</tool_call>"
        if dialect is HERMES:
            one = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        ids = TOKENS.encode(one + one, markers=True)
        for many in (True, False):
            grammar = tool_calls(TOOLS, syntax(dialect, TOKENS), name="now", many=many)
            state = matcher(grammar, TOKENS)
            assert all(state.accept(token) for token in ids[: len(ids) - 1]) is many


@pytest.mark.parametrize("tokenizer", [TOKENS, LETTERS], ids=["tokens", "letters"])
def test_R025_the_constraint_begins_behind_the_reasoning(tokenizer: Tokenizer) -> None:
    grammar = json_schema(SCHEMA, syntax(HERMES, tokenizer, reasoning=True))
    state = matcher(grammar, tokenizer)
    for token in tokenizer.encode("I think: {[ so</think>", markers=True):
        assert END not in allowed(state.mask())
        assert state.accept(token)
    assert not state.accept(tokenizer.encode("I")[0])
    assert all(state.accept(token) for token in tokenizer.encode('\n{"a": 1}'))
    assert END in allowed(state.mask())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"p": {"type": "string", "pattern": "^(?!x)"}}},
        {"$ref": "#/nope"},
        {"$ref": "https://example.org/schema"},
        {"type": "nonsense"},
        {"anyOf": []},
        "no schema",
        3,
    ],
)
def test_R040_a_schema_that_does_not_compile_is_a_note_and_no_constraint(schema: Any) -> None:
    grammar = json_schema(schema, syntax(HERMES, LETTERS))
    assert grammar.source == ""
    assert "not enforced" in grammar.notes[0]
    assert Masks(LETTERS, VOCAB, [END]).matcher(grammar) is None
    # A tool with that schema is called all the same, with any arguments.
    tools = Tools([{"name": "now", "parameters": {"properties": {"p": schema}, "required": ["p"]}}])
    for dialect in (GLM, HERMES):
        grammar = tool_calls(tools, syntax(dialect, TOKENS), name="now", many=False)
        found = parts(dialect, TOKENS, babble(grammar, TOKENS, 1))
        assert isinstance(found[0], CallStart)


def test_a_schema_on_which_the_library_fails_is_a_note_and_no_error() -> None:
    """Found by fuzzing: it cuts what it cannot read for its message, here inside a letter."""
    grammar = json_schema({**SCHEMA, "required": "é" * 300}, syntax(HERMES, LETTERS))
    (note,) = grammar.notes
    assert "the grammar library failed on it" in note


def test_R040_unknown_keywords_are_left_out_with_a_note() -> None:
    schema = {"type": "string", "format": "strange", "not": {"const": "a"}}
    grammar = json_schema(schema, syntax(HERMES, LETTERS))
    assert grammar.notes
    assert isinstance(json.loads(LETTERS.decode(babble(grammar, LETTERS, 2))), str)


def test_a_call_of_a_tool_that_is_not_there_enforces_nothing() -> None:
    assert tool_calls(TOOLS, syntax(GLM, TOKENS), name="other", many=True).source == ""
    assert tool_calls(Tools(), syntax(GLM, TOKENS), many=True).source == ""


def test_names_and_keys_with_special_letters_stay_letters() -> None:
    tools = Tools([{"name": 'a"b', "parameters": {"properties": {'k"\\n/é': {"type": "integer"}}}}])
    for dialect in (GLM, HERMES, INKLING):
        assert matcher(tool_calls(tools, syntax(dialect, TOKENS), many=False), TOKENS).mask()


def test_rollback_and_forks_leave_the_masks_as_if_nothing_had_been_tried() -> None:
    random_ = random.Random(3)  # noqa: S311
    state = matcher(tool_calls(TOOLS, syntax(HERMES, TOKENS), many=True), TOKENS)
    for _ in range(60):
        before = state.mask()
        fork, count = state.fork(), random_.randint(1, 4)
        tried = 0
        for _ in range(count):
            tokens = [token for token in allowed(state.mask()) if token != END]
            if not tokens:
                break
            token = random_.choice(tokens)
            assert state.accept(token) and fork.accept(token)
            assert state.mask() == fork.mask()
            tried += 1
        state.rollback(tried)
        assert state.mask() == before
        tokens = [token for token in allowed(before) if token != END]
        if not tokens:
            break
        assert state.accept(random_.choice(tokens))


def test_a_token_that_is_not_allowed_changes_nothing() -> None:
    state = matcher(json_object(syntax(HERMES, LETTERS)), LETTERS)
    before = state.mask()
    assert not state.accept(LETTERS.encode("x")[0])
    assert state.mask() == before
    assert state.failed == ""


def test_padding_of_the_vocabulary_is_never_allowed() -> None:
    state = matcher(json_object(syntax(HERMES, LETTERS)), LETTERS)
    for token in LETTERS.encode('{"a":"'):
        assert state.accept(token)
    assert max(allowed(state.mask())) < LETTERS.vocab_size


def test_a_grammar_that_is_too_large_is_given_up_and_not_the_answer() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(1500)}}
    state = matcher(json_schema(schema, syntax(HERMES, LETTERS)), LETTERS)
    assert state.mask() is not None and state.failed == ""
    assert state.accept(LETTERS.encode("{")[0])
    assert state.mask() is None
    assert "max is" in state.failed and not state.finished
    assert state.accept(5) and state.fork().mask() is None
    state.rollback(1)
    assert state.mask() is None


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


def test_a_schema_that_would_hold_up_the_engine_is_not_enforced() -> None:
    """Preparing 8,000 properties took longer than an engine may make no progress: it was ended,
    and with it the answers of everybody."""
    long = {"const": "x" * 200_000}
    for schema in (wide(8000), long, {"anyOf": [True] * 8000}):
        grammar = json_schema(schema, syntax(HERMES, LETTERS))
        assert not grammar.source and "together" in grammar.notes[0]
    for dialect in (GLM, HERMES, INKLING):
        tools = Tools([{"name": "f", "parameters": wide(8000)}])
        grammar = tool_calls(tools, syntax(dialect, TOKENS), many=False)
        assert "p7999" not in grammar.source and "together" in grammar.notes[0]
        assert matcher(grammar, TOKENS).mask() is not None


def test_the_schemas_of_many_tools_share_the_room_and_all_names_are_enforced() -> None:
    tools = Tools([{"name": f"f{n}", "parameters": wide(100 + n)} for n in range(60)])
    grammar = tool_calls(tools, syntax(HERMES, TOKENS), many=False)
    assert "p100" in grammar.source and "p150" not in grammar.source
    assert all(f'\\"f{n}\\"' in grammar.source for n in range(60))


def test_tools_with_the_same_schema_cost_it_once() -> None:
    tools = Tools([{"name": f"f{n}", "parameters": wide(100)} for n in range(60)])
    grammar = tool_calls(tools, syntax(HERMES, TOKENS), many=False)
    assert grammar.source.count("p99") == 1 and not grammar.notes


def test_a_tool_with_an_endless_name_is_not_demanded() -> None:
    """A literal of 100,000 letters cost minutes in the engine."""
    tools = Tools([{"name": name, "parameters": None} for name in ("n" * 100_000, "f")])
    grammar = tool_calls(tools, syntax(HERMES, TOKENS), many=False)
    assert "nnn" not in grammar.source and '\\"f\\"' in grammar.source and grammar.notes
    assert not tool_calls(tools, syntax(HERMES, TOKENS), name="n" * 100_000, many=False).source


def test_control_characters_of_a_schema_do_not_reach_the_log() -> None:
    schema = {"type": "string", "format": "\x00\x1b[2J\n2026 INFO forged"}
    notes = json_schema(schema, syntax(HERMES, LETTERS)).notes
    assert notes and all(note.isprintable() for note in notes), notes


def test_R129_letters_of_a_control_token_in_a_schema_stay_letters() -> None:
    """A name that a client chose would else end the turn, or open a role."""
    for text in ("<|user|>", "<think>", "a<|im_end|>b", "<|message_model|>", "é<|user|>"):
        for schema in ({"const": text}, {"properties": {text: {}}, "required": [text]}):
            whole = {"type": "object", **schema} if "required" in schema else schema
            for tokenizer in (TOKENS, LETTERS):
                grammar = json_schema(whole, syntax(HERMES, tokenizer))
                ids = babble(grammar, tokenizer, 1)
                assert not set(ids) & tokenizer.marker_ids
                value = json.loads(tokenizer.decode(ids))
                assert value == text or text in value


def test_markers_of_another_dialect_in_a_call_stay_letters() -> None:
    grammar = tool_calls(TOOLS, Syntax("hermes"), name="now", many=False)
    ids = babble(grammar, TOKENS, 1)
    assert not set(ids) & TOKENS.marker_ids
    assert TOKENS.decode(ids).startswith("<tool_call>\n{")


def test_a_tool_that_welcomes_other_parameters_gets_them() -> None:
    open_ = {"properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    for schema, allowed_ in ((open_, True), ({"properties": open_["properties"]}, False)):
        tools = Tools([{"name": "now", "parameters": schema}])
        state = matcher(tool_calls(tools, syntax(HERMES, TOKENS), many=False), TOKENS)
        call = '<tool_call>\n{"name": "now", "arguments": {"b": 1}}\n</tool_call>'
        ids = TOKENS.encode(call, markers=True)
        assert all(state.accept(token) for token in ids) is allowed_


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether an answer may be this whole text."""
    state = matcher(grammar, TOKENS)
    return (
        all(state.accept(token) for token in TOKENS.encode(text, markers=True)) and state.finished
    )


def test_objects_that_list_their_properties_have_no_others() -> None:
    """Unless the schema says so. Most clients leave `additionalProperties` out."""
    inner = {"type": "object", "properties": {"c": {"type": "integer"}}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": inner}, "b": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"anyOf": [inner, {"type": "null"}]}},
    }
    closed = json_schema(schema, syntax(HERMES, TOKENS))
    assert accepts(closed, '{"a": [{"c": 1}], "b": {"c": 2}}')
    for extra in ('{"x": 1}', '{"a": [{"c": 1, "x": 2}]}', '{"b": {"x": 2}}'):
        assert not accepts(closed, extra)
    welcome = json_schema({**schema, "additionalProperties": True}, syntax(HERMES, TOKENS))
    assert accepts(welcome, '{"x": 1}')
    both = {"allOf": [inner, {"type": "object", "properties": {"e": {"type": "null"}}}]}
    assert accepts(json_schema(both, syntax(HERMES, TOKENS)), '{"c": 1, "e": null}')
    assert accepts(json_object(syntax(HERMES, TOKENS)), '{"anything": {"x": 1}}')


def test_calls_do_not_go_on_without_end() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for dialect, one in ((HERMES, call), (GLM, "<tool_call>now</tool_call>")):
        grammar = tool_calls(TOOLS, syntax(dialect, TOKENS), name="now", many=True)
        between = "\n" if dialect is HERMES else ""
        assert accepts(grammar, between.join([one] * 16))
        assert not accepts(grammar, between.join([one] * 17))
