"""What the starter model can do, measured as its users meet it: over HTTP, through the engine.

`python -m starter.evaluate DATA MODEL` starts `coli serve` on a free port, asks thousands of
questions, prints a table and writes it as JSON. Wordings, words and texts that training never
saw are kept apart. Greedy throughout. For: choosing between runs and for the model card. Not for:
training.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from starter import conversations as talk
from starter import freetext, phrasings
from starter.conversations import Conversation, Maker, Turn
from starter.data import Data
from starter.entries import Entry
from starter.greetings import GREETINGS_HELD

_SLOTS: Final = 8
_START_SECONDS: Final = 120
_SEED: Final = 77


@dataclass(frozen=True, slots=True)
class Question:
    """Messages, and whether an answer (its message object) is right."""

    messages: list[dict[str, str]]
    right: Callable[[dict[str, Any]], bool]
    tools: list[dict[str, Any]] | None = None
    thinking: bool = False


def says(text: str) -> Callable[[dict[str, Any]], bool]:
    """The visible answer is exactly this."""
    return lambda message: (message.get("content") or "").strip() == text


def asked(user: str, answer: str, **fields: Any) -> Question:
    """A question of one turn."""
    return Question([{"role": "user", "content": user}], says(answer), **fields)


@contextmanager
def server(model: Path, *options: str) -> Iterator[str]:
    """The address of a server of its own with this model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "colibri.cli", "serve", "--model", str(model)]
    command += ["--port", str(port), "--kv-slots", str(_SLOTS), "--parallel", str(_SLOTS)]
    command += ["--max-queue", "64", "--prefix-store-gb", "0", "--log-level", "warning", *options]
    process = subprocess.Popen(command)  # noqa: S603 - our own program
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK:
                    break
            except httpx.HTTPError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


