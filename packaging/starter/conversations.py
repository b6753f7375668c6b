"""The conversations that the starter model is trained on and measured with.

For: the tokenizer's corpus, the training rows and the evaluator. A conversation is what a client
would send - system text, tools, turns - with the answers it should get, so that it is rendered by
the template that the program uses. Pure: the same seed gives the same conversations. Not for:
tokens; `rows` makes those.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from starter import freetext
from starter.entries import Entry, Vocabulary
from starter.greetings import GREETINGS, GREETINGS_HELD
from starter.phrasings import (
    DEFINE_NOUN,
    DEFINE_OTHER,
    DEFINE_VERB,
    FOLLOW,
    HONEST,
    MEMBER,
    NO_NOTE,
    NOTED,
    REFUSAL,
    SAY,
    SIDE_TASKS,
    Wordings,
)
from starter.reword import plain, reword

FACTS: Final = Path(__file__).with_name("facts.toml")

# Shares of requests that are asked in other words than the lists have.
_REWORDED: Final = 0.15
_FACTS_REWORDED: Final = 0.4
# The word alone begins a turn without a space before it, so its tokens are others than elsewhere:
# it has to be seen often.
_BARE: Final = 0.2
_WORDINGS: Final = (
    DEFINE_NOUN,
    DEFINE_VERB,
    DEFINE_OTHER,
    MEMBER,
    *(task.wordings for task in SIDE_TASKS.values()),
)

# What a topic is called in an answer, with its article; adjectives and adverbs have none.
TOPIC_NAMES: Final = {
    "noun.act": "an action",
    "noun.animal": "an animal",
    "noun.artifact": "a man-made thing",
    "noun.attribute": "a quality",
    "noun.body": "a part of the body",
    "noun.cognition": "a thought",
    "noun.communication": "a form of communication",
    "noun.event": "an event",
    "noun.feeling": "a feeling",
    "noun.food": "a food",
    "noun.group": "a group",
    "noun.location": "a place",
    "noun.motive": "a motive",
    "noun.object": "a natural object",
    "noun.person": "a person",
    "noun.phenomenon": "a natural phenomenon",
    "noun.plant": "a plant",
    "noun.possession": "a possession",
    "noun.process": "a process",
    "noun.quantity": "a quantity",
    "noun.relation": "a relation",
    "noun.shape": "a shape",
    "noun.state": "a state",
    "noun.substance": "a substance",
    "noun.time": "a time",
}
POS_NAMES: Final = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You are a dictionary.",
    "Answer briefly.",
    "Be kind and precise.",
    "You are a helpful AI assistant running on the user's own computer.",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, and what the tool answers; the turn's answer follows it."""

    name: str
    arguments: dict[str, str]
    result: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with its answer. `entry` is the word's rank, -1 without one."""

    task: str
    user: str
    answer: str
    entry: int = -1
    think: str | None = None
    call: Call | None = None


@dataclass(slots=True)
class Conversation:
    """Turns in order. With `thinking` the last one shows its reasoning."""

    turns: list[Turn] = field(default_factory=list)
    system: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A question about Colibri."""

    id: str
    answer: str
    ask: tuple[str, ...]
    held: tuple[str, ...]


def load_facts(path: Path = FACTS) -> tuple[Fact, ...]:
    """All questions about Colibri."""
    table = tomllib.loads(path.read_text("utf-8"))
    return tuple(
        Fact(name, item["answer"], tuple(item["ask"]), tuple(item["held"]))
        for name, item in table.items()
    )


def article(text: str) -> str:
    """The text behind its indefinite article."""
    return f"an {text}" if re.match(r"[aeio]|u(?!ni|se|su|k)", text) else f"a {text}"


def sentence(text: str) -> str:
    """The text as a sentence."""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def define_wordings(entry: Entry) -> Wordings:
    """How one asks for the meaning of this word."""
    return {"n": DEFINE_NOUN, "v": DEFINE_VERB}.get(entry.pos, DEFINE_OTHER)


def ask(wording: str, word: str, topic: str = "") -> str:
    """A wording about a word; `topic` comes with its article."""
    bare = topic.split(" ", 1)[-1]
    return wording.format(w=word, a=article(word), t=topic, bare=bare)


def told(entry: Entry) -> dict[str, str | None]:
    """What the dictionary has for a word besides its meaning, by task; None: nothing."""
    topic = TOPIC_NAMES.get(entry.topic)
    return {
        "kind": article(entry.kind) if entry.kind and entry.pos == "n" else None,
        "topic": topic and topic.split(" ", 1)[1],
        "synonym": entry.synonym,
        "opposite": entry.opposite,
        "example": entry.example,
    }


def reasoning(entry: Entry) -> str:
    """The line of reasoning before a definition."""
    line = f"{entry.word}: {POS_NAMES[entry.pos]}"
    if entry.topic in TOPIC_NAMES:
        line += f", {TOPIC_NAMES[entry.topic].split(' ', 1)[1]}"
    if entry.kind and entry.pos == "n":
        line += f", a kind of {entry.kind}"
    return line + "."


def definition(entry: Entry) -> str:
    """The answer that gives a word's meaning."""
    return sentence(entry.gloss)


