"""The window's own words in both languages; the page's are in the dashboard.

For: menu, dialogs and the two pages that the window shows without a server. They lie beside this
file as `words.en.json` and `words.de.json`. `words()` takes the system's language; anything but
German is English.
"""

from __future__ import annotations

import json
import locale
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

LANGUAGES: Final = ("en", "de")


@lru_cache
def words_of(language: str) -> Mapping[str, str]:
    """The texts of one of LANGUAGES."""
    file = Path(__file__).with_name(f"words.{language}.json")
    texts: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return texts


def language(environ: Mapping[str, str] | None = None) -> str:
    """`de` or `en`: the first that the environment names, else the system's own setting."""
    environ = os.environ if environ is None else environ
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = environ.get(name, "")
        if value:
            return "de" if value.lower().startswith("de") else "en"
    system = locale.getlocale()[0] or ""
    return "de" if system.lower().startswith(("de", "german")) else "en"


def words(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The texts of the system's language."""
    return words_of(language(environ))
