"""The doctor's look at a model folder: what is missing or damaged, where, and what to do.

Covers R157, R161, R162, R184, R185, R186.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from colibri import findings
from colibri.errors import ModelError
from colibri.hardware import disk
from colibri.models import container, deep_check, doctor, manifest, synthetic
from colibri.models.doctor import examine
from colibri.settings import Settings
from tests.models import broken, files
from tests.models.broken import errors


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken.make(tmp_path_factory.mktemp("doctor") / "model")


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return broken.copy(whole, tmp_path / "model")


@pytest.fixture(scope="module")
def packed_whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "packed"
    synthetic.make(folder, synthetic.Shape(layers=3, hidden=64, experts=4, top_k=2, expert_ffn=32))
    return folder


@pytest.fixture
def packed_model(packed_whole: Path, tmp_path: Path) -> Path:
    return broken.copy(packed_whole, tmp_path / "packed")


def failing(name: str, offset: int, number: int = errno.EIO) -> disk.Read:
    """A read function that fails from a byte of one file on, as a dying disk does."""

    def read(descriptor: int, size: int, start: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").resolve().name == name:
            if start >= offset:
                raise OSError(number, os.strerror(number))
            size = min(size, offset - start)
        return os.pread(descriptor, size, start)

    return read


def test_a_whole_model_has_no_error(whole: Path) -> None:
    report = examine(whole, deep=True)
    assert errors(report.findings) == []
    assert report.kind == "published"
    assert report.deep is not None
    assert report.deep.bytes == sum(path.stat().st_size for path in broken.shards(whole))


def test_R162_a_shard_shorter_than_its_header_is_named_with_both_sizes(model: Path) -> None:
    path = broken.shards(model)[3]
    size = path.stat().st_size
    os.truncate(path, size - 4096)
    (found,) = [item for item in errors(examine(model).findings) if item.where == str(path)]
    assert f"describes {size:,} bytes" in found.what
    assert f"holds {size - 4096:,}" in found.what
    assert "4,096 are missing" in found.what
    assert f"hf download REPO {path.name} --local-dir {model}" in found.fix
    with pytest.raises(ModelError, match=path.name):
        container.open_folder(model)


def test_R162_a_shard_of_full_size_that_was_never_written_is_found_without_reading_it(
    model: Path,
) -> None:
    path = broken.shards(model)[2]
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + (8 << 20))
    found = errors(examine(model).findings)
    assert [item for item in found if item.where == str(path) and "never written" in item.what]


def test_two_damaged_shards_are_both_named_and_their_layers_too(model: Path) -> None:
    paths = broken.shards(model)[4:6]
    for path in paths:
        os.truncate(path, 100)
    found = errors(examine(model).findings)
    places = {item.where for item in found}
    assert {str(path) for path in paths} <= places
    missing = [item for item in found if "lacks" in item.what or "missing:" in item.what]
    assert missing
    assert all(path.name in missing[0].fix for path in paths)
    assert not any("absent" in item.what for item in found), "the files are there"


def test_R184_missing_layers_are_told_as_ranges(model: Path) -> None:
    broken.drop_layers(model, {1, 2, 3, 5})
    found = errors(examine(model).findings)
    assert any("4 of 6 layers are missing: 1-3, 5" in item.what for item in found)


def test_R184_a_torn_layer_names_its_tensors(model: Path) -> None:
    path, name = next(
        (path, name)
        for path in broken.shards(model)
        for name in broken.header(path)
        if ".self_attn." in name and not name.endswith(".qs")
    )
    broken.rewrite(path, set(broken.header(path)) - {name})
    found = errors(examine(model).findings)
    assert any(name.split(".", 3)[-1] in item.what for item in found)


def test_R185_the_absent_number_the_count_and_the_command_are_told(model: Path) -> None:
    count = len(broken.shards(model))
    broken.shards(model)[0].unlink()
    found = errors(examine(model).findings)
    gap = next(item for item in found if "out-00000" in item.what)
    assert f"{count} are expected" in gap.what
    assert f"hf download REPO out-00000.safetensors --local-dir {model}" in gap.fix
    assert "REPO is the repository" in gap.fix
    with pytest.raises(ModelError) as refused:
        container.open_folder(model)
    assert "out-00000.safetensors --local-dir" in str(refused.value.hint)


def test_R185_a_gap_in_the_middle_is_told_by_number(model: Path) -> None:
    paths = broken.shards(model)
    for number in (3, 4, 7):
        paths[number].unlink()
    found = errors(examine(model).findings)
    gap = next(item for item in found if "absent" in item.what)
    assert "the numbers 3-4, 7 are absent" in gap.what
    assert f"expected {len(paths)}" in gap.what
    for number in (3, 4, 7):
        assert f"out-{number:05d}.safetensors" in gap.fix


def test_R186_a_lost_tail_is_told_with_its_size_and_a_pattern_to_go_on(model: Path) -> None:
    paths = broken.shards(model)
    kept = len(paths) * 8 // 10
    lost = sum(path.stat().st_size for path in paths[kept:])
    for path in paths[kept:]:
        path.unlink()
    found = errors(examine(model).findings)
    assert any(f"without gaps up to {kept - 1}" in item.what for item in found)
    amount = next(item for item in found if "still missing" in item.what)
    told = re.match(r"about ([\d.]+) MB are still missing, about (\d+) files", amount.what)
    assert told is not None
    assert float(told[1]) == pytest.approx(lost / 1e6, rel=0.05)
    assert int(told[2]) == pytest.approx(len(paths) - kept, rel=0.6)
    assert f"--include 'out-*.safetensors' --local-dir {model}" in amount.fix


def test_R186_with_a_manifest_the_tail_is_named_file_by_file(model: Path) -> None:
    paths = broken.shards(model)
    sizes = {path.name: (path.stat().st_size, "") for path in paths}
    write_manifest(model, sizes)
    kept = len(paths) * 8 // 10
    for path in paths[kept:]:
        path.unlink()
    report = examine(model)
    listed = next(item for item in errors(report.findings) if "of the manifest" in item.what)
    assert f"{len(paths) - kept} of the {len(paths)} files" in listed.what
    assert listed.fix.startswith("Go on with: hf download owner/name --revision abc123 ")
    for path in paths[kept:]:
        assert path.name in listed.fix


def write_manifest(folder: Path, files: dict[str, tuple[int, str]]) -> None:
    content = {
        "schema": 1,
        "source": {"repo": "owner/name", "revision": "abc123"},
        "files": [
            {"name": name, "bytes": size} | ({"sha256": sha} if sha else {})
            for name, (size, sha) in files.items()
        ],
    }
    (folder / manifest.MANIFEST_NAME).write_text(json.dumps(content))


def test_R186_a_size_that_differs_from_the_manifest_is_found_without_reading(model: Path) -> None:
    path = broken.shards(model)[5]
    write_manifest(model, {path.name: (path.stat().st_size + 1, "")})
    found = errors(examine(model).findings)
    assert any("the manifest says" in item.what and item.where == str(path) for item in found)
    assert findings.exit_code(found) == 7


def test_the_hub_clients_own_notes_give_hashes_to_the_deep_look(model: Path) -> None:
    path = broken.shards(model)[2]
    notes = model / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    right = deep_check.hash_files(model, [path.name])[path.name][1]
    note = notes / f"{path.name}.metadata"
    note.write_text(f"0123abcd\n{right}\n1700000000.0\n")
    report = examine(model, deep=True)
    assert errors(report.findings) == []
    assert report.deep is not None
    assert report.deep.hashed == path.stat().st_size
    note.write_text(f"0123abcd\n{'0' * 64}\n1700000000.0\n")
    assert any("SHA-256" in item.what for item in errors(examine(model, deep=True).findings))


def test_an_unfinished_download_is_named(model: Path) -> None:
    notes = model / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / "out-00003.safetensors.abc.incomplete").write_bytes(b"")
    found = examine(model).findings
    assert any("not finished" in item.what and item.level == "warning" for item in found)


def test_R157_a_failing_disk_is_named_with_file_and_byte_and_nothing_is_to_be_downloaded(
    model: Path,
) -> None:
    path = broken.shards(model)[3]
    offset = path.stat().st_size // 2
    report = examine(model, deep=True, read=failing(path.name, offset))
    device = [item for item in errors(report.findings) if item.kind == "device"]
    assert device
    assert all(item.where == str(path) for item in device)
    assert all("do not download again" in item.fix for item in device)
    assert all("hf download" not in item.fix for item in device)
    assert any(f"at byte {offset:,}" in item.what for item in device)
    assert "Input/output error" in device[0].what
    assert findings.exit_code(report.findings) == 5


def test_R157_an_unplugged_drive_is_found_by_the_quick_look_too(model: Path) -> None:
    path = broken.shards(model)[0]
    for number in (errno.ENODEV, errno.ESTALE, errno.ENOTCONN):
        report = examine(model, read=failing(path.name, 0, number))
        device = next(item for item in errors(report.findings) if item.kind == "device")
        assert "at byte 0" in device.what
        assert "do not download again" in device.fix


@pytest.mark.parametrize("name", ["config.json", "out-00003.safetensors"])
def test_R157_opening_a_model_on_a_failing_disk_says_what_not_to_do(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def dying(path: Any, *arguments: Any, **named: Any) -> int:
        if Path(path).name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", dying)
    with pytest.raises(ModelError) as refused:
        container.open_folder(model)
    assert name in str(refused.value.where)
    assert "do not download again" in str(refused.value.hint)


def test_a_folder_that_cannot_be_listed_is_a_device_problem(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", dead)
    report = examine(model)
    assert any(item.kind == "device" for item in errors(report.findings))


def test_short_reads_and_interruptions_are_no_failures(model: Path) -> None:
    turn = iter(range(10**9))

    def stuttering(descriptor: int, size: int, offset: int) -> bytes:
        if next(turn) % 3 == 0:
            raise InterruptedError
        return os.pread(descriptor, max(1, size // 2), offset)

    assert errors(examine(model, read=stuttering).findings) == []


def test_a_changed_byte_of_a_packed_container_is_found_by_the_deep_look(
    packed_model: Path,
) -> None:
    assert errors(examine(packed_model, deep=True).findings) == []
    path = packed_model / "packed-00000.safetensors"
    data = bytearray(path.read_bytes())
    index = json.loads((packed_model / "colibri.json").read_text())
    name, entry = next(iter(index["experts"].items()))
    data[entry["offset"] + 5] ^= 1
    path.write_bytes(data)
    assert errors(examine(packed_model).findings) == []
    (found,) = errors(examine(packed_model, deep=True).findings)
    assert name in found.what
    assert f"{entry['offset']:,}" in found.what
    assert findings.exit_code([found]) == 7


def test_a_packed_container_without_one_of_its_files_names_each(packed_model: Path) -> None:
    (packed_model / "packed-00000.safetensors").unlink()
    found = errors(examine(packed_model).findings)
    assert found[0].where.endswith("packed-00000.safetensors")
    assert "missing" in found[0].what


def test_numbers_that_cannot_be_weights_are_found(model: Path) -> None:
    path = next(path for path in broken.shards(model) if b".qs" in path.read_bytes()[:20_000])
    name, entry = next(
        (name, entry) for name, entry in broken.header(path).items() if name.endswith(".qs")
    )
    start = broken.data_start(path) + entry["data_offsets"][0]
    with path.open("r+b") as stream:
        stream.seek(start + 8)
        stream.write(b"\x00\x00\xc0\x7f")  # NaN
    assert errors(examine(model).findings) == []
    (found,) = errors(examine(model, deep=True).findings)
    assert f"at byte {start + 8:,}" in found.what
    assert name in found.what


def test_a_megabyte_of_zeros_inside_codes_is_a_download_that_never_came(tmp_path: Path) -> None:
    shape = synthetic.Shape(
        layers=2, hidden=2048, experts=2, top_k=1, expert_ffn=1024, layout="published"
    )
    synthetic.make(tmp_path / "m", shape)
    path = tmp_path / "m" / "out-00000.safetensors"
    name, entry = max(
        broken.header(path).items(),
        key=lambda item: item[1]["data_offsets"][1] - item[1]["data_offsets"][0],
    )
    assert entry["dtype"] == "U8"
    with path.open("r+b") as stream:
        stream.seek(broken.data_start(path) + entry["data_offsets"][0] + (1 << 20))
        stream.write(bytes(2 << 20))
    (found,) = errors(examine(tmp_path / "m", deep=True).findings)
    assert name in found.what
    assert "zeros" in found.what


def test_an_interrupt_ends_the_deep_look_and_leaves_no_thread(whole: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(whole, deep=True, progress=interrupt)
    assert not [item for item in threading.enumerate() if item.name.startswith("verify")]


def test_the_progress_of_the_deep_look_ends_at_the_whole(whole: Path) -> None:
    seen: list[tuple[int, int]] = []
    examine(whole, deep=True, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in broken.shards(whole))
    assert seen[-1] == (total, total)
    assert sorted(seen) == seen


def test_a_place_too_large_for_any_file_is_a_finding(model: Path) -> None:
    """Longer numbers than Python turns into text come out of sums of those that it has read."""
    huge = 10**4300 - 1
    header = {"a": {"dtype": "U8", "shape": [9], "data_offsets": [huge - 9, huge]}}
    (model / "odd.safetensors").write_bytes(files.raw_safetensors(header, bytes(8)))
    (found,) = (one for one in errors(examine(model).findings) if "odd." in one.where)
    assert "data_offsets" in found.what


def test_a_tensor_in_two_files_names_both(model: Path) -> None:
    first, *_, last = broken.shards(model)
    (model / "out-99999.safetensors").write_bytes(first.read_bytes())
    found = errors(examine(model).findings)
    twice = next(item for item in found if "also in" in item.what)
    assert first.name in twice.what
    assert "Remove" in twice.fix
    assert last.exists()


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling", "device"])
def test_what_only_has_the_name_of_a_weight_file_neither_hangs_nor_crashes(
    kind: str, model: Path
) -> None:
    path = model / "out-77777.safetensors"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.symlink_to("/dev/zero")
    assert any(item.where == str(path) for item in errors(examine(model, deep=True).findings))


def test_a_folder_without_config_still_has_its_files_judged(model: Path) -> None:
    (model / "config.json").unlink()
    os.truncate(broken.shards(model)[1], 50)
    places = {item.where for item in errors(examine(model).findings)}
    assert str(model / "config.json") in places
    assert str(broken.shards(model)[1]) in places


@pytest.mark.parametrize("name", ["nothing-here", "file"])
def test_what_is_no_folder_is_one_finding(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(errors(examine(tmp_path / name).findings)) == 1


def test_R157_an_empty_folder_may_be_a_drive_that_is_not_mounted(tmp_path: Path) -> None:
    (found,) = errors(examine(tmp_path).findings)
    assert "empty" in found.what
    assert "do not download again" in found.fix
    assert findings.exit_code([found]) == 3


def test_an_interrupted_conversion_is_recognised_with_the_way_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "m.partial"
    folder.mkdir()
    (folder / ".convert.json").write_text("{}")
    found = errors(examine(folder).findings)
    assert any(f"coli convert SOURCE {tmp_path / 'm'}" in item.fix for item in found)


def test_no_permission_is_not_called_a_damaged_file(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = broken.shards(model)[1]
    real = os.open

    def guarded(file: object, *arguments: int, **named: int) -> int:
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return real(file, *arguments, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", guarded)
    found = next(item for item in errors(examine(model).findings) if item.where == str(path))
    assert "permission" in found.what
    assert "download" not in found.fix


def junk(source: random.Random) -> bytes:
    """Bytes as broken disks and broken downloads leave them."""
    kind = source.randrange(5)
    if kind == 0:
        return source.randbytes(source.randrange(300))
    if kind == 1:
        return b"{" * source.randrange(3000)
    if kind == 2:
        return (2**63 - 1).to_bytes(8, "little") + source.randbytes(40)
    if kind == 3:
        return json.dumps([None, {"a": [1e308, -1]}]).encode()
    return b"\x00" * source.randrange(5000)


def mutate(folder: Path, source: random.Random) -> None:
    """Breaks one file of a folder at random."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    path = source.choice(paths)
    data = bytearray(path.read_bytes())
    kind = source.randrange(5)
    if kind == 0 or not data:
        path.write_bytes(junk(source))
    elif kind == 1:
        path.write_bytes(data[: source.randrange(len(data))])
    elif kind == 2:
        for _ in range(source.randrange(1, 20)):
            data[source.randrange(min(len(data), 4000))] = source.randrange(256)
        path.write_bytes(data)
    elif kind == 3:
        path.unlink()
    else:
        path.rename(folder / source.choice(["config.json", "colibri.json", "tokenizer.json"]))


