"""Prompts of the starter model's atlas: topics that its words have, no word in both sets."""

from __future__ import annotations

from pathlib import Path

from colibri.models.atlas import file, topics
from starter import atlas
from starter.build import SHIPPED
from starter.conversations import TOPIC_NAMES
from starter.entries import Entry


def entry(word: str, topic: str) -> Entry:
    return Entry(word, "n", topic, "a gloss", None, None, None, None, 0)


def test_words_take_turns_and_small_topics_are_left_out(tmp_path: Path) -> None:
    words = [
        entry(f'{topic[5:]} "{n}"', topic) for n in range(100) for topic in sorted(TOPIC_NAMES)
    ]
    others = [entry("go", "verb.motion"), entry("rare", "noun.motive")]
    kept = [one for one in words if one.topic not in ("noun.motive", "noun.shape")]
    (tmp_path / atlas.NAME).write_text(atlas.render([*kept, *others]))
    found = topics.load(topics.find(tmp_path))
    assert len(found.names) == len(TOPIC_NAMES) - 2
    assert "animal" in found.names
    prompts = found.prompts()
    assert len(prompts) == 80 * len(found.names)
    assert sum(prompt.set == "a" for prompt in prompts) == len(prompts) // 2
    assert prompts[0].text == 'What does act "0" mean?'


def test_the_shipped_atlas_is_of_the_shipped_prompts_and_more_than_chance() -> None:
    shipped = topics.load(SHIPPED / topics.NAME)
    columns = file.parse((SHIPPED / file.NAME).read_bytes())
    assert columns.categories == shipped.names
    assert sorted(set(columns.layer)) == [1, 2, 3, 4]
    found = columns.measurement
    assert found is not None
    assert found.prompts == len(shipped.prompts())
    assert found.mutual_information_bits > 3 * found.chance_bits
    assert all(side["found"] > 2 * side["chance"] for side in found.sets.values())
    assert found.prediction > 2 * found.prediction_chance
