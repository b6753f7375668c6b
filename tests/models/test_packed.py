"""The packed container: the layout itself, a checked index, hashes that notice a flipped bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from colibri.engine import packing
from colibri.engine.table import Format, Layout
from colibri.errors import ModelError
from colibri.models import formats, packed
from colibri.models.container import open_folder
from colibri.models.convert import convert
from tests.models import files, reference_packer

SHAPES = [(32, 64), (1, 32), (33, 96), (100, 288), (129, 160)]
CASES = [
    (Format.F32, 0), (Format.BF16, 0), (Format.F16, 0), (Format.I8_ROW, 0), (Format.I4_ROW, 0),
    (Format.I4_GROUP, 16), (Format.I4_GROUP, 48), (Format.I4_GROUP, 64), (Format.I4_GROUP, 96),
    (Format.I4_GROUP, 256), (Format.FP8_BLOCK, 0), (Format.Q4_0, 0), (Format.Q4_1, 0),
    (Format.Q8_0, 0),
]  # fmt: skip


def random_plain(fmt: Format, group: int, rows: int, cols: int) -> tuple[bytes, bytes | None]:
    """Random codes and scales; every code of a format may occur."""
    random = np.random.default_rng(rows * 1000 + cols)
    data = random.integers(0, 256, formats.plain_bytes(fmt, rows, cols), dtype=np.uint8)
    if fmt in formats.BLOCK_BYTES:
        blocks = data.reshape(-1, formats.BLOCK_BYTES[fmt])
        blocks[:, 1] = blocks[:, 1] % 0x40  # finite f16 scales
        if fmt == Format.Q4_1:
            blocks[:, 3] = blocks[:, 3] % 0x40
    elif fmt == Format.F32:
        data = random.standard_normal((rows, cols)).astype(np.float32).view(np.uint8).reshape(-1)
    if fmt in (Format.I4_ROW, Format.I4_GROUP) and cols % 2:
        data.reshape(rows, -1)[:, -1] = data.reshape(rows, -1)[:, -1] & 15 | 0x80
    count = formats.scale_count(fmt, group, rows, cols)
    scales = random.random(count).astype(np.float32).tobytes() if count else None
    return data.tobytes(), scales


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize(("fmt", "group"), CASES)
def test_the_engine_packs_as_the_layout_is_described(
    fmt: Format, group: int, rows: int, cols: int
) -> None:
    data, scales = random_plain(fmt, group, rows, cols)
    ours = reference_packer.pack(fmt, group, rows, cols, data, scales)
    assert packing.weight_pack(fmt, group, rows, cols, data, scales).tobytes() == ours


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A packed tiny llama."""
    files.llama_folder(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "packed")
    return tmp_path / "packed"


def test_a_container_is_made_of_files_that_the_safetensors_library_reads(container: Path) -> None:
    index = json.loads((container / packed.INDEX_NAME).read_text())
    with safe_open(container / "packed-00000.safetensors", "numpy") as opened:
        names = [name for name in opened.keys() if not name.startswith("colibri.padding")]  # noqa: SIM118
        assert sorted(names) == sorted(index["tensors"])
        norm = opened.get_tensor("model.norm.weight")
    assert norm.shape == (64,)


def test_the_index_stamps_format_shape_place_and_hash(container: Path) -> None:
    index = json.loads((container / packed.INDEX_NAME).read_text())
    entry = index["tensors"]["model.layers.0.mlp.down_proj.weight"]
    assert (entry["format"], entry["layout"], entry["shape"]) == ("F32", "packed", [64, 96])
    data = (container / index["files"][0]["name"]).read_bytes()
    span = data[entry["offset"] : entry["offset"] + entry["bytes"]]
    values = packing.weight_unpack(Format.F32, 0, 64, 96, span)
    expected = files.weights(files.llama_shapes(files.LLAMA))["model.layers.0.mlp.down_proj.weight"]
    assert np.array_equal(values, expected)
    opened = {tensor.name: tensor for tensor in open_folder(container).tensors}
    assert opened["model.norm.weight"].layout == Layout.PLAIN
    assert opened["lm_head.weight"].layout == Layout.PACKED


def test_verifying_reads_every_byte_and_names_what_changed(container: Path) -> None:
    assert packed.verify(container) == []
    tensor = next(t for t in open_folder(container).tensors if "q_proj" in t.name)
    path = container / "packed-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[tensor.offset + tensor.bytes - 1] ^= 1
    path.write_bytes(bytes(data))
    (problem,) = packed.verify(container)
    assert tensor.name in problem


