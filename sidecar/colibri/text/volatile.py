"""System text without what changes from request to request and means nothing to the model.

For: the chat template, before it renders a system message; a prefix that changes in its first line
is read again as a whole. Not for: dates and the like, which the model is meant to read. Thread
rule: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# Claude Code's accounting, first in its system text: version, entry point and a hash that changes.
# What stands behind the name is not looked at: it differs between versions.
_BILLING: Final = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n*", re.IGNORECASE)


def stable_system(text: str) -> str:
    """The text without a billing line at its beginning, and without the blank lines behind it."""
    return _BILLING.sub("", text, count=1) if _BILLING.match(text) else text


def stable_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message; a system message without its billing line, be it text or a list of parts."""
    content = message.get("content")
    if message.get("role") != "system" or not content:
        return message
    if isinstance(content, str):
        return {**message, "content": stable_system(content)}
    first = content[0] if isinstance(content, list) else None
    if not isinstance(first, Mapping) or not isinstance(first.get("text"), str):
        return message
    text = stable_system(first["text"])
    return {**message, "content": ([{**first, "text": text}] if text else []) + content[1:]}
