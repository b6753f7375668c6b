"""The dashboard's files: where they are, types, caching, the policy of what a page may load."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri import paths
from colibri.api.ui.pages import CONTENT_SECURITY_POLICY
from tests.support.fakeserver import FakeServer

Start = Callable[..., FakeServer]
INDEX = "<!doctype html><title>Colibri</title>" + "<!-- text -->" * 200
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = {
    "index.html": INDEX,
    "assets/index-3f2a.js": "console.log(1)",
    "assets/style-77aa.css": "body{}",
    "assets/font-1b.woff2": "font",
    "assets/engine.wasm": "\0asm",
    "icon.svg": "<svg/>",
    "manifest.webmanifest": "{}",
}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built dashboard, beside which lies what nobody may read."""
    folder = tmp_path / "dist"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "secret.txt").write_text("hidden words")
    (folder / "assets" / "link.js").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(paths, "web_dir", lambda: folder)
    return folder


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "web_dir", lambda: None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "text/html; charset=utf-8"),
        ("index.html", "text/html; charset=utf-8"),
        ("assets/index-3f2a.js", "text/javascript; charset=utf-8"),
        ("assets/style-77aa.css", "text/css; charset=utf-8"),
        ("assets/font-1b.woff2", "font/woff2"),
        ("assets/engine.wasm", "application/wasm"),
        ("icon.svg", "image/svg+xml"),
        ("manifest.webmanifest", "application/manifest+json"),
    ],
)
def test_each_file_has_its_type_whatever_the_system_believes(
    built: Path, server: FakeServer, name: str, kind: str
) -> None:
    answer = server.get(f"/app/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == FILES[name or "index.html"]


@pytest.mark.parametrize("name", ["chat", "chat/3f-2a", "brain/12/7", "chat/v1.2", "no.such"])
def test_a_path_that_is_no_file_is_the_pages_own_business(
    built: Path, server: FakeServer, name: str
) -> None:
    answer = server.get(f"/app/{name}")
    assert (answer.status_code, answer.text) == (200, INDEX)
    assert answer.headers["cache-control"] == "no-cache"


def test_an_asset_of_an_older_build_is_not_the_document(built: Path, server: FakeServer) -> None:
    """A script that gets HTML fails with a riddle; 404 tells the page to load itself again."""
    answer = server.get("/app/assets/index-0000.js")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_hashed_files_are_kept_for_ever_and_others_are_checked(
    built: Path, server: FakeServer
) -> None:
    asset = server.get("/app/assets/index-3f2a.js")
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
    page = server.get("/app/")
    assert page.headers["cache-control"] == "no-cache"
    again = server.get("/app/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (built / "index.html").write_text("<title>new</title>")
    newer = server.get("/app/", headers={"If-None-Match": page.headers["etag"]})
    assert (newer.status_code, newer.text) == (200, "<title>new</title>")


def test_text_is_compressed_for_who_takes_it(built: Path, server: FakeServer) -> None:
    raw = server.exchange(b"GET /app/ HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert b"Vary: Accept-Encoding" in head
    assert gzip.decompress(body).decode() == INDEX
    plain = server.exchange(b"GET /app/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert plain.endswith(INDEX.encode())


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "%2e%2e/secret.txt",
        "assets/../../secret.txt",
        "assets/%2e%2e%2f%2e%2e%2fsecret.txt",
        "..%5csecret.txt",
        "assets/link.js",
        "%00",
        "//etc/passwd",
        "a" * 5000,
    ],
)
def test_no_name_leads_out_of_the_folder(built: Path, server: FakeServer, name: str) -> None:
    answer = server.exchange(f"GET /app/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert b"hidden words" not in answer
    assert b"root:" not in answer
    assert answer.split(b" ")[1] in (b"200", b"301", b"302", b"308", b"400", b"404")


def test_the_policy_lets_a_page_run_its_own_scripts_only(built: Path, server: FakeServer) -> None:
    """R133: whatever a model writes, nothing inline runs and nothing is loaded from elsewhere."""
    for name in ("", "chat", "assets/index-3f2a.js"):
        assert server.get(f"/app/{name}").headers["content-security-policy"] == (
            CONTENT_SECURITY_POLICY
        )
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    assert rules["default-src"] == "'self'"
    assert "script-src" not in rules
    assert "unsafe" not in CONTENT_SECURITY_POLICY.replace(rules["style-src"], "")
    assert rules["connect-src"] == "'self' http: https: ws: wss:"
    assert "http" not in rules["img-src"]
    assert rules["frame-ancestors"] == "'none'"


def test_a_browser_is_led_to_the_page_and_a_program_is_told_where_things_are(
    built: Path, server: FakeServer
) -> None:
    """R033: the probe HEAD / is answered."""
    led = server.get("/", headers=BROWSER)
    assert (led.status_code, led.headers["location"]) == (302, "/app/")
    assert server.get("/app", headers=BROWSER).headers["location"] == "/app/"
    told = server.get("/")
    assert told.status_code == 200
    assert told.json()["app"] == "/app/"
    assert server.exchange(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(
        b"HTTP/1.1 200 "
    )


def test_the_page_needs_no_key_and_holds_no_secret(built: Path, start: Start) -> None:
    server = start(api_key="topsecret")
    assert server.get("/app/").status_code == 200
    assert server.get("/app/assets/index-3f2a.js").status_code == 200
    assert server.get("/", headers=BROWSER).status_code == 302
    told = server.get("/").json()
    assert "version" not in told
    assert server.get("/", headers={"x-api-key": "topsecret"}).json()["version"]
    for name in ("/appx", "/app/../v1/models", "/api/session/x", "/v1/models"):
        assert server.get(name).status_code in (401, 404), name
    assert server.get("/v1/models").status_code == 401


def test_without_a_build_the_page_says_how_to_make_one(unbuilt: None, server: FakeServer) -> None:
    answer = server.get("/app/chat", headers=BROWSER)
    assert answer.status_code == 503
    assert "make web" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "<script" not in answer.text
    assert server.get("/app/assets/x.js").status_code == 404
    assert server.chat().status_code == 200


def test_the_built_files_are_found_in_a_checkout_and_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sidecar" / "colibri"
    monkeypatch.setattr(paths, "__file__", str(package / "paths.py"))
    assert paths.web_dir() is None
    checkout = tmp_path / "frontend" / "dist"
    checkout.mkdir(parents=True)
    assert paths.web_dir() is None, "a folder without its document is no build"
    (checkout / "index.html").write_text("x")
    assert paths.web_dir() == checkout
    inside = package / "web"
    inside.mkdir(parents=True)
    (inside / "index.html").write_text("x")
    assert paths.web_dir() == inside


def test_the_page_of_an_unbuilt_dashboard_names_a_target_that_exists(
    unbuilt: None, server: FakeServer
) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", server.get("/app/").text):
        assert f"\n{target}:" in makefile
