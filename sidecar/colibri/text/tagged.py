"""The dialects that write `<think>...</think>` and `<tool_call>...</tool_call>` into the text.

For: GLM (`NAME<arg_key>...` inside a call) and ChatML models (Hermes: JSON inside a call).
Reasoning comes first: the prompt has opened it, or the answer begins with `<think>`. A call that
stands in the reasoning is a call only if nothing but further calls follows it, because then the
model has forgotten to close its reasoning; else it is part of the reasoning. Blanks around markers
are layout. Not for: the bodies of calls (`bodies.py`). Thread rule: one owner at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from colibri.engine.answer import CallEnd, Part, Reasoning, Text
from colibri.text.arguments import CallWriter, Tools
from colibri.text.bodies import Body, GlmBody, JsonBody, Status
from colibri.text.machine import StateMachine
from colibri.text.parts import MARK, NewId, call_id, first_of, gap, open_tail, plain

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
GLM_MARKERS: Final = (
    THINK, THINK_END, CALL, CALL_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
HERMES_MARKERS: Final = (THINK, THINK_END, CALL, CALL_END)

_MakeBody: TypeAlias = "Callable[[TaggedParser, CallWriter], Body]"


class TaggedParser(StateMachine):
    """`colibri.text.parts.PartsParser` of these dialects; made by `glm_parser`, `hermes_parser`.

    `reasoning`: the prompt has opened the reasoning. `tokens`: the markers that are control tokens
    of this model and therefore arrive behind MARK; the others are plain text.
    """

    def __init__(
        self,
        tools: Tools,
        make_body: _MakeBody,
        *,
        reasoning: bool,
        tokens: Collection[str],
        new_id: NewId,
        first_index: int = 0,
    ) -> None:
        self.tools = tools
        self._make_body = make_body
        self._tokens = frozenset(tokens)
        self._new_id = new_id
        self._index = first_index
        self.think, self.think_end = self.spell(THINK), self.spell(THINK_END)
        self.call, self.call_end = self.spell(CALL), self.spell(CALL_END)
        self.firm = CALL_END in self._tokens
        super().__init__(self._tokens)
        self._state = self._in_reasoning if reasoning else self._in_text
        self._blank = reasoning  # blanks before the next visible text are layout
        self._fresh = True  # no visible text yet, so reasoning may still begin
        self._stray_end = False  # an end of call may follow that belongs to a broken one
        self._body: Body | None = None
        self._writer: CallWriter | None = None
        self._raw: list[str] = []
        self._trial: TaggedParser | None = None
        self._trial_parts: list[Part] = []

    @property
    def reasoning(self) -> bool:
        """See `PartsParser`."""
        return self._state in (self._in_reasoning, self._in_trial)

    @property
    def in_call(self) -> bool:
        """See `PartsParser`."""
        return self._state in (self._in_call, self._in_trial)

    def spell(self, marker: str) -> str:
        """A marker as it arrives."""
        return MARK + marker if marker in self._tokens else marker

    # ---- states: each returns whether another one may go on

    def _in_reasoning(self, final: bool) -> bool:
        self._drop_blanks()
        markers = (self.think_end, self.call) if self.tools else (self.think_end,)
        at, marker = first_of(self._text, markers)
        if at < 0:
            end = len(self._text)
            if not final:
                end -= open_tail(self._text, markers)
                end -= gap(self._text[:end])
            self._emit(Reasoning, self._take(end))
            return False
        blanks = gap(self._text[:at])
        self._emit(Reasoning, self._take(at - blanks))
        self._raw = [self._take(blanks + len(marker))]
        if marker == self.think_end:
            self._blank = True
            self._state = self._in_text
        else:
            self._trial = TaggedParser(
                self.tools,
                self._make_body,
                reasoning=False,
                tokens=self._tokens,
                new_id=self._new_id,
                first_index=self._index,
            )
            self._trial.push(marker)
            self._trial_parts = []
            self._state = self._in_trial
        return True

    def _in_trial(self, final: bool) -> bool:
        """Reasoning that may be calls: kept until it turns out to be none, or the text ends."""
        trial, at, ended, failed = self._trial, 0, False, False
        if trial is None:
            return False
        # Letter by letter, so that what is kept does not depend on the pieces.
        while at < len(self._text) and not failed:
            ended = self._text.startswith(self.think_end, at)
            rest = self._text[at : at + len(self.think_end)]
            if ended or (not final and self.think_end.startswith(rest)):
                break
            self._trial_parts += trial.push(self._text[at])
            failed = bool(self._trial_parts) and isinstance(self._trial_parts[-1], Text | Reasoning)
            at += 1
        self._raw.append(self._take(at))
        if final and not ended and not failed:
            self._trial_parts += trial.flush()
            failed = any(
                isinstance(part, Text | Reasoning)
                or (isinstance(part, CallEnd) and not part.complete)
                for part in self._trial_parts
            )
            if not failed:
                self._out += self._trial_parts
        elif not ended and not failed:
            return False
        self._trial = None
        self._state = self._in_text if final and not (ended or failed) else self._in_reasoning
        if ended or failed:
            self._end_trial(ended)
        return ended or failed

    def _end_trial(self, ended: bool) -> None:
        """What was kept is reasoning."""
        kept = "".join(self._raw)
        blanks = gap(kept)
        if ended:
            self._take(len(self.think_end))
            kept = kept[: len(kept) - blanks]
            self._blank = True
            self._state = self._in_text
        elif blanks:  # they may belong to the marker that follows
            kept, self._text = kept[:-blanks], kept[-blanks:] + self._text
        blank = self._blank
        self._emit(Reasoning, kept)
        self._blank = blank if ended else self._blank

    def _in_text(self, final: bool) -> bool:
        self._drop_blanks()
        at, marker = self._first_marker()
        if at < 0:
            end = len(self._text)
            if not final:
                end -= open_tail(self._text, self._markers())
                end -= gap(self._text[:end]) if self._layout() else 0
            self._emit(Text, self._take(end))
            return False
        blanks = gap(self._text[:at]) if marker != self.call_end else 0
        self._emit(Text, self._take(at - blanks))
        self._raw = [self._take(blanks + len(marker))]
        if marker == self.think:
            self._blank = True
            self._state = self._in_reasoning
        elif marker == self.call:
            self._writer = CallWriter(self.tools, self._index, self._new_id, self._out)
            self._body = self._make_body(self, self._writer)
            self._state = self._in_call
        else:  # the end of a call that was broken, or of reasoning that was not begun
            self._stray_end = self._stray_end and marker != self.call_end
        return True

    def _in_call(self, final: bool) -> bool:
        body, writer = self._body, self._writer
        if body is None or writer is None:
            return False
        writer.out = self._out
        used, status = body.take(self._text, final)
        taken = self._take(used)
        if not writer.started:
            self._raw.append(taken)
        if status is Status.MORE:
            return False
        self._body = self._writer = None
        self._state = self._in_text
        self._stray_end = status in (Status.CUT, Status.BROKEN)
        if writer.started:
            writer.finish(complete=status is not Status.BROKEN)
            self._index += 1
            self._blank = True
            self._fresh = False
        else:
            self._stray_end = False
            self._emit(Text, "".join(self._raw))
        return True

    # ---- text

    def _emit(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        text = plain(text)
        if not text:
            return
        if kind is Text and text.strip():
            self._fresh = False
        self._blank = False
        self._out.append(kind(text))

    def _drop_blanks(self) -> None:
        if self._blank:
            self._text = self._text.lstrip()

    def _layout(self) -> bool:
        """Whether blanks may belong to a marker that follows."""
        return bool(self.tools) or self._fresh

    def _markers(self) -> tuple[str, ...]:
        markers = []
        if self._fresh or THINK in self._tokens:
            markers.append(self.think)
        if THINK_END in self._tokens:
            markers.append(self.think_end)
        if self.tools:
            markers.append(self.call)
        if self._stray_end or self.firm:
            markers.append(self.call_end)
        return tuple(markers)

    def _first_marker(self) -> tuple[int, str]:
        """The first marker that counts where it stands."""
        markers = self._markers()
        at, marker = first_of(self._text, markers)
        if marker == self.think and THINK not in self._tokens and self._text[:at].strip():
            # As plain letters it counts only before any visible text.
            at, marker = first_of(self._text, markers[1:])
        return at, marker


def glm_parser(
    tools: Tools,
    *,
    reasoning: bool = False,
    tokens: Collection[str] = (),
    new_id: NewId = call_id,
) -> TaggedParser:
    """The parser of GLM 4.5 to 5.3."""

    def body(parser: TaggedParser, writer: CallWriter) -> Body:
        return GlmBody(tools, writer, parser.spell, parser.call, parser.call_end, firm=parser.firm)

    return TaggedParser(tools, body, reasoning=reasoning, tokens=tokens, new_id=new_id)


def hermes_parser(
    tools: Tools,
    *,
    reasoning: bool = False,
    tokens: Collection[str] = (),
    new_id: NewId = call_id,
) -> TaggedParser:
    """The parser of ChatML models that call tools in the Hermes way."""

    def body(parser: TaggedParser, writer: CallWriter) -> Body:
        return JsonBody(tools, writer, parser.call, (parser.call_end,), firm=parser.firm)

    return TaggedParser(tools, body, reasoning=reasoning, tokens=tokens, new_id=new_id)
