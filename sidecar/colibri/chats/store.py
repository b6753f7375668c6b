"""The chats on disk: make, read, change, search; every change is whole or has not happened.

For: the routes of `api.ui`. The file is opened at the first use and again after a failure, so a
disk that comes back is used again. What the disk refuses is a ResourceError that says where; chat
itself goes on without it. Not for: reading what is in parts, beyond the words to search for.

Thread rule: any thread. One connection behind one lock: a request takes a millisecond, and a second
writer would only wait for the same disk. `changes` grows with every change of anything.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from colibri.chats import find, schema
from colibri.chats.records import (
    MOST_MESSAGE_BYTES,
    MOST_MESSAGES,
    Chat,
    ChatTree,
    Hit,
    Message,
    Part,
    Preset,
    Role,
    check_id,
    check_parts,
    check_title,
    dump,
    searchable,
)
from colibri.errors import ConflictError, NotFoundError, RequestError, ResourceError

log = logging.getLogger(__name__)

_CHAT_FIELDS: Final = (
    "id, title, pinned, settings, active, created_at_ms, updated_at_ms, revision, messages"
)
_MOST_PRESETS: Final = 200
# Of a message, what the index of words takes.
_MOST_INDEXED: Final = 200_000

Row = tuple[Any, ...]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class ChatStore:
    """See the module's text. `path` need not exist."""

    def __init__(self, path: Path, clock: Callable[[], int] = _now_ms) -> None:
        self.path = path
        self.changes = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Closes the file; a later use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # ---- chats ----

    def latest(
        self, limit: int = 50, before: str | None = None
    ) -> tuple[list[Chat], str | None, int]:
        """Chats, pinned and latest first, with the cursor of the next page and how many there are.

        Raises RequestError for a cursor that is none.
        """
        where, values = "", tuple[int, ...]()
        if before is not None:
            where, values = "WHERE (pinned, updated_at_ms, seq) < (?, ?, ?)", _cursor(before)
        with self._read() as db:
            rows = db.execute(
                f"SELECT {_CHAT_FIELDS}, seq FROM chats {where} "  # noqa: S608 - our own texts
                "ORDER BY pinned DESC, updated_at_ms DESC, seq DESC LIMIT ?",
                (*values, limit + 1),
            ).fetchall()
            (total,) = db.execute("SELECT count(*) FROM chats").fetchone()
        more = len(rows) > limit
        rows = rows[:limit]
        last = rows[-1] if more else None
        return (
            [_chat(row) for row in rows],
            f"{last[2]}.{last[6]}.{last[9]}" if last else None,
            total,
        )

    def create(self, chat: ChatTree) -> ChatTree:
        """Makes an empty chat. Raises ConflictError if its id exists."""
        with self._write() as db:
            self._insert(db, chat, self._clock())
        return self.tree(chat.id)

    def chat(self, chat: str) -> Chat:
        """A chat without its messages. Raises NotFoundError."""
        with self._read() as db:
            return _chat(self._find(db, chat)[1])

    def tree(self, chat: str) -> ChatTree:
        """A chat with its messages. Raises NotFoundError."""
        with self._read() as db:
            seq, row = self._find(db, chat)
            head = _chat(row)
            messages = db.execute(
                "SELECT m.id, p.id, m.role, m.parts, m.meta, m.created_at_ms, m.updated_at_ms "
                "FROM messages m LEFT JOIN messages p ON p.seq = m.parent "
                "WHERE m.chat = ? ORDER BY m.seq",
                (seq,),
            ).fetchall()
        fields = msgspec.structs.asdict(head)
        fields["messages"] = [_message(row) for row in messages]
        return ChatTree(**fields)

    def change(
        self,
        chat: str,
        *,
        title: str | None = None,
        settings: dict[str, Any] | None = None,
        pinned: bool | None = None,
        active: str | None = None,
        revision: int | None = None,
    ) -> Chat:
        """Changes what is given. With `revision`, ConflictError if the chat has moved on since.

        Raises NotFoundError for the chat, RequestError for an `active` that it does not have.
        """
        with self._write() as db:
            seq, row = self._find(db, chat)
            found = _chat(row)
            if revision is not None and revision != found.revision:
                raise ConflictError(
                    f"The chat is at revision {found.revision}, not {revision}: another page has "
                    "changed it.",
                    hint="Read it again.",
                    param="revision",
                )
            if active is not None:
                self._find_message(db, seq, active, "active")
                db.execute("UPDATE chats SET active = ? WHERE seq = ?", (active, seq))
            if title is not None:
                title = check_title(title)
                db.execute("UPDATE chats SET title = ? WHERE seq = ?", (title, seq))
                _index(db, -seq, title)
            if settings is not None:
                value = dump(settings, "settings")
                db.execute("UPDATE chats SET settings = ? WHERE seq = ?", (value, seq))
            if pinned is not None:
                db.execute("UPDATE chats SET pinned = ? WHERE seq = ?", (pinned, seq))
            # Looking at another branch, or pinning, does not make a chat the latest.
            self._touch(db, seq, latest=title is not None or settings is not None)
            return _chat(self._find(db, chat)[1])

    def delete(self, chat: str) -> None:
        """Deletes a chat; one that is gone already is fine."""
        with self._write() as db:
            row = db.execute("SELECT seq FROM chats WHERE id = ?", (chat,)).fetchone()
            if row is None:
                return
            db.execute(
                "DELETE FROM words WHERE rowid IN "
                "(SELECT seq FROM messages WHERE chat = ? UNION ALL SELECT -?)",
                (row[0], row[0]),
            )
            db.execute("DELETE FROM chats WHERE seq = ?", (row[0],))

    # ---- messages ----

    def put(
        self,
        chat: str,
        message: Message,
        *,
        show: bool = False,
    ) -> tuple[Message, bool]:
        """Makes a message, or replaces the parts and meta of one; True if it is new.

        Raises ConflictError for another role or parent, NotFoundError for the chat, and
        RequestError for an unknown parent and what is too large. `show` makes it the active leaf.
        """
        check_id(message.id, "message")
        parts = dump(check_parts(message.parts), "parts", MOST_MESSAGE_BYTES)
        meta = dump(message.meta, "meta")
        now = self._clock()
        with self._write() as db:
            seq, row = self._find(db, chat)
            parent = self._parent(db, seq, message.parent)
            old = db.execute(
                "SELECT seq, parent, role, created_at_ms FROM messages WHERE chat = ? AND id = ?",
                (seq, message.id),
            ).fetchone()
            if old is None:
                if _chat(row).messages >= MOST_MESSAGES:
                    raise RequestError(
                        f"The chat has {MOST_MESSAGES:,} messages, which is as many as one keeps.",
                        hint="Begin a new chat.",
                        code="chat_full",
                    )
                number = self._insert_message(db, seq, parent, message, (parts, meta), (now, now))
            elif (old[1], old[2]) != (parent, message.role):
                raise ConflictError(
                    f"Message {message.id} exists with another parent or role, which cannot change."
                )
            else:
                number = old[0]
                db.execute(
                    "UPDATE messages SET parts = ?, meta = ?, updated_at_ms = ? WHERE seq = ?",
                    (parts, meta, now, number),
                )
            _index(db, number, searchable(message.parts))
            if show:
                db.execute("UPDATE chats SET active = ? WHERE seq = ?", (message.id, seq))
            self._touch(db, seq)
        return msgspec.structs.replace(
            message, created_at_ms=old[3] if old else now, updated_at_ms=now
        ), old is None

    def delete_message(self, chat: str, message: str) -> list[str]:
        """Deletes a message and all below it; their ids. Raises NotFoundError for the chat."""
        with self._write() as db:
            seq, row = self._find(db, chat)
            found = db.execute(
                "SELECT seq, parent FROM messages WHERE chat = ? AND id = ?", (seq, message)
            ).fetchone()
            if found is None:
                return []
            below = db.execute(
                "WITH RECURSIVE below (seq, id) AS (SELECT seq, id FROM messages WHERE seq = ? "
                "UNION ALL SELECT m.seq, m.id FROM messages m JOIN below b ON m.parent = b.seq) "
                "SELECT seq, id FROM below ORDER BY seq",
                (found[0],),
            ).fetchall()
            db.executemany("DELETE FROM words WHERE rowid = ?", [(number,) for number, _ in below])
            db.executemany("DELETE FROM messages WHERE seq = ?", [(number,) for number, _ in below])
            ids = [name for _, name in below]
            db.execute("UPDATE chats SET messages = messages - ? WHERE seq = ?", (len(ids), seq))
            if _chat(row).active in ids:
                leaf = _newest_leaf(db, seq, found[1])
                db.execute("UPDATE chats SET active = ? WHERE seq = ?", (leaf, seq))
            self._touch(db, seq)
        return ids

    # ---- many at once ----

    def trees(self) -> Iterator[ChatTree]:
        """All chats, in the order of the list; one that is deleted meanwhile is left out."""
        with self._read() as db:
            rows = db.execute(
                "SELECT id FROM chats ORDER BY pinned DESC, updated_at_ms DESC, seq DESC"
            ).fetchall()
        for (chat,) in rows:
            try:
                yield self.tree(chat)
            except NotFoundError:
                continue

    def add(self, chats: list[ChatTree]) -> dict[str, str]:
        """Adds whole chats, all or none; those whose id exists get a new one, which is returned.

        They must have been checked (`transfer.check`).
        """
        renamed: dict[str, str] = {}
        now = self._clock()
        with self._write() as db:
            for chat in chats:
                name, number = chat.id, 1
                while db.execute("SELECT 1 FROM chats WHERE id = ?", (name,)).fetchone():
                    number += 1
                    name = f"{chat.id[:56]}-{number}"
                if name != chat.id:
                    renamed[chat.id] = name
                seq = self._insert(db, msgspec.structs.replace(chat, id=name), now)
                numbers: dict[str | None, int | None] = {None: None}
                for message in chat.messages:
                    texts = (
                        dump(message.parts, "parts", MOST_MESSAGE_BYTES),
                        dump(message.meta, "meta"),
                    )
                    times = message.created_at_ms or now, message.updated_at_ms or now
                    numbers[message.id] = self._insert_message(
                        db, seq, numbers[message.parent], message, texts, times
                    )
                    _index(db, numbers[message.id] or 0, searchable(message.parts))
                active = chat.active if chat.active in numbers else None
                db.execute(
                    "UPDATE chats SET active = ? WHERE seq = ?",
                    (active or _newest_leaf(db, seq, None), seq),
                )
        return renamed

    def search(self, text: str, limit: int = 20) -> list[Hit]:
        """Where all words of `text` occur in one message or title, best first."""
        with self._read() as db:
            return find.search(db, text, limit)

    # ---- presets ----

    def presets(self) -> list[Preset]:
        """All presets by name."""
        with self._read() as db:
            rows = db.execute(
                "SELECT id, name, settings, updated_at_ms FROM presets ORDER BY name, id"
            ).fetchall()
        return [
            Preset(
                id=row[0], name=row[1], settings=msgspec.json.decode(row[2]), updated_at_ms=row[3]
            )
            for row in rows
        ]

    def put_preset(self, preset: Preset) -> Preset:
        """Makes or replaces a preset."""
        check_id(preset.id, "preset")
        name = check_title(preset.name, "name")
        if not name:
            raise RequestError("'name' must not be empty.", param="name")
        settings, now = dump(preset.settings, "settings"), self._clock()
        with self._write() as db:
            (count,) = db.execute(
                "SELECT count(*) FROM presets WHERE id != ?", (preset.id,)
            ).fetchone()
            if count >= _MOST_PRESETS:
                raise RequestError(f"There are {_MOST_PRESETS} presets; delete one first.")
            db.execute(
                "INSERT INTO presets VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "name = excluded.name, settings = excluded.settings, "
                "updated_at_ms = excluded.updated_at_ms",
                (preset.id, name, settings, now),
            )
        return msgspec.structs.replace(preset, name=name, updated_at_ms=now)

    def delete_preset(self, preset: str) -> None:
        """Deletes a preset; one that is gone already is fine."""
        with self._write() as db:
            db.execute("DELETE FROM presets WHERE id = ?", (preset,))

    # ---- inside ----

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """The connection, alone; its failures as errors for people."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = schema.connect(self.path)
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise self._failure(error) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """The same in one transaction: all that is done inside happens, or none of it."""
        with self._read() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self.changes += 1

    def _failure(self, error: Exception) -> ResourceError:
        log.error("the chats cannot be used: %s", error)
        full = (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or (
            getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        )
        if full:
            return ResourceError(
                "the disk is full; this change of the chats was not kept.",
                where=str(self.path),
                hint="Free some space and try again.",
                code="disk_full",
            )
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ResourceError(
            f"the chats cannot be read or written: {reason}.",
            where=str(self.path),
            hint="Answers go on; new messages are not kept until this is put right.",
            code="chats_unavailable",
        )

    def _find(self, db: sqlite3.Connection, chat: str) -> tuple[int, Row]:
        row = db.execute(
            f"SELECT {_CHAT_FIELDS}, seq FROM chats WHERE id = ?",  # noqa: S608
            (chat,),
        ).fetchone()
        if row is None:
            raise NotFoundError(f"There is no chat {chat[:80]!r}.", param="chat")
        return row[-1], row

    def _find_message(self, db: sqlite3.Connection, chat: int, message: str, field: str) -> int:
        """The row of the message that a field of the body names. Raises RequestError: a 404 would
        say that the chat, which the address names, is gone.
        """
        row = db.execute(
            "SELECT seq FROM messages WHERE chat = ? AND id = ?", (chat, message)
        ).fetchone()
        if row is None:
            raise RequestError(f"'{field}': the chat has no message {message[:80]!r}.", param=field)
        return int(row[0])

    def _parent(self, db: sqlite3.Connection, chat: int, parent: str | None) -> int | None:
        return None if parent is None else self._find_message(db, chat, parent, "parent")

    def _touch(self, db: sqlite3.Connection, chat: int, *, latest: bool = True) -> None:
        db.execute(
            "UPDATE chats SET revision = revision + 1, "
            "updated_at_ms = CASE WHEN ? THEN ? ELSE updated_at_ms END WHERE seq = ?",
            (latest, self._clock(), chat),
        )

    def _insert(self, db: sqlite3.Connection, chat: ChatTree, now: int) -> int:
        if db.execute("SELECT 1 FROM chats WHERE id = ?", (chat.id,)).fetchone():
            raise ConflictError(f"There is a chat {chat.id} already.", param="id")
        title = check_title(chat.title)
        cursor = db.execute(
            "INSERT INTO chats (id, title, pinned, settings, created_at_ms, updated_at_ms, "
            "revision) VALUES (?, ?, ?, ?, ?, ?, 1)",
            (
                check_id(chat.id, "id"),
                title,
                chat.pinned,
                dump(chat.settings, "settings"),
                chat.created_at_ms or now,
                chat.updated_at_ms or now,
            ),
        )
        seq = int(cursor.lastrowid or 0)
        _index(db, -seq, title)
        return seq

    def _insert_message(
        self,
        db: sqlite3.Connection,
        chat: int,
        parent: int | None,
        message: Message,
        texts: tuple[str, str],
        times: tuple[int, int],
    ) -> int:
        role: Role = message.role
        cursor = db.execute(
            "INSERT INTO messages (id, chat, parent, role, parts, meta, created_at_ms, "
            "updated_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (message.id, chat, parent, role, *texts, *times),
        )
        db.execute("UPDATE chats SET messages = messages + 1 WHERE seq = ?", (chat,))
        return int(cursor.lastrowid or 0)


def _cursor(text: str) -> tuple[int, ...]:
    numbers = text.split(".")
    if len(numbers) != 3 or not all(n.isdecimal() and len(n) < 16 for n in numbers):  # noqa: PLR2004
        raise RequestError("'before' is no cursor of this list.", param="before")
    return tuple(int(number) for number in numbers)


def _chat(row: Row) -> Chat:
    return Chat(
        id=row[0],
        title=row[1],
        pinned=bool(row[2]),
        settings=msgspec.json.decode(row[3]),
        active=row[4],
        created_at_ms=row[5],
        updated_at_ms=row[6],
        revision=row[7],
        messages=row[8],
    )


def _message(row: Row) -> Message:
    parts: list[Part] = msgspec.json.decode(row[3])
    return Message(
        id=row[0],
        parent=row[1],
        role=row[2],
        parts=parts,
        meta=msgspec.json.decode(row[4]),
        created_at_ms=row[5],
        updated_at_ms=row[6],
    )


def _index(db: sqlite3.Connection, row: int, text: str) -> None:
    db.execute("DELETE FROM words WHERE rowid = ?", (row,))
    if text:
        # Bytes of no letter would end the text for the index.
        body = text[:_MOST_INDEXED].replace("\0", " ")
        db.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row, body))


def _newest_leaf(db: sqlite3.Connection, chat: int, start: int | None) -> str | None:
    """The leaf that one comes to from a message, or from the roots, by the newest child each time;
    the message itself if it has none.
    """
    found = None
    if start is not None:
        found = db.execute("SELECT seq, id FROM messages WHERE seq = ?", (start,)).fetchone()
    while True:
        child = db.execute(
            "SELECT seq, id FROM messages WHERE chat = ? AND parent IS ? ORDER BY seq DESC LIMIT 1",
            (chat, found[0] if found else None),
        ).fetchone()
        if child is None:
            return found[1] if found else None
        found = child
