"""Opening model folders: every kind of container, and every fault named with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.engine.table import Format
from colibri.errors import ModelError
from colibri.models.container import ModelFiles, inspect_folder, open_folder
from colibri.models.model import open_model
from tests.models import files

Table = dict[str, files.Raw]


def glm_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tiny GLM, MTP and indexers included."""
    c = files.GLM
    hidden, heads, experts = c["hidden_size"], c["num_attention_heads"], c["n_routed_experts"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (c["vocab_size"], hidden),
    }
    for layer in range(c["num_hidden_layers"] + 1):
        p = f"model.layers.{layer}."
        shapes |= {
            p + "input_layernorm.weight": (hidden,),
            p + "post_attention_layernorm.weight": (hidden,),
            p + "self_attn.q_a_proj.weight": (c["q_lora_rank"], hidden),
            p + "self_attn.q_a_layernorm.weight": (c["q_lora_rank"],),
            p + "self_attn.q_b_proj.weight": (heads * (nope + rope), c["q_lora_rank"]),
            p + "self_attn.kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + rope, hidden),
            p + "self_attn.kv_a_layernorm.weight": (c["kv_lora_rank"],),
            p + "self_attn.kv_b_proj.weight": (heads * (nope + v), c["kv_lora_rank"]),
            p + "self_attn.o_proj.weight": (hidden, heads * v),
        }
        if layer in (0, 2, 4):
            i = p + "self_attn.indexer."
            shapes |= {
                i + "wq_b.weight": (c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"]),
                i + "wk.weight": (c["index_head_dim"], hidden),
                i + "k_norm.weight": (c["index_head_dim"],),
                i + "k_norm.bias": (c["index_head_dim"],),
                i + "weights_proj.weight": (c["index_n_heads"], hidden),
            }
        mlps = [(p + "mlp.", c["intermediate_size"])] if layer == 0 else []
        if layer > 0:
            shapes[p + "mlp.gate.weight"] = (experts, hidden)
            shapes[p + "mlp.gate.e_score_correction_bias"] = (experts,)
            width = c["moe_intermediate_size"]
            mlps.append((p + "mlp.shared_experts.", width))
            mlps += [(f"{p}mlp.experts.{number}.", width) for number in range(experts)]
        for q, width in mlps:
            shapes[q + "gate_proj.weight"] = (width, hidden)
            shapes[q + "up_proj.weight"] = (width, hidden)
            shapes[q + "down_proj.weight"] = (hidden, width)
        if layer == c["num_hidden_layers"]:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                shapes[f"{p}{name}.weight"] = (hidden,)
            shapes[p + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def f32_table() -> Table:
    return {name: files.raw(array) for name, array in files.weights(glm_shapes()).items()}


def write(
    folder: Path, table: Table, config: dict[str, Any] | None = None, shards: int = 1
) -> Path:
    """A folder whose tensors are spread over published-style shards."""
    files.text_files(folder, config or files.GLM)
    names = list(table)
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        path = folder / f"out-{number:05d}.safetensors"
        path.write_bytes(files.safetensors({name: table[name] for name in part}))
    return folder


def quantize(array: NDArray[np.float32], bits: int, group: int) -> tuple[bytes, bytes]:
    """(data, scales) of a published int8 or int4 tensor; group 0 = one scale per row."""
    rows, cols = array.shape
    size = group or cols
    padded = np.zeros((rows, -(-cols // size) * size), np.float32)
    padded[:, :cols] = array
    blocks = padded.reshape(rows, -1, size)
    top = 127 if bits == 8 else 7
    scales = np.maximum(np.abs(blocks).max(axis=2) / top, 1e-8).astype(np.float32)
    q = np.clip(np.rint(blocks / scales[:, :, None]), -top - 1, top).astype(np.int8)
    q = q.reshape(rows, -1)[:, :cols]
    if bits == 8:
        return q.tobytes(), scales.tobytes()
    nibbles = np.full((rows, cols + cols % 2), 8, np.uint8)
    nibbles[:, :cols] = q + 8
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).tobytes(), scales.tobytes()


def published(choose: Callable[[str], tuple[int, int] | None], indexer: bool = False) -> Table:
    """The tiny GLM as a published container; `choose(name)` gives (bits, group) or None for F32."""
    table: Table = {}
    for name, array in files.weights(glm_shapes()).items():
        if ".indexer." in name and not indexer:
            continue
        how = choose(name) if array.ndim == 2 and "mlp.gate.weight" not in name else None
        if how is None:
            table[name] = files.raw(array)
            continue
        data, scales = quantize(array, *how)
        table[name] = ("U8", [len(data)], data)
        table[name + ".qs"] = ("F32", [len(scales) // 4], scales)
    return table


def gs64(name: str) -> tuple[int, int]:
    if name.startswith(("model.embed", "lm_head", "model.layers.4.")):
        return 8, 0
    return 4, 64


def problem(folder: Path, *words: str) -> str:
    with pytest.raises(ModelError) as caught:
        open_folder(folder)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    return text


def by_name(opened: ModelFiles) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in opened.tensors}


def test_an_original_checkpoint_opens_with_all_tensors(tmp_path: Path) -> None:
    arrays = files.llama_folder(tmp_path / "m", shards=3)
    opened = open_folder(tmp_path / "m")
    assert opened.kind == "original"
    assert by_name(opened).keys() == arrays.keys()
    for tensor in opened.tensors:
        data = opened.paths[tensor.file].read_bytes()[tensor.offset :][: tensor.bytes]
        assert data == arrays[tensor.name].tobytes()
        assert tensor.rows * tensor.cols == arrays[tensor.name].size


def test_a_whole_glm_opens_with_indexer_and_mtp(tmp_path: Path) -> None:
    opened = open_folder(write(tmp_path / "m", f32_table(), shards=5))
    assert opened.geometry.index_topk == 16
    assert opened.geometry.n_mtp_layers == 1
    assert len(opened.tensors) == len(glm_shapes())
    assert opened.notes == ()


def test_a_published_container_opens_with_derived_formats(tmp_path: Path) -> None:
    opened = open_folder(write(tmp_path / "m", published(gs64), shards=4))
    tensors = by_name(opened)
    assert opened.kind == "published"
    expert = tensors["model.layers.2.mlp.experts.3.gate_proj.weight"]
    assert (expert.format, expert.group, expert.rows, expert.cols) == (Format.I4_GROUP, 64, 96, 160)
    assert expert.scale_bytes == 96 * 3 * 4
    assert tensors["lm_head.weight"].format == Format.I8_ROW
    assert tensors["model.layers.4.eh_proj.weight"].format == Format.I8_ROW
    assert tensors["model.layers.1.mlp.gate.weight"].format == Format.F32
    assert opened.geometry.index_topk == 0
    assert opened.geometry.layer_indexer == b""
    assert any("dense" in note for note in opened.notes)


@pytest.mark.parametrize("group", [16, 32, 48, 64, 96, 128])
def test_every_group_size_is_recognised_over_the_container(tmp_path: Path, group: int) -> None:
    opened = open_folder(write(tmp_path / "m", published(lambda name: (4, group))))
    tensor = by_name(opened)["model.layers.4.eh_proj.weight"]
    assert (tensor.format, tensor.group) == (Format.I4_GROUP, group)


def test_int4_per_row_experts_are_opened_with_a_warning(tmp_path: Path) -> None:
    opened = open_folder(write(tmp_path / "m", published(lambda name: (4, 0))))
    expert = by_name(opened)["model.layers.2.mlp.experts.3.down_proj.weight"]
    assert expert.format == Format.I4_ROW
    assert any("worse" in note for note in opened.notes)


def test_a_container_without_mtp_opens_without_drafting(tmp_path: Path) -> None:
    table = {k: v for k, v in f32_table().items() if not k.startswith("model.layers.4.")}
    opened = open_folder(write(tmp_path / "m", table))
    assert opened.geometry.n_mtp_layers == 0
    assert any("MTP" in note for note in opened.notes)


def test_a_stamp_cross_checks_the_derived_format(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    folder = write(tmp_path / "m", published(gs64))
    path = folder / "out-00000.safetensors"
    table = published(gs64)
    for stamp, accepted in (("int4-grouped", True), ("int8-row", False), ("int3-g64", False)):
        path.write_bytes(files.safetensors(table, {"colibri.fmt": json.dumps({name: stamp})}))
        # One group of 64 covers the 32 columns of this tensor, so it also counts as per row.
        if accepted:
            open_folder(folder)
        else:
            problem(folder, name, stamp)


def fp8_table() -> Table:
    table = f32_table()
    name = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
    rows, cols = glm_shapes()[name]
    table[name] = ("F8_E4M3", [rows, cols], bytes(rows * cols))
    grid = [-(-rows // 128), -(-cols // 128)]
    table[name + "_scale_inv"] = ("F32", grid, np.ones(grid, np.float32).tobytes())
    return table


def test_an_fp8_checkpoint_opens_with_ragged_blocks(tmp_path: Path) -> None:
    opened = open_folder(write(tmp_path / "m", fp8_table()))
    tensor = by_name(opened)["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"]
    assert (tensor.format, tensor.scale_bytes) == (Format.FP8_BLOCK, 8)


KV = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
FP8_FAULTS: list[tuple[str, files.Raw | None, str]] = [
    (KV + "_scale_inv", None, "missing"),
    (KV + "_scale_inv", ("F32", [1, 1], bytes(4)), "[1, 2]"),
    (KV + "_scale_inv", ("BF16", [1, 2], bytes(4)), "F32"),
    (KV, ("F8_E4M3", [8, 8], bytes(64)), "[40, 160]"),
    (KV, ("F8_E5M2", [40, 160], bytes(6400)), "F8_E5M2"),
]


@pytest.mark.parametrize(("name", "raw", "word"), FP8_FAULTS)
def test_fp8_without_fitting_scales_is_refused(
    tmp_path: Path, name: str, raw: files.Raw | None, word: str
) -> None:
    table = fp8_table()
    if raw is None:
        del table[name]
    else:
        table[name] = raw
    problem(write(tmp_path / "m", table), KV, word)


EXPERT = "model.layers.2.mlp.experts.3.gate_proj.weight"
FAULTS: list[tuple[str, files.Raw | None, str]] = [
    (EXPERT + ".qs", None, "scales"),
    (EXPERT + ".qs", ("F32", [7], bytes(28)), "fit no format"),
    (EXPERT + ".qs", ("F16", [288], bytes(576)), "F32"),
    (EXPERT, ("U8", [100], bytes(100)), "fit no format"),
    (EXPERT, ("F32", [100], bytes(400)), "U8"),
    ("model.layers.2.input_layernorm.weight", ("F32", [159], bytes(636)), "[160]"),
    ("model.layers.2.input_layernorm.weight", ("I32", [160], bytes(640)), "I32"),
    ("model.layers.2.mlp.gate.weight", ("F32", [160, 4], bytes(2560)), "[4, 160]"),
]


@pytest.mark.parametrize(("name", "raw", "word"), FAULTS)
def test_a_tensor_that_fits_no_format_is_refused_by_name(
    tmp_path: Path, name: str, raw: files.Raw | None, word: str
) -> None:
    table = published(gs64)
    if raw is None:
        del table[name]
    else:
        table[name] = raw
    problem(write(tmp_path / "m", table), name.removesuffix(".qs"), word, "out-00000.safetensors")


def test_an_ambiguous_group_size_is_refused_with_the_sizes_that_fit(tmp_path: Path) -> None:
    only = "model.layers.1.self_attn.o_proj.weight"
    config = {**files.GLM, "num_attention_heads": 2, "v_head_dim": 50}
    shape = (160, 100)
    table = f32_table()
    for name in list(table):
        if name.endswith("o_proj.weight"):
            table[name] = files.raw(np.zeros(shape, np.float32))
        if name.endswith("kv_b_proj.weight"):
            table[name] = files.raw(np.zeros((2 * 66, 32), np.float32))
    data, scales = quantize(np.ones(shape, np.float32), 4, 64)
    table[only] = ("U8", [len(data)], data)
    table[only + ".qs"] = ("F32", [len(scales) // 4], scales)
    problem(write(tmp_path / "m", table, config), only, "[64, 96]")


def test_fused_experts_are_refused_by_name(tmp_path: Path) -> None:
    table = {k: v for k, v in f32_table().items() if ".experts." not in k}
    fused = "model.layers.1.mlp.experts.gate_up_proj"
    table[fused] = ("U8", [10], bytes(10))
    problem(write(tmp_path / "m", table), fused, "one tensor per expert")


def test_R184_missing_layers_are_named_as_ranges(tmp_path: Path) -> None:
    table = {
        k: v
        for k, v in f32_table().items()
        if not k.startswith(("model.layers.1.", "model.layers.2."))
    }
    problem(write(tmp_path / "m", table), "2 of 5 layers", "1-2")


def test_R184_a_torn_layer_names_its_experts(tmp_path: Path) -> None:
    table = {k: v for k, v in f32_table().items() if "layers.3.mlp.experts.1." not in k}
    problem(write(tmp_path / "m", table), "layer 3 lacks 3 of", "experts 1")


def test_R185_the_absent_file_number_is_named_with_the_expected_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", f32_table(), shards=5)
    (folder / "out-00000.safetensors").unlink()
    problem(folder, "out-00000", "5 are expected")
    folder = write(tmp_path / "n", f32_table(), shards=6)
    (folder / "out-00003.safetensors").unlink()
    problem(folder, "out-00003", "found 5, expected 6")


def test_R186_a_lost_tail_is_diagnosed_from_layers_and_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", f32_table(), shards=10)
    for number in (8, 9):
        (folder / f"out-{number:05d}.safetensors").unlink()
    text = problem(folder, "layer 4 lacks", "up to 7")
    assert "download" in text


def test_a_file_that_the_index_names_but_the_folder_lacks_is_named(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m", shards=3)
    names = [path.name for path in sorted((tmp_path / "m").glob("*.safetensors"))]
    index = {"weight_map": {f"t{n}": name for n, name in enumerate(names)}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "m" / names[1]).unlink()
    problem(tmp_path / "m", names[1], "3 files", "1 of them")
    # What no file is called is not shown to a terminal, which it might talk to.
    index["weight_map"] |= {"escape": "\x1b[2J.safetensors", "half": "\ud800", "up": "../x"}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    text = problem(tmp_path / "m", names[1], "3 files", "1 of them")
    assert text.isprintable()


def test_the_numbers_of_files_named_x_of_n_are_checked(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "m", shards=4)
    (tmp_path / "m" / "model-00004-of-00004.safetensors").unlink()
    problem(tmp_path / "m", "model-00004", "expected 4")


def test_a_checkpoint_of_another_quantizer_is_refused_by_key(tmp_path: Path) -> None:
    for settings, word in (
        ({"quant_method": "gptq"}, "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
    ):
        folder = tmp_path / word
        files.llama_folder(folder, {**files.LLAMA, "quantization_config": settings})
        problem(folder, word, "config.json")


def test_tensors_of_no_use_are_noted_not_refused(tmp_path: Path) -> None:
    table = f32_table()
    table["vision.patch.weight"] = files.raw(np.zeros(4, np.float32))
    opened = open_folder(write(tmp_path / "m", table))
    assert any("vision.patch.weight" in note for note in opened.notes)


@pytest.mark.parametrize("name", ["config.json"])
def test_a_folder_without_config_is_refused(tmp_path: Path, name: str) -> None:
    files.llama_folder(tmp_path / "m")
    (tmp_path / "m" / name).unlink()
    problem(tmp_path / "m", name)
    problem(tmp_path / "nothing", "no such folder")


def test_all_problems_of_a_folder_are_reported_at_once(tmp_path: Path) -> None:
    table = f32_table()
    for layer in range(5):
        table[f"model.layers.{layer}.input_layernorm.weight"] = ("F32", [1], bytes(4))
    files_, problems = inspect_folder(write(tmp_path / "m", table))
    assert files_ is None
    assert len(problems) == 5


END_IDS: list[tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, set[int]]] = [
    ({"eos_token_id": [0, 1, 2]}, None, None, {0, 1, 2}),
    ({"eos_token_id": 3}, {"eos_token_id": [2]}, None, {1, 2, 3}),
    ({}, {"eos_token_id": 4}, None, {1, 4}),
    ({}, None, {"eos_token": "<|observation|>"}, {1, 3}),
    ({}, None, {"eos_token": {"content": "<|user|>"}}, {1, 2}),
]


@pytest.mark.parametrize(("config", "generation", "settings", "expected"), END_IDS)
def test_R146_R148_end_ids_are_gathered_from_every_file(
    tmp_path: Path,
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    settings: dict[str, Any] | None,
    expected: set[int],
) -> None:
    base = {key: value for key, value in files.LLAMA.items() if key != "eos_token_id"}
    files.llama_folder(tmp_path, {**base, **config})
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert open_model(tmp_path).text.end_ids == expected


def test_R148_a_chat_model_without_any_end_id_is_refused(tmp_path: Path) -> None:
    config = {key: value for key, value in files.LLAMA.items() if key != "eos_token_id"}
    files.llama_folder(tmp_path, config)
    spec = files.tokenizer()
    for entry in spec["added_tokens"]:
        entry["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match="never end"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("generation_config.json", {"eos_token_id": 320}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": -1}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id"),
        ("generation_config.json", {"temperature": "hot"}, "temperature"),
        ("generation_config.json", {"top_p": 0}, "top_p"),
        ("generation_config.json", [], "JSON object"),
        ("tokenizer_config.json", {"eos_token": 4}, "eos_token"),
        ("tokenizer_config.json", {"eos_token": "<none>"}, "eos_token"),
    ],
)
def test_wrong_values_beside_the_weights_are_refused_by_file_and_key(
    tmp_path: Path, name: str, value: Any, word: str
) -> None:
    files.llama_folder(tmp_path)
    (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path)
    assert name in str(caught.value)
    assert word in str(caught.value)


def test_padding_rows_of_the_vocabulary_are_masked(tmp_path: Path) -> None:
    files.llama_folder(tmp_path)
    opened = open_model(tmp_path)
    assert opened.geometry.vocab == 320
    assert opened.geometry.vocab_used == opened.tokenizer.vocab_size == 267


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    files.llama_folder(tmp_path, {**files.LLAMA, "vocab_size": 260})
    with pytest.raises(ModelError, match=r"tokenizer\.json.*266.*260"):
        open_model(tmp_path)


def test_the_template_may_stand_in_tokenizer_config(tmp_path: Path) -> None:
    files.llama_folder(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert open_model(tmp_path).text.template is None
    named = [
        {"name": "tool_use", "template": "t"},
        {"name": "default", "template": "d{{ bos_token }}"},
    ]
    for value, text in (("x", "x"), (named, "d<|im_start|>")):
        settings = {"chat_template": value, "bos_token": "<|im_start|>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        template = open_model(tmp_path).text.template
        assert template is not None
        assert template.render([{"role": "user", "content": "q"}]).text == text


def test_recommended_sampling_comes_from_generation_config(tmp_path: Path) -> None:
    files.llama_folder(tmp_path)
    path = tmp_path / "generation_config.json"
    for value, expected in (
        ({"temperature": 1.0, "top_p": 0.95}, (1.0, 0.95)),
        ({"do_sample": False, "temperature": 1.0}, (0.0, None)),
        ({}, (None, None)),
    ):
        path.write_text(json.dumps(value))
        sampling = open_model(tmp_path).text.sampling
        assert (sampling.temperature, sampling.top_p) == expected


def test_the_default_model_id_is_the_folders_name(tmp_path: Path) -> None:
    files.llama_folder(tmp_path / "my-model")
    assert open_model(tmp_path / "my-model").text.model_id == "my-model"
