"""GLM-5, 5.1, 5.2 and 5.3: latent attention, sparse attention by an indexer, sigmoid-routed
experts.

For: `colibri.families`. Not for: GLM-5.3-Flash (`glm5_next`), which is another architecture. The
graph itself is `native/src/family_glm.c`. Two config keys mislead and are ignored: `head_dim` and
`num_key_value_heads` (attention is latent), see `_geometry`. Thread rule: frozen values and pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from colibri.engine.table import Family as EngineFamily
from colibri.engine.table import Geometry
from colibri.families import base
from colibri.families.base import Capabilities, Family, TensorSpec
from colibri.families.glm_template import builtin_template
from colibri.families.values import ConfigReader
from colibri.text.dialect import GLM

# The norms of the latents were published with the reference implementation's class default, not
# with rms_norm_eps; the difference is visible in the logits.
LATENT_EPS: Final = 1e-6
_GLM_52: Final = (78, 6144, 8e6)  # layers, hidden size, rope base: what tells 5.2 from 5 and 5.1
_PATTERN: Final = {"F": "full", "S": "shared"}


def _geometry(reader: ConfigReader) -> Geometry:
    base.activation_is_silu(reader)
    base.no_bias(reader, "attention_bias")
    _supported_only(reader)
    n_layers = reader.integer("num_hidden_layers", 1, base.MAX_LAYERS)
    n_heads = reader.integer("num_attention_heads", 1, base.MAX_HEADS)
    qk_nope = reader.integer("qk_nope_head_dim", 1, base.MAX_HEAD_DIM)
    qk_rope = _even(reader, "qk_rope_head_dim")
    v_head = reader.integer("v_head_dim", 1, base.MAX_HEAD_DIM)
    for key, rows in (("qk_nope_head_dim", qk_nope + qk_rope), ("v_head_dim", qk_nope + v_head)):
        if n_heads * rows > base.MAX_COLS:
            reader.fail(key, f"small enough that {n_heads} heads stay within {base.MAX_COLS} rows")
    n_experts = _n_experts(reader)
    n_group = reader.integer("n_group", 1, n_experts, 1)
    if n_experts % n_group:
        reader.fail("n_group", f"a divisor of n_routed_experts ({n_experts})")
    if n_group > 1 and n_experts // n_group < 2:  # noqa: PLR2004 - the group score adds two members
        reader.fail("n_group", f"at most {n_experts // 2}, so that a group has two experts")
    topk_group = reader.integer("topk_group", 1, n_group, n_group)
    reachable = n_experts // n_group * topk_group
    sparse = _layer_sparse(reader, n_layers)
    n_mtp = reader.integer("num_nextn_predict_layers", 0, 1, 0)
    n_sparse = sum(sparse) + n_mtp
    if n_sparse * n_experts > base.MAX_ALL_EXPERTS:
        most = base.MAX_ALL_EXPERTS // n_sparse
        reader.fail(_experts_key(reader), f"at most {most} in each of {n_sparse} layers")
    expert_ffn = reader.integer("moe_intermediate_size", 1, base.MAX_COLS)
    n_shared = reader.integer("n_shared_experts", 0, 64, 0)
    if n_shared * expert_ffn > base.MAX_COLS:
        reader.fail("n_shared_experts", f"at most {base.MAX_COLS // expert_ffn}")
    index_topk, index_heads, index_dim, layer_indexer = _indexer(reader, n_layers, qk_rope)
    return Geometry(
        family=EngineFamily.GLM_MOE_DSA,
        n_layers=n_layers,
        hidden=reader.integer("hidden_size", 1, base.MAX_COLS // 2),
        vocab=reader.integer("vocab_size", 1, base.MAX_ROWS),
        ffn=reader.integer("intermediate_size", 1, base.MAX_COLS),
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=qk_nope + qk_rope,
        max_position=reader.integer("max_position_embeddings", 1, base.MAX_POSITION),
        tied_embeddings=reader.boolean("tie_word_embeddings", default=False),
        norm_eps=reader.number("rms_norm_eps", 1e-12, 0.1, 1e-5),
        latent_eps=LATENT_EPS,
        rope_theta=base.rope_theta(reader, 10_000.0),
        q_lora=reader.integer("q_lora_rank", 1, base.MAX_COLS),
        kv_lora=reader.integer("kv_lora_rank", 1, base.MAX_COLS // 2),
        qk_nope=qk_nope,
        qk_rope=qk_rope,
        v_head=v_head,
        index_heads=index_heads,
        index_dim=index_dim,
        index_topk=index_topk,
        n_experts=n_experts,
        experts_per_token=reader.integer("num_experts_per_tok", 1, reachable),
        n_shared_experts=n_shared,
        expert_ffn=expert_ffn,
        n_group=n_group,
        topk_group=topk_group,
        norm_topk=reader.boolean("norm_topk_prob", default=True),
        routed_scale=reader.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        n_mtp_layers=n_mtp,
        layer_sparse=sparse,
        layer_indexer=layer_indexer,
    )


def _supported_only(reader: ConfigReader) -> None:
    if reader.string("scoring_func", "sigmoid") != "sigmoid":
        reader.unsupported("scoring_func", '"sigmoid"')
    if reader.string("topk_method", "noaux_tc") != "noaux_tc":
        reader.unsupported("topk_method", '"noaux_tc"')
    for key in ("rope_interleave", "indexer_rope_interleave"):
        if not reader.boolean(key, default=True):
            reader.unsupported(key, "interleaved rotary pairs (true)")
    if reader.integer("moe_layer_freq", 1, base.MAX_LAYERS, 1) != 1:
        reader.unsupported("moe_layer_freq", "1")


def _even(reader: ConfigReader, key: str) -> int:
    value = reader.integer(key, 2, base.MAX_HEAD_DIM)
    if value % 2:
        reader.fail(key, "an even number (rotary embeddings turn pairs)")
    return value


def _n_experts(reader: ConfigReader) -> int:
    return reader.integer(_experts_key(reader), 1, base.MAX_EXPERTS)


def _experts_key(reader: ConfigReader) -> str:
    return "n_routed_experts" if reader.has("n_routed_experts") else "num_experts"


def _layer_sparse(reader: ConfigReader, n_layers: int) -> bytes:
    """One byte per layer; an explicit list wins over the count of leading dense layers."""
    if reader.has("mlp_layer_types"):
        kinds = reader.choices("mlp_layer_types", ("dense", "sparse"), n_layers)
        return bytes(kind == "sparse" for kind in kinds)
    dense = reader.integer("first_k_dense_replace", 0, n_layers, 0)
    return bytes(layer >= dense for layer in range(n_layers))


def _indexer(reader: ConfigReader, n_layers: int, qk_rope: int) -> tuple[int, int, int, bytes]:
    """(topk, heads, dim, one byte per layer: own indexer), all zero when the config names no
    index_topk.
    """
    topk = reader.integer("index_topk", 0, base.MAX_POSITION, 0)
    if topk == 0:
        return 0, 0, 0, b""
    heads = reader.integer("index_n_heads", 1, base.MAX_HEADS)
    dim = reader.integer("index_head_dim", qk_rope, base.MAX_HEAD_DIM)
    if heads * dim > base.MAX_COLS:
        reader.fail("index_head_dim", f"at most {base.MAX_COLS // heads} with {heads} heads")
    if reader.has("indexer_types"):
        key, kinds = "indexer_types", reader.choices("indexer_types", ("full", "shared"), n_layers)
    elif reader.has("index_topk_pattern"):
        key, kinds = "index_topk_pattern", _pattern(reader, n_layers)
    else:
        key, kinds = "index_skip_topk_offset", _by_frequency(reader, n_layers)
    if kinds[0] != "full":
        reader.fail(
            key, "such that layer 0 has an indexer of its own; it has no layer below to share with"
        )
    return topk, heads, dim, bytes(kind == "full" for kind in kinds)


def _pattern(reader: ConfigReader, n_layers: int) -> list[str]:
    if isinstance(reader.values["index_topk_pattern"], list):
        return [_PATTERN[item] for item in reader.choices("index_topk_pattern", _PATTERN, n_layers)]
    text = reader.string("index_topk_pattern")
    if len(text) != n_layers or set(text) - set(_PATTERN):
        reader.fail("index_topk_pattern", f"{n_layers} letters out of F (full) and S (shared)")
    return [_PATTERN[letter] for letter in text]


def _by_frequency(reader: ConfigReader, n_layers: int) -> list[str]:
    every = reader.integer("index_topk_freq", 1, base.MAX_LAYERS, 1)
    offset = reader.integer("index_skip_topk_offset", 0, base.MAX_LAYERS, 0)
    return [
        "full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(n_layers)
    ]


def _tensors(g: Geometry) -> Iterator[TensorSpec]:
    yield TensorSpec("model.embed_tokens.weight", g.vocab, g.hidden)
    yield TensorSpec("model.norm.weight", 1, g.hidden)
    if not g.tied_embeddings:
        yield TensorSpec("lm_head.weight", g.vocab, g.hidden)
    for layer in range(g.n_layers):
        indexer = bool(g.layer_indexer and g.layer_indexer[layer])
        yield from _layer(g, layer, bool(g.layer_sparse[layer]), indexer, "trunk")
    for layer in range(g.n_layers, g.n_layers + g.n_mtp_layers):
        prefix = f"model.layers.{layer}."
        for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight"):
            yield TensorSpec(prefix + name, 1, g.hidden, layer, "mtp")
        yield TensorSpec(prefix + "eh_proj.weight", g.hidden, 2 * g.hidden, layer, "mtp")
        yield from _layer(g, layer, sparse=True, indexer=g.index_topk > 0, part="mtp")


def _layer(g: Geometry, layer: int, sparse: bool, indexer: bool, part: str) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer}."
    for name, rows, cols in _attention_shapes(g):
        yield TensorSpec(prefix + name, rows, cols, layer, part)
    if indexer:
        shapes = (
            ("wq_b.weight", g.index_heads * g.index_dim, g.q_lora),
            ("wk.weight", g.index_dim, g.hidden),
            ("k_norm.weight", 1, g.index_dim),
            ("k_norm.bias", 1, g.index_dim),
            ("weights_proj.weight", g.index_heads, g.hidden),
        )
        for name, rows, cols in shapes:
            yield TensorSpec(f"{prefix}self_attn.indexer.{name}", rows, cols, layer, "indexer")
    if not sparse:
        yield from _mlp(f"{prefix}mlp.", g.hidden, g.ffn, layer, part)
        return
    yield TensorSpec(f"{prefix}mlp.gate.weight", g.n_experts, g.hidden, layer, part)
    yield TensorSpec(f"{prefix}mlp.gate.e_score_correction_bias", 1, g.n_experts, layer, part)
    if g.n_shared_experts:
        width = g.n_shared_experts * g.expert_ffn
        yield from _mlp(f"{prefix}mlp.shared_experts.", g.hidden, width, layer, part)
    for expert in range(g.n_experts):
        yield from _mlp(
            f"{prefix}mlp.experts.{expert}.", g.hidden, g.expert_ffn, layer, part, expert
        )


def _attention_shapes(g: Geometry) -> tuple[tuple[str, int, int], ...]:
    return (
        ("input_layernorm.weight", 1, g.hidden),
        ("post_attention_layernorm.weight", 1, g.hidden),
        ("self_attn.q_a_proj.weight", g.q_lora, g.hidden),
        ("self_attn.q_a_layernorm.weight", 1, g.q_lora),
        ("self_attn.q_b_proj.weight", g.n_heads * (g.qk_nope + g.qk_rope), g.q_lora),
        ("self_attn.kv_a_proj_with_mqa.weight", g.kv_lora + g.qk_rope, g.hidden),
        ("self_attn.kv_a_layernorm.weight", 1, g.kv_lora),
        ("self_attn.kv_b_proj.weight", g.n_heads * (g.qk_nope + g.v_head), g.kv_lora),
        ("self_attn.o_proj.weight", g.hidden, g.n_heads * g.v_head),
    )


def _mlp(
    prefix: str, hidden: int, width: int, layer: int, part: str, expert: int = -1
) -> Iterator[TensorSpec]:
    yield TensorSpec(prefix + "gate_proj.weight", width, hidden, layer, part, expert)
    yield TensorSpec(prefix + "up_proj.weight", width, hidden, layer, part, expert)
    yield TensorSpec(prefix + "down_proj.weight", hidden, width, layer, part, expert)


def _without(g: Geometry, part: str) -> Geometry:
    if part == "indexer":
        return msgspec.structs.replace(
            g, index_topk=0, index_heads=0, index_dim=0, layer_indexer=b""
        )
    if part == "mtp":
        return msgspec.structs.replace(g, n_mtp_layers=0)
    raise ValueError(f"glm_moe_dsa has no optional part {part!r}")


def _model_id(g: Geometry, folder: str) -> str | None:
    is_52 = (g.n_layers, g.hidden, g.rope_theta) == _GLM_52 and "5.3" not in folder
    return "glm-5.2-colibri" if is_52 else None


GLM_MOE_DSA = Family(
    name="glm_moe_dsa",
    model_types=frozenset({"glm_moe_dsa"}),
    architectures=frozenset({"GlmMoeDsaForCausalLM"}),
    capabilities=Capabilities(reasoning=True, tool_dialect="glm47"),
    geometry=_geometry,
    tensors=_tensors,
    without=_without,
    optional_parts=("indexer", "mtp"),
    end_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
    chat_stops=("<|user|>", "<|observation|>"),
    model_id=_model_id,
    builtin_template=builtin_template,
    # Reasoning is asked for by request; without the wish the model answers at once.
    template_variables={"enable_thinking": False},
    dialect=GLM,
)
