"""A drafter is only accepted for the target it was trained for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.models.dialects import DIALECTS, TARGET, edit
from vllm_dartree.models import check_fits_target, read_drafter


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"hidden_size": 128}, ["hidden_size", "64", "128"]),
        ({"vocab_size": 255}, ["vocab_size", "256", "255"]),
        ({"num_hidden_layers": 5}, ["num_target_layers", "4", "5"]),
    ],
)
def test_drafter_of_another_target_is_refused(
    target: dict[str, int], words: list[str], tmp_path: Path
) -> None:
    spec = read_drafter(DIALECTS["dflash"](tmp_path))
    check_fits_target(spec, TARGET)
    with pytest.raises(ValueError) as caught:
        check_fits_target(spec, dataclasses.replace(TARGET, name="tiny target", **target))
    assert all(word in str(caught.value) for word in [*words, "tiny target", "Use "])


def test_layer_ids_must_be_captured_by_the_target(tmp_path: Path) -> None:
    """Aux id l + 1 = N is the residual after the last layer: vLLM still captures that one."""
    spec = read_drafter(DIALECTS["speculators_dspark"](tmp_path))
    check_fits_target(spec, dataclasses.replace(TARGET, num_hidden_layers=3))
    with pytest.raises(ValueError, match=r"target_layer_ids: .* layer id 2, .* 2 layers .*Use"):
        check_fits_target(spec, dataclasses.replace(TARGET, num_hidden_layers=2))


def test_mask_token_must_be_a_row_of_the_target_embedding(tmp_path: Path) -> None:
    spec = dataclasses.replace(read_drafter(DIALECTS["dflash"](tmp_path)), mask_token_id=256)
    with pytest.raises(ValueError, match=r"mask_token_id: .*256, .*256 embedding rows. Use"):
        check_fits_target(spec, TARGET)


def test_window_counted_from_the_anchor_limits_the_context(tmp_path: Path) -> None:
    def window(config: dict) -> None:
        config["transformer_layer_config"] |= {
            "layer_types": ["sliding_attention"] * 2,
            "use_sliding_window": True,
            "sliding_window": 32,
        }

    spec = read_drafter(edit(DIALECTS["speculators_dflash"](tmp_path), window))
    check_fits_target(spec, dataclasses.replace(TARGET, max_model_len=32))
    for length in (33, None):
        with pytest.raises(ValueError, match=rf"sliding_window: .*32.* {length}\. .*at most 32"):
            check_fits_target(spec, dataclasses.replace(TARGET, max_model_len=length))


def test_scaled_rope_limits_the_context(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    spec = read_drafter(edit(DIALECTS["dflash"](tmp_path), lambda c: c.update(rope_scaling=yarn)))
    assert spec.rope_parameters["rope_type"] == "yarn"
    check_fits_target(spec, dataclasses.replace(TARGET, max_model_len=1024))
    with pytest.raises(ValueError, match=r"max_position_embeddings: .*1024.* 1025\. Set"):
        check_fits_target(spec, dataclasses.replace(TARGET, max_model_len=1025))
