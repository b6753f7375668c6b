"""One answer while it is generated: what its tokens say, and which tokens may or must come next.

For: backends, as their `EngineBackend.answer`; the engine loop pushes every token of an answer:

    token --detokeniser--> letters, markers marked --parser--> parts --stop filter--> parts
      |
      +--> the grammar: which tokens may come next
      +--> the watch of the reasoning: tokens that must come next, because it has to end

Stop texts are matched in visible text only: what a model thinks, or writes into a call, is cut by
no stop. They do not reach over a call or over reasoning. At the end the same chain is flushed in
the same order. Nothing outlives an answer. Not for: drawing, limits, end tokens
(`engine.decoding`). Thread rule: `Answers` may be used by any thread, an `Answer` has one owner.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from colibri.engine.answer import CallEnd, CallStart, Notice, Part, Text
from colibri.engine.protocol import Submit
from colibri.text.arguments import Tools
from colibri.text.dialect import Dialect
from colibri.text.grammar import Masks, Matcher
from colibri.text.parts import PartsParser, joined
from colibri.text.reasoning import Ending, ReasoningWatch
from colibri.text.stop import StopFilter

log = logging.getLogger(__name__)


class Letters(Protocol):
    """A detokeniser, as `detok.Detokenizer`."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that the ids complete."""
        ...

    def drop(self) -> None:
        """Forgets a character of which some bytes are missing."""
        ...


class Answers:
    """What all answers of one model share.

    `letters` makes the detokeniser of an answer; with True it puts MARK before those markers that
    are control tokens of the model, `tokens`. `closing` gives the tokens that end the reasoning,
    `masks` the prepared vocabulary, or None where grammars cannot be used; both are called when
    they are first needed, and may take a while.
    """

    def __init__(
        self,
        dialect: Dialect,
        tokens: Iterable[str],
        letters: Callable[[bool], Letters],
        closing: Callable[[], Sequence[int]],
        masks: Callable[[], Masks | None],
    ) -> None:
        self._dialect = dialect
        self._tokens = frozenset(tokens)
        self._letters = letters
        self._closing = closing
        self._masks = masks

    def begin(self, command: Submit) -> Answer:
        """The answer to a job, before its first token."""
        form = command.answer
        parser = None
        if form.parse:
            tools = Tools(form.tools)
            parser = self._dialect.parser(tools, reasoning=form.reasoning, tokens=self._tokens)
        return Answer(
            self._letters(form.parse),
            parser,
            StopFilter(command.stops, ignore_leading=command.ignore_leading_stop),
            ReasoningWatch(form.reasoning_budget),
            self._matcher(command),
            self._closing,
            one_call=form.one_call,
        )

    def _matcher(self, command: Submit) -> Matcher | None:
        grammar = command.answer.grammar
        if not grammar.source:
            return None
        masks = self._masks()
        if masks is None:
            return None
        matcher = masks.matcher(grammar)
        if matcher is None:
            log.warning("the answer's form is not enforced: %s", masks.problem(grammar))
        return matcher


class Answer:
    """One answer; see the module's text. Implements `colibri.engine.backend.AnswerReader`."""

    def __init__(
        self,
        letters: Letters,
        parser: PartsParser | None,
        stops: StopFilter,
        watch: ReasoningWatch,
        matcher: Matcher | None,
        closing: Callable[[], Sequence[int]],
        *,
        one_call: bool = False,
    ) -> None:
        self._letters = letters
        self._parser = parser
        self._stops = stops
        self._watch = watch
        self._matcher = matcher
        self._closing = closing
        self._forced: deque[int] = deque()
        self._text_open = False  # the stop filter may hold something
        self._one_call = one_call
        self._called = False  # the only call that is wanted is complete
        self._doubtful = 0  # tokens of what may turn out to be a call
        self.calls = 0
        self.reasoning_tokens = 0
        self.notice: Notice | None = None
        if self.reasoning:
            self._end_reasoning(watch.begin())

    # ---- where it stands

    @property
    def stopped(self) -> bool:
        return self._stops.matched is not None

    @property
    def finished(self) -> bool:
        return self._called or (self._matcher is not None and self._matcher.finished)

    @property
    def reasoning(self) -> bool:
        return self._parser is not None and self._parser.reasoning

    # ---- which token comes next

    def forced(self) -> int | None:
        if not self._forced:
            return None
        if self._allows(self._forced[0]):
            return self._forced.popleft()
        # The grammar knows better how the answer goes on.
        self._forced.clear()
        return None

    def mask(self) -> bytes:
        if self._matcher is None:
            return b""
        mask = self._matcher.mask()
        if mask is None:
            self._give_up(self._matcher.failed)
            return b""
        return mask

    def allowed(self, tokens: Sequence[int]) -> int:
        if self._matcher is None:
            return len(tokens)
        return self._matcher.allowed(tokens)

    def _allows(self, token: int) -> bool:
        mask = self.mask()
        return not mask or bool(mask[token // 8] >> token % 8 & 1)

    def _give_up(self, why: str) -> None:
        log.warning("the answer's form is enforced no longer: %s", why)
        self._matcher = None

    # ---- what a token says

    def push(self, token: int) -> list[Part]:
        if self._matcher is not None and not self._matcher.accept(token):
            self._give_up(f"token {token} was drawn and is not allowed")
        before = self.reasoning
        parts = self._read(self._letters.push((token,)), final=False)
        if before or self.reasoning:
            self._count()
            ending = self._watch.push(token)
            if self.reasoning and not self._forced:
                self._end_reasoning(ending)
        return parts

    def _count(self) -> None:
        """Counts a token of the reasoning; one of what may be a call only when it was none."""
        self._doubtful += 1
        if not (self.reasoning and self._in_call):
            self.reasoning_tokens += self._doubtful
            self._doubtful = 0

    def flush(self) -> list[Part]:
        self._letters.drop()
        calls = self.calls
        parts = self._read("", final=True)
        if self.calls == calls:
            self.reasoning_tokens += self._doubtful
        return parts

    def _read(self, text: str, *, final: bool) -> list[Part]:
        if self.stopped or self._called:
            return []
        if self._parser is None:
            parts: list[Part] = [Text(text)]
        else:
            parts = self._parser.push(text)
            if final:
                parts += self._parser.flush()
        out: list[Part] = []
        for part in parts:
            if isinstance(part, Text):
                self._text_open = True
                out.append(Text(self._stops.push(part.text)))
            else:
                self._close_text(out)
            if self._stops.matched is not None:
                break
            if not isinstance(part, Text):
                self.calls += isinstance(part, CallStart)
                out.append(part)
                self._called = self._one_call and isinstance(part, CallEnd)
                if self._called:
                    break
        if final:
            self._close_text(out)
        return joined(out)

    def _close_text(self, out: list[Part]) -> None:
        """What the stop filter holds can no longer become a stop text."""
        if self._text_open:
            self._text_open = False
            out.append(Text(self._stops.flush()))

    def _end_reasoning(self, ending: Ending | None) -> None:
        # What may be a call is not cut: it ends the reasoning by itself, or is none.
        if ending is None or (ending.kind == "budget" and self._in_call):
            return
        self._letters.drop()
        self._forced.extend(self._closing())
        self.notice = Notice(code=f"reasoning_{ending.kind}", message=ending.message)
        log.info("%s", ending.message)

    @property
    def _in_call(self) -> bool:
        return self._parser is not None and self._parser.in_call
