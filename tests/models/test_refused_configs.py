"""A config.json that would draft nonsense is refused: field, both values, a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.dialects import DIALECTS, Config, assert_refused, edit

SLIDING = ["sliding_attention"] * 2
YARN = {"rope_type": "yarn", "factor": 2.0}

# (dialect, changes to config.json, words of the message). ".key" is nested in dflash_config,
# "layers.key" in transformer_layer_config; a null counts as absent.
OTHER_ARCHITECTURES = [
    ("dflash", {".conv_kernel_size": 2}, "conv_kernel_size / 2 / DFlash2"),
    ("dflash", {".selector_rank": 256}, "selector_rank / 256 / DFlash2"),
    ("dflash", {"architectures": ["DFlash2DraftModel"]}, "architectures / DFlash2DraftModel"),
    ("dspark", {"architectures": ["Gemma4DSparkModel"]}, "architectures / Gemma4DSparkModel"),
    ("dflash", {"architectures": ["LlamaModel"]}, "architectures / LlamaModel / DFlash, Domino"),
    ("domino", {".fusion_mode": "flare"}, "fusion_mode / flare / dflare"),
    ("dflash", {".projector_type": "mlp"}, "projector_type / 'mlp' / domino"),
    ("speculators_dflash", {"speculators_model_type": "eagle3"}, "model_type / 'eagle3' / dspark"),
    ("dflash", {"model_type": "gemma3"}, "model_type / gemma3 / qwen3"),
    ("dflash", {"hidden_act": "gelu"}, "hidden_act / gelu / silu"),
    ("dflash", {".attention_mode": "mla"}, "attention_mode / mla / gqa"),
    ("dflash", {"quantization_config": {"bits": 8}}, "quantization_config / 8 / unquantised"),
    ("dflash", {"logit_scale": 0.5}, "logit_scale / 0.5 / 1"),
    ("dflash", {"is_neox_style": False}, "is_neox_style / False / True"),
    ("dflash", {"use_aux_hidden_state": False}, "use_aux_hidden_state / False / True"),
    ("dflash", {".attention_sink_bias": True}, "attention_sink_bias / True / False"),
    ("dflash", {".attention_value_scale": 0.5}, "attention_value_scale / 0.5 / 1"),
    ("dflash", {".use_swa": True}, "use_swa / True / layer_types"),
    ("domino", {"final_logit_softcapping": 30.0}, "final_logit_softcapping / 30.0 / None"),
    ("dspark", {"input_embedding_scale": 8.0}, "input_embedding_scale / 8.0 / 1.0"),
    ("dspark", {"output_multiplier": 0.5}, "output_multiplier / 0.5 / 1.0"),
]
SHAPES_DISAGREE = [
    ("domino", {".projector_type": "dspark"}, "projector_type='dspark' / prefix_gru / domino"),
    ("dflash", {".projector_type": "domino"}, "gru_hidden_dim / missing"),
    ("domino", {".gru_hidden_dim": 48}, "gru_hidden_dim / 48 / 32"),
    ("domino_prefixed", {"emb_dim": 48}, "emb_dim / 48 / 24"),
    ("dspark", {"markov_rank": 8}, "markov_rank / 8 / 16"),
    ("dspark", {"markov_rank": 0}, "markov_rank / 0 / 16"),
    ("dspark", {"markov_head_type": "gated"}, "markov_head_type / 'gated' / 'vanilla'"),
    ("dspark_rnn", {"markov_head_type": "vanilla"}, "markov_head_type / 'vanilla' / 'rnn'"),
    ("dspark", {"markov_head_type": "lstm"}, "markov_head_type / 'lstm' / gated"),
    ("deepspec_dflash", {"markov_rank": 16}, "markov_w1 / missing / [256, 16]"),
    ("dflash", {"hidden_size": 128}, "hidden_size / 128 / 64"),
    ("dflash", {"intermediate_size": 128}, "intermediate_size / 128 / 96"),
    ("dflash", {"num_hidden_layers": 3}, "num_hidden_layers / 3 / 2"),
    ("dflash", {"num_attention_heads": 8}, "num_attention_heads / 8 / 4"),
    ("dflash", {"num_key_value_heads": 4}, "num_key_value_heads / 4 / 2"),
    ("dflash", {"head_dim": 32}, "head_dim / 32 / 16"),
    ("dflash", {"attention_bias": True}, "q_proj.bias / missing / [64]"),
    ("dflash", {".target_layer_ids": [0, 1, 2]}, "target_layer_ids / 192 / 128"),
    ("dspark_hybrid", {"vocab_size": 300}, "markov_w1 / 256 / 300"),
    ("speculators_dflash", {"draft_vocab_size": 99}, "draft_vocab_size / 99 / 100"),
    ("speculators_domino", {"draft_vocab_size": 300}, "draft_vocab_size / 300 / 256"),
    ("speculators_domino", {"draft_vocab_size": 99}, "lm_head.weight / missing / [99, 64]"),
    ("speculators_dflash", {"target_hidden_size": 128}, "target_hidden_size / 128 / 64"),
]
TWO_PLACES_DISAGREE = [
    ("domino", {"emb_dim": 48}, "dflash_config.emb_dim / 24 / 48"),
    ("dspark_hybrid", {"markov_rank": 8}, "dflash_config.markov_rank / 16 / 8"),
    ("dflash_nested", {"block_size": 16}, "dflash_config.block_size / 6 / 16"),
    ("dflash_nested", {"rope_theta": 5e5}, "rope_theta / 500000.0 / 10000.0"),
    ("speculators_domino", {"emb_dim": 48}, "emb_dim / 48 / 24 / logits_correction_emb_dim"),
    ("dflash", {"eagle_aux_hidden_state_layer_ids": [0, 2]}, "target_layer_ids / [-1, 1] / [0, 2]"),
    ("dflash", {"is_causal": True, ".causal": False}, "is_causal / True / causal is False"),
    (
        "speculators_domino",
        {"shift_label": True, "sample_from_anchor": False},
        "shift_label / True / sample_from_anchor is False",
    ),
    (
        "dflash",
        {
            "layer_types": SLIDING,
            "use_sliding_window": True,
            "sliding_window": 32,
            ".swa_window_size": 64,
        },
        "swa_window_size / 64 / 32",
    ),
]
CANNOT_BE_MAPPED = [
    ("speculators_domino_submode", {"shift_label": False}, "shift_label / False / True"),
    ("speculators_domino_submode", {"shift_label": None}, "shift_label / missing"),
    ("speculators_domino_submode", {"pure_draft_prefix_len": None}, "prefix_len / missing"),
    ("domino", {".pure_draft_prefix_len": 7}, "pure_draft_prefix_len / 7 / 6"),
    ("domino", {"block_size": 1}, "block_size / 1 / >= 2"),
    ("dflash", {"block_size": 4096}, "block_size / 4096 / 1024"),
    ("dflash", {"layer_types": ["full_attention"]}, "layer_types / 1 entries / is 2"),
    ("dflash", {"layer_types": ["chunked", "chunked"]}, "layer_types / chunked / full_attention"),
    ("dflash", {"layer_types": SLIDING}, "use_sliding_window / False / sliding_attention"),
    ("dflash", {"layer_types": None, "use_sliding_window": True}, "layer_types / missing"),
    ("dflash", {"layer_types": SLIDING, "use_sliding_window": True}, "sliding_window / missing"),
    ("dflash", {"rope_scaling": {"type": "dynamic"}}, "rope_type / 'dynamic' / yarn"),
    ("dflash", {"rope_scaling": YARN}, "original_max_position_embeddings / missing"),
    ("dflash", {"rope_parameters": {"mrope_section": [1]}}, "mrope_section / None"),
    ("dflash", {"partial_rotary_factor": 0.25}, "partial_rotary_factor / 0.25 / 1"),
    ("dflash", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor / 1"),
    ("dflash", {"rope_theta": None}, "rope_theta / missing"),
    ("dflash", {".target_layer_ids": [2, 0]}, "target_layer_ids / [2, 0] / increasing"),
    ("dspark", {"target_layer_ids": [-2, 0]}, "target_layer_ids / [-2, 0] / -1"),
    (
        "dflash",
        {".target_layer_ids": None, "num_target_layers": None},
        "target_layer_ids / missing",
    ),
    ("dflash", {".mask_token_id": 256}, "mask_token_id / 256 / 255"),
    ("speculators_dflash", {"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
    ("speculators_dflash", {"transformer_layer_config": None}, "transformer_layer_config"),
    ("speculators_dflash", {"layers.vocab_size": None}, "vocab_size / missing"),
]
REFUSED = OTHER_ARCHITECTURES + SHAPES_DISAGREE + TWO_PLACES_DISAGREE + CANNOT_BE_MAPPED


@pytest.mark.parametrize(("dialect", "changes", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_config_is_refused_by_name(
    dialect: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def apply(config: Config) -> None:
        for path, value in changes.items():
            section, _, key = path.rpartition(".")
            name = {"layers": "transformer_layer_config", "": "dflash_config"}[section]
            (config[name] if "." in path else config)[key] = value

    assert_refused(edit(DIALECTS[dialect](tmp_path), apply), words)
