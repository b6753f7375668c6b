"""Conversion: exact, resumable after a kill, never over a finished container, complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.cli.convert import ProgressLine, describe
from colibri.engine import packing
from colibri.engine.table import Format, Layout
from colibri.errors import IntegrityError, ModelError, ResourceError, UsageError
from colibri.models import catalog, pack_shards, pack_writer, packed
from colibri.models.container import open_folder
from colibri.models.convert import Options, convert
from colibri.models.model import open_model
from tests.models import files, glm_checkpoint
from tests.models.glm_checkpoint import as_bf16
from tests.models.test_container import gs64, published, write
from tests.models.test_gguf import values

SMALL_SHARDS = Options(shard_bytes=64 << 10)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_an_original_checkpoint_keeps_its_numbers(tmp_path: Path) -> None:
    arrays = files.llama_folder(tmp_path / "m", shards=2)
    convert(tmp_path / "m", tmp_path / "out")
    found = values(tmp_path / "out")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_a_published_container_keeps_its_codes_and_scales(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", published(gs64), shards=3)
    convert(folder, tmp_path / "out", SMALL_SHARDS)
    before, after = open_folder(folder), open_folder(tmp_path / "out")
    assert after.kind == "packed"
    assert after.geometry == before.geometry
    sources = {tensor.name: tensor for tensor in before.tensors}
    for tensor in after.tensors:
        source = sources.pop(tensor.name)
        assert (tensor.format, tensor.group) == (source.format, source.group)
        data = before.paths[source.file].read_bytes()[source.offset :][: source.bytes]
        stored = after.paths[tensor.file].read_bytes()[tensor.offset :][: tensor.bytes]
        if tensor.layout == Layout.PLAIN:
            assert stored == data
            continue
        scales = None
        if source.scale_file >= 0:
            path = before.paths[source.scale_file]
            scales = path.read_bytes()[source.scale_offset :][: source.scale_bytes]
        shape = source.rows, source.cols
        expected = packing.weight_pack(source.format, source.group, *shape, data, scales)
        assert stored == expected.tobytes()
    assert not sources


def test_an_expert_is_one_aligned_range_of_gate_up_and_down(tmp_path: Path) -> None:
    convert(write(tmp_path / "m", published(gs64)), tmp_path / "out")
    tensors = {tensor.name: tensor for tensor in open_folder(tmp_path / "out").tensors}
    for layer in (1, 2, 3, 4):
        for expert in range(4):
            prefix = f"model.layers.{layer}.mlp.experts.{expert}."
            gate, up, down = (tensors[prefix + name] for name in packed.EXPERT_PARTS)
            assert gate.offset % 4096 == 0
            assert up.offset == gate.offset + gate.bytes
            assert down.offset == up.offset + up.bytes
    index = json.loads((tmp_path / "out" / packed.INDEX_NAME).read_text())
    assert len(index["experts"]) == 16


def test_int8_requantizes_matrices_within_half_a_step_and_leaves_router_and_norms(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "m", published(lambda name: None))
    convert(folder, tmp_path / "out", Options(weights="int8"))
    source = values_of_plain(folder)
    found = values(tmp_path / "out")
    tensors = {tensor.name: tensor for tensor in open_folder(tmp_path / "out").tensors}
    for name, array in source.items():
        matrix = tensors[name].rows > 1
        if "mlp.gate.weight" in name or not matrix:
            assert tensors[name].format == Format.F32
            assert np.array_equal(found[name].reshape(-1), array.reshape(-1))
        else:
            assert tensors[name].format == Format.I8_ROW
            step = np.abs(array).max(axis=1, keepdims=True) / 127
            assert np.all(np.abs(found[name] - array) <= 0.51 * step)


def values_of_plain(folder: Path) -> dict[str, Any]:
    opened = open_folder(folder)
    result = {}
    for t in opened.tensors:
        data = opened.paths[t.file].read_bytes()[t.offset : t.offset + t.bytes]
        result[t.name] = np.frombuffer(data, np.float32).reshape(t.rows, t.cols)
    return result


def test_bf16_rounds_matrices_to_nearest(tmp_path: Path) -> None:
    arrays = files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out", Options(weights="bf16"))
    found = values(tmp_path / "out")
    for name, array in arrays.items():
        assert np.all(np.abs(found[name] - array) <= np.abs(array) * 2.0**-8)


def test_R148_end_ids_only_in_generation_config_are_carried_over(tmp_path: Path) -> None:
    config = {key: value for key, value in files.LLAMA.items() if key != "eos_token_id"}
    files.llama_folder(tmp_path / "m", config)
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [2, 3], "top_p": 0.9}')
    convert(tmp_path / "m", tmp_path / "out")
    opened = open_model(tmp_path / "out")
    assert opened.text.end_ids >= {2, 3}
    assert opened.text.sampling.top_p == 0.9


def test_R182_a_source_without_tokenizer_is_refused_by_file(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        convert(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_R182_metadata_is_complete(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    (tmp_path / "m" / "special_tokens_map.json").write_text("{}")
    (tmp_path / "m" / "README.md").write_text("not the model's")
    convert(tmp_path / "m", tmp_path / "out")
    names = set(content(tmp_path / "out"))
    assert names == {
        "config.json", "generation_config.json", "tokenizer.json", "special_tokens_map.json",
        "chat_template.jinja", "colibri.json", "packed-00000.safetensors",
    }  # fmt: skip


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Makes the writer die before item number `after`; returns the names it writes."""
    written: list[str] = []
    original = pack_shards._write_item

    def write_item(stream: Any, item: pack_shards.Item, *others: Any) -> str:
        if len(written) == after:
            raise Killed
        written.append(item.name)
        return original(stream, item, *others)

    monkeypatch.setattr(pack_shards, "_write_item", write_item)
    return written


