"""Prints the description of the API, from which `make web-types` makes the dashboard's types."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from colibri.api.app import create_app
from colibri.api.openapi import description
from tests.support.fakeserver import FakeServer


def answered(document: dict[str, Any]) -> dict[str, Any]:
    """Without the errors of every route: they have one shape, which `Error` is."""
    for operations in document["paths"].values():
        for operation in operations.values():
            kept = {
                status: {"description": answer["description"], "content": answer.get("content", {})}
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            }
            operation["responses"] = kept
    return document


def main() -> None:
    """No engine runs and nothing listens for long: the app alone knows its routes."""
    with tempfile.TemporaryDirectory() as folder:
        server = FakeServer(folder=Path(folder))
        try:
            document = description(create_app(server.services), secured=False)
            print(json.dumps(answered(document)))
        finally:
            server.http.stop()
            server.services.close()


if __name__ == "__main__":
    main()
