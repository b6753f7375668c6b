"""Changing single values of a config file: everything else stays as a person wrote it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri import config_file
from colibri.errors import UsageError

WHERE = "config.toml"


def edit(text: str, **values: object) -> str:
    keys = {name.replace("__", "."): value for name, value in values.items()}
    return config_file.edit(text, keys, WHERE)


def test_an_empty_file_gets_its_section() -> None:
    assert edit("", engine__threads=4) == "[engine]\nthreads = 4\n"


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    text = "# mine\n[engine]\nthreads = 2   # all of them\nisa = 'avx2'\n\n[server]\nport = 1\n"
    assert edit(text, engine__threads=8) == text.replace("= 2", "= 8")


def test_a_new_key_goes_to_the_end_of_its_section() -> None:
    text = "[engine]\nisa = 'avx2'\n# about io\n\n[server]\nport = 1\n"
    changed = edit(text, engine__io_mode="threads")
    assert changed == text.replace("# about io\n", '# about io\nio_mode = "threads"\n')


def test_a_new_section_follows_what_is_there() -> None:
    assert edit("[server]\nport = 1", engine__threads=1) == (
        "[server]\nport = 1\n\n[engine]\nthreads = 1\n"
    )


def test_several_values_at_once() -> None:
    changed = edit("[engine]\nthreads = 1\n", engine__threads=2, engine__prefetch="off")
    assert tomllib.loads(changed) == {"engine": {"threads": 2, "prefetch": "off"}}


def test_a_dotted_key_is_found() -> None:
    assert edit("engine.threads = 1 # x\n", engine__threads=2) == "engine.threads = 2 # x\n"


def test_a_key_that_is_only_a_comment_is_not_taken_for_one() -> None:
    changed = edit("[engine]\n# threads = 1\n", engine__threads=2)
    assert changed == "[engine]\n# threads = 1\nthreads = 2\n"


def test_line_ends_of_windows_stay() -> None:
    assert edit("[engine]\r\nthreads = 1\r\n", engine__threads=2) == "[engine]\r\nthreads = 2\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "engine = {threads = 1}\n",
        '[engine]\nthreads = """\n1"""\n',
        '["engine"]\nthreads = 1\n',
        "[[engine]]\nthreads = 1\n",
        'note = """\n[engine]\nthreads = 1\n"""\n',
        "engine = 3\n",
    ],
)
def test_what_cannot_be_changed_safely_is_refused_with_the_line_to_write(text: str) -> None:
    tomllib.loads(text)
    with pytest.raises(UsageError) as refused:
        edit(text, engine__threads=2)
    assert "engine.threads = 2" in str(refused.value.hint)


def test_a_file_that_is_no_toml_is_refused() -> None:
    with pytest.raises(UsageError, match="TOML"):
        edit("[engine\n", engine__threads=2)


@given(
    st.lists(
        st.sampled_from(
            [
                "[engine]",
                "[server]",
                "[engine.inner]",
                "threads = 1",
                "threads = 'x' # y",
                "port = 2",
                "# threads = 4",
                "",
                "  isa = 'avx2'",
                "engine.threads = 9",
                "text = '''",
                "'''",
                "list = [",
                "]",
                "engine = {}",
            ]
        ),
        max_size=9,
    )
)
def test_any_file_ends_up_with_exactly_the_wanted_change_or_untouched(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    try:
        changed = edit(text, engine__threads=5)
    except UsageError:
        return
    after = tomllib.loads(changed)
    assert after["engine"].pop("threads") == 5
    inner = before.get("engine", {})
    inner.pop("threads", None)
    assert after["engine"] == inner
    after.pop("engine")
    before.pop("engine", None)
    assert after == before
    kept = [line for line in lines if line.startswith("#")]
    assert all(line in changed for line in kept)


def test_writing_makes_the_file_or_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    config_file.write(path, {"engine.threads": 3})
    assert tomllib.loads(path.read_text()) == {"engine": {"threads": 3}}
    path.chmod(0o640)
    config_file.write(path, {"engine.prefetch": "off"})
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_a_link_to_a_config_file_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text("[engine]\nthreads = 1\n")
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    config_file.write(link, {"engine.threads": 2})
    assert link.is_symlink()
    assert "threads = 2" in real.read_text()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as refused:
        config_file.write(tmp_path / "file" / "config.toml", {"engine.threads": 2})
    assert "config.toml" in str(refused.value.where)


def test_a_value_with_quotes_is_refused() -> None:
    with pytest.raises(UsageError):
        config_file.literal('a"b')
