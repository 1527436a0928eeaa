"""The backbone's part of a drafter's config.json: sizes, rope, windows, target layers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypedDict

from vllm_dartree.models.config_reader import ConfigReader, agree, missing, required
from vllm_dartree.models.spec import WindowOrigin
from vllm_dartree.models.tensors import TensorHeader

Headers = Mapping[str, TensorHeader]

_ROPE_KEYS: dict[str, tuple[str, ...]] = {
    # rope_type -> keys it needs beside rope_theta. HF and vLLM agree on these types.
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}


class Backbone(TypedDict):
    """The fields of DrafterSpec that this module reads."""

    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: dict[str, Any]
    layer_types: tuple[str, ...]
    sliding_window: int | None
    window_origin: WindowOrigin
    causal: bool | None
    vocab_size: int
    draft_vocab_size: int
    has_embed: bool
    has_lm_head: bool


def tensor_size(headers: Headers, name: str, axis: int) -> int | None:
    """Size of a tensor along `axis`, None if the checkpoint has no such tensor or axis."""
    header = headers.get(name)
    return header.shape[axis] if header is not None and axis < len(header.shape) else None


def read_backbone(
    draft: ConfigReader, layers: ConfigReader, exporter: str | None, headers: Headers
) -> Backbone:
    """Read the backbone; `draft` has the drafter's own keys, `layers` those of its layers.

    The two are one config.json except in the speculators format (`exporter` is its type).
    Sizes come from config.json and are compared with the tensors they shape.
    """
    model_type = layers.text("model_type")
    if model_type not in (None, "qwen3"):
        raise ValueError(
            f"model_type: got {model_type!r}, supported: 'qwen3'. "
            "Use a drafter with a Qwen3-style backbone."
        )

    def size(key: str, tensor: str, axis: int = 0, unit: int = 1) -> int:
        shipped = tensor_size(headers, tensor, axis)
        if shipped is not None and shipped % unit:
            shipped = None  # left to the shape check, which shows both shapes
        elif shipped is not None:
            shipped //= unit
        return required(agree(key, layers.integer(key), shipped, tensor), key)

    hidden = size("hidden_size", "norm.weight")
    target_hidden = draft.integer("target_hidden_size")
    if target_hidden not in (None, hidden):
        raise ValueError(
            f"target_hidden_size: got {target_hidden}, but hidden_size is {hidden}. "
            "Use a drafter as wide as its target."
        )
    found = {name.split(".")[1] for name in headers if name.startswith("layers.")}
    num_layers = agree(
        "num_hidden_layers", layers.integer("num_hidden_layers"), len(found) or None, "layers.*"
    )
    num_layers = required(num_layers, "num_hidden_layers")
    attn = "layers.0.self_attn"
    head_dim = size("head_dim", f"{attn}.q_norm.weight")
    num_heads = size("num_attention_heads", f"{attn}.q_proj.weight", unit=head_dim)
    num_kv_heads = size("num_key_value_heads", f"{attn}.k_proj.weight", unit=head_dim)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_attention_heads: got {num_heads}, expected a multiple of num_key_value_heads "
            f"({num_kv_heads}). Correct it in config.json."
        )
    vocab = required(layers.integer("vocab_size"), "vocab_size")
    draft_vocab = agree(
        "draft_vocab_size",
        draft.integer("draft_vocab_size"),
        tensor_size(headers, "d2t", 0),
        "d2t",
    )
    draft_vocab = vocab if draft_vocab is None else draft_vocab
    if draft_vocab > vocab:
        raise ValueError(
            f"draft_vocab_size: got {draft_vocab}, but vocab_size is {vocab}; expected no more. "
            "Correct it in config.json."
        )
    layer_types, window = _layer_types(layers, num_layers)
    ids = _target_layer_ids(draft, exporter, num_layers)
    fused = tensor_size(headers, "fc.weight", 1)
    agree(
        "target_layer_ids",
        len(ids) * hidden,
        fused,
        f"fc.weight (hidden_size {hidden} per target layer)",
    )
    return Backbone(
        target_layer_ids=ids,
        num_target_layers=draft.integer("num_target_layers"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", "layers.0.mlp.gate_proj.weight"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        attention_bias=bool(layers.boolean("attention_bias")),
        rms_norm_eps=layers.positive("rms_norm_eps") or 1e-6,
        max_position_embeddings=layers.integer("max_position_embeddings") or 32768,
        rope_parameters=_rope_parameters(layers),
        layer_types=layer_types,
        sliding_window=window,
        window_origin="anchor" if exporter is not None and window is not None else "query",
        causal=_causal(draft, exporter),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        has_embed="embed_tokens.weight" in headers,
        # A reduced vocabulary has no use for the target's LM head: it must ship its own.
        has_lm_head="lm_head.weight" in headers or draft_vocab < vocab,
    )


def _target_layer_ids(
    draft: ConfigReader, exporter: str | None, num_layers: int
) -> tuple[int, ...]:
    """0-based ids l of the target layers whose output the drafter reads.

    The speculators format and vLLM count aux ids l + 1; z-lab, SpecForge and DeepSpec count l.
    """
    found: dict[str, tuple[int, ...]] = {}
    for key, offset in (
        ("target_layer_ids", 0),
        ("aux_hidden_state_layer_ids", 1),
        ("eagle_aux_hidden_state_layer_ids", 1),
    ):
        stated = draft.integers(key)
        if stated is not None:
            found[key] = tuple(i - offset for i in stated)
    if not found:
        if exporter is not None:
            raise missing("aux_hidden_state_layer_ids")
        found["target_layer_ids"] = _default_layer_ids(draft, num_layers)
    key, ids = next(iter(found.items()))
    for other, other_ids in found.items():
        if other_ids != ids:
            raise ValueError(
                f"{other}: stands for target layers {list(other_ids)}, but {key} for {list(ids)}. "
                "Keep the one that the drafter was trained with."
            )
    # vLLM hands features out in layer order, whatever the order of the ids.
    if ids[0] < -1 or any(a >= b for a, b in itertools.pairwise(ids)):
        raise ValueError(
            f"{key}: stands for target layers {list(ids)}, expected strictly increasing ids "
            ">= -1 (-1 is the embedding output). Correct it in config.json."
        )
    return ids


def _default_layer_ids(draft: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """Evenly spaced layers from 1 to N - 3: SpecForge's rule for files without ids."""
    total = draft.integer("num_target_layers")
    if total is None:
        raise missing("target_layer_ids")
    if num_layers == 1:
        return (total // 2,)
    return tuple(round(1 + i * (total - 4) / (num_layers - 1)) for i in range(num_layers))


def _rope_parameters(layers: ConfigReader) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for source, entries in (
        ("rope_parameters.", layers.mapping("rope_parameters") or {}),
        ("rope_scaling.", layers.mapping("rope_scaling") or {}),
        ("", {"rope_theta": layers.positive("rope_theta")}),
    ):
        for key, value in entries.items():
            key = "rope_type" if key == "type" else key
            if value is None:
                continue
            if merged.setdefault(key, value) != value:
                raise ValueError(
                    f"{source}{key}: got {value!r}, but another place in config.json has "
                    f"{merged[key]!r}. Keep the value that the drafter was trained with."
                )
    rope_type = merged.setdefault("rope_type", "default")
    if not isinstance(rope_type, str) or rope_type not in _ROPE_KEYS:
        raise ValueError(
            f"rope_type: got {rope_type!r}, supported: {', '.join(_ROPE_KEYS)}. "
            "Use a drafter with one of these."
        )
    for key, neutral in (("partial_rotary_factor", 1), ("mrope_section", None)):
        if merged.pop(key, neutral) != neutral:
            raise ValueError(
                f"{key}: found in rope_parameters, supported: {neutral!r} (drafters rotate whole "
                "heads by one-dimensional positions). Use another drafter."
            )
    rope = ConfigReader(merged)
    for key in ("rope_theta", *_ROPE_KEYS[rope_type]):
        required(rope.positive(key), key)
    if rope_type == "default":
        return {"rope_type": "default", "rope_theta": merged["rope_theta"]}
    return merged


def _layer_types(layers: ConfigReader, num_layers: int) -> tuple[tuple[str, ...], int | None]:
    """(layer_types, sliding_window) of the draft layers."""
    types = layers.texts("layer_types")
    enabled = layers.boolean("use_sliding_window")
    if types is None:
        if enabled:
            raise missing("layer_types")
        types = ("full_attention",) * num_layers
    if len(types) != num_layers:
        raise ValueError(
            f"layer_types: got {len(types)} entries, but num_hidden_layers is {num_layers}. "
            "Correct it in config.json."
        )
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(
                f"layer_types: got {kind!r}, supported: full_attention, sliding_attention. "
                "Use another drafter."
            )
    if "sliding_attention" not in types:
        return types, None
    if enabled is False:
        # transformers would drop the window but keep the layers causal; nobody trains that.
        raise ValueError(
            "use_sliding_window: got False, but layer_types has sliding_attention. "
            "Set it to true if the drafter was trained with a window."
        )
    window, nested = layers.integer("sliding_window"), layers.integer("swa_window_size")
    if window is not None and nested is not None and window != nested:
        raise ValueError(
            f"swa_window_size: got {nested}, but sliding_window is {window}. "
            "Keep the one that the drafter was trained with."
        )
    return types, required(nested if window is None else window, "sliding_window")


def _causal(draft: ConfigReader, exporter: str | None) -> bool | None:
    if exporter is not None:
        # False, the serialised default, leaves full-attention layers bidirectional.
        return False if draft.boolean("sliding_window_non_causal") else None
    whole, nested = draft.boolean("is_causal"), draft.boolean("causal")
    if whole is not None and nested is not None and whole != nested:
        raise ValueError(
            f"is_causal: got {whole}, but causal is {nested}. "
            "Keep the one that the drafter was trained with."
        )
    return nested if whole is None else whole
