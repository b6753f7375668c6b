"""The list of installed models: what is there, whether it fits, verifying and deleting it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import paths
from colibri.models import forecast, shelf, verify
from colibri.models.doctor import Report
from tests.models import broken
from tests.support import draftmodel
from tests.support.fakeserver import TIMEOUT, FakeServer

Start = Callable[..., FakeServer]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("models") / "small-glm")


@pytest.fixture
def installed(made: Path) -> Path:
    """A model in the folder of models, and one whose config is damaged."""
    folder = paths.models_dir() / "small-glm"
    shutil.copytree(made, folder)
    damaged = paths.models_dir() / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    return folder


def post(server: FakeServer, path: str, body: Any = None) -> Any:
    return server.request("POST", path, json={} if body is None else body)


def test_every_model_is_listed_with_what_it_is(installed: Path, server: FakeServer) -> None:
    found = server.get("/api/models").json()
    assert found["folder"] == str(paths.models_dir())
    assert found["free_bytes"] > 0
    damaged, whole = found["models"]
    assert (damaged["name"], damaged["quantization"]) == ("damaged", None)
    assert "config.json" in damaged["problem"]
    assert whole["family"] == "glm_moe_dsa"
    assert whole["quantization"].startswith("int4 g64") or "int8" in whole["quantization"]
    dense, each = draftmodel.config()["first_k_dense_replace"], draftmodel.SHAPE.experts
    # The MTP layer is one more, and its experts are told apart.
    assert whole["experts"] == (draftmodel.LAYERS - dense + 1) * each
    assert whole["draft_experts"] == each
    assert whole["size_bytes"] > 0
    assert (whole["loaded"], whole["problem"]) == (False, None)


def test_without_models_the_list_is_empty(server: FakeServer) -> None:
    found = server.get("/api/models").json()
    assert found["models"] == []
    assert found["free_bytes"] > 0


def test_the_served_model_is_marked_wherever_it_lies(
    installed: Path, made: Path, start: Start
) -> None:
    inside = start(folder=installed)
    assert [m["loaded"] for m in inside.get("/api/models").json()["models"]] == [False, True]
    outside = start(folder=made)
    models = outside.get("/api/models").json()["models"]
    assert [m["loaded"] for m in models] == [True, False, False]
    assert outside.get("/api/models/small-glm/fit").status_code == 200


def test_a_fit_tells_tiers_and_a_range_of_speed(
    installed: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.hardware.bandwidth.measure", lambda _threads: 10e9)
    found = server.get("/api/models/small-glm/fit").json()
    assert found["fits"] is True
    assert found["tiers"]["vram_bytes"] == 0
    assert found["tiers"]["ram_bytes"] > 0
    assert found["experts"] >= found["experts_in_ram"] > 0
    (listed,) = [m for m in server.get("/api/models").json()["models"] if m["quantization"]]
    counts = ("experts", "draft_experts")
    assert [found[name] for name in counts] == [listed[name] for name in counts]
    assert 0 < found["tokens_per_second"]["low"] <= found["tokens_per_second"]["high"]
    monkeypatch.setattr(forecast, "allowance", lambda _chosen, _held: 1 << 20)
    tight = server.get("/api/models/small-glm/fit").json()
    assert (tight["fits"], tight["tokens_per_second"]) == (False, None)
    assert "does not fit" in tight["warnings"][0]


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e", "damaged%2f..%2fsmall-glm"])
@pytest.mark.parametrize("action", ["fit", "delete", "verify"])
def test_what_is_no_installed_model_is_a_404(
    installed: Path, server: FakeServer, name: str, action: str
) -> None:
    method = "GET" if action == "fit" else "POST"
    answer = server.request(method, f"/api/models/{name}/{action}", json={})
    assert answer.status_code in (404, 405)
    assert installed.is_dir()


def test_a_damaged_model_has_no_fit(installed: Path, server: FakeServer) -> None:
    answer = server.get("/api/models/damaged/fit")
    assert answer.json()["error"]["code"] == "model_invalid"
    assert "config.json" in answer.json()["error"]["message"]


def test_deleting_takes_two_steps(installed: Path, server: FakeServer) -> None:
    asked = post(server, "/api/models/small-glm/delete").json()
    assert asked["folder"] == str(installed)
    assert asked["files"] == len(list(installed.iterdir()))
    assert asked["bytes"] == sum(path.stat().st_size for path in installed.iterdir())
    assert installed.is_dir()
    for wrong in ("", "x", asked["confirm"] + "x"):
        answer = post(server, "/api/models/small-glm/delete", {"confirm": wrong})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "confirm"
    other = post(server, "/api/models/damaged/delete", {"confirm": asked["confirm"]})
    assert other.status_code == 400
    again = post(server, "/api/models/small-glm/delete").json()
    done = post(server, "/api/models/small-glm/delete", {"confirm": again["confirm"]})
    assert done.json() == {"deleted": True, "freed_bytes": asked["bytes"]}
    assert not installed.exists()
    assert post(server, "/api/models/small-glm/delete").status_code == 404


def test_a_token_ends_after_a_minute(
    installed: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = post(server, "/api/models/small-glm/delete").json()["confirm"]
    later = time.monotonic() + 61
    monkeypatch.setattr(shelf.time, "monotonic", lambda: later)
    answer = post(server, "/api/models/small-glm/delete", {"confirm": token})
    assert answer.status_code == 400
    assert installed.is_dir()


def test_the_served_model_is_never_deleted(installed: Path, start: Start) -> None:
    server = start(folder=installed)
    assert post(server, "/api/models/small-glm/delete").status_code == 409


def test_of_a_link_only_the_link_goes(made: Path, server: FakeServer) -> None:
    paths.models_dir().mkdir(parents=True)
    link = paths.models_dir() / "linked"
    link.symlink_to(made)
    token = post(server, "/api/models/linked/delete").json()["confirm"]
    assert post(server, "/api/models/linked/delete", {"confirm": token}).json()["freed_bytes"] == 0
    assert not link.exists()
    assert (made / "config.json").is_file()


def ended(server: FakeServer) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        task: dict[str, Any] = server.get("/api/tasks").json()["tasks"][0]
        if task["state"] != "running":
            return task
        time.sleep(0.02)
    raise AssertionError("the task never ended")


def test_a_model_is_verified_to_the_last_byte(installed: Path, server: FakeServer) -> None:
    started = post(server, "/api/models/small-glm/verify")
    assert started.status_code == 202
    task = ended(server)
    assert task["id"] == started.json()["task"]["id"]
    assert (task["state"], task["fraction"]) == ("done", 1.0)
    assert ended(server)["running_seconds"] == task["running_seconds"]
    shard = broken.shards(installed)[0]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 100)
    post(server, "/api/models/small-glm/verify")
    task = ended(server)
    assert task["state"] == "done"
    assert "errors" in task["message"]
    assert not task["message"].startswith("0 errors")
    assert any(item["level"] == "error" for item in task["findings"])


def test_verifying_can_be_cancelled_and_runs_once(
    installed: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = threading.Event()

    def slow(folder: Path, *, progress: Callable[[int, int], None]) -> Report:
        done = 0
        while True:
            running.set()
            progress(done, 1_000_000)
            done += 1
            time.sleep(0.005)

    monkeypatch.setattr(verify, "verify", slow)
    task = post(server, "/api/models/small-glm/verify").json()["task"]["id"]
    assert running.wait(TIMEOUT)
    assert post(server, "/api/models/small-glm/verify").status_code == 409
    assert server.request("DELETE", f"/api/tasks/{task}").status_code == 204
    assert ended(server)["state"] == "cancelled"
    assert server.request("DELETE", "/api/tasks/nobody").status_code == 204
    post(server, "/api/models/small-glm/verify")
    server.services.loader.tasks.close()
    assert ended(server)["state"] == "cancelled"


def test_models_need_the_key(installed: Path, start: Start) -> None:
    server = start(api_key="secret")
    assert server.get("/api/models").status_code == 401
    assert post(server, "/api/models/small-glm/delete").status_code == 401
