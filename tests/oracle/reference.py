"""NumPy f32 forward pass of the families, written from their specification.

For: checking the committed fixtures without torch, and logits for containers that a test makes.
Not for: speed, or the product. It shares no code with the engine or with transformers.

Shapes: T tokens, H hidden, V vocabulary. All values are f32; reductions are NumPy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .checkpoint import Array, Checkpoint

f32 = np.float32
LATENT_EPS = 1e-6  # transformers builds the latent norms with its class default, not rms_norm_eps
INDEX_EPS = 1e-6


@dataclass
class Result:
    """`logits` [T, V]; `hidden` is the residual stream [T, H] before every layer and, last, after
    the final norm; `topk` maps a layer with an indexer to the ascending positions of each token."""

    logits: Array
    hidden: list[Array]
    topk: dict[int, list[list[int]]] = field(default_factory=dict)


def rms(x: Array, w: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(eps)) * w


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate.T
    return (g * sigmoid(g) * (x @ up.T)) @ down.T


def _angles(n: int, dim: int, theta: float) -> tuple[Array, Array]:
    a = np.arange(n)[:, None] / theta ** (np.arange(0, dim, 2) / dim)
    return np.cos(a).astype(f32), np.sin(a).astype(f32)


def rope_pairs(x: Array, theta: float) -> Array:
    """Rotates the pairs (2i, 2i + 1) of x [..., T, dim] by the position along T."""
    c, s = _angles(x.shape[-2], x.shape[-1], theta)
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    y[..., 1::2] = x[..., 1::2] * c + x[..., 0::2] * s
    return y


def rope_half(x: Array, theta: float) -> Array:
    """Rotates the pairs (i, i + dim / 2) of x [..., T, dim] by the position along T."""
    half = x.shape[-1] // 2
    c, s = _angles(x.shape[-2], x.shape[-1], theta)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def best(v: Array, k: int) -> Array:
    """Indices of the k largest values, the lowest index first among equals."""
    return np.argsort(-v, kind="stable")[:k]


def _mlp(weight: Callable[[str], Array], x: Array, prefix: str) -> Array:
    names = ("gate_proj", "up_proj", "down_proj")
    return swiglu(x, *(weight(f"{prefix}{n}.weight") for n in names))


def _router(c: dict[str, Any], scores: Array, bias: Array) -> tuple[Array, Array]:
    """Experts of one token and their weights, from sigmoid scores [E]."""
    choice = scores + bias
    if c["n_group"] > 1:
        groups = choice.reshape(c["n_group"], -1)
        kept = best(np.sort(groups, -1)[:, -2:].sum(-1), c["topk_group"])
        masked = np.full_like(groups, -np.inf)
        masked[kept] = groups[kept]
        choice = masked.ravel()
    chosen = best(choice, c["num_experts_per_tok"])
    w = scores[chosen]
    if c["norm_topk_prob"]:
        w = w / (w.sum() + f32(1e-20))
    return chosen, w * f32(c["routed_scaling_factor"])


def _glm_select(w: Checkpoint, prefix: str, h: Array, qr: Array) -> list[Array]:
    """DSA: for every token the ascending positions that its indexer chooses."""
    c, n = w.config, h.shape[0]
    heads, dim, rope = c["index_n_heads"], c["index_head_dim"], c["qk_rope_head_dim"]
    theta = c["rope_parameters"]["rope_theta"]
    q = (qr @ w(prefix + "wq_b.weight").T).reshape(n, heads, dim).transpose(1, 0, 2)
    q = np.concatenate([rope_pairs(q[..., :rope], theta), q[..., rope:]], -1)
    k = h @ w(prefix + "wk.weight").T
    k = k - k.mean(-1, keepdims=True)
    k = k / np.sqrt((k * k).mean(-1, keepdims=True) + f32(INDEX_EPS))
    k = k * w(prefix + "k_norm.weight") + w(prefix + "k_norm.bias")
    k = np.concatenate([rope_pairs(k[:, :rope], theta), k[:, rope:]], -1)
    head_weight = (h @ w(prefix + "weights_proj.weight").T) * f32(heads**-0.5)
    chosen = []
    for t in range(n):  # row by row: [heads, T, T] would be gigabytes for thousands of tokens
        dots = np.maximum((q[:, t] @ k[: t + 1].T) * f32(dim**-0.5), 0)
        chosen.append(np.sort(best(head_weight[t] @ dots, c["index_topk"])))
    return chosen


def _glm_attention(
    w: Checkpoint, prefix: str, h: Array, chosen: list[Array] | None, absorbed: bool
) -> tuple[Array, list[Array]]:
    """MLA over the positions `chosen`; None makes the layer's own indexer choose them."""
    c, n = w.config, h.shape[0]
    heads, rank = c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    theta = c["rope_parameters"]["rope_theta"]
    qr = rms(h @ w(prefix + "q_a_proj.weight").T, w(prefix + "q_a_layernorm.weight"), LATENT_EPS)
    q = (qr @ w(prefix + "q_b_proj.weight").T).reshape(n, heads, nope + rope).transpose(1, 0, 2)
    q_nope, q_rope = q[..., :nope], rope_pairs(q[..., nope:], theta)
    latent = h @ w(prefix + "kv_a_proj_with_mqa.weight").T
    k_rope = rope_pairs(latent[:, rank:], theta)
    latent = rms(latent[:, :rank], w(prefix + "kv_a_layernorm.weight"), LATENT_EPS)
    if chosen is None:
        chosen = _glm_select(w, prefix + "indexer.", h, qr)
    kv_b = w(prefix + "kv_b_proj.weight").reshape(heads, nope + value, rank)
    w_k, w_v = kv_b[:, :nope], kv_b[:, nope:]
    scale = f32((nope + rope) ** -0.5)
    out = np.zeros((n, heads, value), f32)
    if absorbed:
        q_latent = np.einsum("htn,hnr->htr", q_nope, w_k)
    else:
        k_nope, v = np.einsum("sr,hnr->hsn", latent, w_k), np.einsum("sr,hvr->hsv", latent, w_v)
    for t, s in enumerate(chosen):
        scores = q_rope[:, t] @ k_rope[s].T
        if absorbed:
            p = softmax((q_latent[:, t] @ latent[s].T + scores) * scale)
            out[t] = np.einsum("hr,hvr->hv", p @ latent[s], w_v)
        else:
            p = softmax((np.einsum("hn,hsn->hs", q_nope[:, t], k_nope[:, s]) + scores) * scale)
            out[t] = np.einsum("hs,hsv->hv", p, v[:, s])
    return out.reshape(n, -1) @ w(prefix + "o_proj.weight").T, chosen


