"""Chats of the dashboard: store, search, files."""
