"""Stop sequences: exact cuts, nothing leaked, nothing held back without need, any split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.text.stop import StopFilter


def run(pieces: Sequence[str], stops: Sequence[str], **options: bool) -> str:
    stop = StopFilter(stops, **options)
    return "".join([stop.push(piece) for piece in pieces] + [stop.flush()])


def test_R001_the_text_ends_just_before_the_first_stop() -> None:
    pieces = [f"{n}, " for n in range(1, 21)]
    assert run(pieces, ["5"]) == "1, 2, 3, 4, "


def test_R002_one_stop_gives_the_same_as_a_list_of_one() -> None:
    assert run(["A END B"], ["END"]) == "A "


def test_R004_a_stop_split_over_pieces_leaks_nothing() -> None:
    assert run(["I drink gre", "en te", "a daily"], ["green tea"]) == "I drink "


def test_R085_only_a_real_beginning_of_a_stop_is_held_back() -> None:
    stop = StopFilter(["XXXXXXXXXX"])
    assert stop.push("hello") == "hello"
    assert stop.push(" wXX") == " w"
    assert stop.push("y") == "XXy"
    assert stop.push("tail XXX") == "tail "
    assert stop.flush() == "XXX"
    assert stop.matched is None


def test_R086_text_after_a_matched_stop_never_appears() -> None:
    stop = StopFilter(["thu"])
    out = [stop.push(piece) for piece in ("mon, ", "tue, ", "wed, t", "hu, ", "fri")]
    assert "".join(out) + stop.flush() == "mon, tue, wed, "
    assert stop.matched == "thu"
    assert stop.push("more") == ""


def test_a_stop_may_begin_again_inside_a_failed_one() -> None:
    assert run(list("aab"), ["ab"]) == "a"
    assert run(list("ababac"), ["abac"]) == "ab"


def test_a_longer_stop_that_begins_earlier_wins_over_one_inside_it() -> None:
    assert run(["abcd"], ["bc", "abcd"]) == run(list("abcd"), ["bc", "abcd"]) == ""
    assert run(list("abcx"), ["bc", "abcd"]) == "a"


def test_without_stops_everything_passes_at_once() -> None:
    assert StopFilter([]).push("x" * 100) == "x" * 100


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopFilter(["a", ""])


def test_leading_stops_are_dropped_only_when_asked() -> None:
    text = "\n<|user|> \n<|user|>Hello<|user|>more"
    assert run([text], ["<|user|>"]) == "\n"
    assert run([text], ["<|user|>"], ignore_leading=True) == "Hello"
    assert run(list(text), ["<|user|>"], ignore_leading=True) == "Hello"


def test_leading_blanks_without_a_stop_are_kept() -> None:
    assert run(list("  hi"), ["END"], ignore_leading=True) == "  hi"
    assert run(["  "], ["END"], ignore_leading=True) == "  "


def test_a_leading_stop_at_the_very_end_is_dropped() -> None:
    assert run(["END"], ["END", "ENDING"], ignore_leading=True) == ""
    assert run(["EN"], ["END", "ENDING"], ignore_leading=True) == "EN"


TEXT = st.text(alphabet="ab \n", max_size=24)
STOPS = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3)


@given(TEXT, STOPS, st.lists(st.integers(0, 24)), st.booleans())
def test_every_split_of_a_text_gives_the_same_result(
    text: str, stops: list[str], cuts: list[int], leading: bool
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    whole = run([text], stops, ignore_leading=leading)
    assert run(pieces, stops, ignore_leading=leading) == whole
    assert run(list(text), stops, ignore_leading=leading) == whole


@given(TEXT, STOPS)
def test_the_cut_is_at_the_first_position_where_any_stop_begins(
    text: str, stops: list[str]
) -> None:
    positions = [text.find(stop) for stop in stops if stop in text]
    assert run([text], stops) == text[: min(positions, default=len(text))]
