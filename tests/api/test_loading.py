"""Another model takes the place of the loaded one while the server runs: nobody's request is lost,
and none is answered by a model that its prompt was not made for.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from colibri import paths
from colibri.engine.client import EngineClient
from colibri.engine.fake import FakeBackend, Options, Script
from colibri.engine.protocol import Loading
from colibri.engine.thread import ThreadEngine
from colibri.errors import ModelError, WorkerUnavailableError
from colibri.models import forecast
from colibri.settings import Settings
from tests.support import draftmodel
from tests.support.fakeserver import MODEL_ID, TIMEOUT, FakeServer, chat_body

NEW = "small-glm"
SLOW = Script(pieces=("word ",) * 60, token_ms=50)


class Opener:
    """Opens scripted engines in place of real ones, and remembers with what."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, Settings]] = []
        self.engines: list[ThreadEngine] = []
        self.broken: dict[str, Exception] = {}
        self.gate: threading.Event | None = None

    def __call__(self, chosen: Settings, folder: Path) -> EngineClient:
        self.opened.append((folder.name, chosen))
        broken, gate = self.broken.get(folder.name), self.gate

        def backend() -> FakeBackend:
            if gate is not None:
                gate.wait(TIMEOUT)
            if broken is not None:
                raise broken
            return FakeBackend(Options(context=2048, dialect="glm"))

        engine = ThreadEngine(backend, slots=chosen.kv_slots, parallel=chosen.parallel)
        self.engines.append(engine)
        return engine


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("models") / NEW)


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def served(made: Path, opener: Opener, start: Callable[..., FakeServer]) -> FakeServer:
    """A server whose scripted model lies in the folder `old`, with another one beside it."""
    for name in ("old", NEW):
        shutil.copytree(made, paths.models_dir() / name)
    return start(folder=paths.models_dir() / "old", open_engine=opener, queue_timeout=20)


def post(server: FakeServer, path: str, **body: Any) -> Any:
    return server.request("POST", path, json=body)


def load(server: FakeServer, name: str = NEW, **body: Any) -> Any:
    answer = post(server, f"/api/models/{name}/load", **body)
    assert answer.status_code == 202, answer.text
    return answer.json()["task"]


def task_of(server: FakeServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/api/tasks").json()["tasks"][0]
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def ended(server: FakeServer) -> dict[str, Any]:
    until(lambda: task_of(server)["state"] != "running")
    return task_of(server)


def loaded(server: FakeServer) -> list[str]:
    return [m["name"] for m in server.get("/api/models").json()["models"] if m["loaded"]]


def listed(server: FakeServer) -> list[str]:
    return [model["id"] for model in server.get("/v1/models").json()["data"]]


def running(server: FakeServer) -> str:
    """Waits for a running request; its id."""
    until(lambda: bool(server.scheduler.activities()))
    return server.scheduler.activities()[0].id


def test_another_model_takes_the_place_of_the_loaded_one(
    served: FakeServer, opener: Opener
) -> None:
    assert (loaded(served), listed(served)) == (["old"], [MODEL_ID])
    load(served, ctx=512, kv_slots=3)
    task = ended(served)
    assert (task["state"], task["kind"], task["name"]) == ("done", "load", NEW), task
    assert loaded(served) == [NEW]
    (name,) = listed(served)
    assert name != MODEL_ID
    health = served.get("/health").json()
    assert (health["model"]["id"], health["status"]) == (name, "ok")
    assert health["scheduler"]["kv_slots"] == 3
    assert served.get("/api/state").json()["model"]["id"] == name
    assert served.chat("hi", cache_slot=2).json()["model"] == name
    assert served.chat("hi", cache_slot=3).status_code == 400
    assert opener.opened[0][1].ctx == 512
    assert served.engine.status().state == "stopped"
    assert served.get("/api/requests").json()["requests"][0]["model"] == name
    assert f'model="{name}"' in served.get("/metrics").text


def test_while_answers_are_given_nothing_is_loaded_unasked(served: FakeServer) -> None:
    served.backend.enqueue(SLOW)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(served.chat, "first")
        job = running(served)
        refused = post(served, f"/api/models/{NEW}/load")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_busy")
        assert job in refused.json()["error"]["message"]
        assert post(served, "/api/models/unload").status_code == 409
        # Nothing was held up by the refusal.
        assert slow.result().json()["choices"][0]["message"]["content"].startswith("word")
    assert listed(served) == [MODEL_ID]
    assert served.chat().status_code == 200


def test_idle_lets_answers_end_and_later_requests_meet_the_new_model(served: FakeServer) -> None:
    served.backend.enqueue(SLOW)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(served.chat, "first")
        running(served)
        load(served, when="idle")
        later = pool.submit(served.chat, "later")
        served.wait_for(queued=1)
        again = post(served, f"/api/models/{NEW}/load")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "task_running")
        assert first.result().json()["model"] == MODEL_ID
        assert first.result().json()["choices"][0]["finish_reason"] == "stop"
        assert later.result().status_code == 200
        assert later.result().json()["model"] != MODEL_ID
    assert ended(served)["state"] == "done"


