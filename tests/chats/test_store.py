"""The store of chats: a tree of messages that survives crashes, full disks and other versions."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from colibri.chats import ChatStore, ChatTree, Message, Preset, find, records, schema
from colibri.errors import (
    BodyTooLargeError,
    ColibriError,
    ConflictError,
    NotFoundError,
    RequestError,
    ResourceError,
)


class Clock:
    """Milliseconds that go on by one with each look."""

    now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[ChatStore]:
    made = ChatStore(path, Clock())
    yield made
    made.close()


def said(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def put(
    store: ChatStore, chat: str, name: str, parent: str | None, text: str = "words", **more: Any
) -> Message:
    role = more.pop("role", "user")
    message = Message(id=name, parent=parent, role=role, parts=said(text), **more)
    return store.put(chat, message)[0]


def tree_of(store: ChatStore, chat: str = "c") -> list[tuple[str, str | None]]:
    return [(message.id, message.parent) for message in store.tree(chat).messages]


def test_a_chat_is_made_filled_changed_and_deleted(store: ChatStore) -> None:
    made = store.create(ChatTree(id="c", title="  Two\n words ", settings={"temperature": 0.5}))
    assert (made.title, made.settings, made.messages) == ("Two words", {"temperature": 0.5}, [])
    put(store, "c", "q", None)
    put(store, "c", "a", "q", role="assistant", meta={"tokens": 3})
    put(store, "c", "a2", "q", role="assistant")
    tree = store.tree("c")
    assert tree_of(store) == [("q", None), ("a", "q"), ("a2", "q")]
    assert tree.messages[1].meta == {"tokens": 3}
    changed = store.change("c", title="New", pinned=True, active="a2")
    assert (changed.title, changed.pinned, changed.active, changed.messages) == (
        "New",
        True,
        "a2",
        3,
    )
    store.delete("c")
    store.delete("c")
    with pytest.raises(NotFoundError):
        store.tree("c")


def test_everything_is_there_after_closing_and_opening(store: ChatStore, path: Path) -> None:
    store.create(ChatTree(id="c", title="t"))
    put(store, "c", "q", None, "Gr\u00fc\u00dfe \U0001f426 \0 end")
    store.close()
    other = ChatStore(path)
    assert other.tree("c").messages[0].parts == said("Gr\u00fc\u00dfe \U0001f426 \0 end")
    other.close()
    assert path.stat().st_mode & 0o077 == 0, "what people wrote is theirs alone"


def test_a_message_may_be_sent_again_and_replaced_but_not_moved(store: ChatStore) -> None:
    store.create(ChatTree(id="c"))
    first = put(store, "c", "q", None, "one")
    _, new = store.put("c", Message(id="q", parent=None, role="user", parts=said("two")))
    assert not new
    again = store.tree("c").messages[0]
    assert again.parts == said("two")
    assert again.created_at_ms == first.created_at_ms < again.updated_at_ms
    put(store, "c", "a", "q", role="assistant")
    with pytest.raises(ConflictError):
        put(store, "c", "a", None, role="assistant")
    with pytest.raises(ConflictError):
        put(store, "c", "a", "q", role="user")
    with pytest.raises(RequestError, match="'parent': the chat has no message 'nobody'"):
        put(store, "c", "x", "nobody")
    with pytest.raises(NotFoundError):
        put(store, "nobody", "x", None)


def test_a_message_cannot_hang_below_one_of_another_chat(store: ChatStore) -> None:
    store.create(ChatTree(id="c"))
    store.create(ChatTree(id="d"))
    put(store, "c", "q", None)
    with pytest.raises(RequestError, match="'parent'"):
        put(store, "d", "x", "q")
    put(store, "d", "q", None)
    assert store.chat("c").messages == store.chat("d").messages == 1


def test_deleting_a_message_takes_its_branch_and_shows_the_one_beside_it(store: ChatStore) -> None:
    store.create(ChatTree(id="c"))
    put(store, "c", "q", None)
    for name, parent in (("a", "q"), ("b", "q"), ("b1", "b"), ("b2", "b1")):
        put(store, "c", name, parent, f"word{name}")
    store.change("c", active="b2")
    assert store.delete_message("c", "b") == ["b", "b1", "b2"]
    assert store.tree("c").active == "a"
    assert tree_of(store) == [("q", None), ("a", "q")]
    assert store.search("wordb1") == []
    assert store.delete_message("c", "b") == []
    assert store.delete_message("c", "q") == ["q", "a"]
    assert store.tree("c").active is None
    assert store.chat("c").messages == 0


def test_a_long_branch_is_deleted_without_a_stack(store: ChatStore) -> None:
    store.create(ChatTree(id="c"))
    chain = [
        Message(id=f"m{i}", parent=f"m{i - 1}" if i else None, role="user", parts=[])
        for i in range(3000)
    ]
    store.add([ChatTree(id="d", messages=chain)])
    assert len(store.delete_message("d", "m1")) == 2999
    store.add([ChatTree(id="e", messages=chain)])
    store.delete("e")
    assert store.chat("d").messages == 1


def test_an_older_page_does_not_overwrite_what_another_one_wrote(store: ChatStore) -> None:
    seen = store.create(ChatTree(id="c", title="one")).revision
    other = store.change("c", title="two", revision=seen)
    with pytest.raises(ConflictError, match="revision"):
        store.change("c", title="three", revision=seen)
    assert store.chat("c").title == "two"
    assert store.change("c", title="three", revision=other.revision).title == "three"


def test_a_refused_change_changes_nothing_and_is_not_announced(store: ChatStore) -> None:
    store.create(ChatTree(id="c", title="one"))
    before = store.changes
    with pytest.raises(RequestError, match="'active': the chat has no message 'nobody'"):
        store.change("c", title="two", active="nobody")
    assert store.chat("c").title == "one"
    assert store.changes == before
    store.change("c", title="two")
    assert store.changes == before + 1


def test_the_list_has_pinned_and_latest_first_and_pages_without_gaps(store: ChatStore) -> None:
    for number in range(25):
        store.create(ChatTree(id=f"c{number}"))
    store.change("c3", pinned=True)
    put(store, "c5", "q", None)
    store.change("c5", active="q")
    names: list[str] = []
    cursor = None
    for _ in range(9):
        chats, cursor, total = store.latest(4, cursor)
        assert total == 25
        names += [chat.id for chat in chats]
        if cursor is None:
            break
    assert names[:3] == ["c3", "c5", "c24"]
    assert sorted(names) == sorted(f"c{number}" for number in range(25))
    for bad in ("", "1", "1.2", "a.b.c", "1.2.3.4", "9" * 40 + ".1.1", "-1.2.3"):
        with pytest.raises(RequestError):
            store.latest(4, bad)


def test_presets_are_kept_under_their_names(store: ChatStore) -> None:
    store.put_preset(Preset(id="p2", name="Zed", settings={"top_p": 1}))
    store.put_preset(Preset(id="p1", name="Able", settings={}))
    store.put_preset(Preset(id="p2", name=" Bold  one ", settings={"top_p": 0.5}))
    assert [(p.name, p.settings) for p in store.presets()] == [
        ("Able", {}),
        ("Bold one", {"top_p": 0.5}),
    ]
    with pytest.raises(RequestError):
        store.put_preset(Preset(id="p3", name="  ", settings={}))
    store.delete_preset("p2")
    store.delete_preset("p2")
    assert [p.id for p in store.presets()] == ["p1"]


BAD = [
    ("id", lambda s: s.create(ChatTree(id="a b"))),
    ("id", lambda s: s.create(ChatTree(id=""))),
    ("id", lambda s: s.create(ChatTree(id="x" * 65))),
    ("id", lambda s: s.create(ChatTree(id="../x"))),
    ("title", lambda s: s.create(ChatTree(id="d", title="x" * 301))),
    ("settings", lambda s: s.create(ChatTree(id="d", settings={"x": "y" * 70_000}))),
    ("settings", lambda s: s.change("c", settings={"x": "y" * 70_000})),
    ("message", lambda s: put(s, "c", "m n", None)),
    ("meta", lambda s: put(s, "c", "m", None, meta={"x": "y" * 70_000})),
    ("parts", lambda s: put(s, "c", "m", None, "x" * (records.MOST_MESSAGE_BYTES + 1))),
    ("parts", lambda s: s.put("c", Message(id="m", parent=None, role="user", parts=[{}] * 1001))),
    ("parts[0].type", lambda s: s.put("c", Message(id="m", parent=None, role="user", parts=[{}]))),
    (
        "parts[1].text",
        lambda s: s.put(
            "c",
            Message(
                id="m",
                parent=None,
                role="user",
                parts=[*said("x"), {"type": "text", "text": 7}],
            ),
        ),
    ),
]


@pytest.mark.parametrize(("field", "do"), BAD)
def test_what_is_too_large_or_malformed_is_refused_by_name(
    store: ChatStore, field: str, do: Any
) -> None:
    store.create(ChatTree(id="c"))
    with pytest.raises((RequestError, BodyTooLargeError)) as caught:
        do(store)
    assert caught.value.param == field
    assert store.chat("c").messages == 0


def test_a_chat_has_an_end(store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.chats.store.MOST_MESSAGES", 3)
    store.create(ChatTree(id="c"))
    for number in range(3):
        put(store, "c", f"m{number}", None)
    with pytest.raises(RequestError) as caught:
        put(store, "c", "m3", None)
    assert caught.value.code == "chat_full"
    put(store, "c", "m2", None, "still replaced")


# ---- search ----


def found(store: ChatStore, text: str) -> list[tuple[str, str | None]]:
    return [(hit.chat, hit.message) for hit in store.search(text)]


def test_search_finds_beginnings_of_words_whatever_case_and_accents(store: ChatStore) -> None:
    store.create(ChatTree(id="c", title="Z\u00fcrich or Paris"))
    put(store, "c", "m", None, "The hummingbird hovers over M\u00fcnchen")
    assert found(store, "HUMMING") == [("c", "m")]
    assert found(store, "munch hov") == [("c", "m")]
    assert found(store, "zurich") == [("c", None)]
    assert found(store, "bird") == []
    assert found(store, "hummingbird paris") == [], "all words in one message"
    put(store, "c", "m", None, "replaced")
    assert found(store, "hummingbird") == []
    assert found(store, "replaced") == [("c", "m")]
    store.change("c", title="Rome")
    assert found(store, "paris") == []
    store.delete("c")
    assert found(store, "replaced") == []


def test_search_finds_words_of_scripts_without_spaces_anywhere(store: ChatStore) -> None:
    store.create(ChatTree(id="c", title="t"))
    put(store, "c", "m", None, "\u8702\u9ce5\u306f\u98db\u3093\u3067\u3044\u307e\u3059 quickly")
    assert found(store, "\u98db\u3093") == [("c", "m")]
    assert found(store, "\u98db\u3093 quick") == [("c", "m")]
    assert found(store, "\u9b5a") == []
    hit = store.search("\u98db\u3093")[0]
    assert [piece.text for piece in hit.pieces if piece.hit] == ["\u98db\u3093"]


@pytest.mark.parametrize(
    "text",
    ['"', "*", "a OR", "NEAR(", "body:x", "-x", "(", "'", "%", "_", "\\", "\0", "\x02a\x03", "",
     " ", "AND", "x" * 5000, "\U0001f426", "^a", "a* b*", "\u98db%", "--", ";DROP TABLE chats"],
)  # fmt: skip
def test_nothing_that_is_typed_is_syntax(store: ChatStore, text: str) -> None:
    store.create(ChatTree(id="c", title="title"))
    put(store, "c", "m", None, "a x \x02b\x03 words")
    store.search(text)
    assert found(store, "words") == [("c", "m")]


def test_a_hit_shows_its_words_in_their_place(store: ChatStore) -> None:
    store.create(ChatTree(id="c", title="t"))
    put(store, "c", "m", None, "first words, then the needle stands here, and needles end it")
    hit = store.search("needle")[0]
    assert "".join(piece.text for piece in hit.pieces) == (
        "first words, then the needle stands here, and needles end it"
    )
    assert [piece.text for piece in hit.pieces if piece.hit] == ["needle", "needles"]
    assert (hit.title, hit.role) == ("t", "user")


def test_thoughts_and_files_are_not_searched_but_names_of_files_are(store: ChatStore) -> None:
    store.create(ChatTree(id="c", title="t"))
    parts = [
        {"type": "reasoning", "text": "secretly"},
        {"type": "file", "name": "report.txt", "text": "contents"},
    ]
    store.put("c", Message(id="m", parent=None, role="user", parts=parts))
    assert found(store, "secretly") == []
    assert found(store, "contents") == []
    assert found(store, "report") == [("c", "m")]


def test_terms_have_an_end() -> None:
    prefixes, anywhere = find.terms(" ".join(f"w{i}" for i in range(100)))
    assert len(prefixes) + len(anywhere) == 12


# ---- disks, crashes, versions ----


def test_a_full_disk_is_told_and_what_was_kept_stays(store: ChatStore, path: Path) -> None:
    store.create(ChatTree(id="c"))
    put(store, "c", "kept", None, "kept words")
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceError) as caught:
        put(store, "c", "lost", None, "x" * 100_000)
    assert caught.value.code == "disk_full"
    assert str(path) in str(caught.value)
    assert caught.value.http_status == 503
    # Opened again, without the limit: the disk has room now.
    assert tree_of(store) == [("kept", None)]
    put(store, "c", "later", "kept", "x" * 100_000)
    assert found(store, "kept") == [("c", "kept")]


def test_a_folder_that_cannot_be_made_is_told_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file in the way")
    store = ChatStore(tmp_path / "data" / "chats.db")
    with pytest.raises(ResourceError) as caught:
        store.latest()
    assert caught.value.code == "chats_unavailable"
    (tmp_path / "data").unlink()
    assert store.latest() == ([], None, 0)
    store.close()


@pytest.mark.parametrize("content", [b"no database at all, only some words" * 40, b"SQLite"])
def test_a_damaged_file_is_told_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(content)
    store = ChatStore(path)
    with pytest.raises(ResourceError, match=r"chats\.db"):
        store.latest()
    assert path.read_bytes() == content


def test_a_newer_or_foreign_file_is_refused_and_left_as_it_is(store: ChatStore, path: Path) -> None:
    store.create(ChatTree(id="c"))
    store.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ResourceError, match="newer version"):
        store.latest()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (99,)
    db.execute("PRAGMA user_version = 0")
    db.execute("PRAGMA application_id = 7")
    db.close()
    with pytest.raises(ResourceError, match="another program"):
        store.latest()


def test_a_migration_happens_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    broken = [*schema.MIGRATIONS, "CREATE TABLE extra (x); INSERT INTO nowhere VALUES (1);"]
    with pytest.raises(sqlite3.Error):
        schema.connect(path, broken)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)
    db.close()
    whole = [*schema.MIGRATIONS, "CREATE TABLE extra (x); INSERT INTO extra VALUES (1);"]
    for _ in range(2):
        schema.connect(path, whole).close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT x FROM extra").fetchall() == [(1,)]
    db.close()


def test_two_servers_may_share_the_file(path: Path) -> None:
    stores = [ChatStore(path) for _ in range(2)]
    failures: list[ColibriError] = []

    def fill(number: int) -> None:
        try:
            stores[number].create(ChatTree(id=f"c{number}"))
            for message in range(20):
                put(stores[number], f"c{number}", f"m{message}", None)
        except ColibriError as error:
            failures.append(error)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [stores[0].chat(f"c{n}").messages for n in range(2)] == [20, 20]
    for store in stores:
        store.close()


WRITER = """
import sys
from pathlib import Path
from colibri.chats import ChatStore, ChatTree, Message
store = ChatStore(Path(sys.argv[1]))
store.create(ChatTree(id="c"))
parent = None
for number in range(100_000):
    parts = [{"type": "text", "text": f"word{number} " * 50}]
    store.put("c", Message(id=f"m{number}", parent=parent, role="user", parts=parts), show=True)
    parent = f"m{number}"
    print(number, flush=True)
