"""The package's own promises: declared dependencies, start-up cost, text style of errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from colibri import errors

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [*(ROOT / "sidecar").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
# Used by the compiled extension, never imported by a source file; and what flask and its socket
# extension bring.
WITHOUT_IMPORT = {"cffi"}
# Packages whose module has another name.
MODULES = {"nvidia_ml_py": "pynvml"}
BROUGHT_ALONG = {"werkzeug", "simple_websocket"}
# Of the window: an extra, and what the system brings.
WINDOW = {"webview", "gi", "qtpy"}


def _imports() -> set[str]:
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"colibri", "colibri_app", "_typeshed"}


def test_dependencies_are_exactly_what_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [
        re.split(r"[<>=!~;\[ ]", item)[0].replace("-", "_") for item in project["dependencies"]
    ]
    declared = {MODULES.get(name, name) for name in names}
    assert _imports() - BROUGHT_ALONG - WINDOW == declared - WITHOUT_IMPORT


def test_importing_the_command_line_loads_no_heavy_module() -> None:
    heavy = ["numpy", "flask", "tokenizers", "jinja2", "huggingface_hub", "colibri.engine._colibri"]
    code = f"import colibri.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert output.stdout.strip() == "[]"


def _messages() -> Iterator[tuple[str, str]]:
    """First argument of every error of the tree that is raised with a text written in place."""
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ColibriError)
    }
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name not in tree or not node.args:
                continue
            text = node.args[0]
            if isinstance(text, ast.JoinedStr) and text.values:
                text = text.values[-1]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield f"{source.relative_to(ROOT)}:{node.lineno}", text.value


def test_error_messages_are_sentences() -> None:
    messages = list(_messages())
    assert len(messages) > 20
    wrong = [f"{where}: {text}" for where, text in messages if text[-1:] not in {".", "?"}]
    assert wrong == []


def test_engine_messages_leave_the_full_stop_to_the_caller() -> None:
    literal = re.compile(r'"((?:[^"\\]|\\.)*)"')
    wrong = []
    for source in (ROOT / "native" / "src").rglob("*.c"):
        for call in re.findall(r"clb_fail\((.*?)\);", source.read_text(), re.DOTALL):
            texts = literal.findall(call)
            if texts and re.search(r"[.!\n]$|\\n$", texts[-1]):
                wrong.append(f"{source.relative_to(ROOT)}: {texts[-1]}")
    assert wrong == []
