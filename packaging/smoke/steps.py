"""The steps of a smoke test, in the order in which a person meets them.

For: `smoke.__main__`. Each raises SmokeError; figures that were measured are printed.
"""

from __future__ import annotations

import json
import re
import time
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin

from smoke.program import Program, Server, SmokeError, get, stream

OK = HTTPStatus.OK
_REFERENCE = re.compile(r"""(?:src|href)="(/app/[^"]+)\"""")
_QUESTION = "What is a hummingbird?"


def say(text: str) -> None:
    print(f"smoke: {text}", flush=True)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise SmokeError(what)


def version(program: Program) -> None:
    """Both commands know their version and agree."""
    words = {name: program.run(name, "--version").strip() for name in ("coli", "sidecar")}
    for name, text in words.items():
        require(text.startswith(f"{name}, version "), f"{name} --version prints {text!r}")
    numbers = {text.rsplit(" ", 1)[-1] for text in words.values()}
    require(len(numbers) == 1, f"the commands have versions {sorted(numbers)}")
    say(words["coli"])


def doctor(program: Program) -> None:
    """The check-up finds no error; it also imports most of the program."""
    arguments = [program.model] if program.model else []
    report = json.loads(program.run("coli", "doctor", *arguments, "--json"))
    errors = [item for item in report["findings"] if item["level"] == "error"]
    require(not errors, f"coli doctor finds {errors}")
    facts = report["facts"]["cpu"]
    say(f"doctor: {report['worst']}, kernels for {facts['isa']}")


def dashboard(server: Server) -> None:
    """The page and every file that it names, and every file that the first script names."""
    status, headers, body = get(f"{server.url}/app/")
    kind = headers.get("Content-Type", "")
    require(status == OK and "text/html" in kind, f"/app/ was answered {status} {kind}")
    names = _REFERENCE.findall(body.decode("utf-8"))
    for suffix in (".js", ".css"):
        require(any(name.endswith(suffix) for name in names), f"/app/ names no {suffix}: {names}")
    for name in names:
        status, headers, content = get(urljoin(server.url, name))
        kind = headers.get("Content-Type", "")
        good = status == OK and content and "text/html" not in kind
        require(bool(good), f"{name} was answered {status} {kind}, {len(content)} bytes")
    status, headers, content = get(f"{server.url}/app/third-party.txt")
    listed = b"Licen" in content and "text/plain" in headers.get("Content-Type", "")
    require(listed, "the page of third-party licences is missing")
    say(f"dashboard: {len(names)} files, licences of others {len(content)} bytes")


def chat(server: Server) -> None:
    """One streamed answer of the model."""
    status, _, body = get(f"{server.url}/v1/models")
    require(status == OK, f"/v1/models was answered {status}")
    model = json.loads(body)["data"][0]["id"]
    began = time.monotonic()
    first, text, reason = 0.0, "", ""
    request = {
        "model": model,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": 32,
        "temperature": 0,
    }
    for event in stream(f"{server.url}/v1/chat/completions", request):
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
            if piece and not first:
                first = time.monotonic() - began
            text += piece
            reason = choice.get("finish_reason") or reason
    require(bool(text.strip()), "the answer is empty")
    require(reason in ("stop", "length"), f"the answer ended with {reason!r}")
    say(f"{model}: first token after {first:.2f} s: {text.strip()[:80]!r}")


def stop(program: Program, server: Server) -> None:
    """A clean end: code 0, nobody left."""
    code, seconds = server.stop()
    require(code == 0, f"the server ended with {code}: {server.words()}")
    deadline = time.monotonic() + 5
    while left := program.left_running():
        require(time.monotonic() < deadline, f"processes were left running: {left}")
        time.sleep(0.05)
    say(f"stopped in {seconds:.2f} s, no process left")


def untouched(program: Program, before: dict[str, int]) -> None:
    """The program wrote nothing beside itself."""
    after = listing(program)
    changed = sorted(before.items() ^ after.items())
    require(not changed, f"changed in the program's folder: {changed}")


def listing(program: Program) -> dict[str, int]:
    """Files of the program's folder with their sizes."""
    folder = Path(program.folder)
    if program.root:
        folder = program.root / folder.relative_to("/")
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.lstat().st_size for path in files}


def all_of(program: Program, log: Path) -> None:
    """The whole test of one program."""
    before = listing(program)
    version(program)
    doctor(program)
    # Once to bring the files into memory, as any second start has them; then the one that is timed.
    with program.serve(log) as server:
        _started("first", server)
        stop(program, server)
    with program.serve(log) as server:
        _started("second", server)
        dashboard(server)
        chat(server)
        stop(program, server)
    untouched(program, before)


def _started(which: str, server: Server) -> None:
    http, ready = server.http_seconds, server.ready_seconds
    say(f"{which} start: HTTP after {http:.2f} s, model after {ready:.2f} s")