def edit(container: Path, change: Any) -> None:
    path = container / packed.INDEX_NAME
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def entry(index: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = index["tensors"]["lm_head.weight"]
    return found


EDITS: list[tuple[str, Any]] = [
    ("format", lambda i: i.update(format="other")),
    ("version", lambda i: i.update(version=2)),
    ("version", lambda i: i.update(version="1")),
    ("family", lambda i: i.update(family="glm_moe_dsa")),
    ("family", lambda i: i.update(family=1)),
    ("files", lambda i: i.update(files=[])),
    ("files", lambda i: i.update(files=[3])),
    ("files[0].name", lambda i: i["files"][0].update(name="../secret")),
    ("files[0].name", lambda i: i["files"][0].update(name="..")),
    ("files[0].name", lambda i: i["files"][0].update(name="a\\b")),
    ("files[0].name", lambda i: i["files"][0].update(name="a" * 256)),
    ("files[0].name", lambda i: i["files"][0].update(name="\u00e9" * 128)),
    ("files[0].name", lambda i: i["files"][0].update(name="\ud800")),
    ("files[0].name", lambda i: i["files"][0].update(name="\x1b[2J")),
    ("files[0].bytes", lambda i: i["files"][0].update(bytes=-1)),
    ("holds", lambda i: i["files"][0].update(bytes=5)),
    ("missing", lambda i: i["files"][0].update(name="packed-00009.safetensors")),
    ("tensors", lambda i: i.update(tensors=[1])),
    ("tensors", lambda i: i["tensors"].update({"lm_head.weight": 1})),
    ("missing: lm_head.weight", lambda i: i["tensors"].pop("lm_head.weight")),
    ("lm_head.weight.format", lambda i: entry(i).update(format="F31")),
    ("lm_head.weight.format", lambda i: entry(i).update(format=1)),
    ("lm_head.weight.bytes", lambda i: entry(i).update(format="I8_ROW")),
    ("lm_head.weight.group", lambda i: entry(i).update(group=64)),
    ("lm_head.weight.group", lambda i: entry(i).update(format="I4_GROUP")),
    ("lm_head.weight.layout", lambda i: entry(i).update(layout="loose")),
    ("lm_head.weight.layout", lambda i: entry(i).update(layout="plain", format="I8_ROW")),
    ("lm_head.weight.shape", lambda i: entry(i).update(shape=[320])),
    ("lm_head.weight.shape", lambda i: entry(i).update(shape=[1 << 40, 1 << 40])),
    ("lm_head.weight.shape", lambda i: entry(i).update(shape=[-1, 64])),
    ("[640, 32]", lambda i: entry(i).update(shape=[640, 32])),
    ("lm_head.weight.file", lambda i: entry(i).update(file=1)),
    ("lm_head.weight.file", lambda i: entry(i).update(file=-1)),
    ("lm_head.weight.offset", lambda i: entry(i).update(offset=1 << 50)),
    ("lm_head.weight.offset", lambda i: entry(i).update(offset=-4096)),
    ("lm_head.weight.bytes", lambda i: entry(i).update(offset=i["files"][0]["bytes"] - 8)),
    ("lm_head.weight.hash", lambda i: entry(i).update(hash="zz")),
    ("lm_head.weight.hash", lambda i: entry(i).update(hash=None)),
    ("overlap", lambda i: entry(i).update(offset=i["tensors"]["model.norm.weight"]["offset"])),
    ("experts", lambda i: i.update(experts={"e": 1})),
    ("parts", lambda i: i["experts"].update(e={**entry(i), "parts": []})),
]  # fmt: skip


@pytest.mark.parametrize(("word", "change"), EDITS)
def test_a_wrong_index_is_refused_by_entry(container: Path, word: str, change: Any) -> None:
    edit(container, change)
    with pytest.raises(ModelError) as caught:
        open_folder(container)
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": NaN}'])
def test_an_index_that_is_no_json_is_refused(container: Path, text: str) -> None:
    (container / packed.INDEX_NAME).write_text(text)
    with pytest.raises(ModelError, match=r"colibri\.json"):
        open_folder(container)


def test_R162_a_truncated_file_of_a_container_is_refused(container: Path) -> None:
    path = container / "packed-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelError, match=r"packed-00000\.safetensors.*expected"):
        open_folder(container)
