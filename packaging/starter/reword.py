"""The same request in other words: small rules of grammar instead of long lists.

For: `conversations`, which asks about words and about Colibri in as many forms as people do. What
is held back for measuring is never produced: callers pass it. Pure: the same generator state gives
the same text. Not for: answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from typing import Final

# A question's pattern, and forms that mean the same; `{0}` and `{1}` are its groups.
_RULES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        r"What (is|are|was) (.+)\?",
        (
            "Tell me what {1} {0}.",
            "Could you say what {1} {0}?",
            "Say what {1} {0}.",
            "Do you know what {1} {0}?",
            "I would like to know what {1} {0}.",
            "I do not know what {1} {0}.",
            "what {0} {1}",
            "What {0} {1}, please?",
            "Please tell me what {1} {0}.",
            "I wonder what {1} {0}.",
            "Can you say what {1} {0}?",
            "Describe {1}.",
            "Please describe {1}.",
            "Can you describe {1}?",
            "What exactly {0} {1}?",
            "{1}, what {0} that?",
        ),
    ),
    (
        r"How do I (.+)\?",
        (
            "How can I {0}?",
            "How to {0}?",
            "how to {0}",
            "How could I {0}?",
            "Tell me how to {0}.",
            "Please tell me how to {0}.",
            "What do I do to {0}?",
            "I want to {0}.",
            "I would like to {0}.",
            "I need to {0}, how?",
            "I want to {0}, what do I do?",
            "Is there a way to {0}?",
            "What is the way to {0}?",
            "Show me how to {0}.",
            "Can you tell me how to {0}?",
            "In what way can I {0}?",
            "Can I {0}?",
            "What must be done to {0}?",
            "How does one {0}?",
            "How would I {0}?",
        ),
    ),
    (
        r"Where (is|are) (.+)\?",
        (
            "Where do I find {1}?",
            "Where can I find {1}?",
            "Where can I see {1}?",
            "Tell me where {1} {0}.",
            "In what place {0} {1}?",
            "I cannot find {1}.",
            "I am looking for {1}.",
            "How do I find {1}?",
            "Do you know where {1} {0}?",
        ),
    ),
    (
        r"What does (.+) do\?",
        (
            "What is {0} for?",
            "What is {0} good for?",
            "Explain {0}.",
            "Tell me what {0} does.",
            "Why would I use {0}?",
            "What happens with {0}?",
            "Please explain {0}.",
            "What is the use of {0}?",
            "What can {0} do?",
        ),
    ),
    (
        r"What does (.+) mean(?: here)?\?",
        (
            "What is meant by {0}?",
            "Tell me what {0} means.",
            "What do you mean by {0}?",
            "I do not understand {0}.",
        ),
    ),
    (
        r"Explain (?!what )(.+)\.",
        (
            "Could you explain {0}?",
            "Please explain {0}.",
            "Will you explain {0}?",
            "Explain to me {0}.",
            "I do not understand {0}.",
            "Give me an explanation of {0}.",
            "Tell me about {0}.",
            "What should I know about {0}?",
        ),
    ),
    (
        r"Tell me about (.+)\.",
        ("What can you say about {0}?", "Please tell me about {0}.", "What about {0}?"),
    ),
    (
        r"(?:Can|Does|Will) (it|Colibri) (.+)\?",
        (
            "Is {0} able to {1}?",
            "Can {0} {1}?",
            "Does {0} {1}?",
            "Would {0} {1}?",
            "Is it true that {0} can {1}?",
            "I would like to know if {0} can {1}.",
        ),
    ),
    (
        r"Can I (.+)\?",
        (
            "May I {0}?",
            "Is it possible to {0}?",
            "Am I able to {0}?",
            "Is there a way to {0}?",
            "How do I {0}?",
            "I would like to {0}.",
        ),
    ),
    (
        r"Do I need (.+)\?",
        (
            "Must there be {0}?",
            "Is {0} needed?",
            "Is {0} necessary?",
            "Do I have to have {0}?",
            "Does it need {0}?",
            "Can I do without {0}?",
        ),
    ),
    (
        r"Why (is|are|was) (.+)\?",
        (
            "Tell me why {1} {0}.",
            "For what reason {0} {1}?",
            "How come {1} {0}?",
            "What is the reason that {1} {0}?",
        ),
    ),
    (
        r"Why (do|does) (.+)\?",
        ("For what reason {0} {1}?", "What is the reason why {1}?"),
    ),
    (
        r"(Which|What) (\w+) (is|are|can|do|does) (.+)\?",
        (
            "Tell me which {1} {3} {2}.",
            "What {1} {2} {3}?",
            "Which {1} {2} {3}?",
            "Which {1}, {2} {3}?",
        ),
    ),
    (
        r"How (many|much|big|large|long|fast|old|good) (.+)\?",
        (
            "Tell me how {0} {1}.",
            "how {0} {1}",
            "Do you know how {0} {1}?",
            "I want to know how {0} {1}.",
        ),
    ),
)
_COMPILED: Final = tuple((re.compile(pattern), forms) for pattern, forms in _RULES)
_BEFORE: Final = (
    "Please tell me: {0}",
    "Quick question: {0}",
    "Hi, {1}",
    "Hello, {1}",
    "Hey, {1}",
    "Excuse me, {1}",
    "I have a question. {0}",
    "One question: {1}",
    "So {1}",
    "And {1}",
    "Okay, {1}",
    "Please, {1}",
)
_AFTER: Final = ("{0} Please.", "{2}, please{3}", "{2} here{3}", "{2} exactly{3}", "{2} then{3}")


def plain(text: str) -> str:
    """What two wordings have in common that differ in case and signs only."""
    return re.sub(r"[^\w{}/.-]+", " ", text.lower()).strip(" .")


def rewordings(text: str) -> list[str]:
    """All forms that the rules give."""
    return [
        form.format(*match.groups())
        for pattern, forms in _COMPILED
        if (match := pattern.fullmatch(text))
        for form in forms
    ]


def _framed(text: str, rng: random.Random) -> str:
    lower = text[0].lower() + text[1:] if not text.startswith(("I ", "GLM", "SmolLM")) else text
    body, sign = (text[:-1], text[-1]) if text[-1] in ".?!" else (text, "")
    frame = rng.choice(_BEFORE if rng.random() < 0.6 else _AFTER)
    return frame.format(text, lower, body, sign)


def reword(text: str, held: Collection[str], rng: random.Random) -> str:
    """The request in other words, never one whose `plain` form is in `held`; `text` itself if
    nothing else is left.
    """
    for _ in range(4):
        forms = rewordings(text)
        made = rng.choice(forms) if forms and rng.random() < 0.75 else text
        if rng.random() < 0.3:
            made = _framed(made, rng)
        if plain(made) not in held:
            return made
    return text
