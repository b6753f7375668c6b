"""Conversations that the dashboard keeps: a tree of messages for each chat, in one SQLite file.

For: `colibri.api.ui`. Not for: generating anything, and not for KV (`colibri.kv`); losing this file
loses what people wrote and costs no speed.
"""

from colibri.chats.records import Chat, ChatTree, Message, Preset
from colibri.chats.store import ChatStore

__all__ = ["Chat", "ChatStore", "ChatTree", "Message", "Preset"]
