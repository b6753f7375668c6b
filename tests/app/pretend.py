"""A sidecar that pretends: as a program it greets and answers `/api/session` like the real one.

`python pretend.py KIND`: `good` serves until its stdin ends; `stubborn` ignores that and SIGTERM;
`crash` greets and dies; `usage` ends with code 2 and words on stderr; `liar` greets with an
instance that nobody has; `there` tells of the server at the port in PRETEND_PORT and leaves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INSTANCE = f"instance-{os.getpid()}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"instance": INSTANCE, "version": "0"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


def serve() -> int:
    """Starts the server; returns its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def main() -> None:
    kind = sys.argv[1]
    wishes = sys.stdin.readline()
    print(f"wishes {wishes.strip()}", file=sys.stderr, flush=True)
    if kind == "usage":
        print("Error: --prot: no such option", file=sys.stderr, flush=True)
        sys.exit(2)
    port = int(os.environ["PRETEND_PORT"]) if kind == "there" else serve()
    instance = {"liar": "nobody", "there": os.environ.get("PRETEND_INSTANCE", "")}
    greeting = {
        "colibri_handshake": 1,
        "url": f"http://127.0.0.1:{port}",
        "port": port,
        "pid": os.getpid(),
        "token": None if kind == "there" else "t",
        "version": "0",
        "instance": instance.get(kind, INSTANCE),
        "wanted_port": None,
    }
    print("noise before it", flush=True)
    print(json.dumps(greeting), flush=True)
    if kind == "there":
        return
    if kind == "crash":
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Event().wait()
    sys.stdin.read()


if __name__ == "__main__":
    main()
