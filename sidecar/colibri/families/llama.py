"""Dense grouped-query transformers in the Llama layout: SmolLM2, Llama 2 and their like.

For: `colibri.families`. Not for: variants that add biases, scaled rope or q/k norms; their configs
are refused by name. The graph itself is `native/src/family_llama.c`. Thread rule: frozen values and
pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from colibri.engine.table import Family as EngineFamily
from colibri.engine.table import Geometry
from colibri.families import base
from colibri.families.base import Capabilities, Family, TensorSpec
from colibri.families.values import ConfigReader


def _geometry(reader: ConfigReader) -> Geometry:
    base.activation_is_silu(reader)
    base.no_bias(reader, "attention_bias", "mlp_bias")
    hidden = reader.integer("hidden_size", 1, base.MAX_COLS)
    n_heads = reader.integer("num_attention_heads", 1, base.MAX_HEADS)
    n_kv_heads = reader.integer("num_key_value_heads", 1, n_heads, n_heads)
    if n_heads % n_kv_heads:
        reader.fail("num_key_value_heads", f"a divisor of num_attention_heads ({n_heads})")
    if not reader.has("head_dim") and hidden % n_heads:
        reader.fail(
            "num_attention_heads", f"a divisor of hidden_size ({hidden}) when head_dim is absent"
        )
    head_dim = reader.integer("head_dim", 2, base.MAX_HEAD_DIM, hidden // n_heads)
    if head_dim % 2 or head_dim < 2:  # noqa: PLR2004 - rotary pairs
        reader.fail("head_dim", "an even number (rotary embeddings turn pairs)")
    if n_heads * head_dim > base.MAX_COLS:
        reader.fail("head_dim", f"at most {base.MAX_COLS // n_heads} with {n_heads} heads")
    return Geometry(
        family=EngineFamily.LLAMA,
        n_layers=reader.integer("num_hidden_layers", 1, base.MAX_LAYERS),
        hidden=hidden,
        vocab=reader.integer("vocab_size", 1, base.MAX_ROWS),
        ffn=reader.integer("intermediate_size", 1, base.MAX_COLS),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        max_position=reader.integer("max_position_embeddings", 1, base.MAX_POSITION),
        tied_embeddings=reader.boolean("tie_word_embeddings", default=False),
        norm_eps=reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6),
        rope_theta=base.rope_theta(reader, 10_000.0),
    )


def _tensors(g: Geometry) -> Iterator[TensorSpec]:
    yield TensorSpec("model.embed_tokens.weight", g.vocab, g.hidden)
    yield TensorSpec("model.norm.weight", 1, g.hidden)
    if not g.tied_embeddings:
        yield TensorSpec("lm_head.weight", g.vocab, g.hidden)
    q_rows, kv_rows = g.n_heads * g.head_dim, g.n_kv_heads * g.head_dim
    shapes = (
        ("input_layernorm.weight", 1, g.hidden),
        ("self_attn.q_proj.weight", q_rows, g.hidden),
        ("self_attn.k_proj.weight", kv_rows, g.hidden),
        ("self_attn.v_proj.weight", kv_rows, g.hidden),
        ("self_attn.o_proj.weight", g.hidden, q_rows),
        ("post_attention_layernorm.weight", 1, g.hidden),
        ("mlp.gate_proj.weight", g.ffn, g.hidden),
        ("mlp.up_proj.weight", g.ffn, g.hidden),
        ("mlp.down_proj.weight", g.hidden, g.ffn),
    )
    for layer in range(g.n_layers):
        for name, rows, cols in shapes:
            yield TensorSpec(f"model.layers.{layer}.{name}", rows, cols, layer)


def _without(g: Geometry, part: str) -> Geometry:
    raise ValueError(f"llama has no optional part {part!r}")


LLAMA = Family(
    name="llama",
    model_types=frozenset({"llama"}),
    architectures=frozenset({"LlamaForCausalLM"}),
    capabilities=Capabilities(),
    geometry=_geometry,
    tensors=_tensors,
    without=_without,
    end_tokens=("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
)
