"""Our prompts of GLM-5.2, GLM-5.3 and Inkling equal those of an independent implementation.

Its texts are kept as hashes (`hashes.json`, renewed by `make test-golden ARGS=--write`).
"""

from __future__ import annotations

import json

import pytest

from colibri.text.tokenizer import from_json
from tests.golden.check import HASHES, hashed, rendered
from tests.golden.conversations import CONVERSATIONS, VARIANTS
from tests.models import files
from tests.text.test_glm_template import MARKERS
from tests.text.test_replay import WORDS

TOKENIZER = from_json(
    json.dumps(files.tokenizer(extra=(*MARKERS, *WORDS))).encode(), "tokenizer.json"
)
KNOWN = json.loads(HASHES.read_text())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_prompt_equals_the_reference(variant: str, name: str) -> None:
    _, ours = rendered(TOKENIZER, variant, name)
    assert hashed(ours.text) == KNOWN[variant][name], ours.text


def test_every_conversation_is_compared() -> None:
    assert {variant: set(cases) for variant, cases in KNOWN.items()} == {
        variant: set(CONVERSATIONS) for variant in VARIANTS
    }
