"""GGUF files: a hand-written one converts exactly, every damage is refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from colibri.engine import packing
from colibri.engine.table import Format
from colibri.errors import ModelError
from colibri.models import gguf, gguf_text
from colibri.models.container import open_folder
from colibri.models.convert import Options, convert
from colibri.models.model import open_model
from tests.models import files

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD = 64, 96, 2, 4, 2, 16
SPEC = files.tokenizer()
TOKENS = list(SPEC["model"]["vocab"])
KINDS = [3 if text in files.SPECIALS else 4 if text in files.MARKERS else 1 for text in TOKENS]
U32, F32, BOOL, TEXT, ARRAY, I32 = 4, 6, 7, 8, 9, 5
NAMES = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, HEADS * HEAD)),
    "ffn_gate": ("mlp.gate_proj", (FFN, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (FFN, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, FFN)),
}


def metadata(**changes: Any) -> list[tuple[str, int, Any]]:
    """Metadata of the tiny model; a change to None leaves a key out."""
    values: dict[str, tuple[int, Any]] = {
        "general.architecture": (TEXT, "llama"),
        "llama.block_count": (U32, LAYERS),
        "llama.context_length": (U32, 512),
        "llama.embedding_length": (U32, HIDDEN),
        "llama.feed_forward_length": (U32, FFN),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 10000.0),
        "llama.rope.dimension_count": (U32, HEAD),
        "tokenizer.ggml.model": (TEXT, "gpt2"),
        "tokenizer.ggml.pre": (TEXT, "gpt-2"),
        "tokenizer.ggml.tokens": (ARRAY, (TEXT, TOKENS)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, KINDS)),
        "tokenizer.ggml.merges": (ARRAY, (TEXT, [" ".join(m) for m in SPEC["model"]["merges"]])),
        "tokenizer.ggml.bos_token_id": (U32, 4),
        "tokenizer.ggml.eos_token_id": (U32, 1),
        "tokenizer.ggml.eot_token_id": (U32, 2),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (TEXT, files.CHATML),
    }
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del values[name]
        else:
            values[name] = value
    return [(key, *value) for key, value in values.items()]


def arrays() -> dict[str, NDArray[np.float32]]:
    """Weights by GGUF name, q and k with their rows in GGUF order."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for name, (_, shape) in NAMES.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return files.weights(shapes)


def q4_1(array: NDArray[np.float32]) -> bytes:
    """Quantizes rows into blocks of 32: f16 d, f16 m, 16 bytes."""
    blocks = array.reshape(-1, 32)
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    d = ((high - low) / 15).astype(np.float16)
    m = low.astype(np.float16)
    q = np.clip(np.rint((blocks - m[:, None]) / np.maximum(d, 1e-6)[:, None]), 0, 15)
    codes = q.astype(np.uint8)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    head = np.stack([d, m], axis=1).view(np.uint8).reshape(-1, 4)
    return np.concatenate([head, packed], axis=1).tobytes()


def tensor(name: str, array: NDArray[np.float32], kind: int = 0) -> tuple[str, Any, int, bytes]:
    return name, array.shape[::-1], kind, q4_1(array) if kind == 3 else array.tobytes()


def model(path: Path, kind: int = 0, **changes: Any) -> Path:
    """The tiny model as a GGUF file; matrices in ggml type `kind`."""
    tensors = [
        tensor(name, array, kind if array.ndim == 2 else 0) for name, array in arrays().items()
    ]
    path.write_bytes(files.gguf(metadata(**changes), tensors))
    return path


