"""The routes of chats: shapes, statuses, refusals; and that a broken store breaks nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from colibri import paths
from tests.support.fakeserver import FakeServer

Start = Callable[..., FakeServer]


def call(server: FakeServer, method: str, path: str, body: Any = None) -> Any:
    return server.request(method, path, **({} if body is None else {"json": body}))


def say(text: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "user", "parent": parent, "parts": [{"type": "text", "text": text}], **more}


def test_a_chat_lives_over_http(server: FakeServer) -> None:
    made = call(server, "POST", "/api/chats", {"id": "c-1", "title": "First"})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert made.json()["messages"] == []
    assert call(server, "POST", "/api/chats", {"id": "c-1"}).status_code == 409
    place = "/api/chats/c-1/messages"
    assert call(server, "PUT", f"{place}/q", say("Hello there")).status_code == 201
    assert call(server, "PUT", f"{place}/q", say("Hello you")).status_code == 200
    answer = say("Hi", "q", role="assistant", meta={"tokens": 2}, active=True)
    kept = call(server, "PUT", f"{place}/a", answer).json()
    assert (kept["parent"], kept["meta"], kept["role"]) == ("q", {"tokens": 2}, "assistant")
    tree = server.get("/api/chats/c-1").json()
    assert tree["active"] == "a"
    assert [m["id"] for m in tree["messages"]] == ["q", "a"]
    listed = server.get("/api/chats").json()
    assert (listed["total"], listed["next"]) == (1, None)
    assert listed["chats"][0]["messages"] == 2
    changed = call(server, "PATCH", "/api/chats/c-1", {"title": "Second", "pinned": True})
    assert (changed.json()["title"], changed.json()["pinned"]) == ("Second", True)
    stale = call(server, "PATCH", "/api/chats/c-1", {"title": "Third", "revision": 1})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "conflict")
    hits = server.get("/api/chats/search", params={"q": "hello"}).json()["hits"]
    assert [(hit["chat"], hit["message"]) for hit in hits] == [
        ({"id": "c-1", "title": "Second"}, "q")
    ]
    assert hits[0]["pieces"][0] == {"text": "Hello", "hit": True}
    gone = call(server, "DELETE", f"{place}/q").json()
    assert gone == {"deleted": ["q", "a"]}
    assert call(server, "DELETE", "/api/chats/c-1").status_code == 204
    assert server.get("/api/chats/c-1").status_code == 404


def test_a_chat_without_an_id_gets_one(server: FakeServer) -> None:
    made = call(server, "POST", "/api/chats", {}).json()
    assert server.get(f"/api/chats/{made['id']}").status_code == 200


def test_chats_go_out_as_files_and_come_in_again(server: FakeServer) -> None:
    call(server, "POST", "/api/chats", {"id": "c", "title": 'My "first"/chat'})
    call(server, "PUT", "/api/chats/c/messages/q", say("Hello"))
    file = server.get("/api/chats/c/export")
    assert file.headers["content-disposition"] == 'attachment; filename="My-first-chat.json"'
    came = call(server, "POST", "/api/chats/import", file.json())
    assert came.status_code == 201
    assert came.json()["renamed"] == {"c": "c-2"}
    assert came.json()["chats"][0]["messages"] == 1
    text = server.get("/api/chats/c/export", params={"format": "markdown"})
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    third = call(server, "POST", "/api/chats/import", {"format": "markdown", "text": text.text})
    assert third.json()["chats"][0]["title"] == 'My "first"/chat'
    everything = server.get("/api/chats/export").json()
    assert len(everything["chats"]) == 3
    assert server.get("/api/chats/c/export", params={"format": "pdf"}).status_code == 400


def test_presets_live_over_http(server: FakeServer) -> None:
    body = {"name": "Short", "settings": {"max_tokens": 50}}
    assert call(server, "PUT", "/api/presets/p", body).json()["name"] == "Short"
    assert server.get("/api/presets").json()["presets"][0]["settings"] == {"max_tokens": 50}
    assert call(server, "DELETE", "/api/presets/p").status_code == 204
    assert server.get("/api/presets").json() == {"presets": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/chats?limit=0", None, 400),
        ("GET", "/api/chats?limit=x", None, 400),
        ("GET", "/api/chats?limit=-1", None, 400),
        ("GET", "/api/chats?limit=99999999999999999999", None, 200),
        ("GET", "/api/chats?before=junk", None, 400),
        ("GET", "/api/chats/search", None, 200),
        ("GET", "/api/chats/nobody/export", None, 404),
        ("POST", "/api/chats", [], 400),
        ("POST", "/api/chats", {"id": 3}, 400),
        ("POST", "/api/chats", {"id": "a b"}, 400),
        ("POST", "/api/chats", {"settings": "x"}, 400),
        ("PATCH", "/api/chats/nobody", {"title": "x"}, 404),
        ("PUT", "/api/chats/nobody/messages/m", say("x"), 404),
        ("PUT", "/api/chats/nobody/messages/m", {"role": "robot", "parts": []}, 400),
        ("PUT", "/api/chats/nobody/messages/m", {"role": "user"}, 400),
        ("PUT", "/api/chats/nobody/messages/m", {"role": "user", "parts": [1]}, 400),
        ("DELETE", "/api/chats/nobody/messages/m", None, 404),
        ("DELETE", "/api/chats/nobody", None, 204),
        ("POST", "/api/chats/import", {"format": "zip"}, 400),
        ("POST", "/api/chats/import", {}, 400),
        ("PUT", "/api/presets/a b", {"name": "x"}, 400),
        ("POST", "/api/presets", {}, 405),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    server: FakeServer, method: str, path: str, body: Any, status: int
) -> None:
    answer = call(server, method, path, body)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_message_named_in_a_body_is_the_bodys_fault_and_only_the_address_is_a_404(
    server: FakeServer,
) -> None:
    call(server, "POST", "/api/chats", {"id": "c"})
    for method, path, body, field in (
        ("PATCH", "/api/chats/c", {"active": "nobody"}, "active"),
        ("PUT", "/api/chats/c/messages/m", say("x", parent="nobody"), "parent"),
    ):
        answer = call(server, method, path, body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        gone = call(server, method, path.replace("chats/c", "chats/gone"), body)
        assert gone.status_code == 404
        assert gone.json()["error"]["param"] == "chat"


def test_a_message_too_large_is_a_413_and_names_its_field(server: FakeServer) -> None:
    call(server, "POST", "/api/chats", {"id": "c"})
    answer = call(server, "PUT", "/api/chats/c/messages/m", say("x" * (9 << 20)))
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "parts"


def test_chats_need_the_key_like_everything_else(start: Start) -> None:
    server = start(api_key="secret")
    for path in ("/api/chats", "/api/presets", "/api/chats/export"):
        assert server.get(path).status_code == 401


def test_a_store_that_cannot_be_used_says_so_and_chat_goes_on(server: FakeServer) -> None:
    folder = paths.data_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    answer = call(server, "POST", "/api/chats", {})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "chats_unavailable"
    assert "chats.db" in answer.json()["error"]["message"]
    assert server.chat().status_code == 200
    folder.unlink()
    assert call(server, "POST", "/api/chats", {}).status_code == 201
