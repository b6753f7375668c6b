"""Converting original GLM checkpoints: formats, numbers, FP8, fused experts, partial sources."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine import ffi
from colibri.engine.table import EngineOptions, Format, Precision
from colibri.errors import ColibriError, ModelError, ResourceError, UsageError
from colibri.models import pack_shards, packed
from colibri.models.container import open_folder
from colibri.models.convert import Options, convert, convert_mtp
from colibri.models.model import open_model
from tests.models import files, glm_checkpoint
from tests.models.glm_checkpoint import CONFIG, as_bf16, as_fp8, fuse
from tests.models.test_gguf import values
from tests.oracle import published
from tests.oracle.checkpoint import Raw, dequantize, fp8_table, write_safetensors

MTP = "model.layers.4."


def shards(folder: Path) -> dict[str, bytes]:
    """Weights and small files; the index names its source, so it is compared apart."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "colibri.json"}


def index(folder: Path) -> Any:
    found = json.loads((folder / "colibri.json").read_text())
    return {key: found[key] for key in ("files", "tensors", "experts")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bf16")
    return glm_checkpoint.write(folder, as_bf16(glm_checkpoint.values(CONFIG)))


def formats(folder: Path) -> dict[str, tuple[str, int]]:
    return {t.name: (Format(t.format).name, t.group) for t in open_folder(folder).tensors}


# ---- recipes -------------------------------------------------------------------------------------


def test_the_default_gives_every_tensor_the_published_format(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    int4, int8, f32 = ("I4_GROUP", 64), ("I8_ROW", 0), ("F32", 0)
    found = formats(tmp_path / "out")
    assert found.keys() == {name for name in glm_checkpoint.values(CONFIG)}
    for name, fmt in found.items():
        if name.endswith("indexer.weights_proj.weight"):
            assert fmt == ("BF16", 0), name
        elif not published.is_matrix(name):
            assert fmt == f32, name
        elif name in ("model.embed_tokens.weight", "lm_head.weight") or ".indexer." in name:
            assert fmt == int8, name
        else:
            assert fmt == (int8 if name.startswith(MTP) else int4), name


def test_the_default_numbers_are_those_of_a_published_container(
    source: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "out")
    style = published.Style("i4_group", 64, indexer=True)
    _, expected = published.quantize_model(glm_checkpoint.values(CONFIG), style, 4)
    found = values(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name].reshape(array.shape), array), name


@pytest.mark.parametrize(
    ("recipe", "expert", "dense", "mtp"),
    [
        ("gs64-dense8", "I4_GROUP", "I8_ROW", "I8_ROW"),
        ("int8", "I8_ROW", "I8_ROW", "I8_ROW"),
        ("bf16", "BF16", "BF16", "BF16"),
        ("as-is", "BF16", "BF16", "BF16"),
    ],
)
def test_other_recipes_trade_memory_for_precision(
    source: Path, tmp_path: Path, recipe: str, expert: str, dense: str, mtp: str
) -> None:
    convert(source, tmp_path / "out", Options(weights=recipe))
    found = formats(tmp_path / "out")
    assert found["model.layers.2.mlp.experts.1.up_proj.weight"][0] == expert
    assert found["model.layers.2.self_attn.o_proj.weight"][0] == dense
    assert found["model.layers.0.mlp.up_proj.weight"][0] == dense
    assert found["model.layers.2.mlp.shared_experts.up_proj.weight"][0] == dense
    assert found[f"{MTP}mlp.experts.1.up_proj.weight"][0] == mtp
    assert found["model.layers.2.mlp.gate.weight"][0] == ("BF16" if recipe == "as-is" else "F32")


def test_a_converted_model_computes_nearly_what_its_source_computes(
    source: Path, tmp_path: Path
) -> None:
    tokens = np.random.default_rng(5).integers(3, CONFIG["vocab_size"], 24).tolist()

    def logits(folder: Path) -> Any:
        opened = open_model(folder)
        out = np.empty((len(tokens), opened.geometry.vocab), np.float32)
        options = EngineOptions(precision=Precision.FAST, context=64)
        engine = ffi.Engine(opened.paths, opened.geometry, opened.tensors, options)
        with engine, engine.session() as session:
            session.prefill(tokens, out)
        return out

    expected = logits(source)
    errors = {}
    for recipe in ("as-is", "int8", "gs64-dense8", "gs64"):
        convert(source, tmp_path / recipe, Options(weights=recipe))
        errors[recipe] = float(np.abs(logits(tmp_path / recipe) - expected).mean() / expected.std())
    assert errors["as-is"] == 0
    assert errors["int8"] < 0.3 * errors["gs64"]
    assert errors["gs64-dense8"] < errors["gs64"]
    assert errors["gs64"] < 0.8, errors  # random weights have no redundancy; real ones do better


def test_a_dense_model_and_a_published_container_keep_their_numbers_by_default(
    tmp_path: Path,
) -> None:
    files.llama_folder(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "out")
    assert set(formats(tmp_path / "out").values()) == {("F32", 0)}


# ---- FP8 and fused experts -----------------------------------------------------------------------


def dequantized(entries: dict[str, Raw]) -> dict[str, Raw]:
    """The BF16 checkpoint of the values that an FP8 one stands for."""
    result = {}
    for name, raw in entries.items():
        if raw.dtype != "F8_E4M3":
            if not name.endswith("_scale_inv"):
                result[name] = raw
            continue
        scales = entries[name + "_scale_inv"].data
        rows, cols = np.indices(raw.shape)
        value = fp8_table()[raw.data] * scales[rows // 128, cols // 128]
        result[name] = glm_checkpoint.bf16(value.astype(np.float32))
    return result


@pytest.mark.parametrize("recipe", ["auto", "gs64-dense8", "int8", "bf16"])
def test_an_fp8_checkpoint_gives_the_bytes_of_its_bf16_route(tmp_path: Path, recipe: str) -> None:
    entries = as_fp8(glm_checkpoint.values(CONFIG))
    config = {**CONFIG, **glm_checkpoint.FP8}
    coded = [raw for raw in entries.values() if raw.dtype == "F8_E4M3"]
    assert any(raw.shape[0] % 128 and raw.shape[1] % 128 for raw in coded)
    fp8 = glm_checkpoint.write(tmp_path / "fp8", entries, config)
    bf16 = glm_checkpoint.write(tmp_path / "bf16", dequantized(entries), config)
    convert(fp8, tmp_path / "a", Options(weights=recipe))
    convert(bf16, tmp_path / "b", Options(weights=recipe))
    assert index(tmp_path / "a") == index(tmp_path / "b")
    assert shards(tmp_path / "a") == shards(tmp_path / "b")


def test_fp8_scales_of_any_value_are_multiplied_in_f32(tmp_path: Path) -> None:
    entries = as_fp8(glm_checkpoint.values(CONFIG))
    rng = np.random.default_rng(9)
    for name, raw in list(entries.items()):
        if name.endswith("_scale_inv"):
            scales = rng.uniform(1e-4, 1e-3, raw.shape).astype(np.float32)
            entries[name] = Raw("F32", raw.shape, scales)
    convert(glm_checkpoint.write(tmp_path / "fp8", entries), tmp_path / "out")
    found = values(tmp_path / "out")
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    raw, scales = entries[name], entries[name + "_scale_inv"].data
    rows, cols = np.indices(raw.shape)
    exact = fp8_table()[raw.data] * scales[rows // 128, cols // 128]
    assert np.array_equal(found[name], dequantize(published.quantize(name, exact, "i4_group", 64)))


def test_a_nan_code_in_an_fp8_checkpoint_is_refused_by_tensor_and_row(tmp_path: Path) -> None:
    for code in (0x7F, 0xFF):
        entries = as_fp8(glm_checkpoint.values(CONFIG))
        name = "model.layers.2.mlp.experts.3.up_proj.weight"
        entries[name].data[70, 5] = code
        folder = glm_checkpoint.write(tmp_path / f"m{code}", entries)
        with pytest.raises(ModelError, match=r"experts\.3\.up_proj.*row 70.*not finite"):
            convert(folder, tmp_path / f"out{code}")
        assert not (tmp_path / f"out{code}").exists()
        # Nothing is computed when the numbers stay as they are.
        convert(folder, tmp_path / f"kept{code}", Options(weights="as-is"))
        assert np.isnan(values(tmp_path / f"kept{code}")[name][70, 5])


def test_a_block_of_zeros_and_a_scale_of_zero_become_zeros(tmp_path: Path) -> None:
    entries = as_fp8(glm_checkpoint.values(CONFIG))
    name = "model.layers.1.self_attn.q_b_proj.weight"
    other = "model.layers.1.self_attn.o_proj.weight"
    entries[name + "_scale_inv"].data[:] = 0
    entries[other].data[:] = 0x80  # minus zero
    convert(glm_checkpoint.write(tmp_path / "m", entries), tmp_path / "out")
    found = values(tmp_path / "out")
    assert not found[name].any()
    assert not found[other].any()
    assert np.isfinite(found[name]).all()


@pytest.mark.parametrize("suffix", ["", ".weight"])
@pytest.mark.parametrize("fp8", [False, True])
def test_fused_experts_give_the_bytes_of_separate_ones(
    tmp_path: Path, fp8: bool, suffix: str
) -> None:
    config = {**CONFIG, "moe_intermediate_size": 128}
    weights = glm_checkpoint.values(config)
    entries = as_fp8(weights) if fp8 else as_bf16(weights)
    fused = fuse(entries, suffix)
    assert not any(".experts.0." in name for name in fused)
    glm_checkpoint.write(tmp_path / "separate", entries, config)
    glm_checkpoint.write(tmp_path / "fused", fused, config)
    for recipe in ("auto", "as-is"):
        convert(tmp_path / "separate", tmp_path / f"a-{recipe}", Options(weights=recipe))
        convert(tmp_path / "fused", tmp_path / f"b-{recipe}", Options(weights=recipe))
        assert index(tmp_path / f"a-{recipe}") == index(tmp_path / f"b-{recipe}")
        assert shards(tmp_path / f"a-{recipe}") == shards(tmp_path / f"b-{recipe}")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda e, n: e.update({n: Raw("BF16", (3, 192, 160), e[n].data[:3])}), "expected [4, 192"),
        (lambda e, n: e.update({n: Raw("BF16", (768, 160), e[n].data.reshape(768, 160))}), "[768"),
        (lambda e, n: e.update({n: Raw("U8", e[n].shape, e[n].data.astype("u1"))}), "dtype U8"),
        (lambda e, n: e.pop(n), "lacks"),
    ],
)
def test_fused_experts_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, change: Any, word: str
) -> None:
    entries = fuse(as_bf16(glm_checkpoint.values(CONFIG)))
    change(entries, "model.layers.2.mlp.experts.gate_up_proj")
    with pytest.raises(ModelError) as caught:
        convert(glm_checkpoint.write(tmp_path / "m", entries), tmp_path / "out")
    assert word in str(caught.value)
    assert "layers.2" in str(caught.value) or "layer 2" in str(caught.value)


