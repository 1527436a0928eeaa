"""Tensors and files that are not exactly those of a supported drafter are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.models.dialects import DIALECTS, TINY, Tensors, assert_refused, edit

Change = Callable[[Tensors], object]


def drop(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def add(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Change:
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=dtype)})


ATTN, MLP = "layers.0.self_attn", "layers.0.mlp"
REFUSED = [
    ("dflash", drop("layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj / missing / [96, 64]"),
    ("dflash", drop("fc.weight"), "fc.weight / missing / [64, 128]"),
    ("domino", drop("embed_proj.2.weight"), "embed_proj.2.weight / missing / [256, 24]"),
    ("speculators_dflash", drop("lm_head.weight"), "lm_head.weight / missing / [100, 64]"),
    ("speculators_dflash", add("d2t", 100), "d2t / F32 / I64"),
    ("dflash", add(f"{MLP}.down_proj.weight", 64, 95), "down_proj / [64, 95] / [64, 96]"),
    ("dflash", add("norm.weight", 63), "hidden_size / 64 / 63"),
    ("dflash", add("fc.weight", 64, 192), "target_layer_ids / 128 / 192"),
    ("dflash", add(f"{ATTN}.q_proj.weight", 65, 64), "q_proj / [65, 64] / [64, 64]"),
    ("domino", add("embed_proj.0.weight", 24, 95), "embed_proj.0 / [24, 95] / [24, 96]"),
    ("domino", add("prefix_gru.bias_ih_l0", 96), "prefix_gru.bias_ih_l0 / unknown tensor"),
    ("domino", add("bias_gate.weight", 1, 64), "bias_gate.weight / unknown tensor"),
    ("domino", add("markov_head.markov_w1.weight", 256, 16), "markov_w1 / domino / dspark"),
    ("domino", add("logit_head.prefix_gru.weight_hh_l0", 96, 32), "weight_hh_l0 / twice"),
    ("dspark", add("markov_head.gate_proj.weight", 16, 80), "head_type / 'vanilla' / 'gated'"),
    ("dflash", add("layers.0.attention_conv.base_kernel", 2, 64), "attention_conv / DFlash2"),
    ("dflash", add("candidate_selector.weight", 8, 64), "candidate_selector / DFlash2"),
    ("dflash", add(f"{ATTN}.k_proj_target.weight", 32, 64), "k_proj_target / dflare"),
    ("dflash", add("mask_hidden", 64), "mask_hidden / unknown tensor"),
    ("dflash", add("d2t", 256, dtype=torch.int64), "d2t / unknown tensor"),
    ("dflash", add("fc.weight", 64, 128, dtype=torch.int8), "fc.weight / I8 / BF16"),
]


@pytest.mark.parametrize(("dialect", "change", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_tensors_are_refused_by_name(
    dialect: str, change: Change, words: str, tmp_path: Path
) -> None:
    assert_refused(edit(DIALECTS[dialect](tmp_path), tensors=change), words)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent", "absent / not a folder / config.json")
    assert_refused(tmp_path, "config.json / *.safetensors")
    folder = DIALECTS["dflash"](tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text("{")
    assert_refused(folder, "config.json / not valid JSON")
    (folder / "config.json").write_text("[1]")
    assert_refused(folder, "config.json / JSON object / list")
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    assert_refused(folder, "model.safetensors / unreadable")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    assert_refused(folder, "no *.safetensors / pytorch_model.bin / Pickle")


def test_separate_mask_embedding_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(TINY.hidden), DIALECTS["dflash"](tmp_path) / "mask_embedding.pt")
    assert_refused(tmp_path, "mask_embedding.pt / target's embedding")


def test_index_of_missing_shards_is_refused(tmp_path: Path) -> None:
    index = DIALECTS["dflash"](tmp_path) / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"fc.weight": "model-2.safetensors"}}')
    assert_refused(tmp_path, "model.safetensors.index.json / model-2.safetensors")
    index.write_text('{"weight_map": 3}')
    assert_refused(tmp_path, "model.safetensors.index.json / weight_map")


def test_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.zeros(1)}, DIALECTS["dflash"](tmp_path) / "more.safetensors")
    assert_refused(tmp_path, "fc.weight / twice / more.safetensors")
