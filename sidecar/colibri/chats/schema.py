"""The tables of `chats.db`, as numbered migrations, and how a connection to it is made.

For: the store. A migration is never changed once it has been released; a new one is appended. Each
runs in one transaction together with the number that says it has run, so that a crash leaves the
old state or the new one. Not for: queries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from colibri.errors import ResourceError

# Marks a file as ours to tools that look ("CBch").
APPLICATION_ID: Final = 0x43426368
_BUSY_MS: Final = 5000

MIGRATIONS: Final[Sequence[str]] = (
    # 1: chats, their messages as a tree, what can be searched (row = message's seq, or minus the
    # chat's seq for its title), presets. A branch may be deeper than cascades go.
    """
    CREATE TABLE chats (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        pinned INTEGER NOT NULL,
        settings TEXT NOT NULL,
        active TEXT,
        created_at_ms INTEGER NOT NULL,
        updated_at_ms INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        messages INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX chats_shown ON chats (pinned DESC, updated_at_ms DESC, seq DESC);
    CREATE TABLE messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL,
        chat INTEGER NOT NULL REFERENCES chats (seq) ON DELETE CASCADE,
        parent INTEGER REFERENCES messages (seq) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        meta TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL,
        updated_at_ms INTEGER NOT NULL,
        UNIQUE (chat, id)
    );
    CREATE INDEX messages_parent ON messages (parent);
    CREATE VIRTUAL TABLE words USING fts5 (body, tokenize = 'unicode61 remove_diacritics 2');
    CREATE TABLE presets (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        settings TEXT NOT NULL,
        updated_at_ms INTEGER NOT NULL
    );
    """,
)


def connect(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """An open database with every migration applied; the folder is made when needed.

    Raises sqlite3.Error or OSError, and ResourceError for a file of a newer version or of another
    program, which is left as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path, migrations)
        # A crash of the program or of the machine costs nothing that was acknowledged.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        path.chmod(0o600)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > len(migrations):
        raise ResourceError(
            f"the chats were written by a newer version (format {version}; this one knows "
            f"{len(migrations)}).",
            where=str(path),
            hint="Use the newer version, or move the file away.",
            code="chats_unavailable",
        )
    if tables and owner != APPLICATION_ID:
        raise ResourceError(
            "the file is another program's database.",
            where=str(path),
            hint="Move it away.",
            code="chats_unavailable",
        )
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another server may have been quicker.
            (now,) = connection.execute("PRAGMA user_version").fetchone()
            if now == number:
                for statement in _statements(migrations[number]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _statements(script: str) -> list[str]:
    """`executescript` would commit in between."""
    found, text = [], ""
    for piece in script.split(";")[:-1]:
        text += f"{piece};"
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found