def test_fused_fp8_experts_whose_halves_share_a_block_are_refused_by_name(tmp_path: Path) -> None:
    entries = as_fp8(glm_checkpoint.values(CONFIG))
    fused = {name: raw for name, raw in entries.items() if ".experts." not in name}
    for layer in (1, 2, 3, 4):
        for name, shape in (("gate_up_proj", (4, 192, 160)), ("down_proj", (4, 160, 96))):
            grid = (4, -(-shape[1] // 128), -(-shape[2] // 128))
            prefix = f"model.layers.{layer}.mlp.experts.{name}"
            fused[prefix] = Raw("F8_E4M3", shape, np.zeros(shape, np.uint8))
            fused[prefix + "_scale_inv"] = Raw("F32", grid, np.ones(grid, np.float32))
    with pytest.raises(ModelError, match=r"gate_up_proj.*96 rows each.*one tensor per expert"):
        convert(glm_checkpoint.write(tmp_path / "m", fused), tmp_path / "out")


# ---- sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("lost", range(7))
def test_R184_R185_a_partial_source_is_refused_before_the_first_byte_naming_the_file(
    tmp_path: Path, lost: int, with_index: bool
) -> None:
    entries = as_bf16(glm_checkpoint.values(CONFIG))
    folder = glm_checkpoint.write(tmp_path / "m", entries, shards=7, index=with_index)
    name = f"model-{lost + 1:05d}-of-00007.safetensors"
    if lost % 2:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(b"")  # as a broken download leaves it
    with pytest.raises(ModelError) as caught:
        convert(folder, tmp_path / "out")
    text = str(caught.value)
    assert name.removesuffix("-of-00007.safetensors") in text or name in text
    assert "layer" in text or "missing" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_lost_shard_with_the_whole_mtp_layer_is_not_taken_for_a_model_without(
    tmp_path: Path, with_index: bool
) -> None:
    weights = as_bf16(glm_checkpoint.values(CONFIG))
    trunk = {name: raw for name, raw in weights.items() if not name.startswith(MTP)}
    folder = glm_checkpoint.write(tmp_path / "m", trunk, shards=2, index=False)
    for path in sorted(folder.glob("*.safetensors")):
        path.rename(folder / path.name.replace("-of-00002", "-of-00003"))
    if with_index:
        table = dict.fromkeys(trunk, "model-00001-of-00003.safetensors")
        table |= {n: "model-00003-of-00003.safetensors" for n in weights if n.startswith(MTP)}
        text = json.dumps({"weight_map": table})
        (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"model-00003") as caught:
        convert(folder, tmp_path / "out")
    assert with_index == ("layers 4" in str(caught.value))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_what_the_source_does_not_have_is_named(tmp_path: Path) -> None:
    weights = as_bf16(glm_checkpoint.values(CONFIG))
    trunk = {name: raw for name, raw in weights.items() if not name.startswith(MTP)}
    folder = glm_checkpoint.write(tmp_path / "m", trunk)
    for name in ("generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    notes = "; ".join(convert(folder, tmp_path / "out"))
    for word in ("no MTP head", "generation_config.json", "tokenizer_config.json", "template"):
        assert word in notes
    assert convert(glm_checkpoint.write(tmp_path / "n", weights), tmp_path / "all") == []


def test_end_ids_of_every_place_are_carried_over(tmp_path: Path) -> None:
    config = {**CONFIG, "eos_token_id": 3}
    folder = glm_checkpoint.write(tmp_path / "m", as_bf16(glm_checkpoint.values(config)), config)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7], "top_k": 40}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|user|>"}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    convert(folder, tmp_path / "out")
    opened = open_model(tmp_path / "out")
    assert opened.text.end_ids >= {1, 2, 3, 7}
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["top_k"] == 40
    assert set(generation["eos_token_id"]) == opened.text.end_ids


def test_the_source_is_never_touched(source: Path, tmp_path: Path) -> None:
    def state() -> dict[str, tuple[int, str]]:
        return {
            path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in source.iterdir()
        }

    before = state()
    convert(source, tmp_path / "out")
    assert state() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_byte(source: Path, tmp_path: Path, threads: int) -> None:
    convert(source, tmp_path / "a", Options(threads=3))
    convert(source, tmp_path / "b", Options(threads=threads))
    assert shards(tmp_path / "a") == shards(tmp_path / "b")


@pytest.mark.parametrize("recipe", ["as-is", "gs64", "int8", "bf16"])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "published"])
def test_pieces_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, recipe: str
) -> None:
    """Matrices of more than 128 rows in pieces of 128, in whatever format they come."""
    weights = glm_checkpoint.values(CONFIG)
    folder = tmp_path / "m"
    if kind == "published":
        files.text_files(folder, CONFIG)
        entries, _ = published.quantize_model(weights, published.Style("i4_group", 64), 4)
        published.write_shards(folder, entries, lambda name: "out-00000.safetensors")
    else:
        glm_checkpoint.write(folder, as_bf16(weights) if kind == "bf16" else as_fp8(weights))
    assert any(tensor.rows > 256 for tensor in open_folder(folder).tensors)
    convert(folder, tmp_path / "whole", Options(weights=recipe))
    monkeypatch.setattr("colibri.models.convert._PIECE", 1)
    convert(folder, tmp_path / "pieces", Options(weights=recipe))
    assert index(tmp_path / "whole") == index(tmp_path / "pieces")
    assert shards(tmp_path / "whole") == shards(tmp_path / "pieces")


