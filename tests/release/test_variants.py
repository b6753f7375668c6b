"""What goes into a frozen program, for every system: the lists are pure, so all are tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from release import variants
from release.variants import Variant, chosen

EVERY = [
    Variant(name, system, window=name == "desktop")
    for name in ("headless", "desktop")
    for system in ("linux", "windows", "macos")
]


def test_the_variant_is_chosen_by_an_option_and_the_system() -> None:
    assert chosen(["--variant", "headless"], "linux") == Variant("headless", "linux", window=False)
    assert chosen([], "win32") == Variant("desktop", "windows", window=True)
    assert chosen([], "darwin").platform == "macos"


def test_an_unknown_variant_or_system_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chosen(["--variant", "tiny"], "linux")
    assert "tiny" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="aix"):
        chosen([], "aix")


@pytest.mark.parametrize("variant", EVERY, ids=lambda v: f"{v.name}-{v.platform}")
def test_no_variant_holds_two_toolkits_or_a_copyleft_one(variant: Variant) -> None:
    assert {"PyQt5", "PyQt6", "tkinter", "colibri.engine.fake"} <= set(variant.excludes)
    assert not set(variant.hidden_imports) & set(variant.excludes)
    assert "_cffi_backend" in variant.hidden_imports  # R205
    backends = {backend for backend, _ in variants.TOOLKITS.values()}
    kept = backends & set(variant.hidden_imports)
    assert len(kept) == variant.window
    if variant.window:
        assert backends - kept <= set(variant.excludes)
    else:
        assert {"webview", "gi"} <= set(variant.excludes)


@pytest.mark.parametrize("variant", EVERY, ids=lambda v: f"{v.name}-{v.platform}")
def test_commands_keep_their_console_and_windows_have_none(variant: Variant) -> None:
    """R192: a program with a window on Windows has no stdout; the commands there are others."""
    main, *_ = variant.programs
    assert variant.programs[main] is not variant.window
    if variant.platform == "windows":
        assert variant.programs["coli"] and variant.programs["sidecar"]


LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("name", "source", "headless", "desktop"),
    [
        ("libsqlite3.so.0", f"{LIBRARIES}/libsqlite3.so.0", True, True),
        ("libgomp.so.1", f"{LIBRARIES}/libgomp.so.1", True, True),  # R206
        ("libstdc++.so.6", f"{LIBRARIES}/libstdc++.so.6", True, False),
        ("libgtk-3.so.0", f"{LIBRARIES}/libgtk-3.so.0", False, False),
        ("libglib-2.0.so.0", f"{LIBRARIES}/libglib-2.0.so.0", False, False),
        ("gi/_gi.so", "/usr/lib/python3/dist-packages/gi/_gi.so", True, True),
        ("lib-dynload/_ssl.so", "/usr/lib/python3.11/lib-dynload/_ssl.so", True, True),
        ("numpy.libs/libgfortran.so.5", "/env/numpy.libs/libgfortran.so.5", True, True),
    ],
)
def test_of_the_system_only_what_a_computer_may_lack_travels_along(
    name: str, source: str, headless: bool, desktop: bool
) -> None:
    assert Variant("headless", "linux", window=False).keeps(name, source) is headless
    assert Variant("desktop", "linux", window=True).keeps(name, source) is desktop
    assert Variant("desktop", "macos", window=True).keeps(name, source)


def test_gtk_brings_what_makes_it_usable_from_python() -> None:
    """Without its overrides, a call as plain as GLib.idle_add takes other arguments."""
    imports = set(Variant("desktop", "linux", window=True).hidden_imports)
    assert {"gi.overrides.GLib", "gi.overrides.Gtk", "gi.overrides.Gdk"} <= imports


def test_missing_inputs_are_named_all_at_once(tmp_path: Path) -> None:
    problems = variants.missing_inputs(tmp_path)
    for words in ("engine", "dashboard", "starter model"):
        assert any(words in problem for problem in problems)
    with pytest.raises(SystemExit) as refusal:
        variants.require_inputs(problems)
    assert all(problem in str(refusal.value) for problem in problems)


def test_nothing_is_missing_where_all_is_there(tmp_path: Path) -> None:
    for name in ("engine/_colibri.cpython-311.so", "web/index.html", "models/x/colibri.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert variants.missing_inputs(tmp_path) == []
    variants.require_inputs([])


def test_every_excluded_module_of_ours_exists_and_is_for_tests_only() -> None:
    """A renamed module must not slip into the release unseen."""
    root = Path(__file__).resolve().parent.parent.parent / "sidecar"
    ours = [name for name in variants.EXCLUDED if name.startswith("colibri")]
    assert ours
    for name in ours:
        assert (root / f"{name.replace('.', '/')}.py").exists()
