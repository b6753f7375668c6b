"""The dashboard's files under `/app/`, and `/` that leads there.

For: browsers. The page is one document whose own router reads the path, so a path that is no file
is that document. Not for: data of any kind; whatever is served here is public.

    /app/assets/*   names carry a hash of the content: kept for ever by the browser
    all others      asked for again each time, answered 304 while they are the same
    nothing built   a page that says how to build it; the API works without

Types are our own table: the system's (on Windows the registry) may call a script text. Thread rule:
any thread; files are read when asked for, so a new build is served at once.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from flask import Blueprint, Response, current_app, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from colibri import __version__, paths
from colibri.api.guard import Guard
from colibri.errors import NotFoundError

# Scripts come from files only; other servers may be talked to, because the page is a client of any.
# KaTeX writes style attributes. Images of other places would tell them what is being read.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "connect-src 'self' http: https: ws: wss:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_TEXT: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}
_BINARY: Final = {
    ".woff2": "font/woff2",
    ".woff": "font/woff",
    ".ttf": "font/ttf",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
}
_ASSETS: Final = "assets"
_FOREVER: Final = "public, max-age=31536000, immutable"
# Below this the header of a compressed answer costs more than it saves.
_LEAST_COMPRESSED: Final = 1024

_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Colibri: the dashboard is not built</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:38rem;margin:4rem auto;padding:0 1rem;
color:#1d2b2a;background:#f6faf8}code{background:#e3eeea;padding:.1em .35em;border-radius:4px}
@media(prefers-color-scheme:dark){body{color:#dfeae7;background:#101716}
code{background:#1d2b2a}a{color:#5fd3bc}}</style>
<h1>The dashboard is not built</h1>
<p>The server runs and answers its API at <code>/v1</code>; only the files of this page are missing.
<p>In a checkout, build them with <code>make web</code> (needs Node 20 or newer), then load this
page again. <code>make run</code> does it by itself.
<p>State of the server: <a href="/health">/health</a>
</html>
"""


@lru_cache(maxsize=128)
def _file(path: Path, _modified: int, _size: int, compressed: bool) -> tuple[bytes, str]:
    """Content and tag of one version of a file; the build's few megabytes stay in memory."""
    data = path.read_bytes()
    tag = hashlib.blake2b(data, digest_size=12).hexdigest()
    return (gzip.compress(data, 6, mtime=0), f"{tag}-gz") if compressed else (data, tag)


def _inside(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, None if there is none; no name leads out of it."""
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, ValueError):
        return None


def _answer(path: Path, cache: str) -> Response:
    suffix = path.suffix.lower()
    kind = _TEXT.get(suffix) or _BINARY.get(suffix, "application/octet-stream")
    stat = path.stat()
    compressible = suffix in _TEXT and stat.st_size >= _LEAST_COMPRESSED
    compressed = compressible and "gzip" in request.headers.get("Accept-Encoding", "")
    data, tag = _file(path, stat.st_mtime_ns, stat.st_size, compressed)
    response = Response(data, content_type=kind)
    response.headers["Cache-Control"] = cache
    if compressible:
        response.headers["Vary"] = "Accept-Encoding"
    if compressed:
        response.headers["Content-Encoding"] = "gzip"
    response.set_etag(tag)
    response.make_conditional(request)
    return response


def _harden(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


def blueprint() -> Blueprint:
    """The routes over `paths.web_dir`."""
    routes = Blueprint("pages", __name__)

    @routes.get("/")
    def root() -> AnyResponse:
        if request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html":
            return redirect("/app/", 302)
        guard: Guard = current_app.extensions["colibri_guard"]
        data = {"name": "colibri", "api": "/v1", "health": "/health", "app": "/app/"}
        if guard.authorised(request):
            data["version"] = __version__
        return Response(msgspec.json.encode(data), content_type="application/json")

    @routes.get("/app", strict_slashes=True)
    def without_slash() -> AnyResponse:
        return redirect("/app/", 302)

    @routes.get("/app/", defaults={"name": ""}, strict_slashes=True)
    @routes.get("/app/<path:name>", strict_slashes=True)
    def page(name: str) -> Response:
        folder = paths.web_dir()
        is_asset = name.startswith(f"{_ASSETS}/")
        if folder is None and not is_asset:
            missing = Response(_NOT_BUILT, 503, content_type="text/html; charset=utf-8")
            missing.headers["Cache-Control"] = "no-store"
            return _harden(missing)
        path = _inside(folder, name) if folder and name else None
        if path is None and is_asset:
            raise NotFoundError(
                f"The dashboard has no file {name[:100]!r}; load the page again.",
                code="not_found",
            )
        if path is None and folder:
            path = folder / "index.html"
        assert path is not None  # noqa: S101 - folder is there
        return _harden(_answer(path, _FOREVER if is_asset else "no-cache"))

    return routes