def test_a_disk_that_fills_up_is_said_and_the_work_so_far_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(shard_bytes=64 << 10)
    convert(source, tmp_path / "whole", options)
    original, calls = pack_shards._write_item, 0

    def write_item(*arguments: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise OSError(28, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(pack_shards, "_write_item", write_item)
    with pytest.raises(ResourceError, match=r"full.*same command again"):
        convert(source, tmp_path / "out", options)
    assert list((tmp_path / "out.partial").glob("packed-*.safetensors"))
    monkeypatch.undo()
    convert(source, tmp_path / "out", options)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


def test_memory_stays_bounded_for_matrices_of_any_size(tmp_path: Path) -> None:
    """Embedding and head of 400 MB each, as holes in a file, with four threads."""
    config = {
        **CONFIG, "vocab_size": 200_000, "hidden_size": 1024, "num_hidden_layers": 1,
        "mlp_layer_types": ["dense"], "indexer_types": ["full"], "num_nextn_predict_layers": 0,
    }  # fmt: skip
    weights = glm_checkpoint.values({**config, "vocab_size": 1})
    entries = as_bf16(weights)
    large = [name for name in entries if name in ("model.embed_tokens.weight", "lm_head.weight")]
    folder = glm_checkpoint.write(
        tmp_path / "m", {n: r for n, r in entries.items() if n not in large}, config, index=False
    )
    for path in folder.glob("*.safetensors"):
        path.rename(folder / f"small-{path.name[6:11]}.safetensors")
    size = 2 * config["vocab_size"] * config["hidden_size"]
    for number, name in enumerate(large):
        shape = [config["vocab_size"], config["hidden_size"]]
        header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}
        path = folder / f"large-{number}.safetensors"
        path.write_bytes(files.raw_safetensors(header, b""))
        with path.open("r+b") as stream:
            stream.truncate(path.stat().st_size + size)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from colibri.engine import ffi\n"
        "from colibri.models.convert import Options, convert\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), Options(threads=4))\n"
        "print((peak() - before) * (1 if sys.platform == 'darwin' else 1024))\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(tmp_path / "out")
    assert int(done.stdout) < 200e6


# ---- the MTP layer alone -------------------------------------------------------------------------


@pytest.fixture
def without_mtp(tmp_path: Path) -> Path:
    """A finished container of the same model, made from a source without the MTP layer."""
    weights = as_bf16(glm_checkpoint.values(CONFIG))
    trunk = {name: raw for name, raw in weights.items() if not name.startswith(MTP)}
    convert(glm_checkpoint.write(tmp_path / "trunk", trunk), tmp_path / "out")
    return tmp_path / "out"


def test_R181_adding_the_mtp_layer_leaves_every_other_file_untouched(
    source: Path, without_mtp: Path, tmp_path: Path
) -> None:
    assert open_folder(without_mtp).geometry.n_mtp_layers == 0
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in without_mtp.iterdir()}
    convert_mtp(source, without_mtp)
    for name, (mtime, data) in before.items():
        if name != "colibri.json":
            path = without_mtp / name
            assert (path.stat().st_mtime_ns, path.read_bytes()) == (mtime, data)
    assert open_folder(without_mtp).geometry.n_mtp_layers == 1
    assert packed.verify(without_mtp) == []
    convert(source, tmp_path / "all")
    expected, found = values(tmp_path / "all"), values(without_mtp)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "out", "trunk"]


