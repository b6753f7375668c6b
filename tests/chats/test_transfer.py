"""Chats as files: nothing is lost on the way out and in, and nothing is believed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.chats import ChatStore, ChatTree, Message, transfer
from colibri.errors import ColibriError, RequestError

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=60) | (
    st.sampled_from(
        [
            "<!-- colibri:message user -->",
            "\\<!-- colibri:part {} -->\nx",
            'a\n\n<!-- colibri:part {"type":"text"} -->\nb',
            "## User\n\n## Assistant",
            "```\ncode\n```",
            "````\n```\n",
            "\n\n\nlines\n\n",
            "</details>",
            "-->",
            "",
        ]
    )
)
PARTS = st.one_of(
    TEXTS.map(lambda text: {"type": "text", "text": text}),
    TEXTS.map(lambda text: {"type": "reasoning", "text": text}),
    st.builds(lambda n, t: {"type": "file", "name": n, "text": t}, TEXTS, TEXTS),
    st.builds(
        lambda n, t: {"type": "tool_call", "id": "x", "name": n, "arguments": t}, TEXTS, TEXTS
    ),
    TEXTS.map(lambda text: {"type": "tool_result", "id": "x", "text": text}),
    st.just({"type": "picture", "url": "a --> b", "size": [1, 2]}),
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])


def chain(items: list[tuple[str, list[dict[str, Any]]]]) -> ChatTree:
    messages = [
        Message(id=f"m{n}", parent=f"m{n - 1}" if n else None, role=role, parts=parts)  # type: ignore[arg-type]
        for n, (role, parts) in enumerate(items)
    ]
    return ChatTree(id="c", title="Title here", messages=messages)


@given(st.lists(st.tuples(ROLES, st.lists(PARTS, max_size=3)), min_size=1, max_size=5))
def test_a_branch_comes_back_from_markdown_as_it_was(
    items: list[tuple[str, list[dict[str, Any]]]],
) -> None:
    text = transfer.to_markdown(chain(items))
    back = transfer.imported(transfer.Bundle(format="markdown", text=text))[0]
    assert back.title == "Title here"
    assert [(message.role, message.parts) for message in back.messages] == items
    assert [message.parent for message in back.messages] == [
        None,
        *(message.id for message in back.messages[:-1]),
    ]


def test_markdown_reads_well() -> None:
    chat = chain(
        [
            ("user", [{"type": "text", "text": "What is it?"}]),
            (
                "assistant",
                [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "This."}],
            ),
        ]
    )
    assert transfer.to_markdown(chat) == (
        "# Title here\n\n"
        "<!-- colibri:message user -->\n## User\n\n"
        '<!-- colibri:part {"type":"text"} -->\nWhat is it?\n\n'
        "<!-- colibri:message assistant -->\n## Assistant\n\n"
        '<!-- colibri:part {"type":"reasoning"} -->\n'
        "<details><summary>Reasoning</summary>\n\nHm.\n\n</details>\n\n"
        '<!-- colibri:part {"type":"text"} -->\nThis.\n'
    )


def test_markdown_of_other_programs_is_read_by_its_headings() -> None:
    text = (
        "# My chat\r\n\r\n## You\r\n\r\nHello\r\n## Notes\r\nmore\r\n\r\n### **Assistant:**\n\nHi\n"
    )
    chat = transfer.from_markdown(text)
    assert chat.title == "My chat"
    assert [(m.role, m.parts[0]["text"]) for m in chat.messages] == [
        ("user", "Hello\n## Notes\nmore"),
        ("assistant", "Hi"),
    ]
    for nothing in ("", "only words", "# Title\n\n## Introduction\n\ntext"):
        with pytest.raises(RequestError, match="no message"):
            transfer.from_markdown(nothing)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- colibri:message nobody -->\nx",
        '<!-- colibri:message user -->\n<!-- colibri:part {"a":1} -->\nx',
        "<!-- colibri:message user -->\n<!-- colibri:part {broken} -->\nx",
        '<!-- colibri:message user -->\n<!-- colibri:part {"type":"tool_call"} -->\nx',
        '<!-- colibri:part {"type":"text"} -->\nx',
    ],
)
def test_damaged_markdown_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        transfer.imported(transfer.Bundle(format="markdown", text=text))


def test_a_branch_is_chosen_by_its_leaf() -> None:
    chat = chain([("user", [])])
    for name in ("a", "b"):
        parts = [{"type": "text", "text": f"answer {name}"}]
        chat.messages.append(Message(id=name, parent="m0", role="assistant", parts=parts))
    assert "answer b" in transfer.to_markdown(chat)
    chat.active = "a"
    assert "answer a" in transfer.to_markdown(chat)
    assert "answer b" in transfer.to_markdown(chat, "b")
    with pytest.raises(RequestError):
        transfer.to_markdown(chat, "nobody")
    assert transfer.to_markdown(ChatTree(id="c")) == "# Chat\n"


@st.composite
def trees(draw: Any) -> ChatTree:
    """A chat with branches; messages in any order."""
    count = draw(st.integers(0, 8))
    messages = []
    for number in range(count):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        messages.append(
            Message(
                id=f"m{number}",
                parent=None if parent is None else f"m{parent}",
                role=draw(ROLES),
                parts=draw(st.lists(PARTS, max_size=2)),
                meta={"n": number},
                created_at_ms=number + 1,
                updated_at_ms=number + 2,
            )
        )
    active = draw(st.sampled_from([m.id for m in messages])) if messages else None
    return ChatTree(
        id=draw(st.sampled_from(["a", "b"])),
        title=draw(st.sampled_from(["", "T"])),
        settings={"x": [1.5, None]},
        active=active,
        created_at_ms=5,
        updated_at_ms=6,
        messages=draw(st.permutations(messages)),
    )


def _through(store: ChatStore, chat: ChatTree) -> ChatTree:
    """The chat after it was exported and imported, twice."""
    data = transfer.bundle([chat])
    assert store.add(transfer.imported(msgspec.json.decode(data, type=transfer.Bundle))) == {}
    again = transfer.bundle([store.tree(chat.id)])
    renamed = store.add(transfer.imported(msgspec.json.decode(again, type=transfer.Bundle)))
    assert renamed == {chat.id: f"{chat.id}-2"}
    return store.tree(renamed[chat.id])


@given(trees())
def test_a_tree_comes_back_from_json_as_it_was(chat: ChatTree) -> None:
    given_chat = msgspec.convert(msgspec.to_builtins(chat), ChatTree)
    with tempfile.TemporaryDirectory() as folder:
        store = ChatStore(Path(folder) / "chats.db")
        try:
            again = _through(store, chat)
        finally:
            store.close()
    known = {message.id: message for message in given_chat.messages}
    assert {message.id: message for message in again.messages} == known
    assert (again.title, again.settings) == (chat.title, chat.settings)
    assert again.active == (chat.active if known else None)
    assert (again.created_at_ms, again.updated_at_ms) == (5, 6)
    seen: set[str | None] = {None}
    for message in again.messages:
        assert message.parent in seen
        seen.add(message.id)


def message(name: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": name, "parent": parent, "role": "user", "parts": [], **more}


@pytest.mark.parametrize(
    ("chats", "place"),
    [
        ([], "chats"),
        ([{"id": "a b"}], "chats[0].id"),
        ([{"id": "a"}, {"id": "a"}], "chats[1].id"),
        ([{"id": "a", "title": "x" * 301}], "chats[0].title"),
        ([{"id": "a", "created_at_ms": -1}], "chats[0].created_at_ms"),
        ([{"id": "a", "created_at_ms": 1 << 60}], "chats[0].created_at_ms"),
        ([{"id": "a", "messages": [message("m", "n")]}], "chats[0].messages[0].parent"),
        ([{"id": "a", "messages": [message("m", "m")]}], "chats[0].messages"),
        ([{"id": "a", "messages": [message("m"), message("m")]}], "chats[0].messages"),
        ([{"id": "a", "messages": [message("m", "n"), message("n", "m")]}], "chats[0].messages"),
        ([{"id": "a", "messages": [message("m\n")]}], "chats[0].messages[0].id"),
        ([{"id": "a", "messages": [message("m", parts=[{"type": "text"}])]}],
         "chats[0].messages[0].parts[0].text"),
        ([{"id": "a", "messages": [message("m", meta={"x": "y" * 70_000})]}],
         "chats[0].messages[0].meta"),
    ],
)  # fmt: skip
def test_a_file_that_contradicts_itself_is_refused_by_name(chats: Any, place: str) -> None:
    file = msgspec.convert({"format": transfer.FORMAT, "chats": chats}, transfer.Bundle)
    with pytest.raises(ColibriError) as caught:
        transfer.imported(file)
    assert getattr(caught.value, "param", None) == place


@pytest.mark.parametrize(
    "fields", [{"format": "other"}, {"format": transfer.FORMAT, "version": 2, "chats": []}]
)
def test_a_file_of_another_format_or_version_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        transfer.imported(msgspec.convert(fields, transfer.Bundle))


def test_an_import_that_fails_in_the_middle_keeps_nothing(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.db")
    good = ChatTree(id="good", messages=[Message(id="m", parent=None, role="user", parts=[])])
    bad = ChatTree(id="bad", messages=[Message(id="m", parent="n", role="user", parts=[])])
    with pytest.raises(KeyError):
        store.add([good, bad])
    assert store.latest() == ([], None, 0)
    store.close()