def test_now_ends_what_runs_and_what_waits_with_a_clear_error(served: FakeServer) -> None:
    served.backend.enqueue(SLOW)
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(served.chat, "first", stream=True)
        running(served)
        waiting = pool.submit(served.chat, "second")
        served.wait_for(queued=1)
        load(served, when="now")
        assert "model_changed" in stream.result().text
        assert waiting.result().status_code == 503
        assert waiting.result().json()["error"]["code"] == "model_changed"
    assert ended(served)["state"] == "done"
    counters = served.scheduler.counters()
    assert (counters.active, counters.queued, counters.failed) == (0, 0, 2)
    assert served.chat().status_code == 200


def test_a_model_that_cannot_be_opened_leaves_the_old_one(
    served: FakeServer, opener: Opener
) -> None:
    opener.broken[NEW] = ModelError("shard 3 is cut short.", where="out-3")
    load(served)
    task = ended(served)
    assert task["state"] == "failed"
    assert "shard 3 is cut short" in task["message"]
    assert "old is loaded again" in task["message"]
    assert [name for name, _ in opener.opened] == [NEW, "old"]
    assert (loaded(served), listed(served)) == (["old"], [MODEL_ID])
    assert served.chat().json()["model"] == MODEL_ID


def test_when_the_old_one_does_not_come_back_either_that_is_said(
    served: FakeServer, opener: Opener
) -> None:
    opener.broken = {NEW: ModelError("no good."), "old": ModelError("gone.")}
    load(served)
    assert ended(served)["state"] == "failed"
    assert (loaded(served), listed(served)) == ([], [])
    error = served.chat().json()["error"]
    assert error["code"] == "no_model_loaded"
    assert "no good" in error["message"]
    assert "gone" in error["message"]
    opener.broken = {}
    load(served)
    assert ended(served)["state"] == "done"
    assert served.chat().status_code == 200


def test_without_a_model_everything_says_so_and_nothing_breaks(served: FakeServer) -> None:
    assert post(served, "/api/models/unload").status_code == 202
    assert ended(served)["state"] == "done"
    assert (loaded(served), listed(served)) == ([], [])
    chat = served.chat()
    assert (chat.status_code, chat.json()["error"]["code"]) == (503, "no_model_loaded")
    assert "/api/models/NAME/load" in chat.json()["error"]["message"]
    assert "retry-after" in chat.headers
    message = served.post("/v1/messages", {**chat_body(), "max_tokens": 5})
    assert message.status_code == 503
    assert message.json()["type"] == "error"
    assert "No model is loaded" in message.json()["error"]["message"]
    for path in ("/v1/completions", "/v1/messages/count_tokens"):
        assert served.post(path, {**chat_body(), "prompt": "x"}).status_code == 503
    assert served.get(f"/v1/models/{MODEL_ID}").status_code == 404
    assert served.get("/health").status_code == 503
    assert served.get("/health").json()["status"] == "unloaded"
    state = served.get("/api/state").json()
    assert (state["model"], state["engine"]["state"]) == (None, "unloaded")
    assert state["bottleneck"]["code"] == "unloaded"
    for path in ("/metrics", "/profile", "/api/models", "/api/requests", f"/api/models/{NEW}/fit"):
        assert served.get(path).status_code == 200, path
    assert served.get("/experts").status_code == 503
    assert post(served, "/api/models/unload").status_code == 409
    load(served)
    assert ended(served)["state"] == "done"
    assert served.chat().status_code == 200


def test_waiting_for_answers_can_be_cancelled(served: FakeServer) -> None:
    served.backend.enqueue(SLOW)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(served.chat, "first")
        running(served)
        task = load(served, when="idle")
        assert served.request("DELETE", f"/api/tasks/{task['id']}").status_code == 204
        assert ended(served)["state"] == "cancelled"
        assert first.result().status_code == 200
    assert served.chat().json()["model"] == MODEL_ID


def test_a_load_that_is_cancelled_brings_the_old_one_back(
    served: FakeServer, opener: Opener
) -> None:
    opener.gate = threading.Event()
    task = load(served)
    until(lambda: task_of(served)["phase"] == "opening")
    assert served.get("/health").json()["status"] == "loading"
    assert loaded(served) == []
    served.request("DELETE", f"/api/tasks/{task['id']}")
    opener.gate.set()
    until(lambda: task_of(served)["state"] != "running")
    # Whoever is quicker: it was ended, or it had just become ready.
    assert listed(served) == [MODEL_ID] or task_of(served)["state"] == "done"
    assert served.chat().status_code == 200


def test_a_load_tells_what_is_read_and_nothing_that_is_not_known(
    served: FakeServer, opener: Opener
) -> None:
    opener.gate = threading.Event()
    load(served)
    until(lambda: task_of(served)["phase"] == "opening")
    assert task_of(served)["fraction"] == 0
    assert served.get("/api/state").json()["engine"]["loading"] is None
    engine = opener.engines[-1]
    engine._dispatch(Loading(bytes_read=25, bytes_total=200))
    until(lambda: task_of(served)["fraction"] == 0.125)
    for told in (
        served.get("/api/state").json()["engine"]["loading"],
        served.get("/health").json()["engine"]["loading"],
    ):
        assert told == {"bytes_read": 25, "bytes_total": 200}
    engine._dispatch(Loading(bytes_read=200, bytes_total=200))
    until(lambda: task_of(served)["phase"] == "preparing")
    assert task_of(served)["fraction"] == 0
    opener.gate.set()
    assert ended(served)["state"] == "done"
    assert served.get("/api/state").json()["engine"]["loading"] is None