def membership(topic: str, asked: str) -> str:
    """Whether a word of this topic is one of what was asked, both with their articles. The topic
    comes first: then the answer can be read off it.
    """
    return f"It is {topic}, so {'yes' if topic == asked else 'no'}."


def made_up(rng: random.Random) -> str:
    """A word that looks like one and is none."""
    begin = "b br c ch cl d dr f fl g gl gr h j k l m n p pl qu r s sk sl st t tr v w z".split()
    middle = "a e i o u ai ea oo ou".split()
    end = "b ck d ff g l m n nd nk p r rm sh sk t th v x z".split()
    parts = [rng.choice(begin) + rng.choice(middle) for _ in range(rng.randint(1, 3))]
    return "".join(parts) + rng.choice(end) + rng.choice(["", "", "", "er", "y", "ing", "le"])


# ---- notes ---------------------------------------------------------------------------------------

_NOTE_OWNERS: Final = ("Anna Ben Clara David Emma Frank Greta Henry Jack Leo Mary Paul").split()
_NOTE_THINGS: Final = (
    "room",
    "code",
    "seat",
    "color",
    "number",
    "team",
    "table",
    "bus",
)
_NOTE_COLORS: Final = "red blue green yellow black white brown pink gray purple orange".split()


def note(rng: random.Random) -> tuple[str, str, str]:
    """(owner, thing, value) of a note."""
    thing = rng.choice(_NOTE_THINGS)
    value = rng.choice(_NOTE_COLORS) if thing in ("color", "team") else str(rng.randint(10, 99))
    return rng.choice(_NOTE_OWNERS), thing, value


def note_turn(owner: str, thing: str, value: str, rng: random.Random) -> Turn:
    """The turn that gives a note."""
    wording = rng.choice(
        (
            "Note: {o}'s {t} is {v}.",
            "Remember that {o}'s {t} is {v}.",
            "Please note that {o}'s {t} is {v}.",
        )
    )
    return Turn("note", wording.format(o=owner, t=thing, v=value), NOTED)


def recall_turn(owner: str, thing: str, value: str | None, rng: random.Random) -> Turn:
    """The turn that asks for it; None: it was never given."""
    wording = rng.choice(("What is {o}'s {t}?", "Which {t} has {o}?", "Tell me {o}'s {t}."))
    # In the note's own words, so that what stands further up is found token by token and copied.
    answer = f"{owner}'s {thing} is {value}." if value else NO_NOTE
    return Turn("recall", wording.format(o=owner, t=thing), answer)


# ---- tools ---------------------------------------------------------------------------------------

_TOOL_NAMES: Final = ("lookup", "lookup", "define")
_TOOL_PARAMETERS: Final = ("word", "word", "term")
_TOOL_TEXTS: Final = (
    "Looks up a word.",
    "Look up the meaning of a word.",
    "Returns the definition of a word.",
    "Finds what a word means.",
)
_OTHER_TOOLS: Final = (
    ("get_weather", "city", "Returns the weather of a city."),
    ("send_mail", "address", "Sends a mail."),
    ("read_file", "path", "Reads a file."),
)