def test_R181_a_second_mtp_layer_needs_the_flag_and_the_first_ones_files_go(
    source: Path, without_mtp: Path, tmp_path: Path
) -> None:
    convert_mtp(source, without_mtp)
    before = shards(without_mtp)
    with pytest.raises(UsageError, match=r"already.*--overwrite"):
        convert_mtp(source, without_mtp, Options(weights="bf16"))
    assert shards(without_mtp) == before
    convert_mtp(source, without_mtp, Options(weights="bf16", overwrite=True))
    assert formats(without_mtp)[f"{MTP}eh_proj.weight"] == ("BF16", 0)
    assert packed.verify(without_mtp) == []
    names = {path.name for path in without_mtp.glob("*.safetensors")}
    assert names == {"packed-00000.safetensors", "packed-mtp2-00000.safetensors"}


def test_the_mtp_layer_can_come_from_the_files_that_hold_it_alone(
    without_mtp: Path, tmp_path: Path
) -> None:
    weights = as_bf16(glm_checkpoint.values(CONFIG))
    part = tmp_path / "part"
    part.mkdir()
    (part / "config.json").write_text(json.dumps(CONFIG))
    mtp = {name: raw for name, raw in weights.items() if name.startswith(MTP)}
    write_safetensors(part / "model-00282-of-00282.safetensors", mtp)
    convert_mtp(part, without_mtp)
    assert open_folder(without_mtp).geometry.n_mtp_layers == 1
    lost = dict(list(mtp.items())[:-3])
    write_safetensors(part / "model-00282-of-00282.safetensors", lost)
    with pytest.raises(ModelError, match="layer 4 lacks 3"):
        convert_mtp(part, without_mtp, Options(overwrite=True))
    assert packed.verify(without_mtp) == []


