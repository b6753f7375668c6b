"""The words of the starter model: which, in which sense, and what is said about them.

For: the makers of conversations, the evaluator and the list that the program ships. Pure: the same
WordNet and the same hand lists give the same entries. Not for: phrasing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starter.wordnet import Pos, Sense, Synset, WordNet

HERE: Final = Path(__file__).parent
COUNT: Final = 6000
# Glosses are cut at their first clause; longer ones would cost most of the training's tokens.
_MIN_GLOSS: Final = 6
_MAX_GLOSS: Final = 120
_MAX_EXAMPLE: Final = 60
_MAX_ANSWER: Final = 24
_CONCRETE: Final = frozenset({"noun.animal", "noun.food", "noun.plant", "noun.body"})
_CONCRETE_BONUS: Final = 4
# Words of grammar: what they mean is no definition.
_LEFT_OUT: Final = frozenset(
    "be am are is was were have has had do does did not no the a an i me my mine you your he him "
    "his she her it its we us our they them their this that these those who whom whose which what "
    "when "
    "where why how if and or but as at by for from in into of off on onto out over to up upon with "
    "than then so very can could may might must shall should will would get got go make more most "
    "other all any some such only own too just also".split()
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One word. `gloss` without final stop; `kind`, `synonym`, `opposite` and `example` where
    WordNet has a usable one; `rank` 0 is the most useful word. `topic` is the lexicographer file.
    """

    word: str
    pos: Pos
    topic: str
    gloss: str
    kind: str | None
    synonym: str | None
    opposite: str | None
    example: str | None
    rank: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`known` words in order of use, `unknown` real words that are left out for good, and `rare`
    ones that nobody would expect: only refused in training, never asked in the evaluation.
    """

    known: tuple[Entry, ...]
    unknown: tuple[str, ...]
    rare: tuple[str, ...] = ()


def everyday(path: Path = HERE / "everyday.txt") -> dict[str, str]:
    """Words that must be known, with the topic of the wanted sense ("" = the usual one)."""
    wanted: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            for item in line.split():
                word, _, topic = item.partition("/")
                wanted.setdefault(word.lower(), topic)
    return wanted


def overrides(path: Path = HERE / "senses.toml") -> dict[str, dict[str, str]]:
    """Own words for what WordNet's first clause says oddly: fields of `Entry` by word."""
    return tomllib.loads(path.read_text("utf-8"))


def clean(gloss: str) -> str:
    """The first clause of a gloss."""
    text = re.sub(r"\([^)]*\)", "", gloss.partition('; "')[0])
    text = re.split(r"[;:]\s", text)[0]
    return re.sub(r"\s+", " ", text).replace(" ,", ",").strip(" ,;:")


def _example(gloss: str, word: str) -> str | None:
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    found = (text for text in re.findall(r'"([^"]+)"', gloss) if pattern.search(text))
    return next((text for text in found if len(text) <= _MAX_EXAMPLE), None)


def _plain(word: str) -> str:
    return word.replace("_", " ")


def _related(net: WordNet, synset: Synset, pos: Pos, word: str) -> tuple[str | None, str | None]:
    """(kind, opposite): the first word of the first hypernym, the word's own antonym."""
    kind = opposite = None
    for pointer in synset.pointers:
        target = net.synsets.get((pointer.pos, pointer.offset))
        if target is None:
            continue
        if kind is None and pointer.relation in ("@", "@i") and pointer.pos == pos:
            kind = _plain(target.words[0])
        own = pointer.source > 0 and synset.words[pointer.source - 1].lower() == word
        if opposite is None and pointer.relation == "!" and own:
            opposite = _plain(target.words[pointer.target - 1])
    fits = [text if text and len(text) <= _MAX_ANSWER else None for text in (kind, opposite)]
    return fits[0], fits[1]


def _best(net: WordNet, word: str, senses: Iterable[Sense], topic: str) -> Sense | None:
    """The most used sense, of the wanted topic if there is one, that has the word in lower case."""
    usable = [
        sense
        for sense in senses
        if any(w.lower() == word for w in net.synsets[sense.pos, sense.offset].words)
        and (not topic or net.synsets[sense.pos, sense.offset].topic == topic)
    ]
    return max(usable, key=lambda sense: (sense.count, -sense.number), default=None)


def _entry(
    net: WordNet, word: str, topic: str, own: Mapping[str, str], wanted: bool
) -> tuple[int, Entry] | None:
    """(use count, entry), or None for a word that does not fit."""
    senses = net.senses[word]
    sense = _best(net, word, senses, own.get("topic", topic))
    if sense is None:
        return None
    synset = net.synsets[sense.pos, sense.offset]
    count = sum(each.count for each in senses)
    if not wanted and (count == 0 or not any(w == word for w in synset.words)):
        return None
    gloss = own.get("gloss") or clean(synset.gloss)
    if not _MIN_GLOSS <= len(gloss) <= _MAX_GLOSS:
        return None
    kind, opposite = _related(net, synset, sense.pos, word)
    others = [_plain(w) for w in synset.words if w.lower() != word]
    synonym = next((w for w in others if len(w) <= _MAX_ANSWER and w[0].islower()), None)
    entry = Entry(
        word,
        sense.pos,
        synset.topic,
        gloss,
        own.get("kind", kind),
        own.get("synonym", synonym),
        own.get("opposite", opposite),
        own.get("example", _example(synset.gloss, word)),
        0,
    )
    return count + (_CONCRETE_BONUS if synset.topic in _CONCRETE else 0), entry


def choose(net: WordNet, count: int = COUNT) -> Vocabulary:
    """The most useful `count` words, everyday ones first of all, and the real words left out."""
    wanted, own = everyday(), overrides()
    scored: list[tuple[bool, int, Entry]] = []
    missing = [word for word in wanted if word not in net.senses]
    for word in net.senses:
        if not re.fullmatch(r"[a-z]{2,}", word) or (word in _LEFT_OUT and word not in wanted):
            continue
        found = _entry(net, word, wanted.get(word, ""), own.get(word, {}), word in wanted)
        if found is not None:
            scored.append((word in wanted, *found))
        elif word in wanted:
            missing.append(word)
    if missing:
        raise ValueError(f"no usable sense for everyday words: {' '.join(sorted(missing))}")
    scored.sort(key=lambda item: (not item[0], -item[1], item[2].word))
    kept = sorted(scored[:count], key=lambda item: (-item[1], item[2].word))
    known = tuple(
        Entry(*(getattr(item[2], name) for name in Entry.__slots__[:-1]), rank)  # type: ignore[attr-defined]
        for rank, item in enumerate(kept)
    )
    usable = {item[2].word for item in scored}
    rare = (
        word
        for word in sorted(net.senses)
        if word not in usable and word not in _LEFT_OUT and re.fullmatch(r"[a-z]{3,14}", word)
    )
    return Vocabulary(known, tuple(item[2].word for item in scored[count:]), tuple(rare))
