"""What the children of a frozen program inherit."""

from __future__ import annotations

import os
import sys

import pytest

from colibri_app.environment import restore_library_path


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"LD_LIBRARY_PATH": "/bundle", "HOME": "/h"})


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("original", [None, "/their/own"])
def test_systems_programs_get_their_own_library_path(
    monkeypatch: pytest.MonkeyPatch, original: str | None
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    if original:
        os.environ["LD_LIBRARY_PATH_ORIG"] = original
    restore_library_path()
    assert os.environ.get("LD_LIBRARY_PATH") == original
    assert "LD_LIBRARY_PATH_ORIG" not in os.environ
    # Our own program as a child sets its path again, instead of believing that it is set.
    assert os.environ["PYINSTALLER_RESET_ENVIRONMENT"] == "1"


@pytest.mark.usefixtures("environ")
def test_from_source_nothing_is_changed() -> None:
    before = dict(os.environ)
    restore_library_path()
    assert os.environ == before
