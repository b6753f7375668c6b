"""Family descriptors: geometry from configs, expected tensors, and absurd values refused by key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colibri.errors import ModelError
from colibri.families import FAMILIES, detect
from colibri.families.base import Family
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.values import ConfigReader, parse_json, parse_object
from tests.models import files

GLM_52: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 192,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "index_topk_pattern": None,
    "rope_interleave": True,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 8000000},
    "max_position_embeddings": 1048576,
    "vocab_size": 154880,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [154820, 154827, 154829],
}
FULL = {0, 1, 2, *range(6, 75, 4)}


def geometry(config: dict[str, Any]) -> Any:
    return detect(config, "config.json").geometry(ConfigReader(config, "config.json"))


def test_a_family_is_found_by_model_type_or_architecture() -> None:
    assert detect({"model_type": "llama"}, "x").name == "llama"
    assert detect({"architectures": ["GlmMoeDsaForCausalLM"]}, "x").name == "glm_moe_dsa"
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    "config",
    [{}, {"model_type": "mamba"}, {"model_type": 3}, {"architectures": "LlamaForCausalLM"},
     {"architectures": [None]}, {"model_type": "glm5_next"}],
)  # fmt: skip
def test_an_unknown_family_is_refused_with_what_is_known(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"config\.json.*model_type.*glm_moe_dsa, llama"):
        detect(config, "config.json")


def test_glm_52_has_the_published_geometry() -> None:
    g = geometry(GLM_52)
    assert (g.n_layers, g.hidden, g.n_heads, g.head_dim, g.v_head) == (78, 6144, 64, 256, 256)
    assert (g.rope_theta, g.norm_eps, g.latent_eps) == (8e6, 1e-5, 1e-6)
    assert {layer for layer, own in enumerate(g.layer_indexer) if own} == FULL
    assert list(g.layer_sparse) == [0] * 3 + [1] * 75
    assert (g.n_mtp_layers, g.index_topk, g.routed_scale) == (1, 2048, 2.5)


def test_glm_52_expects_the_published_tensors() -> None:
    specs = list(GLM_MOE_DSA.tensors(geometry(GLM_52)))
    shapes = {spec.name: (spec.rows, spec.cols) for spec in specs}
    assert len(shapes) == len(specs)
    per_layer = {layer: 0 for layer in range(79)}
    for spec in specs:
        if spec.layer is not None:
            per_layer[spec.layer] += 1
    assert per_layer[6] == 787
    assert per_layer[7] == 782
    assert per_layer[78] == 791
    assert shapes["model.layers.5.self_attn.q_b_proj.weight"] == (16384, 2048)
    assert shapes["model.layers.5.self_attn.kv_a_proj_with_mqa.weight"] == (576, 6144)
    assert shapes["model.layers.5.self_attn.kv_b_proj.weight"] == (28672, 512)
    assert shapes["model.layers.78.eh_proj.weight"] == (6144, 12288)
    assert shapes["model.layers.78.self_attn.indexer.weights_proj.weight"] == (32, 6144)
    # The published count of parameters leaves the routers' correction biases out.
    parameters = sum(spec.rows * spec.cols for spec in specs if "e_score" not in spec.name)
    assert parameters == 753_329_921_024


def test_the_default_model_id_is_the_familys_for_glm_52_only() -> None:
    assert GLM_MOE_DSA.model_id(geometry(GLM_52), "glm52_i4") == "glm-5.2-colibri"
    assert GLM_MOE_DSA.model_id(geometry(GLM_52), "GLM-5.3-int4") is None
    assert GLM_MOE_DSA.model_id(geometry(files.GLM), "tiny") is None


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({"indexer_types": None}, [0, 1, 2, 3]),
        ({"indexer_types": None, "index_topk_pattern": "FSSF"}, [0, 3]),
        ({"indexer_types": None, "index_topk_pattern": ["F", "F", "S", "S"]}, [0, 1]),
        ({"index_topk_pattern": "FSSF"}, [0, 2]),
        ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 1}, [0, 2]),
        ({"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2]),
    ],
)
def test_the_indexer_pattern_follows_list_then_pattern_then_frequency(
    changes: dict[str, Any], own: list[int]
) -> None:
    g = geometry({**files.GLM, **changes})
    assert [layer for layer, flag in enumerate(g.layer_indexer) if flag] == own


def test_a_model_without_indexer_or_mtp_loses_exactly_those_tensors() -> None:
    g = geometry(files.GLM)
    names = {spec.name for spec in GLM_MOE_DSA.tensors(g)}
    dense = {spec.name for spec in GLM_MOE_DSA.tensors(GLM_MOE_DSA.without(g, "indexer"))}
    assert names - dense and all(".indexer." in name for name in names - dense)
    no_mtp = {spec.name for spec in GLM_MOE_DSA.tensors(GLM_MOE_DSA.without(g, "mtp"))}
    assert names - no_mtp and all(name.startswith("model.layers.4.") for name in names - no_mtp)


ABSURD: list[tuple[dict[str, Any], str]] = [
    (files.LLAMA, "hidden_size"),
    (files.LLAMA, "intermediate_size"),
    (files.LLAMA, "num_hidden_layers"),
    (files.LLAMA, "num_attention_heads"),
    (files.LLAMA, "num_key_value_heads"),
    (files.LLAMA, "max_position_embeddings"),
    (files.LLAMA, "vocab_size"),
    (files.LLAMA, "head_dim"),
    (files.GLM, "num_hidden_layers"),
    (files.GLM, "hidden_size"),
    (files.GLM, "num_attention_heads"),
    (files.GLM, "qk_nope_head_dim"),
    (files.GLM, "qk_rope_head_dim"),
    (files.GLM, "v_head_dim"),
    (files.GLM, "q_lora_rank"),
    (files.GLM, "kv_lora_rank"),
    (files.GLM, "n_routed_experts"),
    (files.GLM, "num_experts_per_tok"),
    (files.GLM, "n_shared_experts"),
    (files.GLM, "moe_intermediate_size"),
    (files.GLM, "index_topk"),
    (files.GLM, "index_n_heads"),
    (files.GLM, "index_head_dim"),
    (files.GLM, "n_group"),
    (files.GLM, "topk_group"),
    (files.GLM, "first_k_dense_replace"),
    (files.GLM, "num_nextn_predict_layers"),
]


@pytest.mark.parametrize("value", [-1, 1 << 31, 1 << 70, "4", 2.5, True, [4], {}])
@pytest.mark.parametrize(("config", "key"), ABSURD)
def test_R132_an_absurd_count_is_refused_by_file_and_key(
    config: dict[str, Any], key: str, value: Any
) -> None:
    with pytest.raises(ModelError) as caught:
        geometry({**config, key: value})
    assert "config.json" in str(caught.value)
    assert f'"{key}"' in str(caught.value)
    assert len(str(caught.value)) < 400


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (files.LLAMA, {"rms_norm_eps": -1.0}, "rms_norm_eps"),
    (files.LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    (files.LLAMA, {"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    (files.LLAMA, {"rope_theta": 0}, "rope_theta"),
    (files.LLAMA, {"rope_theta": "10000"}, "rope_theta"),
    (files.LLAMA, {"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.type"),
    (files.LLAMA, {"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling.rope_type"),
    (files.LLAMA, {"rope_scaling": 4}, "rope_scaling"),
    (files.LLAMA, {"hidden_act": "gelu"}, "hidden_act"),
    (files.LLAMA, {"attention_bias": True}, "attention_bias"),
    (files.LLAMA, {"mlp_bias": "yes"}, "mlp_bias"),
    (files.LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads"),
    (files.LLAMA, {"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads"),
    (files.LLAMA, {"head_dim": 7}, "head_dim"),
    (files.LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    (files.GLM, {"scoring_func": "softmax"}, "scoring_func"),
    (files.GLM, {"topk_method": "greedy"}, "topk_method"),
    (files.GLM, {"rope_interleave": False}, "rope_interleave"),
    (files.GLM, {"moe_layer_freq": 2}, "moe_layer_freq"),
    (files.GLM, {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
    (files.GLM, {"indexer_types": ["full"]}, "indexer_types"),
    (files.GLM, {"indexer_types": ["full", "full", "full", "none"]}, "indexer_types"),
    (files.GLM, {"indexer_types": ["shared", "full", "full", "full"]}, "indexer_types"),
    (files.GLM, {"indexer_types": None, "index_topk_pattern": "FS"}, "index_topk_pattern"),
    (files.GLM, {"indexer_types": None, "index_topk_pattern": "SFFF"}, "index_topk_pattern"),
    (files.GLM, {"indexer_types": None, "index_topk_pattern": "FXFF"}, "index_topk_pattern"),
    (files.GLM, {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
    (files.GLM, {"mlp_layer_types": ["dense"] * 3 + [None]}, "mlp_layer_types"),
    # As many experts as no model has: looking for their tensors would take hours.
    (files.GLM, {"n_routed_experts": 65_536}, "n_routed_experts"),
    (files.GLM, {"n_routed_experts": None, "num_experts": 65_536}, "num_experts"),
    (files.GLM, {"n_group": 3}, "n_group"),
    (files.GLM, {"n_group": 4}, "n_group"),
    (files.GLM, {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 3}, "num_experts_per_tok"),
    (files.GLM, {"routed_scaling_factor": 0}, "routed_scaling_factor"),
    (files.GLM, {"index_head_dim": 4}, "index_head_dim"),
]


@pytest.mark.parametrize(("config", "changes", "key"), WRONG)
def test_a_value_that_the_engine_does_not_compute_is_refused_by_key(
    config: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ModelError) as caught:
        geometry({**config, **changes})
    assert f'"{key}"' in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_missing_required_key_is_refused_by_key(family: Family) -> None:
    config = files.LLAMA if family.name == "llama" else files.GLM
    for key in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"):
        rest = {name: value for name, value in config.items() if name != key}
        with pytest.raises(ModelError, match=f'"{key}".*found nothing'):
            family.geometry(ConfigReader(rest, "config.json"))


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1', '{"a": "x', "NaN", '{"a": Infinity}', "[" * 100_000, '{"a":1,"a":1}'],
)
def test_R132_truncated_or_loose_json_is_refused_by_file(text: str) -> None:
    with pytest.raises(ModelError, match=r"some\.json"):
        parse_json(text.encode(), "some.json")


def test_a_number_too_long_to_read_is_refused_by_file() -> None:
    with pytest.raises(ModelError, match=r"some\.json"):
        parse_json(b'{"a": ' + b"9" * 10_000 + b"}", "some.json")


def test_a_json_file_that_is_no_object_is_refused() -> None:
    with pytest.raises(ModelError, match="JSON object"):
        parse_object(json.dumps([1]).encode(), "some.json")


def test_token_ids_take_one_id_or_a_list_and_nothing_else() -> None:
    reader = ConfigReader({"one": 3, "many": [1, 2], "bad": [1, "2"], "big": 9, "bool": True}, "f")
    assert reader.token_ids("one", 8) == [3]
    assert reader.token_ids("many", 8) == [1, 2]
    assert reader.token_ids("absent", 8) == []
    for key in ("bad", "big", "bool"):
        with pytest.raises(ModelError, match=f'"{key}"'):
            reader.token_ids(key, 8)
