"""Answers with tool calls, remembered token by token, so that their replay is no new text.

A client sends a call back in its own words: other blanks in the arguments, the reasoning left out.
Rendered, that is another text than the one generated, and all behind it would be computed again.

    answers.keep(Answer(...))          when an answer with calls has ended
    answers.find(message)              the same answer, when it comes back in a history
    merged(rendering, messages, found) the prompt with the very tokens that were generated

A remembered answer is used only if its message still says the same, and only if everything before
it is, to the token, the prompt that it was generated for. Not for: answers without calls, whose
history form the templates write as it was generated. Threads: `Answers` any; the rest is pure.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from colibri.engine.answer import CallArguments, CallStart, Part, Reasoning, Text
from colibri.engine.protocol import Done, JobEvent, Tokens
from colibri.errors import RequestError
from colibri.text.history import arguments_object
from colibri.text.template import Rendered

# All remembered answers together; 4 bytes each.
_MOST_TOKENS: Final = 4 << 20
_MOST_ANSWERS: Final = 8192

Call: TypeAlias = tuple[str, str, Mapping[str, Any]]


def digest(tokens: Sequence[int]) -> bytes:
    """What stands for a prompt."""
    return hashlib.blake2b(array("I", tokens).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: the digest of its prompt, its tokens without the one that ended it, and what it
    said. `calls` are (id, name, arguments) in order.
    """

    prompt: bytes
    tokens: array[int]
    content: str
    reasoning: str
    calls: tuple[Call, ...]


class Answers:
    """The latest answers with calls, within a bound of tokens; the longest unused go first."""

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most = most_tokens
        self._lock = threading.Lock()
        self._tokens = 0
        self._known: OrderedDict[str, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, answer: Answer) -> None:
        """Remembers an answer by the id of its first call."""
        if not answer.calls or len(answer.tokens) > self._most:
            return
        with self._lock:
            self._drop(answer.calls[0][0])
            self._known[answer.calls[0][0]] = answer
            self._tokens += len(answer.tokens)
            while self._tokens > self._most or len(self._known) > _MOST_ANSWERS:
                self._drop(next(iter(self._known)))

    def _drop(self, key: str) -> None:
        old = self._known.pop(key, None)
        self._tokens -= 0 if old is None else len(old.tokens)

    def find(self, message: Mapping[str, Any]) -> Answer | None:
        """The answer that a message of a history replays and still says."""
        calls = message.get("tool_calls") or []
        first = calls[0].get("id") if calls else None
        if message.get("role") != "assistant" or not isinstance(first, str):
            return None
        with self._lock:
            answer = self._known.get(first)
            if answer is not None:
                self._known.move_to_end(first)
        return answer if answer is not None and _says_the_same(answer, message) else None


def _says_the_same(answer: Answer, message: Mapping[str, Any]) -> bool:
    """Whether calls and content are those of the answer; reasoning may be missing."""
    calls = message["tool_calls"]
    if len(calls) != len(answer.calls):
        return False
    for call, (identity, name, arguments) in zip(calls, answer.calls, strict=True):
        function = call.get("function") or {}
        if (call.get("id"), function.get("name")) != (identity, name):
            return False
        if arguments_object(function.get("arguments")) != arguments:
            return False
    content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
    if not isinstance(content, str) or content.strip() != answer.content.strip():
        return False
    return not reasoning or reasoning.strip() == answer.reasoning.strip()


