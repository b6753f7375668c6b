"""A container with every header entry of the published GLM-5.2 one, its data being holes in files.

Checks what tiny models cannot: 118,000 entries, real shapes, the int8 o_proj of the MTP layer whose
byte counts fit two formats.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path

import pytest

from colibri.engine.table import Format
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.values import ConfigReader
from colibri.hardware import disk
from colibri.models import doctor, formats
from colibri.models.container import inspect_folder, open_folder
from tests.models.test_families import GLM_52

SHARD_BYTES = 3 << 30
Entry = tuple[str, str, int, int]


def entries() -> list[Entry]:
    """(name, dtype, elements, bytes) as the published container has them, file by file."""
    family = GLM_MOE_DSA
    geometry = family.without(family.geometry(ConfigReader(GLM_52, "config.json")), "indexer")
    plain: list[Entry] = []
    coded: list[Entry] = []
    for spec in family.tensors(geometry):
        count = spec.rows * spec.cols
        if spec.is_vector or "mlp.gate." in spec.name:
            plain.append((spec.name, "F32", count, 4 * count))
            continue
        int8 = spec.layer in (None, 78)
        fmt, group = (Format.I8_ROW, 0) if int8 else (Format.I4_GROUP, 64)
        data = formats.plain_bytes(fmt, spec.rows, spec.cols)
        scales = formats.scale_count(fmt, group, spec.rows, spec.cols)
        coded.append((spec.name, "U8", data, data))
        plain.append((spec.name + ".qs", "F32", scales, 4 * scales))
    return [*sorted(plain), *sorted(coded)]


def write(folder: Path) -> int:
    """Writes the shards as holes; returns the number of entries."""
    (folder / "config.json").write_text(json.dumps(GLM_52))
    header: dict[str, object] = {}
    end = number = count = 0

    def close() -> None:
        nonlocal header, end, number
        text = json.dumps(header).encode()
        path = folder / f"out-{number:05d}.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        with path.open("r+b") as stream:
            stream.truncate(8 + len(text) + end)
        header, end, number = {}, 0, number + 1

    for name, dtype, elements, size in entries():
        if header and end + size > SHARD_BYTES:
            close()
        header[name] = {"dtype": dtype, "shape": [elements], "data_offsets": [end, end + size]}
        end += size
        count += 1
    close()
    return count


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm52_i4")
    assert write(folder) > 118_000
    return folder


def test_the_published_container_opens_with_its_formats(published: Path) -> None:
    opened = open_folder(published)
    found = Counter((tensor.format, tensor.group) for tensor in opened.tensors)
    assert set(found) == {(Format.F32, 0), (Format.I8_ROW, 0), (Format.I4_GROUP, 64)}
    tensors = {tensor.name: tensor for tensor in opened.tensors}
    assert tensors["model.layers.78.self_attn.o_proj.weight"].format == Format.I8_ROW
    assert tensors["model.layers.5.self_attn.o_proj.weight"].format == Format.I4_GROUP
    experts = [t for name, t in tensors.items() if ".layers.5.mlp.experts.7." in name]
    assert sum(t.bytes + t.scale_bytes for t in experts) == 21_233_664
    total = sum(t.bytes + t.scale_bytes for t in opened.tensors)
    assert 429.2e9 < total < 429.3e9  # the published folder, headers and tokenizer included: 429.3
    assert opened.geometry.index_topk == 0
    assert opened.geometry.n_mtp_layers == 1


def test_R185_R186_lost_files_are_diagnosed_in_one_message(published: Path, tmp_path: Path) -> None:
    for path in published.iterdir():
        (tmp_path / path.name).symlink_to(path)
    numbers = sorted(path.name for path in tmp_path.glob("out-*"))
    for name in (numbers[60], *numbers[-20:]):
        (tmp_path / name).unlink()
    files, problems = inspect_folder(tmp_path)
    assert files is None
    text = "; ".join(problems)
    assert "layer" in text
    assert numbers[60].removesuffix(".safetensors") in text


def test_R186_the_doctor_tells_a_lost_tail_of_the_real_size_in_a_few_lines(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that lack the same are told together, as ranges, with the amount to come."""
    monkeypatch.setattr(disk, "first_hole", lambda *_: None)  # all of it is a hole
    for path in published.iterdir():
        (tmp_path / path.name).symlink_to(path)
    names = sorted(path.name for path in tmp_path.glob("out-*"))
    lost = names[len(names) * 8 // 10 :]
    for name in lost:
        (tmp_path / name).unlink()
    errors = [item for item in doctor.examine(tmp_path).findings if item.level == "error"]
    assert len(errors) < 10
    text = "\n".join(item.line() for item in errors)
    assert "layers 7-9, 66-77 lack each 776 of 782 tensors" in text
    told = re.search(r"about ([\d.]+) GB are still missing, about (\d+) files", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(len(lost) * SHARD_BYTES / 1e9, rel=0.1)
    assert int(told[2]) == pytest.approx(len(lost), abs=2)
    assert "mastouri/GLM-5.2" in text
