"""One config.json for every dialect, in the words that vLLM's DFlash code understands.

vLLM loads each drafter as method "dflash" from this config; the whole DrafterSpec travels in the
section `dartree`, from which the model class rebuilds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_dartree.models.spec import DrafterSpec

ARCHITECTURE = "DFlashDARTreeModel"
"""Starts with DFlash, so that vLLM's EAGLEConfig leaves the name alone."""
SECTION = "dartree"


def canonical_config(spec: DrafterSpec, max_model_len: int | None = None) -> dict[str, Any]:
    """The drafter's config.json for vLLM, as plain JSON values.

    `max_model_len` is the target's: with plain rope, max_position_embeddings is only the length of
    a table, so it grows to cover every position that a block can reach.
    """
    max_position = spec.max_position_embeddings
    if max_model_len is not None and spec.rope_parameters["rope_type"] == "default":
        max_position = max(max_position, max_model_len + spec.block_size)
    window = spec.sliding_window
    if window is not None and spec.window_origin == "anchor":
        # Slot k of vLLM's window of W + B still sees all of the W tokens before the anchor;
        # check_fits_target allows only contexts that end there.
        window += spec.block_size
    # sample_from_anchor must stay out of this section: vLLM raises on it. Slots are ours to map.
    dflash: dict[str, Any] = {
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
    }
    if spec.causal is not None:
        dflash["causal"] = spec.causal
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "block_size": spec.block_size,
        "dflash_config": dflash,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "attention_bias": spec.attention_bias,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": max_position,
        "rope_theta": spec.rope_parameters["rope_theta"],
        "rope_parameters": dict(spec.rope_parameters),
        "layer_types": list(spec.layer_types),
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": spec.num_hidden_layers,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "tie_word_embeddings": False,
        SECTION: spec.to_json(),
    }


def spec_from_hf_config(hf_config: Any) -> DrafterSpec:
    """The DrafterSpec in a config made by `canonical_config`, also when vLLM has wrapped it.

    Raises ValueError for any other config.
    """
    section = getattr(hf_config, SECTION, None)
    if not isinstance(section, Mapping):
        raise ValueError(
            f"{SECTION}: got {section!r} in the drafter's config, expected the section that "
            f'canonical_config writes. Ask for method "{SECTION}" instead of loading this '
            "architecture directly."
        )
    return DrafterSpec.from_json(section)
