"""Drives the real clients against the real server and prints what each step saw, as a table.

    python -m tests.clients.run [--captures FOLDER] [--only CLIENT[/STEP]]

For: `make test-clients`, by hand, after changes to the APIs. Needs SmolLM2 and, the first
time, the package registries. With recordings (FOLDER/CLIENT/NUMBER.json) each of them is sent as it
is, and the answer's status and shape are checked. Exit code 1 if any step failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.clients import agents, answers, bodies, environments, sdks
from tests.clients.bodies import Recorded
from tests.clients.stage import CLIENT_SECONDS, MODEL, Stage, StepError
from tests.conftest import SMOLLM2_FOLDER
from tests.support.fakeserver import served_model
from tests.support.serveprocess import serve

Step = Callable[[Stage], str]
_SHOWN = 110


def replay(folder: Path) -> Iterator[tuple[str, Step]]:
    """A step for each client that was recorded: all its requests in order, over the scripted
    engine.
    """
    clients: dict[str, list[Recorded]] = {}
    for name, raw in bodies.recordings(folder):
        headers = {key.lower(): value for key, value in raw["headers"]}
        kept = ("anthropic-version", "anthropic-beta", "user-agent", "sec-fetch-mode")
        recorded = Recorded(
            name=name,
            method=raw["method"],
            path=raw["path"],
            query=raw.get("query") or "",
            headers={key: headers[key] for key in kept if key in headers},
            body=raw.get("body"),
        )
        clients.setdefault(name.split("/", maxsplit=1)[0], []).append(recorded)

    def step(requests: list[Recorded]) -> Step:
        def run(stage: Stage) -> str:
            statuses: dict[int, int] = {}
            model = next((r.body["model"] for r in requests if r.body), "stub-model")
            with stage.scripted(model=served_model(id=model)) as server:
                for recorded in requests:
                    status = _send(server.url, recorded)
                    statuses[status] = statuses.get(status, 0) + 1
            return ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))

        return run

    for client, requests in clients.items():
        yield f"replay {client}", step(requests)


def _send(url: str, recorded: Recorded) -> int:
    response = httpx.request(
        recorded.method,
        url + recorded.target,
        headers={**recorded.headers, "authorization": "Bearer local"},
        json=recorded.body,
        timeout=CLIENT_SECONDS,
    )
    kind = response.headers["content-type"]
    try:
        answers.read(recorded, response.status_code, kind, response.content)
    except (AssertionError, ValueError) as error:
        raise StepError(f"{recorded.name}: {error}") from None
    return response.status_code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path, help="also write the results here")
    chosen = parser.parse_args()
    clients: dict[str, list[tuple[str, Step]]] = {**sdks.clients(), **agents.clients()}
    if chosen.captures:
        clients["captures"] = list(replay(chosen.captures))
    wanted, _, only_step = chosen.only.partition("/")
    clients = {name: steps for name, steps in clients.items() if wanted in ("", name)}
    if not clients:
        sys.exit(f"clients: there is no client {wanted!r}")
    for name in clients:
        if name in environments.NAMES:
            environments.install(name)
    environments.install("node")
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="colibri-clients-") as folder,
        serve(SMOLLM2_FOLDER, "--ctx", "32768", "--model-id", MODEL) as real,
    ):
        stage = Stage(real, Path(folder))
        for client, steps in clients.items():
            for name, step in steps:
                if only_step in ("", name):
                    results.append(_result(client, name, step, stage))
    failed = sum(not result["ok"] for result in results)
    print(f"\n{len(results) - failed} ok, {failed} failed")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


def _result(client: str, name: str, step: Step, stage: Stage) -> dict[str, Any]:
    """One line of the table, printed as soon as it is known."""
    begin = time.monotonic()
    try:
        seen, fine = step(stage), True
    except (StepError, AssertionError, OSError, ValueError, KeyError, TypeError) as error:
        seen, fine = f"{type(error).__name__}: {error}", False
    seconds = time.monotonic() - begin
    line = " ".join(seen.split())
    print(
        f"{client:13} {name:24} {'ok' if fine else 'FAILED':6} {seconds:6.1f} s  "
        f"{line[:_SHOWN] if fine else line}",
        flush=True,
    )
    return {"client": client, "step": name, "ok": fine, "seconds": seconds, "seen": seen}


if __name__ == "__main__":
    sys.exit(main())
