"""The check of tracked files: clean here, and able to find what it is for."""

from __future__ import annotations

from tests.repo import check_tree


def test_nothing_tracked_is_out_of_place() -> None:
    names = check_tree.tracked()
    problems = check_tree.case_collisions(names)
    for name in names:
        problems += check_tree.file_problems(name, (check_tree.ROOT / name).read_bytes())
    assert len(names) > 50
    assert problems == []


def test_names_that_differ_in_case_only_are_found() -> None:
    assert check_tree.case_collisions(["docs/a.md", "docs/A.md", "b"]) == [
        "docs/A.md: differs from docs/a.md in case only; rename one"
    ]


def test_weights_machine_paths_and_addresses_are_found() -> None:
    home = "/" + "home/someone/model"
    address = "https" + "://registry.example/simple"
    assert check_tree.file_problems("models/tiny.gguf", b"GGUF\0")
    assert check_tree.file_problems("tests/x/fixtures/tiny.safetensors", b"\0") == []
    assert check_tree.file_problems("docs/a.md", f"cd {home}\n".encode())
    assert check_tree.file_problems("docs/a.md", b"GET /health, see docs/root/x.md\n") == []
    assert check_tree.file_problems("requirements/dev.lock", f"x==1 # {address}\n".encode())
    assert check_tree.file_problems("big.json", b"1" * (check_tree.FILE_LIMIT + 1))
