"""Prompts for the starter model's atlas: its words, by the topics that WordNet gives them.

`python -m starter.atlas DATA OUT` writes `atlas-topics.toml` beside the weights, where
`coli atlas run` finds it. The most useful words of every topic take turns between the two sets, so
no word is in both; all are asked in the same wording, so only the word tells the topic. Not for:
measuring. Thread rule: pure functions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starter.conversations import TOPIC_NAMES
from starter.data import Data
from starter.entries import Entry

NAME: Final = "atlas-topics.toml"
# Words of each set of a topic; a topic that has fewer is left out.
_MOST: Final = 40
_FEWEST: Final = 8


def topic_words(entries: Iterable[Entry]) -> dict[str, tuple[list[str], list[str]]]:
    """The two sets of words of each topic, by its name without an article."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if entry.topic in TOPIC_NAMES:
            found.setdefault(TOPIC_NAMES[entry.topic].split(" ", 1)[1], []).append(entry.word)
    return {
        name: (words[: 2 * _MOST : 2], words[1 : 2 * _MOST : 2])
        for name, words in sorted(found.items())
        if len(words) >= 2 * _FEWEST
    }


def render(entries: Iterable[Entry]) -> str:
    """The file's text. JSON's strings are TOML's."""
    lines = ["# Made by `python -m starter.atlas`: words by WordNet's topics, in two sets."]
    for name, sets in topic_words(entries).items():
        lines += ["", f"[{json.dumps(name)}]"]
        for side, words in zip("ab", sets, strict=True):
            prompts = [f"What does {word} mean?" for word in words]
            lines += [f"{side} = {json.dumps(prompts, ensure_ascii=False)}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, help="the model's folder")
    arguments = parser.parse_args()
    text = render(Data.open(arguments.data).vocabulary.known)
    (arguments.out / NAME).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
