"""What a model says about itself: a note for people and questions to begin with.

For: the server, which hands it to the dashboard and `coli chat`. It is read from `about.json` in
the model's folder, which few models have: `{"note": "...", "examples": ["...", ...]}`. Not for:
the model's card, which is a text. Thread rule: pure functions over files.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from colibri import paths, regular

log = logging.getLogger(__name__)

NAME: Final = "about.json"
_MAX_BYTES: Final = 16_384
_MAX_NOTE: Final = 400
_MAX_EXAMPLE: Final = 120
_MAX_EXAMPLES: Final = 8


@dataclass(frozen=True, slots=True)
class About:
    """`starter`: it is the model that comes with the program; `from_source`: and the program runs
    from its source tree, where `make run MODEL=...` gets one that chats.
    """

    note: str = ""
    examples: tuple[str, ...] = ()
    starter: bool = False
    from_source: bool = False


def read(folder: Path) -> About | None:
    """What the folder's file says, None without one or with one that cannot be used."""
    path = folder / NAME
    try:
        with regular.open_file(path) as file:
            data = json.loads(file.read(_MAX_BYTES))
        note, examples = data.get("note", ""), data.get("examples", [])
        if not isinstance(examples, list) or not all(isinstance(t, str) for t in [note, *examples]):
            raise TypeError("'note' must be a text and 'examples' a list of texts")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s is not used: %s", path, error)
        return None
    short = [text for text in examples if 0 < len(text) <= _MAX_EXAMPLE][:_MAX_EXAMPLES]
    starter = paths.starter_dir()
    own = starter is not None and folder.resolve() == starter
    return About(note[:_MAX_NOTE], tuple(short), own, own and paths.in_source_tree())