def _glm_moe(w: Checkpoint, prefix: str, h: Array) -> Array:
    scores = sigmoid(h @ w(prefix + "gate.weight").T)
    bias = w(prefix + "gate.e_score_correction_bias")
    y = _mlp(w, h, prefix + "shared_experts.")
    for t in range(h.shape[0]):
        for expert, weight in zip(*_router(w.config, scores[t], bias), strict=True):
            y[t] += weight * _mlp(w, h[t], f"{prefix}experts.{expert}.")
    return y


def _glm_layer(
    w: Checkpoint, layer: int, x: Array, chosen: list[Array] | None, sparse: bool, absorbed: bool
) -> tuple[Array, list[Array]]:
    prefix, eps = f"model.layers.{layer}.", w.config["rms_norm_eps"]
    h = rms(x, w(prefix + "input_layernorm.weight"), eps)
    y, chosen = _glm_attention(w, prefix + "self_attn.", h, chosen, absorbed)
    x = x + y
    h = rms(x, w(prefix + "post_attention_layernorm.weight"), eps)
    return x + (_glm_moe(w, prefix + "mlp.", h) if sparse else _mlp(w, h, prefix + "mlp.")), chosen


def _all_before(n: int) -> list[Array]:
    return [np.arange(t + 1) for t in range(n)]


