"""Reading WordNet's dictionary files.

For: `entries`, which picks the words of the starter model. Not for: searching at run time. Source:
the format pages wndb(5WN) and senseidx(5WN) of WordNet. The data are under the WordNet licence; its
notice (`LICENSE` of the npm package) goes with everything that is derived from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Pos: TypeAlias = Literal["n", "v", "a", "r"]

# Numbers of the lexicographer files, in WordNet's order.
TOPICS: Final = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute "
    "noun.body noun.cognition noun.communication noun.event noun.feeling noun.food noun.group "
    "noun.location noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession "
    "noun.process noun.quantity noun.relation noun.shape noun.state noun.substance noun.time "
    "verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption "
    "verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession "
    "verb.social verb.stative verb.weather adj.ppl"
).split()
_FILES: Final[dict[Pos, str]] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SENSE_POS: Final[dict[str, Pos]] = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_MARKER = re.compile(r"\((?:p|a|ip)\)$")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A relation to another synset; `source` and `target` number words from 1, 0 = all of them."""

    relation: str
    pos: Pos
    offset: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Synset:
    """Words with one meaning. `gloss` is the definition with its examples, as written."""

    topic: str
    words: tuple[str, ...]
    pointers: tuple[Pointer, ...]
    gloss: str


@dataclass(frozen=True, slots=True)
class Sense:
    """One meaning of a word: how often tagged texts use it, its number, and where it stands."""

    count: int
    number: int
    pos: Pos
    offset: str


@dataclass(frozen=True, slots=True)
class WordNet:
    """All synsets by (pos, offset), and all senses of each word in lower case."""

    synsets: dict[tuple[Pos, str], Synset]
    senses: dict[str, list[Sense]]


def _synsets(path: Path, pos: Pos) -> Iterator[tuple[tuple[Pos, str], Synset]]:
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence
        head, _, gloss = line.partition("|")
        fields = head.split()
        n_words = int(fields[3], 16)
        words = tuple(_MARKER.sub("", fields[4 + 2 * i]) for i in range(n_words))
        at = 4 + 2 * n_words
        pointers = []
        for i in range(int(fields[at])):
            relation, offset, kind, ends = fields[at + 1 + 4 * i : at + 5 + 4 * i]
            target_pos: Pos = "a" if kind == "s" else kind  # type: ignore[assignment]
            pointers.append(
                Pointer(relation, target_pos, offset, int(ends[:2], 16), int(ends[2:], 16))
            )
        yield (
            (pos, fields[0]),
            Synset(TOPICS[int(fields[1])], words, tuple(pointers), gloss.strip()),
        )


def load(folder: Path) -> WordNet:
    """Reads the `dict` folder of the package."""
    synsets: dict[tuple[Pos, str], Synset] = {}
    for pos, name in _FILES.items():
        synsets.update(_synsets(folder / f"data.{name}", pos))
    senses: dict[str, list[Sense]] = {}
    for line in (folder / "index.sense").read_text("utf-8").splitlines():
        key, offset, number, count = line.split()
        word, _, rest = key.partition("%")
        sense = Sense(int(count), int(number), _SENSE_POS[rest[0]], offset)
        senses.setdefault(word, []).append(sense)
    return WordNet(synsets, senses)