"""


@pytest.mark.parametrize("kill_after", [1, 7, 40])
def test_a_kill_loses_nothing_that_was_acknowledged(path: Path, kill_after: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acknowledged = -1
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= kill_after:
                break
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.strip())])
    store = ChatStore(path)
    tree = store.tree("c")
    names = [message.id for message in tree.messages]
    assert names == [f"m{number}" for number in range(len(names))]
    assert len(names) > acknowledged
    assert tree.active == names[-1]
    assert found(store, f"word{acknowledged}") == [("c", f"m{acknowledged}")]
    assert store._connection is not None
    assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


# ---- against a plain model ----

NAMES = st.sampled_from([f"m{i}" for i in range(8)])


class Machine(RuleBasedStateMachine):
    """The store beside a dictionary, whatever is done in whatever order."""

    @initialize()
    def begin(self) -> None:
        self.store = ChatStore(Path(":memory:"))
        self.store._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self.store._connection.execute("PRAGMA foreign_keys = ON")
        schema._migrate(self.store._connection, Path(":memory:"), schema.MIGRATIONS)
        self.store.create(ChatTree(id="c"))
        self.known: dict[str, tuple[str | None, str]] = {}
        self.order: list[str] = []

    @rule(name=NAMES, parent=st.none() | NAMES, text=st.sampled_from(["alpha", "beta", "gamma"]))
    def put(self, name: str, parent: str | None, text: str) -> None:
        allowed = (parent is None or parent in self.known) and parent != name
        if name in self.known:
            allowed = self.known[name][0] == parent
        try:
            put(self.store, "c", name, parent, text)
        except RequestError:  # a parent that is not there, or another one: ConflictError
            assert not allowed
            return
        assert allowed
        self.known[name] = (parent, text)
        if name not in self.order:
            self.order.append(name)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        gone = {name} & set(self.known)
        while more := {n for n, (p, _) in self.known.items() if p in gone} - gone:
            gone |= more
        assert set(self.store.delete_message("c", name)) == gone
        self.known = {n: v for n, v in self.known.items() if n not in gone}
        self.order = [n for n in self.order if n not in gone]

    @rule(name=NAMES)
    def show(self, name: str) -> None:
        try:
            self.store.change("c", active=name)
        except RequestError:
            assert name not in self.known
        else:
            assert name in self.known

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "known"):
            return
        tree = self.store.tree("c")
        assert [m.id for m in tree.messages] == self.order
        assert {m.id: (m.parent, m.parts[0]["text"]) for m in tree.messages} == self.known
        assert tree.active is None or tree.active in self.known
        assert self.store.chat("c").messages == len(self.known)
        for word in ("alpha", "beta"):
            hits = {hit.message for hit in self.store.search(word, 100)}
            assert hits == {n for n, (_, text) in self.known.items() if text == word}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=40, stateful_step_count=25)