class Measure:
    """Asks questions, `_SLOTS` at a time."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=120)
        self._pool = ThreadPoolExecutor(_SLOTS)
        self.wrong: dict[str, list[tuple[str, str]]] = {}

    def share(self, name: str, questions: Iterable[Question]) -> float:
        """Share of right answers; a few wrong ones are kept."""
        results = list(self._pool.map(self._ask, questions))
        self.wrong[name] = [(user, said) for right, user, said in results if not right][:20]
        return sum(right for right, _, _ in results) / max(1, len(results))

    def _ask(self, question: Question) -> tuple[bool, str, str]:
        body: dict[str, Any] = {
            "model": "starter",
            "messages": question.messages,
            "temperature": 0,
            "max_tokens": 120,
        }
        if question.tools:
            body["tools"] = question.tools
        if question.thinking:
            body["enable_thinking"] = True
        answer = self._client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        return question.right(message), question.messages[-1]["content"], json.dumps(message)

    def drafts(self) -> float | None:
        """Share of drafts that were kept so far."""
        state = self._client.get("/health").json()["engine"]["drafts"]
        kept: float | None = state["acceptance"]
        return kept


# ---- what is asked -------------------------------------------------------------------------------


def canonical(entries: Sequence[Entry]) -> Iterator[Question]:
    """The wording that examples show."""
    for entry in entries:
        wording = talk.define_wordings(entry).canonical
        yield asked(talk.ask(wording, entry.word), talk.definition(entry))


def held_wordings(entries: Sequence[Entry], rng: random.Random) -> Iterator[Question]:
    """Wordings that were never trained on."""
    for entry in entries:
        wording = rng.choice(talk.define_wordings(entry).held)
        yield asked(talk.ask(wording, entry.word), talk.definition(entry))


def bare(entries: Sequence[Entry]) -> Iterator[Question]:
    """The word alone, also in other casing."""
    for number, entry in enumerate(entries):
        word = (entry.word, entry.word.capitalize(), entry.word.upper())[number % 3]
        yield asked(word, talk.definition(entry))


def refusals(words: Sequence[str], rng: random.Random) -> Iterator[Question]:
    """Real words that it must not know, never refused in training, and made-up ones."""
    for number, word in enumerate(words):
        unknown = word if number % 2 else talk.made_up(rng)
        wording = rng.choice(("What is {w}?", "Define {w}.", "What does {w} mean?", "{w}"))
        yield asked(wording.format(w=unknown), phrasings.REFUSAL)


def side_tasks(entries: Sequence[Entry], rng: random.Random) -> dict[str, list[Question]]:
    """By task, in wordings that were never trained on."""
    made: dict[str, list[Question]] = {}

    def add(
        name: str, wordings: phrasings.Wordings, word: str, answer: str, other: str = ""
    ) -> None:
        user = talk.ask(rng.choice(wordings.held), word, other)
        made.setdefault(name, []).append(asked(user, talk.sentence(answer)))

    for entry in entries:
        for task, answer in talk.told(entry).items():
            side = phrasings.SIDE_TASKS[task]
            if answer is None:
                add("nothing to tell", side.wordings, entry.word, side.lacking)
            else:
                add(task, side.wordings, entry.word, answer)
        topic = talk.TOPIC_NAMES.get(entry.topic)
        if topic:
            other = rng.choice(sorted(set(talk.TOPIC_NAMES.values()) - {topic}))
            for name in (topic, other):
                add("member", phrasings.MEMBER, entry.word, talk.membership(topic, name), name)
    return made


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    messages = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.user})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages[:-1]


def notes(maker: Maker, rng: random.Random, n_turns: int, count: int) -> Iterator[Question]:
    """A note at the beginning, `n_turns` other turns, and the question for it."""
    for _ in range(count):
        owner, thing, value = talk.note(rng)
        conversation = maker.plain(n_turns)
        conversation.system = None
        conversation.turns.insert(0, talk.note_turn(owner, thing, value, rng))
        final = talk.recall_turn(owner, thing, value, rng)
        conversation.turns.append(final)
        yield Question(_messages(conversation), says(final.answer))


def calls(maker: Maker, count: int, *, word: bool) -> Iterator[Question]:
    """A lookup tool is offered: one call of it with a text for its parameter, and with `word` that
    text is the word asked about.
    """
    for _ in range(count):
        conversation = maker.calling(1)
        turn: Turn = conversation.turns[0]
        assert turn.call is not None  # noqa: S101 - every turn of `calling` has one
        wanted = turn.call

        def right(message: dict[str, Any], name: str = wanted.name, own: Any = wanted) -> bool:
            made = message.get("tool_calls") or []
            if len(made) != 1 or made[0]["function"]["name"] != name:
                return False
            arguments: Any = json.loads(made[0]["function"]["arguments"])
            if word:
                return bool(arguments == own.arguments)
            return list(arguments) == list(own.arguments) and isinstance(
                next(iter(arguments.values())), str
            )

        yield Question([{"role": "user", "content": turn.user}], right, conversation.tools)


def far_down(maker: Maker, entries: Sequence[Entry], n_turns: int) -> Iterator[Question]:
    """The canonical question behind `n_turns` others, so that the selection has to choose."""
    for entry, question in zip(entries, canonical(entries), strict=True):
        conversation = maker.plain(n_turns)
        conversation.system = None
        conversation.turns.append(Turn("define", "", talk.definition(entry), entry.rank))
        messages = _messages(conversation)
        yield Question([*messages[:-1], question.messages[0]], question.right)


def compare(data: Data, url: str) -> dict[str, float | None]:
    """The few figures that depend on the selection."""
    rng, measure = random.Random(_SEED), Measure(url)
    maker = Maker(data.vocabulary, data.facts, _SEED)
    sample = data.vocabulary.known[::30]
    return {
        "canonical, nothing before": measure.share("a", canonical(sample)),
        "canonical, 12 turns before": measure.share("b", far_down(maker, sample, 12)),
        "note recalled over 9 turns": measure.share("c", notes(maker, rng, 9, 60)),
    }


def run(data: Data, url: str, every: int) -> tuple[dict[str, float | None], Measure]:
    """All figures. Every `every`-th word is asked in the canonical wording, a third of them in the
    others; from 10 on, the questions that are about no word become fewer as well.
    """
    fewer = max(1, every // 10)
    rng, measure = random.Random(_SEED), Measure(url)
    known = data.vocabulary.known
    sample = known[:: 3 * every]
    maker = Maker(data.vocabulary, data.facts, _SEED)
    figures: dict[str, float | None] = {}
    for thousand in range(0, len(known), 1000):
        part = known[thousand : thousand + 1000 : every]
        figures[f"canonical, rank {thousand + 1} on"] = measure.share(
            f"canonical {thousand}", canonical(part)
        )
    figures["drafts kept, canonical"] = measure.drafts()
    figures["held wordings"] = measure.share("held wordings", held_wordings(sample, rng))
    figures["bare"] = measure.share("bare", bare(sample))
    unknown = talk.unknown_split(data.vocabulary)[1]
    figures["refused"] = measure.share("refused", refusals(unknown[:: 2 * every][:1000], rng))
    shy = (Question(q.messages, says(phrasings.REFUSAL)) for q in canonical(known[:: 5 * every]))
    figures["known but refused"] = measure.share("known but refused", shy)
    figures["honest"] = measure.share(
        "honest", (asked(text, phrasings.HONEST) for text in freetext.HELD[::fewer])
    )
    for task, questions in side_tasks(sample, rng).items():
        figures[task] = measure.share(task, questions[: 300 // fewer])
    figures["facts, held wordings"] = measure.share(
        "facts", (asked(text, fact.answer) for fact in data.facts[::fewer] for text in fact.held)
    )
    figures["greetings, held"] = measure.share(
        "greetings", (asked(user, answer) for user, answer in GREETINGS_HELD)
    )
    figures["thinking"] = measure.share(
        "thinking",
        (
            Question(
                [{"role": "user", "content": talk.ask("What does {w} mean?", entry.word)}],
                lambda message, entry=entry: (
                    says(talk.definition(entry))(message)
                    and (message.get("reasoning_content") or "").strip() == talk.reasoning(entry)
                ),
                thinking=True,
            )
            for entry in known[:: every * 10]
        ),
    )
    figures["tool calls, well-formed"] = measure.share(
        "calls", calls(maker, 200 // fewer, word=False)
    )
    figures["tool calls, right word"] = measure.share(
        "right", calls(maker, 200 // fewer, word=True)
    )
    figures["canonical, 12 turns before"] = measure.share(
        "far down", far_down(maker, known[:: 15 * every], 12)
    )
    for turns in (4, 9, 18):
        name = f"note recalled over {turns} turns"
        figures[name] = measure.share(name, notes(maker, rng, turns, 100 // fewer))
    figures["drafts kept"] = measure.drafts()
    return figures, measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument(
        "--selection", action="store_true", help="only what depends on the sparse selection"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()
    with server(given.model) as url:
        data = Data.open(given.data)
        if given.selection:
            figures, measure = compare(data, url), Measure(url)
        else:
            figures, measure = run(data, url, given.every)
    for name, figure in figures.items():
        print(f"{name:32} {'-' if figure is None else f'{100 * figure:6.2f} %'}")
    if given.json:
        report = {"figures": figures, "wrong": measure.wrong}
        given.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
