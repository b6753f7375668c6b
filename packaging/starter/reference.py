"""What transformers itself computes from an exported checkpoint, for comparing our engine with it.

`python -m starter.reference DATA PUBLISHED OUT`: OUT gets, for some known words, the prompt's ids,
the greedy answer and the largest logits behind the prompt, in f32 from the bf16 weights; also a
conversation longer than the sparse selection. Known words, because a router's near ties may fall
either way for others. For: tests/starter/test_shipped.py, whose fixture this writes, by hand after
the model has changed. Not for: training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch
from transformers import GlmMoeDsaForCausalLM

from starter.conversations import Conversation, Turn, ask, define_wordings, definition
from starter.data import Data
from starter.rows import RowMaker

WORDS: Final = "dog bird bread water tree moon sun music piano courage sing happy".split()
_LONGEST: Final = 40
_TOP: Final = 8
_ENDS: Final = (0, 7, 9)


def _greedy(model: GlmMoeDsaForCausalLM, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """(tokens up to an end token, logits behind the prompt)."""
    tokens: list[int] = []
    first = None
    with torch.no_grad():
        while len(tokens) < _LONGEST:
            logits = model(torch.tensor([ids + tokens]), use_cache=False).logits[0, -1].float()
            first = logits if first is None else first
            token = int(logits.argmax())
            if token in _ENDS:
                break
            tokens.append(token)
    assert first is not None  # noqa: S101 - one token at least is computed
    return tokens, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "published", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    data = Data.open(given.data)
    model = GlmMoeDsaForCausalLM.from_pretrained(
        given.published, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = RowMaker(data.tokenizer, "")
    entries = {entry.word: entry for entry in data.vocabulary.known}
    turns = [
        Turn("define", ask(define_wordings(entries[w]).canonical, w), definition(entries[w]))
        for w in WORDS
    ]
    head = rows.prefix(Conversation([]))
    made: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        # The last one stands behind all others, so that the selection has to choose.
        before = turns[:number] if number == len(turns) - 1 else []
        ids = list(head)
        for earlier in before:
            ids += rows.turn(earlier, last=False, thinking=False)[0]
        asked = Turn("define", turn.user, "")
        ids += rows.turn(asked, last=True, thinking=False)[0]
        greedy, logits = _greedy(model, ids)
        values, places = logits.topk(_TOP)
        top = {int(p): round(float(v), 4) for p, v in zip(places, values, strict=True)}
        made.append({"word": WORDS[number], "ids": ids, "greedy": greedy, "logits": top})
    given.out.write_text(json.dumps({"prompts": made}) + "\n", "utf-8")


if __name__ == "__main__":
    main()
