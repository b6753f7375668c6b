"""The settings table: precedence, origins, misspelt names, refused values, generated docs.

Covers R022, R124.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from colibri import paths, settings
from colibri.cli import coli
from colibri.errors import UsageError


def write_config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_variable_over_the_file_over_the_default() -> None:
    write_config("[server]\nport = 3\nmax_queue = 4\nhost = '127.0.0.3'\n")
    environ = {"COLI_PORT": "2", "COLI_MAX_QUEUE": "5"}
    resolved = settings.resolve({"port": 1}, environ=environ)
    chosen = resolved.settings
    assert (chosen.port, chosen.max_queue, chosen.host) == (1, 5, "127.0.0.3")
    assert chosen.queue_timeout == 300
    assert resolved.origins["port"] == "flag"
    assert resolved.origins["max_queue"] == "COLI_MAX_QUEUE"
    assert resolved.origins["host"] == str(paths.config_file())
    assert resolved.origins["queue_timeout"] == "default"


def test_the_names_that_users_know_are_kept() -> None:
    variables = {row.env for row in settings.TABLE}
    assert {
        "COLI_MODEL",
        "COLI_API_KEY",
        "COLI_ALLOWED_HOSTS",
        "COLI_MAX_QUEUE",
        "COLI_QUEUE_TIMEOUT",
        "COLI_CTX",
    } <= variables
    flags = {flag for row in settings.TABLE for flag in row.flags}
    assert {
        "--host",
        "--port",
        "--model",
        "--model-id",
        "--ctx",
        "--max-queue",
        "--queue-timeout",
        "--allowed-host",
        "--cors-origin",
        "--no-browser",
        "--no-window",
    } <= flags


def test_every_name_of_the_table_is_unique() -> None:
    for names in (
        [row.env for row in settings.TABLE],
        [row.key for row in settings.TABLE],
        [flag for row in settings.TABLE for flag in row.flags],
    ):
        assert len(names) == len(set(names))


def test_the_key_has_no_flag_because_command_lines_are_public() -> None:
    """R124."""
    (row,) = [row for row in settings.TABLE if row.secret]
    assert row.name == "api_key"
    assert row.flags == ()


def test_a_config_file_that_cannot_be_read_is_not_said_to_be_bad_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        settings.read_config(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory."


def test_lists_come_from_commas_and_from_arrays() -> None:
    environ = {"COLI_ALLOWED_HOSTS": "a.example, b.example,"}
    assert settings.resolve(environ=environ).settings.allowed_hosts == ("a.example", "b.example")
    write_config("[server]\ncors_origins = ['https://ui.example']\n")
    assert settings.resolve(environ={}).settings.cors_origins == ("https://ui.example",)


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_switches_understand_the_usual_words(text: str) -> None:
    assert settings.resolve(environ={"COLI_NO_BROWSER": text}).settings.no_browser is True


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert settings.resolve(environ={"COLI_PORT": ""}).settings.port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLI_PORT", "http"),
        ("COLI_PORT", "70000"),
        ("COLI_PORT", "-1"),
        ("COLI_CTX", "3"),
        ("COLI_QUEUE_TIMEOUT", "0"),
        ("COLI_MAX_QUEUE", "1.5"),
        ("COLI_TEMPERATURE", "3"),
        ("COLI_TEMPERATURE", "nan"),
        ("COLI_QUEUE_TIMEOUT", "inf"),
        ("COLI_PRECISION", "f16"),
        ("COLI_ALLOWED_HOSTS", "*"),
        ("COLI_ALLOWED_HOSTS", "http://a.example"),
        ("COLI_CORS_ORIGINS", "ui.example"),
        ("COLI_CORS_ORIGINS", "https://ui.example/"),
        ("COLI_NO_BROWSER", "maybe"),
        ("COLI_API_KEY", "  "),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings.resolve(environ={name: value})
    assert refused.value.where == name
    if name != "COLI_API_KEY":
        assert value in refused.value.message


@pytest.mark.parametrize(
    "text", ["[server]\nport = '8000'\n", "[server]\nport = true\n", "[log]\nlevel = 5\n"]
)
def test_a_config_value_of_another_type_is_refused_with_file_and_key(text: str) -> None:
    path = write_config(text)
    with pytest.raises(UsageError) as refused:
        settings.resolve(environ={})
    assert str(path) in str(refused.value.where)
    assert "key" in str(refused.value.where)


def test_a_config_that_is_no_toml_is_refused() -> None:
    write_config("port: 8000")
    with pytest.raises(UsageError, match="TOML"):
        settings.resolve(environ={})


def test_variables_of_the_benchmarks_are_no_unknown_settings() -> None:
    found = settings.resolve(environ={"COLI_BENCH_CACHE": "/x", "COLI_BENCHES": "1"}).warnings
    assert [text.split()[3] for text in found] == ["COLI_BENCHES"]


def test_misspelt_names_are_warned_about_with_their_nearest_neighbour() -> None:
    path = write_config("[server]\nprot = 1\n")
    warnings = settings.resolve(environ={"COLI_MAX_QUEU": "1", "COLI_X": "1"}).warnings
    assert any("COLI_MAX_QUEU " in text and "COLI_MAX_QUEUE?" in text for text in warnings)
    assert any("COLI_X " in text for text in warnings)
    assert any(str(path) in text and "server.port?" in text for text in warnings)


def test_config_show_prints_values_and_origins_and_hides_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLI_API_KEY", "secret")
    monkeypatch.setenv("COLI_PORT", "9")
    shown = CliRunner().invoke(coli, ["config", "show", "--origin"])
    assert shown.exit_code == 0
    assert "secret" not in shown.output
    assert "(set)" in shown.output
    (line,) = [line for line in shown.output.splitlines() if line.startswith("server.port")]
    assert line.split() == ["server.port", "9", "(COLI_PORT)"]
    as_json = json.loads(CliRunner().invoke(coli, ["config", "show", "--json"]).output)
    assert as_json["schema"] == 1
    assert as_json["settings"]["server.port"] == {"value": 9, "origin": "COLI_PORT"}
    assert "secret" not in json.dumps(as_json)


def test_config_path_and_reference_print_what_they_say() -> None:
    assert CliRunner().invoke(coli, ["config", "path"]).output.strip() == str(paths.config_file())
    assert CliRunner().invoke(coli, ["config", "reference"]).output == settings.reference()


def test_folders_follow_the_home_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path))
    monkeypatch.setenv("COLIBRI_MODELS_DIR", "")
    assert paths.models_dir() == tmp_path / "data" / "models"
    assert paths.log_dir() == tmp_path / "state" / "logs"
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(tmp_path / "big"))
    assert paths.models_dir() == tmp_path / "big"
    monkeypatch.delenv("COLIBRI_HOME")
    assert tmp_path not in paths.config_dir().parents


def test_numbers_beyond_any_model_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 16,777,216"):
        settings.resolve({}, environ={"COLI_CTX": "9" * 20})


@pytest.mark.parametrize("text", ["12", "1.5"])
def test_a_size_may_be_a_plain_number_in_the_config_file(text: str) -> None:
    write_config(f"[engine]\nram = {text}\n")
    assert settings.resolve({}, environ={}).settings.ram == text


def test_a_wrong_type_in_the_config_file_is_told_with_what_may_stand_there() -> None:
    write_config("[engine]\nprefetch = true\n")
    with pytest.raises(UsageError, match="expected on or off, got True"):
        settings.resolve({}, environ={})