def unpermuted(array: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """q or k rows back in half-split order."""
    return array.reshape(heads, HEAD // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


def values(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every matrix of a packed container, dequantized."""
    opened = open_folder(folder)
    result = {}
    for t in opened.tensors:
        data = opened.paths[t.file].read_bytes()[t.offset : t.offset + t.bytes]
        if t.layout:
            result[t.name] = packing.weight_unpack(t.format, t.group, t.rows, t.cols, data)
        else:
            result[t.name] = np.frombuffer(data, np.float32)
    return result


def test_the_header_is_read_with_metadata_and_places(tmp_path: Path) -> None:
    file = gguf.read(model(tmp_path / "m.gguf"))
    assert file.metadata["llama.block_count"] == LAYERS
    assert file.metadata["tokenizer.ggml.tokens"] == TOKENS
    info = file.tensors["blk.1.ffn_up.weight"]
    assert (info.rows, info.cols, info.type) == (FFN, HIDDEN, "F32")
    assert file.read(info) == arrays()["blk.1.ffn_up.weight"].tobytes()


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_alignment_moves_the_data(tmp_path: Path, alignment: int) -> None:
    array = np.arange(33, dtype=np.float32)
    tensors = [("a", [33], 0, array.tobytes()), ("b", [33], 0, array.tobytes())]
    path = tmp_path / "m.gguf"
    path.write_bytes(files.gguf([("general.alignment", U32, alignment)], tensors, alignment))
    file = gguf.read(path)
    assert all(file.read(t) == array.tobytes() for t in file.tensors.values())
    assert all(t.offset % alignment == 0 for t in file.tensors.values())


def test_f32_converts_to_exactly_the_same_numbers_with_rows_put_back(tmp_path: Path) -> None:
    convert(model(tmp_path / "m.gguf"), tmp_path / "out")
    found, source = values(tmp_path / "out"), arrays()
    assert np.array_equal(found["model.embed_tokens.weight"], source["token_embd.weight"])
    for layer in range(LAYERS):
        for name, (canonical, _) in NAMES.items():
            expected = source[f"blk.{layer}.{name}.weight"]
            if name in ("attn_q", "attn_k"):
                expected = unpermuted(expected, HEADS if name == "attn_q" else KV_HEADS)
            assert np.array_equal(found[f"model.layers.{layer}.{canonical}.weight"], expected)


def test_q4_1_keeps_every_bit(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    convert(model(tmp_path / "m.gguf", kind=3), tmp_path / "out")
    opened = open_folder(tmp_path / "out")
    assert {t.format for t in opened.tensors if t.rows > 1} == {Format.Q4_1}
    found = values(tmp_path / "out")["model.layers.1.mlp.down_proj.weight"]
    raw = np.frombuffer(q4_1(arrays()["blk.1.ffn_down.weight"]), np.uint8).reshape(HIDDEN, -1)
    expected = quants.dequantize(raw, GGMLQuantizationType.Q4_1).reshape(HIDDEN, FFN)
    assert np.abs(found - expected).max() <= 1e-6


def test_other_quantizations_become_bf16_of_the_dequantized_numbers(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    random = np.random.default_rng(3)
    tensors = []
    raws = {}
    for name, array in arrays().items():
        if name != "blk.0.ffn_gate.weight":
            tensors.append(tensor(name, array))
            continue
        blocks = random.integers(0, 256, (FFN, HIDDEN // 32, 22), dtype=np.uint8)
        blocks[:, :, 1] = blocks[:, :, 1] % 0x3C
        raws[name] = blocks.reshape(FFN, -1)
        tensors.append((name, [HIDDEN, FFN], 6, blocks.tobytes()))
    path = tmp_path / "m.gguf"
    path.write_bytes(files.gguf(metadata(), tensors))
    convert(path, tmp_path / "out")
    found = values(tmp_path / "out")["model.layers.0.mlp.gate_proj.weight"]
    expected = quants.dequantize(raws["blk.0.ffn_gate.weight"], GGMLQuantizationType.Q5_0)
    expected = expected.reshape(FFN, HIDDEN)
    assert np.all(np.abs(found - expected) <= np.abs(expected) * 2.0**-8)
    t = next(
        t
        for t in open_folder(tmp_path / "out").tensors
        if t.name.endswith("0.mlp.gate_proj.weight")
    )
    assert t.format == Format.BF16


def test_R148_text_side_and_every_end_id_are_carried_over(tmp_path: Path) -> None:
    convert(model(tmp_path / "m.gguf"), tmp_path / "out")
    opened = open_model(tmp_path / "out")
    assert opened.text.end_ids >= {1, 2}
    assert opened.text.bos_id == 4
    assert opened.text.template is not None
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"][
        :2
    ] == [1, 2]
    reference = json.dumps(SPEC).encode()
    from colibri.text.tokenizer import from_json

    text = "hi the <think> 123 naïve"
    assert opened.tokenizer.encode(text) == from_json(reference, "x").encode(text)
    assert opened.tokenizer.special_ids == set(range(len(files.SPECIALS)))


TEXT_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"general__architecture": (TEXT, "mamba")}, "mamba"),
    ({"general__architecture": None}, "general.architecture"),
    ({"split__count": (U32, 3)}, "one of 3 parts"),
    ({"llama__block_count": (TEXT, "2")}, "llama.block_count"),
    ({"llama__block_count": None}, "llama.block_count"),
    ({"llama__block_count": (U32, 3)}, "layer"),
    ({"llama__block_count": (U32, 1 << 31)}, "num_hidden_layers"),
    ({"llama__attention.head_count": (U32, 0)}, "head_count"),
    ({"llama__attention.head_count": (U32, 3)}, ""),
    ({"llama__rope.dimension_count": (U32, 8)}, "dimension_count"),
    ({"llama__rope.scaling.type": (TEXT, "linear")}, "scaled"),
    ({"llama__expert_count": (U32, 8)}, "mixture"),
    ({"tokenizer__ggml.model": (TEXT, "llama")}, "--tokenizer"),
    ({"tokenizer__ggml.pre": (TEXT, "unheard-of")}, "unheard-of"),
    ({"tokenizer__ggml.tokens": None}, "tokenizer.ggml.tokens"),
    ({"tokenizer__ggml.tokens": (ARRAY, (U32, [1]))}, "tokenizer.ggml"),
    ({"tokenizer__ggml.tokens": (ARRAY, (TEXT, [*TOKENS[:-1], TOKENS[0]]))}, "twice"),
    ({"tokenizer__ggml.token_type": (ARRAY, (I32, [1]))}, "token_type"),
    ({"tokenizer__ggml.merges": (ARRAY, (TEXT, ["x y z"]))}, "merge"),
    ({"tokenizer__ggml.merges": (ARRAY, (TEXT, ["qq zz"]))}, "merge"),
    ({"tokenizer__ggml.eos_token_id": (U32, 99999)}, "eos_token_id"),
    ({"tokenizer__ggml.eos_token_id": (TEXT, "1")}, "eos_token_id"),
    ({"tokenizer__chat_template": (TEXT, "{% broken")}, "template"),
    ({"tokenizer__chat_template": (U32, 3)}, "chat_template"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "word"), TEXT_FAULTS)
def test_metadata_that_does_not_fit_is_refused_by_key(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ModelError) as caught:
        convert(model(tmp_path / "m.gguf", **changes), tmp_path / "out")
    assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_given_beside_the_file_is_used(tmp_path: Path) -> None:
    given = tmp_path / "tokenizer.json"
    given.write_text(json.dumps(SPEC))
    path = model(tmp_path / "m.gguf", **{"tokenizer__ggml.model": (TEXT, "llama")})
    convert(path, tmp_path / "out", Options(tokenizer=given))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == json.dumps(SPEC)


def test_a_tensor_without_a_place_or_with_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    base = [tensor(name, array) for name, array in arrays().items()]
    extra = np.zeros((4, 4), np.float32)
    for tensors, word in (
        ([*base, tensor("blk.0.attn_q.bias", extra)], "blk.0.attn_q.bias"),
        ([*base, tensor("blk.0.ffn_gate_exps.weight", extra)], "ffn_gate_exps"),
        ([t if t[0] != "blk.0.ffn_up.weight" else tensor(t[0], extra) for t in base], "[4, 4]"),
        (base[:-1], "layer 1 lacks"),
    ):
        path = tmp_path / "m.gguf"
        path.write_bytes(files.gguf(metadata(), tensors))
        with pytest.raises(ModelError) as caught:
            convert(path, tmp_path / "out")
        assert word in str(caught.value)


def head(n_tensors: int = 0, n_keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def info(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "magic"),
    (b"GGML" + bytes(20), "no GGUF"),
    (b"GGUF" + bytes(2), "version"),
    (head(version=1), "version"),
    (head(version=99), "version"),
    (head(n_tensors=1 << 60), "number of tensors"),
    (head(n_keys=1 << 60), "number of metadata keys"),
    (head(n_keys=1), "key"),
    (head(n_keys=1) + struct.pack("<Q", 1 << 62), "length of a metadata key"),
    (head(n_keys=1) + text(b"\xff"), "UTF-8"),
    (head(n_keys=1) + text(b"k") + struct.pack("<I", 77), "unknown type"),
    (head(n_keys=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 40), '"k"'),
    (head(n_keys=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 1000), '"k"'),
    (head(n_keys=1) + text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9, "nests"),
    (head(n_keys=1) + text(b"k") + struct.pack("<IB", 7, 2), '"k"'),
    (head(n_keys=2) + (text(b"k") + struct.pack("<IB", 0, 1)) * 2, "twice"),
    (head(n_keys=1) + text(b"general.alignment") + struct.pack("<II", 4, 0), "alignment"),
    (head(n_tensors=1) + info(b"t", [4] * 9, 0, 0), "dimensions"),
    (head(n_tensors=1) + info(b"t", [0], 0, 0) + bytes(99), "shape"),
    (head(n_tensors=1) + info(b"t", [], 0, 0) + bytes(99), "shape"),
    (head(n_tensors=1) + info(b"t", [1 << 40, 1 << 40], 0, 0) + bytes(99), "shape"),
    (head(n_tensors=1) + info(b"t", [1 << 63], 0, 0) + bytes(99), "dimension"),
    (head(n_tensors=1) + info(b"t", [4], 5, 0) + bytes(99), "type"),
    (head(n_tensors=1) + info(b"t", [33], 2, 0) + bytes(99), "multiple"),
    (head(n_tensors=1) + info(b"t", [4], 0, 7) + bytes(99), "unaligned"),
    (head(n_tensors=1) + info(b"t", [64], 0, 0) + bytes(99), "outside"),
    (head(n_tensors=1) + info(b"t", [4], 0, 1 << 62) + bytes(99), "offset"),
    (head(n_tensors=2) + info(b"t", [4], 0, 0) * 2 + bytes(99), "twice"),
    (head(n_tensors=2) + info(b"t", [16], 0, 0) + info(b"u", [16], 0, 32) + bytes(199), "overlap"),
]


@pytest.mark.parametrize(("data", "word"), HOSTILE)
def test_R132_a_hostile_header_is_refused_by_name(tmp_path: Path, data: bytes, word: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        gguf.read(path)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


def test_R162_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelError, match="outside"):
        gguf.read(path)


SMALL = files.gguf(
    [("general.architecture", TEXT, "llama"), ("x", ARRAY, (TEXT, ["a", "b"]))],
    [("t", [32], 0, bytes(128))],
)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=16), st.integers(0, len(SMALL)))
def test_R132_damage_anywhere_gives_a_named_error_or_a_sound_file(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("noise") / "m.gguf"
    path.write_bytes(SMALL[:at] + noise + SMALL[at + len(noise) :])
    try:
        file = gguf.read(path)
        gguf_text.check_architecture(file)
        gguf_text.config(file)
    except ModelError:
        return
    size = path.stat().st_size
    assert all(t.offset + t.bytes <= size for t in file.tensors.values())
