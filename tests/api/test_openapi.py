"""The description of the API: complete, consistent, and where clients look for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from colibri.api.app import create_app
from colibri.api.describe import operation_of
from tests.support.fakeserver import FakeServer
from tests.support.messages import messages_body

Start = Callable[..., FakeServer]
# Pages, the WebSocket, and what is for the dashboard alone; docs/dashboard.md has them.
UNDESCRIBED = re.compile(r"/(app(/.*)?|api/(live|models|tasks|atlas|server)(/.*)?)?")


@pytest.fixture
def document(server: FakeServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_it_is_served_where_clients_look_for_it(server: FakeServer) -> None:
    first = server.get("/openapi.json")
    assert first.json()["openapi"].startswith("3.1")
    for path in ("/v1/openapi.json", "/v1/v1/openapi.json"):
        assert server.get(path).content == first.content


def test_every_route_of_the_api_is_described(server: FakeServer) -> None:
    app = create_app(server.services)
    missing = [
        rule.rule
        for rule in app.url_map.iter_rules()
        if not UNDESCRIBED.fullmatch(rule.rule)
        and operation_of(app.view_functions[rule.endpoint]) is None
    ]
    assert missing == []


def test_routes_stand_at_their_main_place(document: dict[str, Any]) -> None:
    paths = set(document["paths"])
    assert {
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
    } <= paths
    assert not any(path.startswith("/v1/v1") for path in paths)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    used = set(references(document))
    assert used <= known
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in document["components"]["schemas"])


def test_every_error_has_the_shape_of_its_dialect(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        kind = "AnthropicError" if path.startswith("/v1/messages") else "Error"
        for status, answer in operation["responses"].items():
            if status >= "400" and (path, status) != ("/health", "503"):
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{kind}"}, (path, status)


def test_what_generates_says_that_it_may_be_busy_and_that_it_can_stream(
    document: dict[str, Any],
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        operation = document["paths"][path]["post"]
        assert "Retry-After" in operation["responses"]["429"]["headers"]
        assert "text/event-stream" in operation["responses"]["200"]["content"]
        assert operation["requestBody"]["required"]


def test_field_rules_are_part_of_the_description(document: dict[str, Any]) -> None:
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert (chat["temperature"]["minimum"], chat["temperature"]["maximum"]) == (0, 2)
    assert chat["n"]["enum"] == [1, None]


def test_the_key_is_described_where_there_is_one(start: Start, document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    server = start(api_key="secret")
    assert server.get("/openapi.json").status_code == 401
    secured = server.get("/openapi.json", headers={"x-api-key": "secret"}).json()
    assert set(secured["components"]["securitySchemes"]) == {"bearer", "header"}
    chat = secured["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"bearer": []}, {"header": []}]
    assert {} in secured["paths"]["/health"]["get"]["security"]


def test_no_route_forgets_the_key(start: Start) -> None:
    """R124, R125: each one that is described as closed, without a key and with a wrong one."""
    server = start(api_key="secret")
    document = server.get("/openapi.json", headers={"x-api-key": "secret"}).json()
    closed = [
        (path, method)
        for path, method, operation in operations(document)
        if {} not in operation["security"]
    ]
    assert len(closed) > 8
    with httpx.Client(base_url=server.url) as client:
        for path, method in closed:
            for headers in ({}, {"Authorization": "Bearer x"}, {"x-api-key": ""}):
                assert client.request(method, path, headers=headers).status_code == 401, path


def test_what_an_error_of_anthropics_routes_may_carry_is_described(
    server: FakeServer, document: dict[str, Any]
) -> None:
    error = server.post("/v1/messages", messages_body(thread={"type": "create"})).json()["error"]
    described = document["components"]["schemas"]["AnthropicErrorInside"]
    assert set(error) == {"type", "message", "details"} == set(described["properties"])
    assert set(described["required"]) == {"type", "message"}
