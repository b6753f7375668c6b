"""An error has the shape that the clients of its path read, whoever refuses; ids; the front door.

Covers R077, R121, R124, R125.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from colibri.api import errors
from colibri.api.body import MAX_BODY_BYTES
from colibri.api.ids import new_request_id
from colibri.errors import RequestError
from tests.support.fakeserver import FakeServer

Start = Callable[..., FakeServer]
JSON = {"Content-Type": "application/json"}
ANTHROPIC_PATHS = [
    "/v1/messages/batches",
    "/messages/batches",
    "/v1/v1/messages/batches",
    "/v1/messages/count_tokens/x",
]
OPENAI_PATHS = ["/v1/embeddings", "/v1/responses", "/v1/messagesx", "/nope", "/v1/x/messages"]


def check_anthropic(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    data: dict[str, Any] = response.json()
    assert list(data) == ["type", "error", "request_id"]
    assert data["type"] == "error"
    assert data["error"]["type"] == kind
    assert data["error"]["message"]
    assert data["request_id"] == response.headers["x-request-id"]
    return data


@pytest.mark.parametrize("path", ANTHROPIC_PATHS)
def test_an_unknown_route_of_anthropics_is_a_404_in_its_shape(
    server: FakeServer, path: str
) -> None:
    check_anthropic(server.post(f"{path}?beta=true", {}), 404, "not_found_error")


@pytest.mark.parametrize("path", OPENAI_PATHS)
def test_every_other_unknown_route_is_a_404_in_openais_shape(server: FakeServer, path: str) -> None:
    response = server.post(path, {})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ANTHROPIC_PATHS)
def test_the_guard_refuses_in_the_shape_of_the_path(start: Start, path: str) -> None:
    """R121, R125: key, Host, Origin and content type alike."""
    server = start(api_key="secret")
    response = server.post(path, {})
    check_anthropic(response, 401, "authentication_error")
    assert response.headers["www-authenticate"] == "Bearer"
    key = {"x-api-key": "secret"}
    foreign = server.post(path, {}, headers={**key, "Origin": "https://evil.example"})
    assert "--cors-origin" in check_anthropic(foreign, 403, "permission_error")["error"]["message"]
    rebound = server.post(path, {}, headers={**key, "Host": "evil.example"})
    assert "--allowed-host" in check_anthropic(rebound, 403, "permission_error")["error"]["message"]


def test_a_body_that_is_no_json_by_its_type_is_refused_in_the_shape(server: FakeServer) -> None:
    response = httpx.post(f"{server.url}/v1/messages", content=b"{}")
    check_anthropic(response, 415, "invalid_request_error")


def test_a_body_that_is_too_large_is_refused_in_the_shape(server: FakeServer) -> None:
    head = (
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {MAX_BODY_BYTES + 1}\r\nConnection: close\r\n\r\n"
    )
    answer = server.exchange(head.encode() + b"{")
    # Before the route exists it is a 404; both are Anthropic's shape.
    assert answer.split(b" ")[1] in (b"413", b"404")
    assert b'{"type":"error","error":{"type":"' in answer


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_every_status_has_its_name(status: int, kind: str) -> None:
    error = RequestError("no.")
    error.http_status = status  # type: ignore[misc]
    assert errors.anthropic_body(error)["error"]["type"] == kind


def test_details_are_for_the_dialect_that_has_a_place_for_them() -> None:
    error = RequestError("no.", details={"error_code": "x"})
    assert errors.anthropic_body(error)["error"]["details"] == {"error_code": "x"}
    assert "details" not in errors.body(error)["error"]


def test_a_sane_id_of_the_client_is_kept(server: FakeServer) -> None:
    headers = {"x-request-id": "trace-1.a:b_C"}
    for path in ("/v1/models", "/nope"):
        assert server.get(path, headers=headers).headers["x-request-id"] == "trace-1.a:b_C"


@pytest.mark.parametrize(
    "wish", ["", " ", "a b", "-x", "x" * 129, "a\tb", "\u00e9t\u00e9", "a\x1b[0m"]
)
def test_an_id_that_could_not_stand_in_a_log_is_replaced(wish: str) -> None:
    assert new_request_id(wish).startswith("req_")


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_the_front_door_answers(server: FakeServer, method: str) -> None:
    """Older Claude Code knocks with HEAD / before it sends anything."""
    response = httpx.request(method, server.url + "/", follow_redirects=True)
    assert response.status_code == 200
    assert (method == "HEAD") == (response.content == b"")


def test_other_methods_that_change_state_need_no_declared_body(server: FakeServer) -> None:
    """A page cannot send them without a preflight."""
    assert httpx.delete(f"{server.url}/v1/models").status_code == 405


def test_a_foreign_page_cannot_open_a_websocket(server: FakeServer) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "https://evil.example"}
    assert server.get("/v1/models", headers=headers).status_code == 403
    headers["Origin"] = "http://localhost:5173"
    assert server.get("/v1/models", headers=headers).status_code == 400  # there is none here


def test_a_node_client_that_says_cors_without_origin_is_served(server: FakeServer) -> None:
    headers = {"sec-fetch-mode": "cors"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert server.post("/v1/chat/completions", body, headers=headers).status_code == 200
