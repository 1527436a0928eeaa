"""A tiny random target with peaked predictions and a tiny Domino drafter for it, on disk."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, VOCAB, LAYERS = 64, 2, 1, 32, 64, 2
MASK_TOKEN = VOCAB - 1


def _shape(layers: int) -> dict[str, object]:
    return {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _layer(prefix: str, normal: object) -> dict[str, torch.Tensor]:
    draw = normal  # type: ignore[assignment]
    q, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    return {
        f"{prefix}self_attn.q_proj.weight": draw(q, HIDDEN),
        f"{prefix}self_attn.k_proj.weight": draw(kv, HIDDEN),
        f"{prefix}self_attn.v_proj.weight": draw(kv, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": draw(HIDDEN, q),
        f"{prefix}self_attn.q_norm.weight": torch.ones(HEAD_SIZE),
        f"{prefix}self_attn.k_norm.weight": torch.ones(HEAD_SIZE),
        f"{prefix}mlp.gate_proj.weight": draw(2 * HIDDEN, HIDDEN),
        f"{prefix}mlp.up_proj.weight": draw(2 * HIDDEN, HIDDEN),
        f"{prefix}mlp.down_proj.weight": draw(HIDDEN, 2 * HIDDEN),
        f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def _generator(seed: int, scale: float):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator) * scale


def write_target(folder: Path, layers: int = LAYERS, **overrides: object) -> Path:
    """A Qwen3 target whose LM head is scaled up, so that greedy choices are no near-ties."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _generator(0, 0.2)
    weights = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN) * 5}
    for layer in range(layers):
        weights |= _layer(f"model.layers.{layer}.", draw)
    weights |= {"model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": draw(VOCAB, HIDDEN) * 10}
    config = _shape(layers) | {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}
    return _write(folder, config | overrides, weights)


def write_windowed_target(folder: Path, window: int) -> Path:
    """A Llama target whose first layer sees `window` positions and whose second sees all."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _generator(2, 0.2)
    weights = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN) * 5}
    for layer in range(LAYERS):
        weights |= _layer(f"model.layers.{layer}.", draw)
    weights = {
        name: value
        for name, value in weights.items()
        if not name.endswith(("q_norm.weight", "k_norm.weight"))
    }
    weights |= {"model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": draw(VOCAB, HIDDEN) * 10}
    config = _shape(LAYERS) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": False,
        "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    return _write(folder, config, weights)


def write_drafter(folder: Path, block_size: int = 8, target_layers: int = LAYERS) -> Path:
    """A random Domino drafter in the raw dialect: J = block_size, anchor first."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _generator(1, 0.2)
    ids = [0, target_layers - 1]
    gru, bottleneck = 32, 16
    weights: dict[str, torch.Tensor] = {}
    for layer in range(2):
        weights |= _layer(f"layers.{layer}.", draw)
    weights |= {
        "fc.weight": draw(HIDDEN, len(ids) * HIDDEN),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "prefix_gru.weight_ih_l0": draw(3 * gru, HIDDEN),
        "prefix_gru.weight_hh_l0": draw(3 * gru, gru),
        "embed_proj.0.weight": draw(bottleneck, HIDDEN + gru),
        "embed_proj.2.weight": draw(VOCAB, bottleneck),
    }
    config = _shape(2) | {
        "architectures": ["DFlashDraftModel"],
        "block_size": block_size,
        "num_target_layers": target_layers,
        "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": False,
        "dflash_config": {
            "projector_type": "domino",
            "mask_token_id": MASK_TOKEN,
            "target_layer_ids": ids,
            "pure_draft_prefix_len": 1,
            "emb_dim": bottleneck,
            "gru_hidden_dim": gru,
            "shift_label": True,
        },
    }
    return _write(folder, config, weights)


def _write(folder: Path, config: dict[str, object], weights: dict[str, torch.Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
