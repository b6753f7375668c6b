"""Headers of safetensors files: what is read, and every damage refused by file and tensor."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from colibri.errors import ModelError
from colibri.models.safetensors import MAX_HEADER_BYTES, read_folder, read_header
from tests.models import files

ONE = {"a": files.raw(np.arange(6, dtype=np.float32).reshape(2, 3))}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_file_of_the_safetensors_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"b": np.ones((3, 5), np.float16), "a": np.arange(4, dtype=np.float32)}
    save_file(arrays, path)
    entries, _ = read_header(path)
    assert {entry.name: (entry.dtype, entry.shape) for entry in entries} == {
        "a": ("F32", (4,)),
        "b": ("F16", (3, 5)),
    }
    data = path.read_bytes()
    for entry in entries:
        span = data[entry.offset : entry.offset + entry.bytes]
        assert span == arrays[entry.name].tobytes()


def test_gaps_between_tensors_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", files.safetensors(ONE, pad=64))
    (entry,), _ = read_header(path)
    assert entry.bytes == 24


def test_R162_a_shard_shorter_than_its_header_says_is_refused(tmp_path: Path) -> None:
    data = files.safetensors({"big": files.raw(np.zeros((64, 64), np.float32))})
    path = write(tmp_path / "out-00003.safetensors", data[:-4096])
    refused(path, '"big"', f"{len(data):,}", f"{len(data) - 4096:,}")


@pytest.mark.parametrize("length", [0, 3, 7])
def test_a_file_too_short_for_a_header_is_refused(tmp_path: Path, length: int) -> None:
    refused(write(tmp_path / "x.safetensors", bytes(length)), "truncated")


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "x.safetensors", struct.pack("<Q", 1000) + b"{}"), "1,000")


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 1 << 40, (1 << 64) - 1])
def test_an_absurd_header_length_is_refused_before_reading(tmp_path: Path, length: int) -> None:
    refused(write(tmp_path / "x.safetensors", struct.pack("<Q", length) + b"{}"), f"{length:,}")


HUGE = 10**4300 - 1
BAD_HEADERS: list[tuple[Any, str]] = [
    ([], "JSON object"),
    ({"a": 5}, '"a"'),
    ({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, "F31"),
    ({"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}}, "dtype"),
    ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "F32", "shape": [1] * 99, "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "data_offsets"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "data_offsets"),
    ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "needs 8 bytes"),
    ({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}, "overflows"),
    ({"a": {"dtype": "U8", "shape": [1 << 62], "data_offsets": [0, 1 << 62]}}, "file holds"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, "span"),
    # Longer numbers than Python turns into text come out of sums of those that it has read.
    ({"a": {"dtype": "U8", "shape": [9], "data_offsets": [HUGE - 9, HUGE]}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [0, HUGE], "data_offsets": [0, 0]}}, "shape"),
    ({"__metadata__": {"x": 1}}, "__metadata__"),
    ({"__metadata__": 4}, "__metadata__"),
]


@pytest.mark.parametrize(("header", "word"), BAD_HEADERS)
def test_a_wrong_entry_is_refused_by_name(tmp_path: Path, header: Any, word: str) -> None:
    refused(write(tmp_path / "x.safetensors", files.raw_safetensors(header, bytes(8))), word)


def test_overlapping_tensors_are_refused_by_both_names(tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [8]}
    header = {
        "first": {**entry, "data_offsets": [0, 8]},
        "second": {**entry, "data_offsets": [7, 15]},
    }
    path = write(tmp_path / "x.safetensors", files.raw_safetensors(header, bytes(15)))
    refused(path, '"first"', '"second"')


@pytest.mark.parametrize(
    "text", [b"{", b'{"a": NaN}', b'{"a"', b"\xff\xfe", b"[" * 100_000, b'{"a":1,"a":2}']
)
def test_a_header_that_is_no_json_is_refused(tmp_path: Path, text: bytes) -> None:
    refused(write(tmp_path / "x.safetensors", struct.pack("<Q", len(text)) + text))


def test_an_empty_shard_is_skipped_and_listed(tmp_path: Path) -> None:
    write(tmp_path / "out-00000.safetensors", b"")
    write(tmp_path / "out-00001.safetensors", files.safetensors(ONE))
    shards = read_folder(tmp_path)
    assert [path.name for path in shards.empty] == ["out-00000.safetensors"]
    assert shards.entries["a"].file == 0
    assert shards.paths[0].name == "out-00001.safetensors"


def test_a_tensor_in_two_shards_is_refused_by_both_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.safetensors", files.safetensors(ONE))
    with pytest.raises(ModelError, match=r'two\.safetensors.*"a".*one\.safetensors'):
        read_folder(tmp_path)


def test_unfinished_files_and_side_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "out.safetensors", files.safetensors(ONE))
    for name in (".out-progress.json", ".out-params.json", ".convert.lock", "y.safetensors.tmp"):
        write(tmp_path / name, b"junk")
    assert list(read_folder(tmp_path).entries) == ["a"]


def test_a_stamp_that_is_no_table_of_texts_is_refused(tmp_path: Path) -> None:
    for stamp in ("[]", '{"a": 3}', "{"):
        path = tmp_path / "x.safetensors"
        path.write_bytes(files.safetensors(ONE, {"colibri.fmt": stamp}))
        with pytest.raises(ModelError, match=r"colibri\.fmt"):
            read_folder(tmp_path)


def test_118000_entries_are_read_into_one_table(tmp_path: Path) -> None:
    per_shard = 1000
    for shard in range(118):
        header = {
            f"model.layers.{shard}.mlp.experts.{n}.gate_proj.weight": {
                "dtype": "U8",
                "shape": [1],
                "data_offsets": [n, n + 1],
            }
            for n in range(per_shard)
        }
        write(tmp_path / f"out-{shard:05d}.safetensors", files.raw_safetensors(header, bytes(1000)))
    assert len(read_folder(tmp_path).entries) == 118_000


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 150), st.binary(max_size=8))
def test_R132_damaged_headers_never_raise_anything_but_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, tail: bytes
) -> None:
    data = bytearray(files.safetensors(ONE, {"k": "v"}))
    data[at : at + len(noise)] = noise
    path = tmp_path_factory.mktemp("noise") / "x.safetensors"
    path.write_bytes(bytes(data) + tail)
    try:
        entries, _ = read_header(path)
    except ModelError:
        return
    size = path.stat().st_size
    assert all(e.offset >= 0 and e.offset + e.bytes <= size for e in entries)
    assert json.dumps([e.name for e in entries])
