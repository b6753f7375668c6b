"""The window's judgements: what is believed, what is tried again, where a window may be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_app import bridge, geometry, ownpages, words
from colibri_app.geometry import Geometry, Rect, fit
from colibri_app.handshake import (
    Handshake,
    Wishes,
    encode,
    is_handshake,
    parse_handshake,
    parse_wishes,
)
from colibri_app.restarts import HOPELESS_CODES, Restarts
from colibri_app.watchdog import Verdict, Watchdog

GREETING = Handshake("http://127.0.0.1:8000", 8000, 42, "t", "1.0", "abc", 8000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# ---- handshake ----


def test_a_handshake_survives_the_line() -> None:
    line = encode(GREETING)
    assert line.endswith(b"\n")
    assert is_handshake(line)
    assert parse_handshake(line) == GREETING
    wishes = Wishes(ports=(8001, 9), reuse=True)
    assert parse_wishes(encode(wishes)) == wishes
    assert not is_handshake(encode(wishes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 0),
        ("port", 65_536),
        ("port", True),
        ("port", "8000"),
        ("port", 8001),  # not that of the address
        ("url", "https://127.0.0.1:8000"),
        ("url", "http://127.0.0.1"),
        ("url", "file:///etc/passwd"),
        ("url", ""),
        ("url", "http://127.0.0.1:99999"),
        ("pid", 0),
        ("pid", -1),
        ("pid", None),
        ("token", ""),
        ("token", 5),
        ("instance", None),
        ("version", "v" * 2000),
        ("wanted_port", 70_000),
        ("colibri_handshake", 2),
    ],
)
def test_a_wrong_handshake_is_refused(field: str, value: Any) -> None:
    data = json.loads(encode(GREETING))
    data[field] = value
    with pytest.raises(ValueError, match=r".+"):
        parse_handshake(json.dumps(data).encode())


@given(JSON)
def test_no_json_line_is_taken_for_a_handshake_by_mistake(data: Any) -> None:
    line = json.dumps(data).encode()
    for parse in (parse_handshake, parse_wishes):
        with pytest.raises(ValueError, match=r".+"):
            parse(line)


@pytest.mark.parametrize(
    "line", [b"", b"\xff\xfe", b"[" * 100_000, b'{"colibri_handshake": 1' + b" " * 70_000 + b"}"]
)
def test_a_line_that_is_no_json_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_handshake(line)


# ---- restarts ----


def test_waits_double_up_to_a_limit_and_end() -> None:
    policy = Restarts(most=8, longest_wait=4.0)
    waits = [policy.after(-9, started=t, now=t + 1.0) for t in range(7)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert policy.after(-9, started=8.0, now=9.0) is None
    policy.forget()
    assert policy.after(-9, started=9.0, now=10.0) == 0.5


def test_who_ran_for_long_is_started_at_once_again() -> None:
    policy = Restarts()
    for t in range(4):
        policy.after(1, started=t, now=t + 0.5)
    assert policy.after(1, started=10.0, now=500.0) == 0.5


@pytest.mark.parametrize("code", sorted(HOPELESS_CODES))
def test_what_a_restart_cannot_cure_is_not_tried_again(code: int) -> None:
    assert Restarts().after(code, started=0.0, now=1.0) is None


# ---- watchdog ----


def test_a_page_that_never_appears_is_told_once() -> None:
    dog = Watchdog(first=20, quiet=30)
    dog.loading(0.0)
    assert dog.look(19.0) is Verdict.FINE
    assert dog.look(20.5) is Verdict.EMPTY
    assert dog.look(100.0) is Verdict.FINE


def test_a_page_that_falls_silent_is_lost_and_a_new_load_begins_anew() -> None:
    dog = Watchdog(first=20, quiet=30)
    dog.loading(0.0)
    dog.heard(1.0)
    assert dog.ready
    assert dog.look(30.0) is Verdict.FINE
    assert dog.look(31.5) is Verdict.LOST
    dog.heard(40.0)  # too late: what it says is no page that anybody waits for
    assert dog.look(200.0) is Verdict.FINE
    dog.loading(200.0)
    assert not dog.ready
    assert dog.look(221.0) is Verdict.EMPTY


def test_a_script_that_runs_gives_a_slow_page_its_time_once() -> None:
    dog = Watchdog(first=20, quiet=30)
    dog.loading(0.0)
    dog.begun(15.0)
    dog.begun(30.0)
    assert dog.look(34.0) is Verdict.FINE
    assert dog.look(35.5) is Verdict.EMPTY


# ---- geometry ----

SCREENS = [Rect(0, 0, 1920, 1080), Rect(1920, 0, 1280, 1024)]
NUMBERS = st.integers(-(2**40), 2**40) | st.floats() | st.none() | st.text() | st.booleans()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "width": NUMBERS,
            "height": NUMBERS,
            "x": NUMBERS,
            "y": NUMBERS,
            "maximized": NUMBERS,
        },
    )
)
def test_whatever_was_kept_the_window_can_be_reached(data: dict[str, Any]) -> None:
    for screens in (SCREENS, SCREENS[1:], [Rect(0, 0, 320, 200)], [Rect(-800, -600, 800, 600)]):
        place = fit(geometry.parse(data), screens)
        assert place.width > 0
        assert place.height > 0
        assert any(
            place.width <= screen.width and place.height <= screen.height for screen in screens
        )
        if place.x is not None and place.y is not None:
            assert any(
                screen.x <= place.x
                and place.x + place.width <= screen.x + screen.width
                and screen.y <= place.y
                and place.y + place.height <= screen.y + screen.height
                for screen in screens
            )


def test_a_sane_place_is_kept_as_it_is() -> None:
    place = Geometry(1000, 700, 2000, 100, maximized=True)
    assert fit(place, SCREENS) == place
    assert fit(Geometry(1000, 700, 5000, 100), SCREENS) == Geometry(1000, 700)
    assert fit(place, []) == place
    # The usual size on a small screen leaves room for the frame.
    assert fit(Geometry(), [Rect(0, 0, 1280, 800)]).height < 800


def test_a_damaged_file_is_the_usual_geometry(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "window.json"
    assert geometry.load(path) == Geometry()
    geometry.save(path, Geometry(800, 600, 5, 6))
    assert geometry.load(path) == Geometry(800, 600, 5, 6)
    for text in ("", "[]", "{", '{"width": 1e999}', "[" * 100_000, "\x00"):
        path.write_text(text)
        assert geometry.load(path) == Geometry()
    assert [item.name for item in path.parent.iterdir()] == ["window.json"]


# ---- bridge, pages, words ----


def test_what_the_page_says_is_believed_only_in_its_shape() -> None:
    text = json.dumps(
        {
            "at": "http://127.0.0.1:1/app/",
            "said": [
                {"id": 1, "name": "ready", "args": {}},
                {"id": True, "name": "ready", "args": {}},
                {"id": 2, "name": "x" * 100, "args": {}},
                {"id": 3, "name": "save", "args": []},
                "ready",
            ],
        }
    )
    look = bridge.parse(text)
    assert look is not None
    assert look.said == (bridge.Said(1, "ready", {}),)
    empty = bridge.parse('{"at": "about:blank", "said": null}')
    assert empty == bridge.Look("about:blank", None)
    for other in (None, 5, "", "null", "[]", '{"said": []}', "[" * 100_000):
        assert bridge.parse(other) is None


@given(st.text(), st.text())
def test_no_text_breaks_out_of_what_the_page_is_told(value: str, name: str) -> None:
    script = bridge.tell({"kind": "answer", "id": 1, "value": {name: value}})
    assert script.isascii()
    assert "\n" not in script
    inside = script.removeprefix("window.colibriShell && window.colibriShell.tell(")
    assert json.loads(inside.removesuffix(")"))["value"] == {name: value}


@pytest.mark.parametrize(
    ("at", "own"),
    [
        ("about:blank", True),
        ("http://127.0.0.1:8000/app/chat/5", True),
        ("http://127.0.0.1:8001/app/", False),
        ("http://127.0.0.1:8000.evil.example/app/", False),
        ("https://example.com/", False),
        ("data:text/html,x", False),
    ],
)
def test_only_pages_of_the_server_belong_into_the_window(at: str, own: bool) -> None:
    assert bridge.is_own(at, "http://127.0.0.1:8000/app/") is own


def test_last_words_are_text_and_no_page() -> None:
    page = ownpages.trouble(
        words.words_of("en"),
        "en",
        dark=True,
        kind="failed",
        problem="<script>alert(1)</script> {body}",
        last_words=["</pre><b>{x}", "line two"],
        log="/log & more",
    )
    assert "<script>alert" not in page
    assert "&lt;/pre&gt;&lt;b&gt;{x}\nline two" in page
    assert "/log &amp; more" in page
    assert 'data-do="retry"' in page


def test_both_languages_have_the_same_words() -> None:
    english, german = words.words_of("en"), words.words_of("de")
    assert english.keys() == german.keys()
    for name, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", german[name]))
    assert words.language({"LANG": "de_AT.UTF-8"}) == "de"
    assert words.language({"LC_ALL": "C", "LANG": "de_DE"}) == "en"
