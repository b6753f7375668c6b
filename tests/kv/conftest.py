"""Tests of the store wait for no device, except those that kill real processes."""

from __future__ import annotations

import pytest

from colibri.kv import files


@pytest.fixture(autouse=True)
def no_waiting_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote, the next one reads, on the device or not."""
    monkeypatch.setattr(files.DataFile, "sync", lambda _: None)
    monkeypatch.setattr(files, "sync_folder", lambda _: None)
