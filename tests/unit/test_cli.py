"""The commands from the outside: exit codes, streams, what is refused before anything is loaded.

Covers R192, R200, R201, R217, R221.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from colibri import __version__, cli
from colibri.cli import browser, serve, server
from colibri.errors import UsageError
from colibri.settings import Settings

TIMEOUT = 60


# A source tree need not have the model that comes with the program.
WITHOUT_STARTER = (
    "import sys\n"
    "from colibri import cli, paths\n"
    "paths.starter_dir = lambda: None\n"
    "sys.exit(cli.run(cli.coli, 'coli', {}))"
)


def run(*arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `coli`, or a piece of Python, in a fresh process."""
    command: Sequence[str] = ["-c", code] if code else ["-m", "colibri.cli", *arguments]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": path, **environ},
        check=False,
    )


def test_help_names_every_command_and_goes_to_stdout() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in cli.COMMANDS)
    assert result.stderr == ""


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    result = run(name, "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("arguments", [["nope"], ["serve", "--nope"], ["serve", "--port", "x"]])
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Error" in result.stderr


def test_a_model_that_does_not_exist_exits_with_3() -> None:
    result = run("serve", "--model", "no-such-model", "--port", "0")
    assert result.returncode == 3
    assert "no-such-model" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_is_no_valid_model_exits_with_4_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"')
    result = run("serve", "--model", str(tmp_path), "--port", "0")
    assert result.returncode == 4, result.stderr
    assert "config.json" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_any_model_the_way_to_one_is_told() -> None:
    """R217: no flag at all is a clear sentence, not a crash."""
    result = run(code=WITHOUT_STARTER.format(["serve", "--port", "0"]))
    assert result.returncode == 3
    assert "--model" in result.stderr


def test_a_port_in_use_is_named(free_port: int) -> None:
    """R200, R201."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        result = run("serve", "--port", str(free_port))
    assert result.returncode == 5
    assert f"port {free_port}" in result.stderr
    assert "--port" in result.stderr


def test_an_address_that_is_not_ours_is_named() -> None:
    result = run("serve", "--host", "no-such-host.invalid", "--port", "0", "--insecure-bind")
    assert result.returncode == 2
    assert "no-such-host.invalid" in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])  # noqa: S104
def test_an_address_beyond_this_machine_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(UsageError, match="no API key"):
        serve.check_bind(Settings(host=host))
    serve.check_bind(Settings(host=host, api_key="k"))
    serve.check_bind(Settings(host=host, insecure_bind=True))


def test_more_requests_at_once_than_slots_are_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="4 requests at once") as caught:
        serve.check_slots(Settings(parallel=4, kv_slots=2))
    assert "--kv-slots 4" in (caught.value.hint or "")
    serve.check_slots(Settings(parallel=4, kv_slots=4))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machines_own_addresses_need_nothing(host: str) -> None:
    serve.check_bind(Settings(host=host))


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("serve", "--log-file", str(tmp_path / "file" / "log"), "--port", "0")
    assert result.returncode == 2
    assert "--log-file" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("url", ["ftp://localhost", "http://", "localhost:port", "localhost:0"])
def test_what_is_no_address_of_a_server_is_refused_as_such(url: str) -> None:
    result = run("chat", "--url", url, "hello")
    assert result.returncode == 2
    assert result.stderr.startswith(f"Error: --url: {url!r} is no address of a server.")
    assert "http://localhost:8000" in result.stderr


def test_an_address_without_a_scheme_is_one_of_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "served_model", lambda base, *_args, **_options: base)
    assert server.find(Settings(), "localhost:9000/v1/") == "http://localhost:9000"


def test_models_tells_where_others_belong_beside_the_programs_own(tmp_path: Path) -> None:
    result = run("models", COLIBRI_MODELS_DIR=str(tmp_path))
    assert result.returncode == 0
    assert f"model is installed in {tmp_path}." in result.stderr


def test_a_misspelt_variable_is_warned_about_on_stderr() -> None:
    result = run("serve", "--model", "no-such-model", "--port", "0", COLI_PROT="1")
    assert "COLI_PROT" in result.stderr
    assert "COLI_PORT?" in result.stderr


def test_without_stdout_and_stderr_a_command_still_runs() -> None:
    """R192: a windowed bundle has neither."""
    code = (
        "import sys; sys.stdout = sys.stderr = None\n"
        "from colibri import cli, logs\n"
        "logs.configure()\n"
        "sys.exit(cli.run(cli.coli, 'coli', ['config', 'show']))"
    )
    result = run(code=code)
    assert result.returncode == 0
    assert (Path(os.environ["COLIBRI_HOME"]) / "state" / "logs" / "sidecar.log").exists()


def test_a_legacy_console_encoding_never_raises() -> None:
    """R221."""
    code = (
        "import click\n"
        "from colibri import cli\n"
        "@click.command()\n"
        "def banner(): click.echo('\\u2192 ready \\N{GRINNING FACE} \\udcff')\n"
        "import sys; sys.exit(cli.run(banner, 'banner', []))"
    )
    for encoding in ("cp1252", "ascii", "latin-1"):
        result = run(code=code, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert result.returncode == 0, result.stderr
        assert "\u2192 ready \N{GRINNING FACE}" in result.stdout


def test_the_reader_of_our_output_may_leave() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-m", "colibri.cli", "config", "reference"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "x", "--disk-speed"),
        ("tune", "x", "--minutes"),
        ("bench", "make-model", "x", "--gb"),
        ("bench", "policy", "--share"),
        ("models", "mirror", "x", ".", "--budget"),
        ("models", "mirror", "x", ".", "--own-speed"),
        ("serve", "--queue-timeout"),
        ("serve", "--prefix-store-gb"),
    ],
)
def test_numbers_nobody_can_calculate_with_are_usage_errors(
    arguments: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(cli.coli, "coli", [*arguments, number]) == 2
    assert "Error" in capsys.readouterr().err


def test_a_full_disk_behind_stdout_is_one_sentence() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "colibri.cli", "config", "reference"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    assert result.returncode == 5
    assert result.stderr == "Error: No space left on device.\n"


def test_names_cannot_break_a_message_into_lines_or_move_the_cursor() -> None:
    result = run("plan", "a\nError: b\x1b[31m")
    assert result.returncode == 3
    assert "a\\nError: b\\x1b[31m" in result.stderr


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    """What makes it quick; the time itself is a benchmark's business."""
    code = (
        "import sys, colibri.cli\n"
        "heavy = {'flask', 'numpy', 'tokenizers', 'jinja2', 'psutil', 'msgspec', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run(code=code).stdout.strip() == "[]"


def test_the_sidecar_entry_imports_no_window_code() -> None:
    code = (
        "import sys, colibri_app.entry\n"
        "print(sorted({'webview', 'gi', 'PySide6', 'tkinter'} & set(sys.modules)))"
    )
    assert run(code=code).stdout.strip() == "[]"


def test_the_engine_child_flag_of_the_frozen_program_starts_no_server() -> None:
    """R208: the child role ends at the end of its input and never reaches the command line."""
    code = (
        "import sys; sys.argv = ['sidecar', '--engine-child']\n"
        "from colibri_app.entry import main; main()"
    )
    result = run(code=code)
    assert result.returncode == 0
    assert result.stdout == ""


@pytest.mark.parametrize("program", ["sidecar", "coli", "coli.exe"])
def test_the_frozen_program_is_the_command_that_it_is_called_by(program: str) -> None:
    code = (
        f"import sys; sys.argv = ['/somewhere/{program}', '--version']\n"
        "from colibri_app.entry import main; main()"
    )
    name = program.removesuffix(".exe")
    assert run(code=code).stdout == f"{name}, version {__version__}\n"


def test_without_a_display_no_browser_takes_over_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(browser.sys, "platform", "linux")
    monkeypatch.setattr(browser.webbrowser, "open", lambda _: pytest.fail("a browser was opened"))
    browser.open_browser("http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":0")
    opened: list[str] = []
    monkeypatch.setattr(browser.webbrowser, "open", lambda url: opened.append(url) or True)
    browser.open_browser("http://127.0.0.1:1")
    assert opened == ["http://127.0.0.1:1"]