@pytest.mark.parametrize("after", [0, 1, 9, 17, 29])
def test_R182_an_interrupted_conversion_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "whole", SMALL_SHARDS)
    total = len(json.loads((tmp_path / "whole" / packed.INDEX_NAME).read_text())["tensors"])
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Killed):
            convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    assert not (tmp_path / "out").exists()
    finished = len(list((tmp_path / "out.partial").glob("*.safetensors")))
    with monkeypatch.context() as patch:
        written = interrupt(patch, 10**9)
        convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    assert len(written) <= total
    assert (len(written) < total) == (finished > 0)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out", "whole"]


def test_R182_a_real_kill_in_the_middle_costs_nothing_but_time(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "whole", SMALL_SHARDS)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from colibri.models.convert import Options, convert\n"
        "def progress(done, total):\n"
        "    if done > total // 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), Options(shard_bytes=64 << 10), progress)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "m"), str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode != 0
    assert (tmp_path / "out.partial").is_dir()
    convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_R182_an_interrupted_run_with_other_parameters_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.llama_folder(tmp_path / "m")
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        with pytest.raises(Killed):
            convert(tmp_path / "m", tmp_path / "out")
    with pytest.raises(UsageError, match="other parameters"):
        convert(tmp_path / "m", tmp_path / "out", Options(weights="int8"))
    config = {**files.LLAMA, "num_hidden_layers": 2}
    files.llama_folder(tmp_path / "n", config)
    with pytest.raises(UsageError, match="other parameters"):
        convert(tmp_path / "n", tmp_path / "out")


@pytest.mark.parametrize("damage", ["[]", "{", '{"fingerprint": {}, "shards": {}}', "", "\0"])
def test_a_damaged_state_of_an_interrupted_run_is_refused_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    files.llama_folder(tmp_path / "m")
    with monkeypatch.context() as patch:
        interrupt(patch, 9)
        with pytest.raises(Killed):
            convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    (tmp_path / "out.partial" / ".convert.json").write_text(damage)
    with pytest.raises((UsageError, ModelError), match=r"out\.partial"):
        convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)


