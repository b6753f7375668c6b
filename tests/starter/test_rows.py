"""Training rows are what the program renders; conversations are the same for the same seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from colibri.families.glm_template import TEMPLATE
from colibri.text import tokenizer as texts
from colibri.text.template import ChatTemplate
from starter import schedule
from starter import vocabulary as bpe
from starter.conversations import Conversation, Maker, Turn, load_facts, tool
from starter.data import Data
from starter.entries import Entry, Vocabulary
from starter.phrasings import NO_NOTE
from starter.rows import IGNORE, RowMaker

WORDS = ("dog", "run", "big", "moon", "bread", "sing")


def _entry(rank: int) -> Entry:
    word = WORDS[rank]
    pos, topic = {"run": ("v", "verb.motion"), "sing": ("v", "verb.creation")}.get(
        word, ("a", "adj.all") if word == "big" else ("n", "noun.object")
    )
    return Entry(word, pos, topic, f"the meaning of {word}", "thing", "other", "not", "ex", rank)  # type: ignore[arg-type]


VOCABULARY = Vocabulary(
    tuple(_entry(i) for i in range(len(WORDS))), tuple(f"unknown{i}" for i in range(40))
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Data, Path]:
    path = tmp_path_factory.mktemp("starter") / "tokenizer.json"
    maker = Maker(VOCABULARY, load_facts(), 1)
    tokenizer = bpe.train(maker.corpus(300), path)
    return Data(VOCABULARY, tokenizer, load_facts()), path


def _conversations() -> list[Conversation]:
    maker = Maker(VOCABULARY, load_facts(), 5)
    made = [maker.plain(4) for _ in range(20)] + [maker.thinking(3) for _ in range(20)]
    return made + [maker.calling(2) for _ in range(10)] + [maker.notes(5) for _ in range(20)]


def _messages(conversation: Conversation) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    if conversation.system is not None:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.user})
        if turn.call is not None:
            function = {"name": turn.call.name, "arguments": dict(turn.call.arguments)}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
            )
            messages.append({"role": "tool", "content": turn.call.result})
        message: dict[str, object] = {"role": "assistant", "content": turn.answer}
        if turn.think is not None:
            message["reasoning_content"] = turn.think
        messages.append(message)
    return messages


def test_rows_are_what_the_template_renders(data: tuple[Data, Path]) -> None:
    tokenizer = texts.load(data[1])
    template = ChatTemplate(TEMPLATE, tokenizer, where="built-in")
    maker = RowMaker(data[0].tokenizer, "")
    for conversation in _conversations():
        block = data[0].tools_block(conversation.tools) if conversation.tools else ""
        row = maker.row(conversation, 4000, block)
        assert row is not None
        rendered = template.render(
            _messages(conversation),
            tools=conversation.tools,
            add_generation_prompt=False,
            variables={"enable_thinking": conversation.thinking},
        )
        assert tokenizer.decode(row.ids, keep_special=True) == rendered.text
        assert row.ids == template.encode(rendered)


def test_the_model_writes_answers_and_the_ends_of_turns(data: tuple[Data, Path]) -> None:
    turns = [Turn("define", "dog", "An animal.", 0), Turn("define", "moon", "A body.", 3)]
    row = RowMaker(data[0].tokenizer, "").row(Conversation(turns), 200)
    assert row is not None
    written = [token for token in row.labels if token != IGNORE]
    assert data[0].tokenizer.decode(written, skip_special_tokens=False) == (
        "An animal.<|user|>A body.<|user|>"
    )


def test_a_call_ends_with_the_observation_token(data: tuple[Data, Path]) -> None:
    conversation = Maker(VOCABULARY, load_facts(), 2).calling(1)
    row = RowMaker(data[0].tokenizer, "").row(conversation, 2000, "")
    assert row is not None
    written = [token for token in row.labels if token != IGNORE]
    text = data[0].tokenizer.decode(written, skip_special_tokens=False)
    call = conversation.turns[0].call
    assert call is not None
    assert text.startswith(f"<tool_call>{call.name}<arg_key>")
    assert "</tool_call><|observation|>" in text
    assert text.endswith(f"{conversation.turns[0].answer}<|user|>")


def test_what_is_asked_for_was_noted_before() -> None:
    maker = Maker(VOCABULARY, load_facts(), 8)
    for n_turns in (3, 6, 12) * 40:
        noted = ""
        for turn in maker.notes(n_turns).turns:
            if turn.task == "note":
                noted += turn.user.lower()
            elif turn.task == "recall" and turn.answer != NO_NOTE:
                assert turn.answer.rpartition(" ")[2].rstrip(".") in noted


def test_a_schedule_ends_low_and_goes_through_its_phases() -> None:
    for plan in schedule.BY_NAME.values():
        rates = [schedule.learning_rate(plan, 1000, share / 100) for share in range(101)]
        assert max(rates) == pytest.approx(plan.peak)
        assert rates[-1] < 0.03
        assert schedule.mode(plan, 1) == "sparse"
        assert schedule.with_mtp(plan, 1)
        rng = random.Random(1)  # noqa: S311
        shapes = {schedule.shape(plan, 0.95, rng).length for _ in range(200)}
        assert shapes == {128, 512, 2048}


def test_rows_are_never_too_long_and_keep_what_matters(data: tuple[Data, Path]) -> None:
    maker, rows = Maker(VOCABULARY, load_facts(), 9), RowMaker(data[0].tokenizer, "")
    for _ in range(200):
        conversation = maker.notes(8)
        row = rows.row(conversation, 160)
        if row is None:
            continue
        assert len(row.ids) <= 160
        text = data[0].tokenizer.decode(row.ids, skip_special_tokens=False)
        assert conversation.turns[-1].user in text


def test_the_same_seed_gives_the_same_conversations() -> None:
    one, two, other = (Maker(VOCABULARY, load_facts(), seed) for seed in (4, 4, 5))
    assert [one.plain(5) for _ in range(20)] == [two.plain(5) for _ in range(20)]
    assert one.plain(30) != other.plain(30)


def test_offered_tools_stand_before_the_conversation() -> None:
    block = Data.tools_block([tool("lookup", "word", "Looks up a word.")])
    assert block.startswith("<|system|>\n# Tools")
    assert '"name": "lookup"' in block
    assert "<|user|>" not in block
