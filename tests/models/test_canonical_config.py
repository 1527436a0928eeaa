"""One config for all dialects, which vLLM's DFlash code understands and which loses nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from tests.models.dialects import DIALECTS, TINY, edit
from vllm_dartree.models import canonical_config, read_drafter, spec_from_hf_config


def as_vllm_sees_it(config: dict, folder: Path):
    """Through transformers and vLLM's wrapper, as SpeculativeConfig does for method dflash."""
    from vllm.transformers_utils.configs.eagle import EAGLEConfig

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    hf_config = AutoConfig.from_pretrained(folder)
    return EAGLEConfig(hf_config, method="dflash", model_type="eagle")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_spec_survives_vllms_config_classes(dialect: str, tmp_path: Path) -> None:
    spec = read_drafter(DIALECTS[dialect](tmp_path / "checkpoint"))
    config = as_vllm_sees_it(canonical_config(spec), tmp_path / "canonical")
    assert spec_from_hf_config(config) == spec
    assert config.architectures == ["DFlashDARTreeModel"]
    assert config.draft_vocab_size == spec.draft_vocab_size
    assert config.rope_parameters == spec.rope_parameters
    assert config.tie_word_embeddings is False
    assert config.block_size == TINY.block
    assert config.dflash_config == {
        "mask_token_id": TINY.mask,
        "target_layer_ids": list(TINY.layer_ids),
    }


@pytest.mark.parametrize("causal", [None, True, False])
def test_causality_is_what_vllm_resolves(causal: bool | None, tmp_path: Path) -> None:
    from vllm.model_executor.models.qwen3_dflash import _dflash_layer_causal

    def window(config: dict) -> None:
        config |= {
            "layer_types": ["sliding_attention", "full_attention"],
            "use_sliding_window": True,
            "sliding_window": 64,
            "is_causal": causal,
        }

    spec = read_drafter(edit(DIALECTS["dflash"](tmp_path / "checkpoint"), window))
    config = as_vllm_sees_it(canonical_config(spec), tmp_path / "canonical")
    for layer in range(TINY.layers):
        assert _dflash_layer_causal(config, layer) == spec.layer_is_causal(layer)
    assert config.sliding_window == 64
    assert list(config.layer_types) == list(spec.layer_types)


def test_position_table_covers_every_block_of_the_target(tmp_path: Path) -> None:
    spec = read_drafter(DIALECTS["dflash"](tmp_path))
    assert canonical_config(spec)["max_position_embeddings"] == 1024
    assert canonical_config(spec, 512)["max_position_embeddings"] == 1024
    assert canonical_config(spec, 4096)["max_position_embeddings"] == 4096 + TINY.block
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    scaled = dataclasses.replace(spec, rope_parameters=rope)
    assert canonical_config(scaled, 4096)["max_position_embeddings"] == 1024


def test_config_without_our_section_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dartree: got None .*expected the section"):
        spec_from_hf_config(SimpleNamespace())
    with pytest.raises(ValueError, match=r"dartree: expected exactly the keys .*'head'"):
        spec_from_hf_config(SimpleNamespace(dartree={"head": "none"}))