@pytest.mark.parametrize("hashes", [5, {}, {"model.norm.weight": "0"}])
def test_a_state_with_wrong_hashes_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: Any
) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "whole", SMALL_SHARDS)
    with monkeypatch.context() as patch:
        interrupt(patch, 9)
        with pytest.raises(Killed):
            convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    path = tmp_path / "out.partial" / ".convert.json"
    state = json.loads(path.read_text())
    assert state["shards"]
    state["shards"] = dict.fromkeys(state["shards"], hashes)
    path.write_text(json.dumps(state))
    convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_files_that_do_not_read_back_are_written_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "whole", SMALL_SHARDS)
    original = pack_shards._write_item
    with monkeypatch.context() as patch:

        def rotten(stream: Any, item: pack_shards.Item, *others: Any) -> str:
            start = stream.tell()
            value = original(stream, item, *others)
            if item.name == "lm_head.weight":  # a disk that keeps other bytes than it was given
                stream.seek(start + 100)
                stream.write(b"\xff" * 8)
                stream.seek(0, 2)
            return value

        patch.setattr(pack_shards, "_write_item", rotten)
        with pytest.raises(IntegrityError, match=r"lm_head.*convert again"):
            convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    convert(tmp_path / "m", tmp_path / "out", SMALL_SHARDS)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_foreign_files_where_unfinished_work_belongs_are_left_alone(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not ours"):
        convert(tmp_path / "m", tmp_path / "out")
    assert (tmp_path / "out.partial" / "notes.txt").read_text() == "mine"


def test_R181_a_finished_container_is_never_touched_without_overwrite(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(UsageError, match="--overwrite"):
        convert(tmp_path / "m", tmp_path / "out", Options(weights="int8"))
    assert content(tmp_path / "out") == before
    convert(tmp_path / "m", tmp_path / "out", Options(weights="int8", overwrite=True))
    assert content(tmp_path / "out") != before
    assert not (tmp_path / "out.colibri-replaced").exists()


def test_R181_overwriting_keeps_the_old_container_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out")
    before = content(tmp_path / "out")
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        with pytest.raises(Killed):
            convert(tmp_path / "m", tmp_path / "out", Options(weights="int8", overwrite=True))
    assert content(tmp_path / "out") == before


def test_a_kill_between_the_renames_of_an_overwrite_is_repaired(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out")
    before = content(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "out.colibri-replaced")
    with pytest.raises(UsageError, match="finished"):
        convert(tmp_path / "m", tmp_path / "out")
    assert content(tmp_path / "out") == before


def test_a_folder_that_is_no_container_is_never_replaced(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="no container"):
        convert(tmp_path / "m", tmp_path / "out", Options(overwrite=True))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


def test_two_conversions_of_one_target_do_not_mix(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    refused: list[str] = []

    def second(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(UsageError, match="another conversion") as caught:
                convert(tmp_path / "m", tmp_path / "out")
            refused.append(str(caught.value))

    convert(tmp_path / "m", tmp_path / "out", None, second)
    assert refused
    assert packed.verify(tmp_path / "out") == []


def test_a_disk_that_is_too_small_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.llama_folder(tmp_path / "m")
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(pack_writer.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match="free"):
        convert(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_bytes_that_do_not_read_back_are_an_integrity_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.llama_folder(tmp_path / "m")
    monkeypatch.setattr(packed, "hash_span", lambda path, offset, size: "0" * 64)
    with pytest.raises(IntegrityError, match="read back"):
        convert(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_packed_container_is_no_source(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out")
    with pytest.raises(UsageError, match="already"):
        convert(tmp_path / "out", tmp_path / "again")


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m")
    seen: list[tuple[int, int]] = []
    convert(tmp_path / "m", tmp_path / "out", None, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_names_and_folders_resolve_to_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "models"
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(root))
    files.llama_folder(root / "tiny")
    files.llama_folder(tmp_path / "elsewhere")
    assert catalog.resolve("tiny") == root / "tiny"
    assert catalog.resolve(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    files.llama_folder(root / "big.partial")
    (root / "big.partial" / packed.STATE_NAME).write_text("{}")
    listed = {item.name: item for item in catalog.installed()}
    assert set(listed) == {"tiny", "broken"}  # not what a conversion has not finished
    assert (listed["tiny"].family, listed["tiny"].context) == ("llama", 512)
    assert "JSON" in listed["broken"].problem


@pytest.mark.parametrize(
    "name", ["m\u00f6del x", "-dash", "a'b", "new\nline", ".hidden", "x" * 200]
)
def test_every_installed_model_is_found_by_the_name_that_the_list_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(tmp_path))
    files.llama_folder(tmp_path / name)
    assert [item.name for item in catalog.installed()] == [name]
    assert catalog.resolve(name) == tmp_path / name


def test_a_folder_that_may_not_be_read_hides_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A models folder that is a drive of its own has a lost+found."""
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(tmp_path))
    files.llama_folder(tmp_path / "mine")
    (tmp_path / "lost+found").mkdir()
    plain = Path.is_file

    def is_file(path: Path) -> bool:
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [item.name for item in catalog.installed()] == ["mine"]


@pytest.mark.parametrize(
    "name",
    ["absent", "", ".", "..", "../tiny", "a/b", "x\0y", "-x", "x" * 5000, "~nobody-here/x"],
)
def test_an_unknown_name_lists_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from colibri.errors import ModelNotFoundError

    root = tmp_path / "models"
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(root))
    monkeypatch.chdir(tmp_path)
    files.llama_folder(root / "tiny")
    with pytest.raises(ModelNotFoundError):
        catalog.resolve(name)
    with pytest.raises(ModelNotFoundError, match="installed: tiny"):
        catalog.resolve("absent")


def test_a_gguf_given_as_a_model_says_how_to_convert_it(tmp_path: Path) -> None:
    from colibri.errors import ModelNotFoundError

    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    for given in (path, tmp_path):
        with pytest.raises(ModelNotFoundError, match=r"coli convert .*x\.gguf"):
            catalog.resolve(str(given))


def coli(*arguments: str | Path) -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from colibri.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_progress_says_share_speed_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(1_000_000_000, 8_000_000_000, 5e8) == (
        " 12.5 %  1.00 of 8.00 GB  0.50 GB/s  0:14 left"
    )
    assert describe(0, 430_000_000_000, 1e8).endswith("0.10 GB/s  1:11:40 left")
    assert describe(5, 10, 0.0) == " 50.0 %  0.00 of 0.00 GB"
    assert describe(0, 0, 0.0).startswith("100.0 %")
    clock = iter(range(0, 100_000, 30))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    line = ProgressLine(quiet=False)
    for done in range(0, 11):
        line(done * 10**9, 10 * 10**9)
    shown = capsys.readouterr().err.splitlines()
    assert 3 <= len(shown) <= 6  # no terminal: one line per minute
    assert all(text.endswith("left") for text in shown[1:])
    ProgressLine(quiet=True)(5, 10)
    assert capsys.readouterr().err == ""


def test_the_command_converts_by_recipe_adds_an_mtp_layer_and_names_what_is_missing(
    tmp_path: Path,
) -> None:
    weights = as_bf16(glm_checkpoint.values(glm_checkpoint.CONFIG))
    trunk = {name: raw for name, raw in weights.items() if ".layers.4." not in name}
    glm_checkpoint.write(tmp_path / "all", weights)
    glm_checkpoint.write(tmp_path / "trunk", trunk)
    out = tmp_path / "out"
    code, _, err = coli("convert", tmp_path / "trunk", out, "--weights", "gs64-dense8")
    assert code == 0
    assert "note: no MTP head" in err
    assert coli("convert", tmp_path / "all", out, "--only", "mtp")[:2] == (0, f"{out}\n")
    assert open_folder(out).geometry.n_mtp_layers == 1
    code, _, err = coli("convert", tmp_path / "all", out, "--only", "mtp")
    assert (code, "--overwrite" in err) == (2, True)
    assert coli("convert", tmp_path / "all", out, "--weights", "int3")[0] == 2
    (tmp_path / "all" / "model-00002-of-00003.safetensors").unlink()
    code, _, err = coli("convert", tmp_path / "all", tmp_path / "new")
    assert (code, "model-00002-of-00003" in err) == (4, True)


def test_the_commands_convert_list_and_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "models"
    monkeypatch.setenv("COLIBRI_MODELS_DIR", str(root))
    files.llama_folder(tmp_path / "m")
    assert coli("convert", tmp_path / "m", root / "tiny")[:2] == (0, f"{root / 'tiny'}\n")
    assert coli("convert", tmp_path / "m", root / "tiny")[0] == 2
    code, out, _ = coli("models", "--json")
    assert code == 0
    listed = json.loads(out)
    assert listed["schema"] == 1
    names = [(m["name"], m["kind"]) for m in listed["models"]]
    assert names == [("tiny", "packed"), ("colibri-starter", "packed")]
    assert "tiny" in coli("models")[1]
    assert coli("verify", "tiny", "--quiet")[0] == 0
    path = next((root / "tiny").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    code, out, _ = coli("verify", "tiny", "--quiet", "--json")
    assert code == 7
    assert [f["kind"] for f in json.loads(out)["findings"] if f["level"] == "error"] == [
        "integrity"
    ]
    assert coli("verify", "nothing")[0] == 3
