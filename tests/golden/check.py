"""Compares our prompts with the reference: their texts, and their token ids.

    python -m tests.golden.check FOLDER [--write]

FOLDER is what `reference` wrote. `--write` also renews `hashes.json`, which the tests hold our
prompts to without the reference.
"""

from __future__ import annotations

import hashlib
import json
import sys
from os.path import commonpath
from pathlib import Path

from colibri.families import glm_template, inkling_template
from colibri.text.history import prepare
from colibri.text.template import ChatTemplate, Rendered
from colibri.text.tokenizer import Tokenizer, load
from tests.golden.conversations import CONVERSATIONS, TOOLS, VARIANTS

HASHES = Path(__file__).parent / "hashes.json"
SOURCES = {
    "glm52": glm_template.TEMPLATE,
    "glm53": glm_template.TEMPLATE_53,
    "inkling": inkling_template.TEMPLATE,
}


def rendered(tokenizer: Tokenizer, variant: str, name: str) -> tuple[ChatTemplate, Rendered]:
    """Our prompt of a conversation."""
    kind, variables = VARIANTS[variant]
    messages, tools = CONVERSATIONS[name]
    template = ChatTemplate(SOURCES[kind], tokenizer, where=kind)
    shaped, offered = prepare(messages, TOOLS if tools else [], template_takes_tools=True)
    return template, template.render(shaped, tools=offered, variables=variables)


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def main(folder: Path, write: bool) -> int:
    reference = json.loads((folder / "reference.json").read_text())
    vocabularies = {kind: load(folder / f"{kind}.json") for kind in ("glm", "inkling")}
    hashes: dict[str, dict[str, str]] = {}
    wrong = 0
    for variant, cases in reference.items():
        kind = VARIANTS[variant][0]
        tokenizer = vocabularies["inkling" if kind == "inkling" else "glm"]
        hashes[variant] = {}
        for name, expected in cases.items():
            hashes[variant][name] = hashed(expected["text"])
            template, ours = rendered(tokenizer, variant, name)
            same_text = ours.text == expected["text"]
            same_ids = template.encode(ours) == expected["ids"]
            if not same_text or not same_ids:
                wrong += 1
                what = "other text" if not same_text else "other token ids"
                at = len(commonpath([expected["text"], ours.text]))
                print(f"{variant}, {name}: {what} from character {at} on")
                print(f"  reference ...{expected['text'][max(at - 40, 0) : at + 80]!r}")
                print(f"  ours      ...{ours.text[max(at - 40, 0) : at + 80]!r}")
    if write:
        HASHES.write_text(json.dumps(hashes, indent=1) + "\n")
    count = sum(map(len, reference.values()))
    print(f"{count - wrong} of {count} prompts are equal in text and token ids.")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--write" in sys.argv[2:]))
