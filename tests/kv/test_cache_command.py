"""`coli cache`: what is stored can be seen, pinned and deleted, also beside a running server.

Covers R116.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from colibri.cli import coli
from colibri.errors import NotFoundError, ResourceError, UsageError
from colibri.kv import pins
from colibri.kv.inventory import STORE_NAME
from colibri.kv.slots import SlotFiles, SlotState
from colibri.kv.store import PrefixStore
from tests.kv.make import FINGERPRINT, TOKENS, ids_of, open_store, put_all, read_all, tokens_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """As much of a model folder as these commands look at."""
    folder = tmp_path / "a-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def store(model: Path) -> Iterator[PrefixStore]:
    opened = open_store(model / STORE_NAME)
    put_all(opened, tokens_of(1, 2, 3))
    put_all(opened, tokens_of(1, 2, 4, 5))
    SlotFiles(model, FINGERPRINT, TOKENS).save(1, SlotState(tokens=(7, 8), blocks=()))
    yield opened
    opened.close()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(coli, ["cache", *map(str, arguments)])


def listed(model: Path) -> dict[str, object]:
    result = run("list", model, "--json")
    assert result.exit_code == 0, result.output
    tree = json.loads(result.stdout)
    assert tree["schema"] == 1
    (found,) = tree["stores"]
    return dict(found)


def test_the_list_shows_a_running_servers_store(model: Path, store: PrefixStore) -> None:
    found = listed(model)
    assert found["writer_pid"] == os.getpid()
    assert found["bytes"] == store.stats().bytes
    assert found["slots"] == [".coli_kv.1"]
    assert isinstance(found["prefixes"], list)
    tokens = {prefix["id"]: prefix["tokens"] for prefix in found["prefixes"]}
    assert tokens == {
        ids_of(store, tokens_of(1, 2, 3))[-1].hex(): 3 * TOKENS,
        ids_of(store, tokens_of(1, 2, 4, 5))[-1].hex(): 4 * TOKENS,
    }
    # The last written first: what goes when there is no room stands at the end.
    assert list(tokens.values()) == [4 * TOKENS, 3 * TOKENS]
    shown = run("list", model)
    assert shown.exit_code == 0
    assert f"1 file of slots, process {os.getpid()} writes" in shown.stdout
    assert ids_of(store, tokens_of(1, 2, 3))[-1].hex()[:12] in shown.stdout
    # Looking changed nothing.
    assert store.state == "ready"
    assert read_all(store, tokens_of(1, 2, 4, 5)) == 4


def test_nothing_stored_is_an_empty_list(model: Path) -> None:
    found = listed(model)
    assert (found["bytes"], found["prefixes"], found["writer_pid"]) == (0, [], None)
    assert not (model / STORE_NAME).exists()
    everything = run("list")
    assert everything.exit_code == 0
    assert everything.stdout == ""
    assert run("clear", model).exit_code == 0


def test_all_installed_models_are_listed(
    model: Path, store: PrefixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(model.parent))
    tree = json.loads(run("list", "--json").stdout)
    assert [entry["model"] for entry in tree["stores"]] == ["a-model"]
    assert len(tree["stores"][0]["prefixes"]) == 2


def test_the_state_directory_may_lie_elsewhere(model: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "state" / STORE_NAME)
    put_all(store, tokens_of(1))
    store.close()
    assert listed(model)["bytes"] == 0
    shown = json.loads(run("list", model, "--json", "--state-dir", tmp_path / "state").stdout)
    assert len(shown["stores"][0]["prefixes"]) == 1


def test_the_budget_shown_is_the_setting(
    model: Path, store: PrefixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLI_PREFIX_STORE_GB", "2.5")
    assert listed(model)["budget_bytes"] == 2_500_000_000


def test_blocks_of_several_layouts_are_listed_side_by_side(
    model: Path, store: PrefixStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.close()
    other = open_store(model / STORE_NAME, fingerprint="weights 2")
    put_all(other, tokens_of(9))
    other.close()
    caplog.clear()
    prefixes = listed(model)["prefixes"]
    assert isinstance(prefixes, list)
    assert sorted(prefix["tokens"] for prefix in prefixes) == [TOKENS, 3 * TOKENS, 4 * TOKENS]
    assert caplog.text == ""


def test_a_pin_is_respected_by_the_running_store_and_can_be_taken_back(
    model: Path, store: PrefixStore
) -> None:
    own = ids_of(store, tokens_of(1, 2, 3))[-1]
    assert run("pin", model, own.hex()[:8].upper()).exit_code == 0
    assert store.clear()
    assert read_all(store, tokens_of(1, 2, 3)) == 3
    assert len(store.match(tokens_of(1, 2, 4, 5))) == 2
    assert "pinned 12" in run("list", model).stdout
    assert run("pin", model, own.hex()[:8], "--off").exit_code == 0
    assert pins.load(model / STORE_NAME) == frozenset()
    assert store.clear()
    assert store.stats().blocks == 0


def test_a_pin_needs_one_stored_prefix(model: Path, store: PrefixStore) -> None:
    for prefix, expected in (("ab", UsageError), ("0000000000", NotFoundError), ("", UsageError)):
        assert isinstance(run("pin", model, prefix).exception, expected)
    own = ids_of(store, tokens_of(1, 2, 3))[-1].hex()
    assert isinstance(run("pin", model, own[:8], "--off").exception, NotFoundError)


def test_clearing_refuses_while_a_server_uses_the_store(model: Path, store: PrefixStore) -> None:
    result = run("clear", model)
    assert isinstance(result.exception, ResourceError)
    assert str(os.getpid()) in result.exception.message
    assert read_all(store, tokens_of(1, 2, 3)) == 3
    assert (model / ".coli_kv.1").exists()


def test_clearing_deletes_blocks_and_slots_but_what_is_pinned(
    model: Path, store: PrefixStore
) -> None:
    store.pin(ids_of(store, tokens_of(1, 2, 3))[-1])
    store.close()
    other = open_store(model / STORE_NAME, fingerprint="weights 2")
    put_all(other, tokens_of(9))
    other.close()
    (model / STORE_NAME / "00000009.seg").write_bytes(b"damaged" * 2000)
    (model / ".coli_kv.damaged-1").write_bytes(b"")
    (model / ".coli_usage").write_text("")
    result = run("clear", model)
    assert result.exit_code == 0, result.output
    assert "are pinned" in result.stderr
    prefixes = listed(model)["prefixes"]
    assert isinstance(prefixes, list)
    assert [prefix["tokens"] for prefix in prefixes] == [3 * TOKENS]
    assert listed(model)["slots"] == []
    assert (model / ".coli_usage").exists()
    again = open_store(model / STORE_NAME)
    assert read_all(again, tokens_of(1, 2, 3)) == 3
    again.close()
    assert run("clear", model, "--pinned").exit_code == 0
    assert listed(model)["bytes"] == 0
    assert list((model / STORE_NAME).glob("*.seg*")) == []


def test_a_place_that_cannot_be_read_is_named(model: Path) -> None:
    (model / STORE_NAME).write_text("a file where a folder should be")
    result = run("list", model)
    assert result.exit_code == 0 or isinstance(result.exception, ResourceError)
    cleared = run("clear", model)
    assert cleared.exit_code == 0 or isinstance(cleared.exception, ResourceError)