# ---- prompts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How prompts are made: `render(messages, generation)` with or without the beginning of an
    answer, `bare` the same without tools, and `encode`. `markers` are the control tokens.
    """

    render: Callable[[Sequence[Mapping[str, Any]], bool], Rendered]
    bare: Callable[[Sequence[Mapping[str, Any]], bool], Rendered]
    encode: Callable[[Rendered], list[int]]
    markers: Collection[int]


def merged(
    rendering: Rendering, messages: Sequence[Mapping[str, Any]], found: Mapping[int, Answer]
) -> list[int] | None:
    """The prompt of a conversation in which the messages `found` are the tokens once generated;
    None when none of them can be.

    Each of them is rendered as a word that no one can know, so that the text around it is what the
    template writes around any answer: what follows it stays, and what comes before it is turned
    into the prompt that it was generated for.
    """
    numbers = sorted(found)
    word = secrets.token_hex(16)
    try:
        around = _around(rendering, word)
        while around is not None and numbers:
            tokens, good = _with_answers(
                rendering, messages, [(n, found[n]) for n in numbers], word, around
            )
            if tokens is not None:
                return tokens
            numbers = numbers[:good]
    except RequestError:
        return None  # a template that does not like the word
    return None


def _around(rendering: Rendering, word: str) -> tuple[str, str] | None:
    """(what a template writes before an answer in a history, what before one to generate)."""
    asked = [{"role": "user", "content": "1"}]
    said = [*asked, {"role": "assistant", "content": word}]
    before = rendering.bare(asked, False).marked
    opened, written = rendering.bare(asked, True).marked, rendering.bare(said, False).marked
    at = written.find(word)
    if at < 0 or not opened.startswith(before) or not written.startswith(before):
        return None
    return written[len(before) : at], opened[len(before) :]


def _with_answers(
    rendering: Rendering,
    messages: Sequence[Mapping[str, Any]],
    answers: Sequence[tuple[int, Answer]],
    word: str,
    around: tuple[str, str],
) -> tuple[list[int] | None, int]:
    """(prompt, number of answers that fit); without a prompt one that does not fit was met."""
    said, opening = around
    worded = list(messages)
    for number, _ in answers:
        worded[number] = {"role": "assistant", "content": word}
    whole = rendering.render(worded, True)
    pieces = whole.marked.split(word)
    if len(pieces) != len(answers) + 1:
        return None, 0
    tokens: list[int] = []
    for good, (piece, (_, answer)) in enumerate(zip(pieces, answers, strict=False)):
        if not piece.endswith(said):
            return None, good
        text = piece[: len(piece) - len(said)] + opening
        _add(rendering, tokens, Rendered(whole.guard.strip(text), text, whole.guard))
        if digest(tokens) != answer.prompt:
            return None, good
        tokens.extend(answer.tokens)
    rest = pieces[-1]
    _add(rendering, tokens, Rendered(whole.guard.strip(rest), rest, whole.guard))
    return tokens, len(answers)


def _add(rendering: Rendering, tokens: list[int], more: Rendered) -> None:
    """Goes on with `more`. What the model has written to close its message is not written twice."""
    ids = rendering.encode(more)
    doubled = tokens and ids and tokens[-1] == ids[0] and ids[0] in rendering.markers
    tokens.extend(ids[1:] if doubled else ids)


# ---- recording -----------------------------------------------------------------------------------


class Recorder:
    """Shown the events of one job, remembers its answer when it ended with calls."""

    def __init__(self, prompt: Sequence[int], answers: Answers) -> None:
        self._prompt = prompt
        self._answers = answers
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []
        self._whole = True

    def __call__(self, event: JobEvent) -> None:
        """Takes the next event."""
        if isinstance(event, Tokens):
            for part in event.parts:
                self._take(part)
        elif isinstance(event, Done) and event.generated and self._calls and self._whole:
            self._answers.keep(self._answer(event))

    def _take(self, part: Part) -> None:
        if isinstance(part, Text):
            self._texts.append(part.text)
        elif isinstance(part, Reasoning):
            self._thoughts.append(part.text)
        elif isinstance(part, CallStart):
            self._calls.append((part.id, part.name))
            self._arguments.append([])
        elif isinstance(part, CallArguments):
            self._arguments[-1].append(part.text)
        else:
            self._whole = self._whole and part.complete

    def _answer(self, done: Done) -> Answer:
        calls = [
            (identity, name, arguments_object("".join(pieces)))
            for (identity, name), pieces in zip(self._calls, self._arguments, strict=True)
        ]
        return Answer(
            prompt=digest(self._prompt),
            tokens=array("I", done.generated),
            content="".join(self._texts),
            reasoning="".join(self._thoughts),
            calls=tuple(calls),
        )
