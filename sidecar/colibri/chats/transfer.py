"""Chats as files: a JSON tree that holds everything, and one branch as Markdown to read.

For: export and import of the routes. Not for: storing. What is imported was written by anyone: it
is checked here, as a whole, before anything is kept. Thread rule: pure functions.

    JSON      {"format": "colibri-chats", "version": 1, "chats": [ChatTree]}
    Markdown  a comment tells where a message or a part begins, the rest is for people:

        # Title

        <!-- colibri:message user -->
        ## User

        <!-- colibri:part {"type":"text"} -->
        What is it?

Markdown of other programs has headings alone (`## User`, `## Assistant`); it is read as well, with
all text of a message in one part.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Any, Final, get_args

import msgspec

from colibri.chats.records import (
    MOST_MESSAGE_BYTES,
    MOST_MESSAGES,
    MOST_TITLE_CHARS,
    ChatTree,
    Message,
    Part,
    Role,
    check_id,
    check_parts,
    check_title,
    dump,
)
from colibri.errors import RequestError

FORMAT: Final = "colibri-chats"
VERSION: Final = 1
_ROLES: Final[tuple[Role, ...]] = get_args(Role)
_HEADINGS: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
# Headings of other programs, lower case.
_NAMES: Final[dict[str, Role]] = {
    "system": "system",
    "user": "user",
    "you": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "chatgpt": "assistant",
    "claude": "assistant",
    "tool": "tool",
}
_MARK: Final = re.compile(r"^<!-- colibri:(?:message (\w+)|part (\{.*\})) -->$", re.MULTILINE)
# A line of a text that looks like one of ours is written with a backslash more.
_LOOKALIKE: Final = re.compile(r"^(\\*)(?=<!-- colibri:)", re.MULTILINE)
_ESCAPED: Final = re.compile(r"^\\(\\*)(?=<!-- colibri:)", re.MULTILINE)
_FENCE: Final = re.compile(r"`{3,}")
_HEADING: Final = re.compile(r"^#{1,4} +\**(\w+):?\**:? *$", re.MULTILINE)
_FOLD: Final = "<details><summary>{}</summary>\n\n", "\n\n</details>"
_REASONING: Final = "Reasoning"


class Bundle(msgspec.Struct, kw_only=True):
    """A JSON file of chats."""

    format: str
    version: int = VERSION
    chats: list[ChatTree] = []
    text: str = ""
    title: str = ""


def bundle(chats: list[ChatTree]) -> bytes:
    """A file with these chats."""
    return msgspec.json.encode({"format": FORMAT, "version": VERSION, "chats": chats})


def imported(given: Bundle) -> list[ChatTree]:
    """The chats of a file, checked. Raises RequestError for what it is not, naming the place."""
    if given.format == "markdown":
        return check([from_markdown(given.text, given.title)])
    if given.format != FORMAT:
        raise RequestError(
            f"'format' is {given.format[:40]!r}; {FORMAT!r} and 'markdown' can be imported.",
            param="format",
        )
    if given.version > VERSION or given.version < 1:
        raise RequestError(
            f"The file has version {given.version}; this program knows version {VERSION}.",
            param="version",
        )
    return check(given.chats)


def check(chats: list[ChatTree]) -> list[ChatTree]:
    """The chats with parents before children. Raises RequestError for what cannot be kept."""
    if not chats:
        raise RequestError("The file holds no chat.", param="chats")
    seen = set()
    for number, chat in enumerate(chats):
        place = f"chats[{number}]"
        check_id(chat.id, f"{place}.id")
        if chat.id in seen:
            raise RequestError(f"'{place}.id' occurs twice.", param=f"{place}.id")
        seen.add(chat.id)
        check_title(chat.title, f"{place}.title")
        dump(chat.settings, f"{place}.settings")
        _check_times(chat, place)
        chat.messages = _in_order(chat.messages, f"{place}.messages")
    return chats


def _check_times(item: ChatTree | Message, place: str) -> None:
    for name in ("created_at_ms", "updated_at_ms"):
        if not 0 <= getattr(item, name) < 1 << 52:
            raise RequestError(f"'{place}.{name}' is no time.", param=f"{place}.{name}")


def _in_order(messages: list[Message], place: str) -> list[Message]:
    """Parents before children, otherwise as they are."""
    if len(messages) > MOST_MESSAGES:
        raise RequestError(
            f"'{place}' has {len(messages):,} entries; at most {MOST_MESSAGES:,} are kept.",
            param=place,
        )
    names = {message.id for message in messages}
    if len(names) != len(messages):
        raise RequestError(f"'{place}' has an id twice.", param=place)
    children: dict[str | None, list[Message]] = {}
    for number, message in enumerate(messages):
        where = f"{place}[{number}]"
        check_id(message.id, f"{where}.id")
        check_parts(message.parts, f"{where}.parts")
        dump(message.parts, f"{where}.parts", MOST_MESSAGE_BYTES)
        dump(message.meta, f"{where}.meta")
        _check_times(message, where)
        if message.parent is not None and message.parent not in names:
            raise RequestError(
                f"'{where}.parent' names no message of the chat.", param=f"{where}.parent"
            )
        children.setdefault(message.parent, []).append(message)
    # Most files are in order already, and then the order stays exactly that.
    placed: set[str | None] = {None}
    for message in messages:
        if message.parent not in placed:
            break
        placed.add(message.id)
    else:
        return messages
    ordered = list(children.get(None, []))
    for message in ordered:
        ordered += children.get(message.id, [])
    if len(ordered) != len(messages):
        raise RequestError(f"'{place}' goes round in a circle.", param=place)
    return ordered


# ---- Markdown --------------------------------------------------------------------------------


def branch(chat: ChatTree, leaf: str | None) -> list[Message]:
    """The messages from the root to a leaf, the active or the last one if none is named.

    Raises RequestError for a leaf that is not there.
    """
    by_id = {message.id: message for message in chat.messages}
    if leaf is not None and leaf not in by_id:
        raise RequestError(f"The chat has no message {leaf[:80]!r}.", param="leaf")
    name = leaf or chat.active
    if name is None and chat.messages:
        name = chat.messages[-1].id
    found: list[Message] = []
    while name is not None:
        found.append(by_id[name])
        name = by_id[name].parent
    return found[::-1]


def to_markdown(chat: ChatTree, leaf: str | None = None) -> str:
    """One branch, to read and to import again."""
    blocks = [f"# {chat.title or 'Chat'}"]
    for message in branch(chat, leaf):
        blocks.append(f"<!-- colibri:message {message.role} -->\n## {_HEADINGS[message.role]}")
        blocks += [_part_text(part) for part in message.parts]
    return "\n\n".join(blocks) + "\n"


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _part_text(part: Part) -> str:
    """A part with the comment that says what it is; what the body shows is left out of that."""
    kind, head = part["type"], dict(part)
    if kind in ("text", "reasoning", "file", "tool_result"):
        body = str(head.pop("text"))
        if kind == "reasoning":
            body = f"{_FOLD[0].format(_REASONING)}{body}{_FOLD[1]}"
        elif kind != "text":
            body = _fenced(body, "")
    elif kind == "tool_call":
        body = _fenced(str(head.pop("arguments")), "json")
    else:
        body = f"({kind})"
    # No comment ends inside.
    mark = msgspec.json.encode(head).decode().replace("-->", "--\\u003e")
    return f"<!-- colibri:part {mark} -->\n{_LOOKALIKE.sub(lambda m: m[1] + chr(92), body)}"


def from_markdown(text: str, title: str = "") -> ChatTree:
    """The chat in a Markdown file: one branch. Raises RequestError if there is no message in it."""
    text = text.replace("\r\n", "\n")
    heading = re.match(r"\s*# +(.+)", text)
    name = title or (heading[1] if heading else "")
    messages = _marked(text) if _MARK.search(text) else _headed(text)
    if not messages:
        raise RequestError(
            "The text has no message: neither our marks nor headings such as '## User'.",
            param="text",
        )
    for earlier, later in itertools.pairwise(messages):
        later.parent = earlier.id
    return ChatTree(
        id=secrets.token_hex(12), title=check_title(name[:MOST_TITLE_CHARS]), messages=messages
    )


def _new(role: Role, parts: list[Part]) -> Message:
    return Message(id=secrets.token_hex(12), parent=None, role=role, parts=parts)


def _marked(text: str) -> list[Message]:
    messages: list[Message] = []
    marks = list(_MARK.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() + 1 : following.start() if following else len(text)]
        body = body.removesuffix("\n\n") if following else body.removesuffix("\n")
        if mark[1] is not None:
            if mark[1] not in _ROLES:
                raise RequestError(f"The text has a message of role {mark[1]!r}.", param="text")
            messages.append(_new(mark[1], []))
        elif messages:
            messages[-1].parts.append(_part(mark[2], _ESCAPED.sub(r"\1", body)))
    return messages


def _part(head: str, body: str) -> Part:
    try:
        part: Any = msgspec.json.decode(head)
    except (msgspec.DecodeError, RecursionError):
        part = None
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError("The text has a mark that is damaged.", param="text")
    kind = part["type"]
    if kind == "text":
        part["text"] = body
    elif kind == "reasoning":
        part["text"] = body.removeprefix(_FOLD[0].format(_REASONING)).removesuffix(_FOLD[1])
    elif kind in ("file", "tool_result"):
        part["text"] = _unfenced(body)
    elif kind == "tool_call":
        part["arguments"] = _unfenced(body)
    return part


def _unfenced(body: str) -> str:
    match = re.fullmatch(r"(`{3,})\w*\n(.*)\n\1", body, re.DOTALL)
    return match[2] if match else body


def _headed(text: str) -> list[Message]:
    messages: list[Message] = []
    role: Role | None = None
    begin = 0
    for match in _HEADING.finditer(text):
        found = _NAMES.get(match[1].lower())
        if found is None:
            continue
        if role is not None:
            messages.append(_new(role, [_text(text[begin : match.start()])]))
        role, begin = found, match.end()
    if role is not None:
        messages.append(_new(role, [_text(text[begin:])]))
    return messages


def _text(body: str) -> Part:
    return {"type": "text", "text": body.strip("\n")}
