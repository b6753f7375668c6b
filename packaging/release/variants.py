"""What a frozen program holds: its variants, and the lists that build.spec hands to PyInstaller.

For: `build.spec`, `release.build` and their tests. Not for: building. Pure functions, so that the
lists for Windows and macOS are tested on Linux as well.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

# The frozen executable on each system. On Windows and macOS the window has a name for people,
# because they see it; the commands are programs of their own there, since a windowed program has no
# console.
PLATFORMS = {"linux": "linux", "win32": "windows", "darwin": "macos"}

APP_ID = "app.colibri.Colibri"

# Never needed at run time: build tools, test frameworks, other toolkits, what optional imports drag
# in.
EXCLUDED = (
    "_pytest",
    "colibri.engine.fake",
    "colibri.engine.fake_text",
    "cryptography",
    "huggingface_hub",
    "hypothesis",
    "IPython",
    "lib2to3",
    "matplotlib",
    "numpy.f2py",
    "numpy.testing",
    "OpenSSL",
    "pandas",
    "PIL",
    "pip",
    "pydoc",
    "pydoc_data",
    "pytest",
    "sentencepiece",
    "setuptools",
    "tensorflow",
    "tkinter",
    "torch",
    "transformers",
    "wheel",
)
# These ask for their own version when they are imported.
NEED_METADATA = ("llguidance",)
WINDOW_MODULES = ("webview", "gi", "cairo", "bottle", "proxy_tools", "pystray")
# Never the commercial or copyleft binding of Qt, and no toolkit beside the one of this variant.
OTHER_TOOLKITS = (
    "PyQt5",
    "PyQt6",
    "PySide2",
    "PySide6",
    "qtpy",
    "cefpython3",
    "kivy",
    "webview.platforms.android",
    "webview.platforms.cef",
    "webview.platforms.qt",
)
# What makes the descriptions of GTK usable from Python; found by name when a namespace is loaded.
_OVERRIDES = tuple(
    f"gi.overrides.{name}"
    for name in ("GLib", "GObject", "Gio", "Gdk", "GdkPixbuf", "Gtk", "Pango")
)
TOOLKITS = {
    "linux": ("webview.platforms.gtk", ("gi", "gi._gi", *_OVERRIDES)),
    "windows": ("webview.platforms.winforms", ("webview.platforms.edgechromium", "clr")),
    "macos": ("webview.platforms.cocoa", ("WebKit", "AppKit", "Foundation")),
}
# Of GTK only the Python side travels along: the libraries and their descriptions are the system's,
# and must all be of one make.
SYSTEM_TYPELIBS = (
    *("Atk", "cairo", "freetype2", "Gdk", "GdkPixbuf", "Gio", "GLib", "GModule", "GObject", "Gtk"),
    *("HarfBuzz", "JavaScriptCore", "Pango", "PangoCairo", "Soup", "WebKit2", "xlib"),
)

# Libraries of the system that travel along, because a computer may lack them: what Python's own
# extensions and the wheels are linked with. Everything else from the system's folders stays there.
BUNDLED_SYSTEM_LIBRARIES = (
    "libpython3*",
    "libbz2*",
    "libcrypto*",
    "libexpat*",
    "libffi*",
    "libgomp*",
    "liblzma*",
    "libmpdec*",
    "libsqlite3*",
    "libssl*",
    "libuuid*",
    "libz.so*",
)
# WebKit is linked with these and must meet the system's own, newer than ours or not. A program
# without a window brings them along.
CXX_RUN_TIME = ("libstdc++*", "libgcc_s*")
_SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of frozen program. `window` is whether it has one of its own."""

    name: str
    platform: str  # linux, windows, macos
    window: bool

    @property
    def programs(self) -> dict[str, bool]:
        """Executables to make: name, and whether it keeps a console. The first is the main one; on
        Linux and macOS `coli` is a link to it.
        """
        if self.platform == "windows":
            commands = {"sidecar": True, "coli": True}
            return {"Colibri": False, **commands} if self.window else commands
        if not self.window:
            return {"sidecar": True}
        return {"Colibri" if self.platform == "macos" else "sidecar": False}

    @property
    def hidden_imports(self) -> list[str]:
        """What is imported by name at run time, beside the package's own modules."""
        found = ["_cffi_backend"]
        if self.window:
            backend, more = TOOLKITS[self.platform]
            found += [backend, *more]
        return found

    @property
    def excludes(self) -> list[str]:
        found = [*EXCLUDED, *OTHER_TOOLKITS]
        if not self.window:
            return [*found, *WINDOW_MODULES]
        others = [backend for name, (backend, _) in TOOLKITS.items() if name != self.platform]
        if self.platform == "linux":
            others += [f"gi.repository.{name}" for name in SYSTEM_TYPELIBS]
        return [*found, *others]

    def keeps(self, name: str, source: str) -> bool:
        """Whether a shared library, by its name in the bundle and where it lies here, travels
        along.
        """
        if self.platform != "linux" or not source.startswith(_SYSTEM_FOLDERS):
            return True
        if "-packages/" in source or "/lib-dynload/" in source:
            return True  # an extension of Python
        allowed = BUNDLED_SYSTEM_LIBRARIES
        if not self.window:
            allowed += CXX_RUN_TIME
        return any(fnmatch.fnmatch(PurePath(name).name, pattern) for pattern in allowed)


def chosen(arguments: Sequence[str], platform: str) -> Variant:
    """The variant that the arguments after `--` of PyInstaller's command line ask for; `platform`
    as sys.platform says it. Raises SystemExit with a message for one that does not exist.
    """
    parser = argparse.ArgumentParser(prog="pyinstaller build.spec --", allow_abbrev=False)
    parser.add_argument("--variant", choices=("headless", "desktop"), default="desktop")
    name = parser.parse_args(arguments).variant
    if platform not in PLATFORMS:
        raise SystemExit(f"build.spec: no release is made for {platform}")
    return Variant(name, PLATFORMS[platform], window=name == "desktop")


def info_plist(version: str) -> dict[str, object]:
    """What macOS is told about the app."""
    return {
        "CFBundleName": "Colibri",
        "CFBundleDisplayName": "Colibri",
        "CFBundleShortVersionString": version,
        "CFBundleVersion": version,
        "LSApplicationCategoryType": "public.app-category.productivity",
        "LSMinimumSystemVersion": "13.0",
        "NSHighResolutionCapable": True,
        "NSSupportsAutomaticGraphicsSwitching": True,
        # The page comes from our own server on this computer, over plain HTTP.
        "NSAppTransportSecurity": {"NSAllowsLocalNetworking": True},
        "NSHumanReadableCopyright": "The Colibri authors, Apache-2.0",
    }


def missing_inputs(package: Path) -> list[str]:
    """What the installed package at `package` lacks for a release, each with what makes it."""
    found = []
    if not [*package.glob("engine/_colibri*.so"), *package.glob("engine/_colibri*.pyd")]:
        found.append("the compiled engine (colibri/engine/_colibri.*): `make setup` builds it")
    if not (package / "web" / "index.html").is_file():
        found.append("the dashboard (colibri/web/index.html): `make web` builds it")
    if next(package.rglob("colibri.json"), None) is None:
        found.append(
            "the starter model (a folder with colibri.json inside the package): it comes with the "
            "sources, in sidecar/colibri/builtin"
        )
    return found


def require_inputs(problems: Iterable[str]) -> None:
    """Raises SystemExit that names every missing input."""
    if problems := list(problems):
        raise SystemExit("build.spec: cannot freeze, missing:\n  - " + "\n  - ".join(problems))