def test_a_container_with_dense_attention_gets_an_mtp_layer_without_indexer(
    source: Path, tmp_path: Path
) -> None:
    weights = as_bf16(glm_checkpoint.values(CONFIG))
    trunk = {
        name: raw
        for name, raw in weights.items()
        if not name.startswith(MTP) and ".indexer." not in name
    }
    convert(glm_checkpoint.write(tmp_path / "trunk", trunk), tmp_path / "out")
    convert_mtp(source, tmp_path / "out")
    geometry = open_folder(tmp_path / "out").geometry
    assert (geometry.n_mtp_layers, geometry.index_topk) == (1, 0)


def test_the_mtp_layer_of_another_model_or_of_none_is_refused(
    source: Path, without_mtp: Path, tmp_path: Path
) -> None:
    config = {**CONFIG, "moe_intermediate_size": 64}
    other = glm_checkpoint.write(tmp_path / "o", as_bf16(glm_checkpoint.values(config)), config)
    files.llama_folder(tmp_path / "l")
    before = shards(without_mtp)
    cases: list[tuple[Path, Path, str]] = [
        (other, without_mtp, "expert_ffn"),
        (tmp_path / "trunk", without_mtp, "no MTP layer"),
        (tmp_path / "l", without_mtp, "no MTP layer"),
        (source, tmp_path / "absent", "finished"),
        (source, tmp_path / "trunk", "finished"),
        (source / "config.json", without_mtp, "folder"),
    ]
    for given, out, word in cases:
        with pytest.raises(ColibriError, match=word):
            convert_mtp(given, out)
    assert shards(without_mtp) == before