def glm(w: Checkpoint, ids: Sequence[int], absorbed: bool = True) -> Result:
    """glm_moe_dsa over `ids`. A checkpoint without indexer tensors attends to every position."""
    c = w.config
    x = w("model.embed_tokens.weight")[list(ids)]
    indexed = "model.layers.0.self_attn.indexer.wk.weight" in w
    chosen = None if indexed else _all_before(len(ids))
    result = Result(x, [x])
    for layer in range(c["num_hidden_layers"]):
        full = indexed and c["indexer_types"][layer] == "full"
        sparse = c["mlp_layer_types"][layer] == "sparse"
        x, chosen = _glm_layer(w, layer, x, None if full else chosen, sparse, absorbed)
        if full:
            result.topk[layer] = [s.tolist() for s in chosen]
        result.hidden.append(x)
    result.hidden[-1] = rms(x, w("model.norm.weight"), c["rms_norm_eps"])
    result.logits = result.hidden[-1] @ w("lm_head.weight").T
    return result


def glm_mtp(w: Checkpoint, ids: Sequence[int], hidden: Array) -> Array:
    """MTP logits [T - 1, V]: row t sees `hidden`[t] and token t + 1, and predicts token t + 2."""
    n, eps = w.config["num_hidden_layers"], w.config["rms_norm_eps"]
    prefix = f"model.layers.{n}."
    embedded = rms(w("model.embed_tokens.weight")[list(ids[1:])], w(prefix + "enorm.weight"), eps)
    both = np.concatenate([embedded, rms(hidden[:-1], w(prefix + "hnorm.weight"), eps)], -1)
    x, _ = _glm_layer(w, n, both @ w(prefix + "eh_proj.weight").T, None, True, True)
    return rms(x, w(prefix + "shared_head.norm.weight"), eps) @ w("lm_head.weight").T


def llama(w: Checkpoint, ids: Sequence[int]) -> Result:
    """Dense grouped-query transformer over `ids`, rope in halves as Hugging Face stores it."""
    c, n = w.config, len(ids)
    eps, theta = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"]
    heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    mask = np.where(np.tri(n, dtype=bool), f32(0), f32(-np.inf))
    x = w("model.embed_tokens.weight")[list(ids)]
    result = Result(x, [x])
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        h = rms(x, w(prefix + "input_layernorm.weight"), eps)

        def project(kind: str, n_heads: int, h: Array = h, prefix: str = prefix) -> Array:
            y = h @ w(f"{prefix}self_attn.{kind}_proj.weight").T
            return y.reshape(n, n_heads, dim).transpose(1, 0, 2)

        q = rope_half(project("q", heads), theta)
        k = np.repeat(rope_half(project("k", kv_heads), theta), heads // kv_heads, 0)
        v = np.repeat(project("v", kv_heads), heads // kv_heads, 0)
        p = softmax(np.einsum("htd,hsd->hts", q, k) * f32(dim**-0.5) + mask)
        out = np.einsum("hts,hsd->thd", p, v).reshape(n, -1)
        x = x + out @ w(prefix + "self_attn.o_proj.weight").T
        h = rms(x, w(prefix + "post_attention_layernorm.weight"), eps)
        x = x + _mlp(w, h, prefix + "mlp.")
        result.hidden.append(x)
    result.hidden[-1] = rms(x, w("model.norm.weight"), eps)
    head = "lm_head.weight" if "lm_head.weight" in w else "model.embed_tokens.weight"
    result.logits = result.hidden[-1] @ w(head).T
    return result


def forward(w: Checkpoint, ids: Sequence[int]) -> Result:
    """The forward pass of the family that config.json names."""
    return {"glm_moe_dsa": glm, "llama": llama}[w.config["model_type"]](w, ids)


def greedy(w: Checkpoint, prompt: Sequence[int], n: int) -> list[int]:
    """The n tokens of highest logit after `prompt`, each step recomputed from the start."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(forward(w, ids).logits[-1].argmax()))
    return ids[len(prompt) :]
