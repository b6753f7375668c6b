"""The dialect of Inkling: messages of control tokens around reasoning, text and calls.

`<|message_model|>` NAME `<|content_KIND|>` payload `<|end_message|>`, one after the other, and
`<|content_model_end_sampling|>` at the end. Calls hold JSON with `name` and `args`; a payload that
is no call of a declared tool is shown as text. The prompt may have opened the message already.
Not for: the bodies of calls (`bodies.py`). Thread rule: one owner at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from colibri.engine.answer import Reasoning, Text
from colibri.text.arguments import CallWriter, Tools
from colibri.text.bodies import JsonBody, Status
from colibri.text.machine import StateMachine
from colibri.text.parts import MARK, NewId, call_id, first_of, open_tail, plain

_MODEL = "<|message_model|>"
_TEXT, _THINKING = "<|content_text|>", "<|content_thinking|>"
_CALL, _CALL_TEXT = "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"
_END, _END_SAMPLING = "<|end_message|>", "<|content_model_end_sampling|>"
INKLING_MARKERS: Final = (_MODEL, _TEXT, _THINKING, _CALL, _CALL_TEXT, _END, _END_SAMPLING)
# A name before the kind of content; what is longer is an answer without any header.
_MAX_HEADER: Final = 128


class InklingParser(StateMachine):
    """`colibri.text.parts.PartsParser` of Inkling. `tokens` as for the other dialects."""

    def __init__(
        self, tools: Tools, *, tokens: Collection[str] = (), new_id: NewId = call_id
    ) -> None:
        self._tools = tools
        self._new_id = new_id
        known = frozenset(tokens)
        spelled = [MARK + marker if marker in known else marker for marker in INKLING_MARKERS]
        self._model, self._kind_text, self._thinking = spelled[:3]
        self._call, self._call_text, self._end, self._end_sampling = spelled[3:]
        self._markers = tuple(spelled)
        self._firm = _END in known
        super().__init__(known & frozenset(INKLING_MARKERS))
        self._state = self._in_header
        self._kind: type[Text] | type[Reasoning] = Text
        self._index = 0
        self._body: JsonBody | None = None
        self._writer: CallWriter | None = None
        self._raw: list[str] = []

    @property
    def reasoning(self) -> bool:
        """See `PartsParser`."""
        return self._kind is Reasoning and self._state == self._in_payload

    @property
    def in_call(self) -> bool:
        """See `PartsParser`."""
        return self._state == self._in_call

    def _emit(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if plain(text):
            self._out.append(kind(plain(text)))

    def _in_header(self, final: bool) -> bool:
        at, marker = first_of(self._text, self._markers)
        length = at if at >= 0 else len(self._text) - open_tail(self._text, self._markers)
        if length > _MAX_HEADER or "\n" in self._text[:length]:
            self._kind = Text
            self._state = self._in_payload
            return True
        if at < 0:
            if final:
                self._emit(Text, self._take(len(self._text)))
            return False
        name = self._take(at)
        self._take(len(marker))
        if marker == self._call:
            self._writer = CallWriter(self._tools, self._index, self._new_id, self._out)
            closers = (self._end, self._end_sampling, self._model)
            self._body = JsonBody(self._tools, self._writer, self._model, closers, self._firm)
            self._raw = []
            self._state = self._in_call
        elif marker in (self._kind_text, self._thinking, self._call_text):
            self._kind = Reasoning if marker == self._thinking else Text
            self._state = self._in_payload
        else:
            self._emit(Text, name)  # a message that ends before it says what it holds
        return True

    def _in_payload(self, final: bool) -> bool:
        at, marker = first_of(self._text, self._markers)
        if at < 0:
            end = len(self._text) - (0 if final else open_tail(self._text, self._markers))
            self._emit(self._kind, self._take(end))
            return False
        self._emit(self._kind, self._take(at))
        if marker in (self._end, self._end_sampling):
            self._take(len(marker))
        self._state = self._in_header
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
        if writer.started:
            writer.finish(complete=status is not Status.BROKEN)
            self._index += 1
        else:
            self._emit(Text, "".join(self._raw))
        self._kind = Text
        # What follows a broken call is its rest, up to the end of the message.
        closed = status is Status.DONE or (taken.endswith((self._end, self._end_sampling)))
        self._state = self._in_header if closed else self._in_payload
        return True


def inkling_parser(
    tools: Tools,
    *,
    reasoning: bool = False,
    tokens: Collection[str] = (),
    new_id: NewId = call_id,
) -> InklingParser:
    """The parser of Inkling. Its messages say themselves what is reasoning."""
    del reasoning
    return InklingParser(tools, tokens=tokens, new_id=new_id)
