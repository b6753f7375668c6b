"""What the page about the server is given: who may reach it, and requests while they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from colibri.engine.fake import Script
from tests.support.fakeserver import TIMEOUT, FakeServer

Start = Callable[..., FakeServer]


def test_access_is_told_as_configured_and_the_key_never(start: Start) -> None:
    key = "very-secret-key"
    server = start(api_key=key, allowed_hosts=("box.example",), cors_origins=("https://a.example",))
    assert server.get("/api/server").status_code == 401
    answer = server.get("/api/server", headers={"Authorization": f"Bearer {key}"})
    told = answer.json()
    assert (told["key_set"], told["this_machine_only"]) == (True, True)
    assert (told["allowed_hosts"], told["cors_origins"]) == (["box.example"], ["https://a.example"])
    assert key not in answer.text


def test_an_address_beyond_this_machine_is_told(start: Start) -> None:
    open_to_all = start(host="::", insecure_bind=True).get("/api/server").json()
    assert (open_to_all["this_machine_only"], open_to_all["key_set"]) == (False, False)
    assert start(host="localhost").get("/api/server").json()["this_machine_only"] is True


def test_a_request_is_seen_while_it_runs_and_when_it_has_ended(server: FakeServer) -> None:
    server.backend.enqueue(Script(pieces=("word ",) * 30, token_ms=40))

    def seen() -> dict[str, Any]:
        found: list[dict[str, Any]] = server.get("/api/requests").json()["requests"]
        return found[0] if found else {}

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.chat, "hi")
        deadline = time.monotonic() + TIMEOUT
        while not seen().get("completion_tokens"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running = seen()
        assert (running["outcome"], running["phase"]) == ("running", "decode")
        assert running["prompt_tokens"] > 0
        assert running["total_ms"] is None
        assert answer.result().status_code == 200
    ended = seen()
    assert (ended["outcome"], ended["phase"], ended["completion_tokens"]) == ("stop", None, 30)
    assert ended["total_ms"] > 0
