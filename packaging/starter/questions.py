"""The page of questions and answers in the docs: what the starter model learns to say of Colibri.

`python -m starter.questions` writes docs/questions.md from `facts.toml`, so that the model and the
docs say the same; a test compares them. Not for: the wordings that are only for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starter.conversations import Fact, load_facts

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "questions.md"
_HEAD: Final = """# Questions about Colibri

What people ask first, in short; the other pages say more. The [starter model][card] has learnt
these answers, in many more wordings. Made by `python -m starter.questions` from
`packaging/starter/facts.toml`.

[card]: ../sidecar/colibri/builtin/colibri-starter/README.md
"""


def render(facts: Sequence[Fact]) -> str:
    """The page's text: each fact's first wording, and its answer."""
    parts = [_HEAD]
    parts += [f"**{fact.ask[0]}**  \n{_literal(fact.answer)}\n" for fact in facts]
    return "\n".join(parts)


def _literal(answer: str) -> str:
    """The answer, with nothing in it that Markdown takes for its own."""
    return "".join(f"\\{sign}" if sign in "\\`*_<>[]" else sign for sign in answer)


if __name__ == "__main__":
    PAGE.write_text(render(load_facts()), "utf-8")
