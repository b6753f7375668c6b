"""The step before publishing: everything that the doctor sees, and what only matters to others.

Covers R157, R184.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from colibri import findings
from colibri.errors import IntegrityError
from colibri.models import manifest, synthetic
from colibri.models.doctor import examine
from colibri.models.verify import verify, write_manifest
from tests.models import broken
from tests.models.broken import errors


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken.make(tmp_path_factory.mktemp("verify") / "model")


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return broken.copy(whole, tmp_path / "model")


def warnings(found: list[findings.Finding]) -> list[str]:
    errors(found)
    return [item.what for item in found if item.level == "warning"]


def test_a_good_container_has_neither_error_nor_warning_but_a_hint_to_list_its_hashes(
    whole: Path,
) -> None:
    report = verify(whole)
    assert errors(report.findings) == []
    # The synthetic model has no template file: the family's built-in one is used.
    assert warnings(report.findings) == []
    assert any("--manifest" in item.fix for item in report.findings)


def test_R184_the_publishing_step_refuses_a_container_without_some_layers(model: Path) -> None:
    broken.drop_layers(model, {2, 3, 4})
    report = verify(model, hashes=True)
    assert any("3 of 6 layers are missing: 2-4" in item.what for item in errors(report.findings))
    assert findings.exit_code(report.findings) == 4
    with pytest.raises(IntegrityError, match="no manifest"):
        write_manifest(report)
    assert not (model / manifest.MANIFEST_NAME).exists()


def test_the_manifest_that_it_writes_is_what_the_doctor_then_compares(model: Path) -> None:
    path = write_manifest(verify(model, hashes=True), "owner/name")
    content = json.loads(path.read_text())
    by_name = {item["name"]: item for item in content["files"]}
    for name in ("config.json", "tokenizer.json", "out-00000.safetensors"):
        data = (model / name).read_bytes()
        assert by_name[name]["bytes"] == len(data)
        assert by_name[name]["sha256"] == hashlib.sha256(data).hexdigest()
    assert errors(examine(model, deep=True).findings) == []
    shard = broken.shards(model)[4]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert errors(examine(model).findings) == [], "sizes agree"
    (found,) = errors(examine(model, deep=True).findings)
    assert found.where == str(shard)
    assert f"hf download owner/name {shard.name}" in found.fix
    (model / "tokenizer.json").unlink()
    assert any("tokenizer.json" in item.what for item in errors(examine(model).findings))


def test_a_manifest_is_replaced_whole_or_not_at_all(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verify(model, hashes=True)
    path = write_manifest(report)
    before = path.read_bytes()

    def full(_self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(report, "owner/name")
    assert path.read_bytes() == before
    assert not list(model.glob("*.tmp"))


@pytest.mark.parametrize("layout", ["published", "packed"])
def test_int4_with_one_scale_per_row_is_named_as_worse(layout: str, tmp_path: Path) -> None:
    made = synthetic.Shape(
        layers=3, hidden=256, experts=4, top_k=2, expert_ffn=128, layout=layout, format="int4row"
    )
    synthetic.make(tmp_path / "m", made)
    report = verify(tmp_path / "m")
    assert errors(report.findings) == []
    assert any("one scale per row" in text for text in warnings(report.findings))


def test_an_int4_mtp_head_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = synthetic.Shape(layers=3, hidden=128, experts=4, top_k=2, expert_ffn=64, mtp=True)
    synthetic.make(tmp_path / "good", shape)
    assert not any("MTP" in text for text in warnings(verify(tmp_path / "good").findings))
    real = synthetic._Weights.format

    def four_bits(self: synthetic._Weights, spec: object) -> object:
        fmt, group = real(self, spec)  # type: ignore[arg-type]
        return synthetic._DENSE if fmt == synthetic.Format.I8_ROW else (fmt, group)

    monkeypatch.setattr(synthetic._Weights, "format", four_bits)
    synthetic.make(tmp_path / "weak", shape)
    assert any("MTP" in text for text in warnings(verify(tmp_path / "weak").findings))


def test_shapes_that_disagree_with_the_config_are_errors(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["moe_intermediate_size"] *= 2
    (model / "config.json").write_text(json.dumps(config))
    found = errors(verify(model).findings)
    assert any("fit no format" in item.what for item in found)
    assert findings.exit_code(found) == 4


def test_a_missing_tokenizer_is_an_error(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert any("tokenizer" in item.what for item in errors(verify(model).findings))


def test_a_model_without_any_end_token_is_an_error(model: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        values = json.loads((model / name).read_text())
        values.pop("eos_token_id", None)
        (model / name).write_text(json.dumps(values))
    (model / "tokenizer_config.json").write_text("{}")
    text = (model / "tokenizer.json").read_text()
    for token in ("<|user|>", "<|observation|>", "<|endoftext|>"):
        text = text.replace(token, f"<{token[2:-2]}_>")
    (model / "tokenizer.json").write_text(text)
    assert any("end" in item.what for item in errors(verify(model).findings))


def test_what_is_private_or_left_over_is_named_and_not_listed(model: Path) -> None:
    for name in (".coli_kv.1", ".coli_usage", "out-00009.safetensors.tmp", ".convert.lock"):
        (model / name).write_text("x")
    report = verify(model, hashes=True)
    texts = " ".join(warnings(report.findings))
    for name in (".coli_kv.1", ".coli_usage", "out-00009.safetensors.tmp"):
        assert name in texts
    listed = manifest.read(model)
    assert listed is None
    names = set(json.loads(write_manifest(report).read_text())["files"][0])
    assert names == {"name", "bytes", "sha256"}
    listed = manifest.read(model)
    assert listed is not None
    assert not any(name.startswith(".") or name.endswith(".tmp") for name in listed.files)


def test_missing_side_files_are_named_with_what_is_lost(model: Path) -> None:
    (model / "generation_config.json").unlink()
    assert any("generation_config.json" in text for text in warnings(verify(model).findings))


def test_R157_a_failing_disk_is_no_reason_to_call_the_container_bad(model: Path) -> None:
    def read(descriptor: int, size: int, offset: int) -> bytes:
        if offset > 50_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(descriptor, min(size, 50_001 - offset), offset)

    report = verify(model, read=read)
    assert all(item.kind == "device" for item in errors(report.findings) if "at byte" in item.what)
    assert findings.exit_code(report.findings) == 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"schema": 2, "files": []}',
        b'{"schema": 1, "files": []}',
        b'{"schema": 1, "files": [{"name": "../x", "bytes": 1}]}',
        b'{"schema": 1, "files": [{"name": "x", "bytes": -1}]}',
        b'{"schema": 1, "files": [{"name": "x", "bytes": 1, "sha256": "zz"}]}',
        b'{"schema": 1, "files": [{"name": "x", "bytes": 1}, {"name": "x", "bytes": 1}]}',
    ],
)
def test_a_damaged_manifest_is_a_finding(content: bytes, model: Path) -> None:
    (model / manifest.MANIFEST_NAME).write_bytes(content)
    found = errors(examine(model).findings)
    assert any(manifest.MANIFEST_NAME in item.where for item in found)


def test_the_command_to_fetch_never_carries_what_a_hostile_list_put_there() -> None:
    folder = Path("a b")
    names = ["--token", "x; rm -rf .safetensors", "../up"]
    command = manifest.fetch_command(folder, names)
    assert command == "hf download REPO 'x; rm -rf .safetensors' --local-dir 'a b'"
    many = [f"out-{number:05d}.safetensors" for number in range(100)]
    assert "--include 'out-*'" in manifest.fetch_command(folder, many)
