"""Questions and requests that a pocket dictionary cannot serve, made of parts.

For: the honest sentence, in training (patterns in freetext.txt, one a line) and in the evaluation
(freetext_held.txt).
Pure: the same generator state gives the same text. Not for: anything the model can answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Parts:
    """Patterns with `{}`-fields, and what may fill them."""

    patterns: tuple[str, ...]
    fill: dict[str, tuple[str, ...]]

    def make(self, rng: random.Random) -> str:
        """One text."""
        pattern = rng.choice(self.patterns)
        return pattern.format(**{name: rng.choice(words) for name, words in self.fill.items()})


TRAINED: Final = Parts(
    tuple(Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()),
    {
        "country": tuple(
            "France Germany Italy Spain Japan China India Brazil Canada Egypt Kenya Norway Poland "
            "Greece Turkey Peru Chile Cuba Iran Nepal".split()
        ),
        "country2": tuple("Austria Sweden Russia Mexico Finland Ireland Portugal Hungary".split()),
        "town": tuple(
            "Paris London Berlin Rome Madrid Tokyo Boston Vienna Oslo Cairo Dublin Sydney Lima "
            "Athens".split()
        ),
        "piece": (
            "poem",
            "story",
            "joke",
            "song",
            "letter",
            "book",
            "riddle",
            "speech",
            "recipe",
            "fairy tale",
            "haiku",
        ),
        "thing": (
            "love",
            "the sea",
            "my dog",
            "summer",
            "money",
            "football",
            "old age",
            "the moon",
            "school",
            "my boss",
            "coffee",
            "war",
            "the news",
            "my neighbors",
            "cats",
            "winter",
            "space travel",
            "bad dreams",
            "my garden",
            "traffic",
        ),
        "thing2": ("tea", "trains", "cities", "cheese", "dogs", "books"),
        "tongue": tuple("French German Italian Spanish Japanese Latin Dutch Polish".split()),
        "number": tuple(
            str(n)
            for n in (2, 3, 4, 5, 7, 8, 9, 12, 15, 17, 20, 23, 31, 44, 56, 64, 78, 99, 100, 120)
        ),
        "number2": tuple(
            str(n) for n in (1, 3, 6, 7, 10, 11, 13, 18, 22, 27, 35, 41, 58, 73, 86, 90)
        ),
        "unit": ("minutes", "inches", "grams", "seconds", "meters"),
        "unit2": ("hours", "feet", "pounds", "days", "miles"),
        "person": (
            "Albert Einstein",
            "Napoleon",
            "Mozart",
            "Cleopatra",
            "Marie Curie",
            "Shakespeare",
            "Gandhi",
            "Picasso",
            "Newton",
            "Beethoven",
            "Julius Caesar",
            "Darwin",
        ),
        "work": (
            "Hamlet",
            "the Odyssey",
            "Faust",
            "Don Quixote",
            "Moby Dick",
            "the Bible",
            "Macbeth",
            "this article",
        ),
        "language": tuple("Python Java C Rust Go JavaScript".split()),
        "task": (
            "sorts a list",
            "reads a file",
            "prints primes",
            "open a window",
            "sends a mail",
            "counts words",
            "parse a date",
        ),
        "year": tuple(
            str(y) for y in (1066, 1492, 1789, 1815, 1914, 1945, 1969, 1989, 1998, 2002, 2014)
        ),
        "piece2": ("chess", "cards", "music", "the guitar", "a game", "football"),
        "kin2": tuple("student teacher nurse driver farmer pirate poet doctor".split()),
        "dish2": ("eggs", "potatoes", "rice", "tomatoes"),
        "dish3": ("onions", "cheese", "beans", "milk"),
        "mood": (
            "sad",
            "happy",
            "tired",
            "angry",
            "bored",
            "lonely",
            "blue",
            "ill",
            "nervous",
            "hungry",
        ),
        "kin": ("brother", "sister", "mother", "friends", "uncle", "teacher", "neighbor"),
        "deed": (
            "save money",
            "lose weight",
            "get a better job",
            "learn to dance",
            "learn to drive",
            "sleep better",
            "make friends",
            "clean a window",
            "paint a wall",
            "find a house",
            "plant a tree",
            "train a dog",
            "write a book",
            "swim across a lake",
            "travel around the world",
            "catch a fish",
        ),
        "invention": (
            "the radio",
            "the train",
            "printing",
            "paper",
            "the piano",
            "the light bulb",
            "chess",
            "glass",
            "the clock",
            "tennis",
        ),
        "invention2": ("car", "camera", "watch", "plane", "computer", "bicycle"),
        "dish": ("soup", "bread", "pizza", "rice", "an omelet", "apple pie", "fish", "noodles"),
        "future": ("2027", "2028", "2035", "2040", "2050", "2100"),
        "machine": ("phone", "car", "printer", "radio", "bicycle", "lamp", "heating", "tablet"),
        "name": tuple("Anna Ben Clara David Emma Frank Greta Henry Ida Jack Karen Leo".split()),
        "chore": ("homework", "taxes", "garden", "car", "essay", "resume", "job"),
    },
)
# What is asked about any word, but is not in a dictionary.
WORDY: Final = (
    "Why is {a} useful?",
    "Where can I buy {a}?",
    "How much is {a}?",
    "How do I make {a}?",
    "How do I draw {a}?",
    "Do you have {a}?",
    "Do I need {a}?",
    "Can you show me {a}?",
    "Who discovered {w}?",
    "When was the first {w} made?",
    "How many kinds of {w} are there?",
    "What color is {a}?",
    "How old can {a} get?",
    "Is {a} expensive?",
    "Is {a} dangerous?",
    "Is {a} bigger than {b}?",
    "Which is better, {a} or {b}?",
    "What is the difference between {a} and {b}?",
    "What do {w} and {x} have in common?",
    "Compare {w} with {x}.",
    "Write a poem about {w}.",
    "Write a story about {a} and {b}.",
    "Tell me a joke about {w}.",
    "Tell me something about the history of {w}.",
    "Write an essay about {w} and {x}.",
    "Translate {w} into French.",
    "How do you say {w} in German?",
    "What is {w} in Spanish?",
    "I saw {a} yesterday.",
    "I have {a}.",
    "I want {a}.",
    "I lost my {w}.",
    "My {w} is broken.",
    "My {w} and my {x} are gone.",
    "The {w} was better than the {x}.",
    "There is {a} in the garden.",
    "Give me {a}.",
    "Draw {a}.",
    "Sing about {w}.",
    "Buy me {a}.",
    "Why do people talk about {w}?",
    "What do you think of {w}?",
    "What happened to the {w}?",
    "What rhymes with {w}?",
    "How many letters has {w}?",
    "How do you spell {w}?",
    "Spell {w}.",
    "How is {w} pronounced?",
    "Where does the word {w} come from?",
    "{w} {x} {y}",
    "{w} and {x}",
    "{w} or {x}?",
)

# Each is asked once; no wording of it is trained on.
HELD: Final = tuple(Path(__file__).with_name("freetext_held.txt").read_text("utf-8").splitlines())