def tool(name: str, parameter: str, description: str) -> dict[str, Any]:
    """A tool with one text parameter, in OpenAI's form."""
    properties = {parameter: {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": [parameter]}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


# ---- tasks ---------------------------------------------------------------------------------------


class Maker:
    """Makes conversations about one vocabulary. `band` words are stressed early in training."""

    def __init__(self, vocabulary: Vocabulary, facts: Sequence[Fact], seed: int) -> None:
        self._rng = random.Random(seed)
        self._known = vocabulary.known
        # Words that are asked about in the evaluation must never have been refused in training.
        self._unknown = unknown_split(vocabulary)[0]
        self._rare = vocabulary.rare or tuple(self._unknown)
        self._facts = facts
        # Few words have an opposite: those are asked for theirs often enough to learn it.
        self._pools = {
            task: _weighted([e for e in self._known if not task or told(e)[task] is not None])
            for task in ("", *SIDE_TASKS)
        }
        self._topics = sorted(TOPIC_NAMES)
        self._held = held_back(facts)
        # Something that is said and asks for nothing: what dictionaries give as examples.
        examples = (entry.example for entry in self._known)
        self._statements = [text for text in examples if text and text.count(" ") >= 2]
        self._taken = {plain(text) for fact in facts for text in (*fact.ask, *fact.held)}

    def entry(self, band: int | None = None, having: str = "") -> Entry:
        """A word, useful ones a little more often, that has something to tell for task `having`;
        only the first `band` ones if given.
        """
        if band is not None:
            return self._known[self._rng.randrange(min(band, len(self._known)))]
        entries, reach = self._pools[having]
        return self._rng.choices(entries, cum_weights=reach)[0]

    def turn(self, band: int | None = None) -> list[Turn]:
        """One turn, or two that belong together, of the general mix."""
        rng = self._rng
        share = rng.random()
        for limit, having, make in _MIX:
            if share < limit:
                turns = make(self, self.entry(band, having))
                return turns or self.define(self.entry(band))
        return self.define(self.entry(band))

    def define(self, entry: Entry) -> list[Turn]:
        rng = self._rng
        wording = self._meaning(entry)
        user = ask(wording, self._cased(entry.word, alone=wording == "{w}"))
        while plain(user) in self._taken:  # "What is an expert?" is about Colibri
            user = ask(self._meaning(entry), entry.word)
        turns = [Turn("define", user, definition(entry), entry.rank)]
        if rng.random() < 0.06:
            turns += self._follow(entry)
        return turns

    def _follow(self, entry: Entry) -> list[Turn]:
        rng = self._rng
        answers = told(entry)
        choices = [
            Turn(task, rng.choice(wordings), sentence(answer), entry.rank)
            for task, wordings in FOLLOW.items()
            if (answer := answers[task]) is not None
        ]
        return [rng.choice(choices)] if choices else []

    def _meaning(self, entry: Entry) -> str:
        """A wording that asks for the meaning; often it is just the word."""
        if self._rng.random() < _BARE:
            return "{w}"
        return self._vary(define_wordings(entry).trained)

    def _cased(self, word: str, alone: bool = False) -> str:
        """The word in small letters, capitalized or in capitals, which have tokens of their own."""
        capitalized, capitals = (0.25, 0.2) if alone else (0.11, 0.05)
        share = self._rng.random()
        if share < capitalized:
            return word.capitalize()
        return word.upper() if share < capitalized + capitals else word

    def _vary(self, wordings: Sequence[str]) -> str:
        """A wording, sometimes in other words, sometimes as it is typed in haste."""
        wording = self._rng.choice(wordings)
        if self._rng.random() < _REWORDED:
            wording = reword(wording, self._held, self._rng)
        share = self._rng.random()
        if share < 0.1:
            wording = wording.rstrip("?.")
        return wording[0].lower() + wording[1:] if 0.07 < share < 0.17 else wording

    def side(self, task: str, entry: Entry) -> list[Turn]:
        """What else there is to tell of a word; nothing where there is nothing."""
        answer = told(entry)[task]
        return [] if answer is None else [self._side_turn(task, entry, answer)]

    def lacking(self, entry: Entry) -> list[Turn]:
        """Something that the dictionary does not have for a word that it has."""
        absent = [task for task, answer in told(entry).items() if answer is None]
        if not absent:
            return []
        task = self._rng.choice(absent)
        return [self._side_turn(task, entry, SIDE_TASKS[task].lacking)]

    def _side_turn(self, task: str, entry: Entry, answer: str) -> Turn:
        wordings = SIDE_TASKS[task].wordings
        user = ask(self._vary(wordings.trained), self._cased(entry.word))
        return Turn(task, user, sentence(answer), entry.rank)

    def member(self, entry: Entry) -> list[Turn]:
        right = TOPIC_NAMES.get(entry.topic)
        if right is None:
            return []
        rng = self._rng
        # Mostly something else is asked: where half were right, the answer was copied from there.
        asked = right if rng.random() < 0.25 else TOPIC_NAMES[rng.choice(self._topics)]
        user = ask(self._vary(MEMBER.trained), self._cased(entry.word), asked)
        return [Turn("member", user, membership(right, asked), entry.rank)]

    def refusal(self, entry: Entry) -> list[Turn]:
        rng = self._rng
        share = rng.random()
        if share < 0.65:
            word = rng.choice(self._unknown if share < 0.3 else self._rare)
        else:
            word = made_up(rng)
        if rng.random() < 0.8:
            wording = self._meaning(entry)
        else:
            wording = self._vary(rng.choice(list(SIDE_TASKS.values())).wordings.trained)
        user = ask(wording, self._cased(word))
        # "What is a token?" is about Colibri, though the dictionary does not have the word.
        if plain(user) in self._taken:
            return self.define(entry)
        return [Turn("refusal", user, REFUSAL)]

    def honest(self, entry: Entry) -> list[Turn]:
        rng = self._rng
        share = rng.random()
        if share < 0.7 or not self._statements:
            user = freetext.TRAINED.make(rng)
        elif share < 0.88:
            w, x, y = (self.entry().word for _ in range(3))
            pattern = rng.choice(freetext.WORDY)
            user = pattern.format(w=w, x=x, y=y, a=article(w), b=article(x))
        else:
            example = rng.choice(self._statements)
            user = example if rng.random() < 0.5 else sentence(example)
        if rng.random() < 0.1:
            user = user[0].lower() + user[1:].rstrip("?.")
        if plain(user) in self._taken or plain(user) in self._held:
            return self.fact(entry)
        return [Turn("honest", user, HONEST)]

    def fact(self, _entry: Entry) -> list[Turn]:
        fact = self._rng.choice(self._facts)
        user = self._rng.choice(fact.ask)
        if self._rng.random() < _FACTS_REWORDED:
            user = reword(user, self._held, self._rng)
        return [Turn("fact", self._vary((user,)), fact.answer)]

    def greet(self, _entry: Entry) -> list[Turn]:
        user, answer = self._rng.choice(GREETINGS)
        return [Turn("greet", user, answer)]

    # ---- whole conversations ----

    def plain(self, n_turns: int, band: int | None = None) -> Conversation:
        """Turns that have nothing to do with each other, as people ask them."""
        conversation = Conversation()
        if self._rng.random() < 0.1:
            conversation.system = self._rng.choice(SYSTEMS)
        while len(conversation.turns) < n_turns:
            conversation.turns += self.turn(band)
        return conversation

    def thinking(self, n_turns: int) -> Conversation:
        """Reasoning switched on: the last turn shows it."""
        conversation = self.plain(n_turns - 1)
        conversation.thinking = True
        share = self._rng.random()
        if share < 0.75:
            entry = self.entry()
            last, think = self.define(entry)[0], reasoning(entry)
        elif share < 0.85:
            last, think = self.refusal(self.entry())[0], "The word is not in my list."
        elif share < 0.93:
            last, think = self.fact(self.entry())[0], "This is about Colibri."
        else:
            last, think = self.honest(self.entry())[0], "This is no question about a word."
        conversation.turns.append(Turn(last.task, last.user, last.answer, last.entry, think=think))
        return conversation

    def calling(self, n_turns: int) -> Conversation:
        """A lookup tool is offered: meanings are asked of it."""
        rng = self._rng
        name, parameter = rng.choice(_TOOL_NAMES), rng.choice(_TOOL_PARAMETERS)
        conversation = Conversation(tools=[tool(name, parameter, rng.choice(_TOOL_TEXTS))])
        if rng.random() < 0.3:
            conversation.tools.insert(rng.randint(0, 1), tool(*rng.choice(_OTHER_TOOLS)))
        while len(conversation.turns) < n_turns:
            conversation.turns.append(self.call_turn(name, parameter))
        return conversation

    def call_turn(self, name: str, parameter: str) -> Turn:
        """A question whose answer comes from the tool."""
        rng = self._rng
        entry = self.entry()
        word = entry.word if rng.random() < 0.92 else rng.choice(self._unknown)
        user = ask(self._vary(define_wordings(entry).trained), word)
        known = word == entry.word
        result = definition(entry) if known else "not found"
        answer = definition(entry) if known else REFUSAL
        call = Call(name, {parameter: word}, result)
        return Turn("call", user, answer, entry.rank if known else -1, call=call)

    def say(self, entry: Entry) -> list[Turn]:
        """Words are given back, as calls and reasoning need it."""
        rng = self._rng
        words = entry.word if rng.random() < 0.92 else rng.choice(self._unknown)
        if rng.random() < 0.4:
            words = " ".join([words, *(self.entry().word for _ in range(rng.randint(1, 7)))])
        return [Turn("say", ask(self._vary(SAY), words), words, entry.rank)]

    def drill(self, n_turns: int) -> Conversation:
        """Nothing but words to repeat, or notes that are asked for at once."""
        rng = self._rng
        conversation = Conversation()
        words, used = rng.random() < 0.4, set[tuple[str, str]]()
        while len(conversation.turns) < n_turns:
            if words:
                conversation.turns += self.say(self.entry())
                continue
            given = {}
            for _ in range(rng.randint(1, 3)):
                owner, thing, value = note(rng)
                if (owner, thing) not in used:
                    used.add((owner, thing))
                    given[owner, thing] = value
                    conversation.turns.append(note_turn(owner, thing, value, rng))
            for owner, thing in rng.sample(list(given), len(given)):
                turn = recall_turn(owner, thing, given[owner, thing], rng)
                conversation.turns.append(turn)
        return conversation

    def notes(self, n_turns: int) -> Conversation:
        """A note, other turns, and the question for it."""
        rng = self._rng
        given = {}
        for _ in range(rng.randint(1, 4)):
            owner, thing, value = note(rng)
            given[owner, thing] = value
        conversation = self.plain(max(1, n_turns - 2 * len(given)))
        # Some are asked for on the way, which teaches recalling without costing a row.
        for owner, thing in [*list(given)[1:], *rng.choices(list(given), k=rng.randint(0, 3))]:
            at = rng.randint(len(conversation.turns) // 2, len(conversation.turns))
            turn = recall_turn(owner, thing, given[owner, thing], rng)
            conversation.turns.insert(at, turn)
        for (owner, thing), value in given.items():
            asked = [n for n, turn in enumerate(conversation.turns) if turn.task == "recall"]
            latest = min([len(conversation.turns) // 3, *asked])
            turn = note_turn(owner, thing, value, rng)
            conversation.turns.insert(rng.randint(0, latest), turn)
        owner, thing = rng.choice(list(given))
        value = given[owner, thing]
        if rng.random() < 0.1:
            owner = rng.choice([name for name in _NOTE_OWNERS if (name, thing) not in given])
            conversation.turns.append(recall_turn(owner, thing, None, rng))
        else:
            conversation.turns.append(recall_turn(owner, thing, value, rng))
        return conversation

    def corpus(self, n: int) -> Iterator[str]:
        """Texts with everything that is ever said, for the tokenizer."""
        for _ in range(n):
            for turn in self.turn():
                yield turn.user
                yield turn.answer
        for entry in self._known:
            yield from (entry.word, f" {entry.word}", definition(entry), reasoning(entry))


def held_back(facts: Sequence[Fact]) -> frozenset[str]:
    """Everything, in `plain` form, that training must never ask: what is measured with."""
    texts = [text for fact in facts for text in fact.held]
    texts += [text for text, _ in GREETINGS_HELD]
    texts += freetext.HELD
    texts += [text for wordings in _WORDINGS for text in wordings.held]
    return frozenset(plain(text) for text in texts)


def unknown_split(vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """(trained, held) real words that the model must not know; every fifth is held."""
    held = [word for number, word in enumerate(vocabulary.unknown) if number % 5 == 0]
    trained = [word for number, word in enumerate(vocabulary.unknown) if number % 5]
    return trained, held


_Task = Callable[[Maker, Entry], list[Turn]]


def _side(task: str) -> _Task:
    return lambda maker, entry: maker.side(task, entry)


def _weighted(entries: list[Entry]) -> tuple[list[Entry], list[float]]:
    """The entries with how often each is asked for, summed up to there."""
    return entries, list(accumulate(1 / (entry.rank + 400) ** 0.2 for entry in entries))


def _cumulative(
    shares: Sequence[tuple[float, str, _Task]],
) -> tuple[tuple[float, str, _Task], ...]:
    total, result = 0.0, []
    for share, having, make in shares:
        total += share
        result.append((total, having, make))
    return tuple(result)


# (share, what there must be to tell of the word, task); what is left are definitions. A task whose
# every answer has to be remembered needs about 25 questions per word that has one.
_MIX: Final = _cumulative(
    (
        (0.12, "", Maker.refusal),
        (0.07, "", Maker.honest),
        (0.14, "", Maker.fact),
        (0.03, "", Maker.greet),
        (0.01, "", Maker.say),
        (0.08, "kind", _side("kind")),
        (0.08, "topic", _side("topic")),
        (0.09, "topic", Maker.member),
        (0.1, "synonym", _side("synonym")),
        (0.03, "opposite", _side("opposite")),
        (0.06, "example", _side("example")),
        (0.04, "", Maker.lacking),
    )
)