@pytest.mark.parametrize("seed", range(60))
def test_junk_never_makes_the_check_raise(
    seed: int, packed_whole: Path, whole: Path, tmp_path: Path
) -> None:
    source = random.Random(seed)  # noqa: S311
    folder = broken.copy(packed_whole if seed % 2 else whole, tmp_path / "junk")
    for _ in range(source.randrange(1, 5)):
        mutate(folder, source)
    (folder / manifest.MANIFEST_NAME).write_bytes(junk(source))
    report = examine(folder, deep=True)
    errors(report.findings)
    assert report.findings


def test_R161_a_mirrors_bad_copies_are_listed_and_good_ones_counted(
    model: Path, tmp_path: Path
) -> None:
    mirror = broken.copy(model, tmp_path / "mirror")
    paths = broken.shards(mirror)
    os.truncate(paths[2], 100)
    paths[3].unlink()
    report = examine(model, mirrors=[mirror, tmp_path / "unplugged"])
    assert errors(report.findings) == []
    texts = [item.what for item in report.findings]
    assert any(paths[2].name in text and "left out" in text for text in texts)
    assert any(f"a mirror with {len(paths) - 2} of {len(paths)} files" in text for text in texts)
    assert any(item.where == str(tmp_path / "unplugged") for item in report.findings)


