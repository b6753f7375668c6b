"""Searching the chats: what a person types, found in titles and messages.

For: the store. Every word must occur in one title or message, as the beginning of a word there,
whatever its case and accents. Chinese, Japanese, Korean and Thai are written without spaces, so
their words may stand anywhere. Nothing a person types is syntax. Thread rule: the store's lock.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from colibri.chats.records import Hit, Piece

_MOST_WORDS: Final = 12
_LONGEST_QUERY: Final = 300
# Words around the first hit, and characters where there are no spaces.
_AROUND: Final = 24
_AROUND_CHARS: Final = 60
_BEGIN, _END, _MORE = "\x02", "\x03", "\u2026"
# Thai, Hangul, kana, Han and their extensions.
_SPACELESS: Final = re.compile(
    "[\u0e00-\u0e7f\u1100-\u11ff\u3040-\u30ff\u3100-\u318f\u3400-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_FIELDS: Final = (
    "SELECT chats.id, chats.title, m.id, m.role, coalesce(m.updated_at_ms, chats.updated_at_ms)"
)
_JOINS: Final = (
    "FROM words LEFT JOIN messages m ON m.seq = words.rowid "
    "JOIN chats ON chats.seq = coalesce(m.chat, -words.rowid)"
)


def terms(text: str) -> tuple[list[str], list[str]]:
    """The words of a query: those with a beginning, and those that may stand anywhere."""
    words = re.findall(r"\w+", text[:_LONGEST_QUERY])[:_MOST_WORDS]
    anywhere = [word for word in words if _SPACELESS.search(word)]
    return [word for word in words if word not in anywhere], anywhere


def search(db: sqlite3.Connection, text: str, limit: int) -> list[Hit]:
    """Hits, best first, then latest first; none for a text without a word."""
    prefixes, anywhere = terms(text)
    likes = " AND ".join(["words.body LIKE ? ESCAPE '\\'"] * len(anywhere))
    patterns = [f"%{_escaped(word)}%" for word in anywhere]
    if prefixes:
        query = " ".join(f'"{word}"*' for word in prefixes)
        rows = db.execute(
            f"{_FIELDS}, snippet(words, 0, '{_BEGIN}', '{_END}', '{_MORE}', {_AROUND}) {_JOINS} "
            f"WHERE words MATCH ? {'AND ' + likes if likes else ''} "
            "ORDER BY rank, words.rowid DESC LIMIT ?",
            (query, *patterns, limit),
        ).fetchall()
    elif anywhere:
        rows = db.execute(
            f"{_FIELDS}, words.body {_JOINS} WHERE {likes} "
            "ORDER BY chats.updated_at_ms DESC, words.rowid DESC LIMIT ?",
            (*patterns, limit),
        ).fetchall()
        rows = [(*row[:-1], _snippet(row[-1], anywhere)) for row in rows]
    else:
        rows = []
    return [
        Hit(
            chat=row[0],
            title=row[1],
            message=row[2],
            role=row[3],
            at_ms=row[4],
            pieces=_cut(row[5]),
        )
        for row in rows
    ]


def _escaped(word: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", word)


def _snippet(body: str, words: list[str]) -> str:
    """The text around the first of the words, all of them marked."""
    # What would be taken for a mark of ours.
    body = body.replace(_BEGIN, " ").replace(_END, " ")
    pattern = re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE)
    first = pattern.search(body)
    at = first.start() if first else 0
    begin, end = max(0, at - _AROUND_CHARS), at + 2 * _AROUND_CHARS
    marked = pattern.sub(lambda found: f"{_BEGIN}{found.group()}{_END}", body[begin:end])
    return f"{_MORE if begin else ''}{marked}{_MORE if end < len(body) else ''}"


def _cut(text: str) -> list[Piece]:
    pieces = []
    for index, stretch in enumerate(text.split(_BEGIN)):
        hit, mark, rest = stretch.partition(_END)
        if index == 0 or not mark:
            pieces.append(Piece(stretch.replace(_END, ""), False))
            continue
        pieces.append(Piece(hit, True))
        pieces.append(Piece(rest.replace(_END, ""), False))
    return [piece for piece in pieces if piece.text]