def test_requests_wait_for_a_load_no_longer_than_the_queue_allows(
    made: Path, opener: Opener, start: Callable[..., FakeServer]
) -> None:
    for name in ("old", NEW):
        shutil.copytree(made, paths.models_dir() / name)
    server = start(folder=paths.models_dir() / "old", open_engine=opener, queue_timeout=0.3)
    opener.gate = threading.Event()
    load(server)
    answer = server.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_timeout")
    opener.gate.set()
    assert ended(server)["state"] == "done"
    assert server.chat().status_code == 200


def test_what_does_not_fit_is_loaded_only_by_force(
    served: FakeServer, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "allowance", lambda _chosen, _held: 1 << 20)
    refused = post(served, f"/api/models/{NEW}/load")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "does_not_fit")
    assert "GB are needed" in refused.json()["error"]["message"]
    assert listed(served) == [MODEL_ID]
    load(served, force=True)
    assert ended(served)["state"] == "done"
    forced = opener.opened[0][1]
    assert (forced.force, forced.ram) == (True, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ctx": 5}, "ctx"),
        ({"ctx": 10**15}, "ctx"),
        ({"ctx": "x"}, "ctx"),
        ({"kv_slots": 0}, "kv_slots"),
        ({"kv_slots": 99}, "kv_slots"),
        ({"when": "soon"}, "when"),
        ({"force": 1}, "force"),
    ],
)
def test_wrong_wishes_are_refused_by_name(
    served: FakeServer, body: dict[str, Any], param: str
) -> None:
    answer = post(served, f"/api/models/{NEW}/load", **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert served.chat().status_code == 200


def test_what_cannot_be_loaded_is_a_clean_refusal(served: FakeServer) -> None:
    damaged = paths.models_dir() / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    assert post(served, "/api/models/damaged/load").status_code == 409
    assert post(served, "/api/models/nobody/load").status_code == 404
    shard = paths.models_dir() / NEW / "tokenizer.json"
    shard.write_text("{")
    load(served)
    task = ended(served)
    # Its text is read before anything happens to the model that is loaded.
    assert (task["state"], "tokenizer.json" in task["message"]) == ("failed", True)
    assert served.engine.status().state == "ready"
    assert listed(served) == [MODEL_ID]


def test_only_what_is_not_loaded_can_be_deleted(served: FakeServer) -> None:
    assert post(served, "/api/models/old/delete").status_code == 409
    assert post(served, "/api/models/unload").status_code == 202
    ended(served)
    assert post(served, "/api/models/old/delete").status_code == 200


def test_a_prompt_of_the_model_before_is_never_run(served: FakeServer) -> None:
    from colibri.scheduler import GenerationRequest

    load(served)
    ended(served)
    old = GenerationRequest(id="x", prompt=[1], max_tokens=1, temperature=0, top_p=1, seed=0)
    with pytest.raises(WorkerUnavailableError) as caught:
        served.scheduler.admit(old, lambda: False)
    assert caught.value.code == "model_changed"


def test_what_was_said_of_the_first_model_does_not_follow_the_second(
    made: Path, opener: Opener, start: Callable[..., FakeServer], tmp_path: Path
) -> None:
    for name in ("old", NEW):
        shutil.copytree(made, paths.models_dir() / name)
    chosen: dict[str, Any] = {"model_id": "mine", "mirrors": ("/m",), "trace": "t", "ctx": 1024}
    server = start(
        folder=paths.models_dir() / "old", open_engine=opener, state_dir=str(tmp_path), **chosen
    )
    load(server)
    ended(server)
    load(server, "old", ctx=0)
    ended(server)
    new, old = (chosen for _, chosen in opener.opened)
    assert (new.model_id, new.mirrors, new.trace, new.ctx) == (None, (), None, 1024)
    assert new.state_dir is not None
    assert Path(new.state_dir).parent == tmp_path
    assert (old.model_id, old.mirrors, old.state_dir) == ("mine", ("/m",), str(tmp_path))
    assert old.ctx is None


def test_a_server_that_stops_does_not_bring_anything_back(
    served: FakeServer, opener: Opener
) -> None:
    opener.gate = threading.Event()
    load(served)
    until(lambda: task_of(served)["phase"] == "opening")
    stopping = threading.Thread(target=served.services.loader.tasks.close)
    stopping.start()
    until(lambda: served.services.loader.tasks.closed)
    opener.gate.set()
    stopping.join(TIMEOUT)
    assert not stopping.is_alive()
    assert [name for name, _ in opener.opened] == [NEW]
    assert all(engine.status().state in ("stopped", "ready") for engine in opener.engines)