@pytest.mark.parametrize("kind", ["published", "packed"])
def test_a_model_split_over_two_drives_is_whole(
    kind: str, model: Path, packed_model: Path, tmp_path: Path
) -> None:
    folder = model if kind == "published" else packed_model
    other = tmp_path / "other"
    other.mkdir()
    for path in broken.shards(folder)[-3:]:
        path.rename(other / path.name)
    assert errors(examine(folder).findings) != []
    report = examine(folder, deep=True, mirrors=[other])
    assert errors(report.findings) == []
    assert report.deep is not None
    paths = [*broken.shards(folder), *broken.shards(other)]
    assert report.deep.bytes == sum(path.stat().st_size for path in paths)


def test_every_level_of_memory_is_told_apart_as_opening_would(tmp_path: Path) -> None:
    shape = synthetic.Shape(layers=4, hidden=256, experts=64, top_k=4, expert_ffn=512)
    synthetic.make(tmp_path / "m", shape)
    files = container.open_folder(tmp_path / "m")
    program = 60_000_000
    facts, fits = doctor.fit(files, 10**9, Settings(), program)
    assert fits.level == "ok"
    assert facts["fits"]
    assert not facts["streaming"]
    assert facts["resident_budget"] <= 10**9
    chosen = Settings(ctx=256)
    facts, _ = doctor.fit(files, 10**9, chosen, program)
    least, resident = facts["least_budget"], facts["resident_budget"]
    assert program < least < resident
    _, streams = doctor.fit(files, resident - 1, chosen, program)
    assert streams.level == "note"
    assert "coli plan" in streams.fix
    _, refused = doctor.fit(files, least - 1, chosen, program)
    assert refused.level == "error"
    assert "--ram" in refused.fix
    assert findings.exit_code([refused]) == 5
    _, unknown = doctor.fit(files, None, chosen, program)
    assert unknown.level == "note"
