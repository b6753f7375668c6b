"""Conversations as token rows with labels, in the form of the built-in GLM-5.2 template.

For: the trainer. Every turn is what the template would render, which a test checks against the
program's own renderer; the labels are the assistant's tokens and the control token that ends the
turn. Not for: inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer

from starter.conversations import Conversation, Turn

IGNORE: Final = -100


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids; `labels[i]` is what follows `ids[i]`, or IGNORE; `entries[i]` is the word asked
    about, -1 without one.
    """

    ids: list[int]
    labels: list[int]
    entries: list[int]


class RowMaker:
    """Turns conversations into rows. `tools_text` renders the block of tools (the template's)."""

    def __init__(self, tokenizer: Tokenizer, tools_text: str) -> None:
        self._tokenizer = tokenizer
        self._tools_text = tools_text
        self._known: dict[str, list[int]] = {}

    def control(self, text: str) -> int:
        """Id of a control token."""
        token = self._tokenizer.token_to_id(text)
        if token is None:
            raise KeyError(text)
        return int(token)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; control tokens in it count as such."""
        found = self._known.get(text)
        if found is None:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(self._known) < 200_000:
                self._known[text] = found
        return found

    def prefix(self, conversation: Conversation, tools_block: str = "") -> list[int]:
        """Everything before the first turn."""
        ids = [self.control("[gMASK]"), self.control("<sop>")]
        if conversation.thinking:
            ids += [self.control("<|system|>"), *self.encode("Reasoning Effort: Max")]
        if conversation.tools:
            ids += self.encode(tools_block)
        if conversation.system is not None:
            ids += [self.control("<|system|>"), *self.encode(conversation.system)]
        return ids

    def turn(self, turn: Turn, *, last: bool, thinking: bool) -> tuple[list[int], list[bool]]:
        """(ids, which of them the model writes) of one turn, the token that ends it left out."""
        c = self.control
        ids = [c("<|user|>"), *self.encode(turn.user), c("<|assistant|>"), c("<think>")]
        if thinking and last:
            ids_written = [*self.encode(turn.think or ""), c("</think>")]
        else:
            ids.append(c("</think>"))
            ids_written = []
        written = [False] * len(ids)
        if turn.call is not None:
            call = [c("<tool_call>"), *self.encode(turn.call.name)]
            for key, value in turn.call.arguments.items():
                call += [c("<arg_key>"), *self.encode(key), c("</arg_key>")]
                call += [c("<arg_value>"), *self.encode(value), c("</arg_value>")]
            call += [c("</tool_call>"), c("<|observation|>")]
            ids += ids_written + call
            written += [True] * (len(ids_written) + len(call))
            answer = [c("<tool_response>"), *self.encode(turn.call.result), c("</tool_response>")]
            answer += [c("<|assistant|>"), c("<think>"), c("</think>")]
            ids += answer
            written += [False] * len(answer)
            ids_written = []
        ids_written = [*ids_written, *self.encode(turn.answer)]
        return ids + ids_written, written + [True] * len(ids_written)

    def row(self, conversation: Conversation, length: int, tools_block: str = "") -> Row | None:
        """The conversation as far as it fits into `length` tokens; None if no turn does.

        The last turn is kept and those before it are dropped from the middle if a row would get too
        long for a conversation whose last turn matters.
        """
        ids = self.prefix(conversation, tools_block)
        written = [False] * len(ids)
        entries = [-1] * len(ids)
        final = conversation.turns[-1]
        pinned = final.task == "recall" or conversation.thinking
        tail = self.turn(final, last=True, thinking=conversation.thinking)
        room = length - 1 - (len(tail[0]) if pinned else 0)
        turns = conversation.turns[:-1] if pinned else conversation.turns
        for turn in turns:
            more = self.turn(turn, last=False, thinking=conversation.thinking)
            if len(ids) + len(more[0]) > room:
                if pinned and turn.task != "note":
                    continue
                break
            ids += more[0]
            written += more[1]
            entries += [turn.entry] * len(more[0])
        if pinned:
            if len(ids) + len(tail[0]) > length - 1:
                return None
            ids += tail[0]
            written += tail[1]
            entries += [final.entry] * len(tail[0])
        if not any(written):
            return None
        ids.append(self.control("<|user|>"))
        # The token behind a finished turn is written by the model: it ends the turn.
        ends = [True if written[i - 1] else mark for i, mark in enumerate([*written, False])]
        labels = [ids[i + 1] if ends[i + 1] else IGNORE for i in range(len(ids) - 1)]
        return Row(ids[:-1], labels, entries)


def padded(rows: list[Row], pad: int) -> Iterator[Row]:
    """The rows brought to one length."""
    longest = max(len(row.ids) for row in rows)
    for row in rows:
        gap = longest - len(row.ids)
        yield Row(row.ids + [pad] * gap, row.labels + [IGNORE] * gap, row.entries + [-1] * gap)
