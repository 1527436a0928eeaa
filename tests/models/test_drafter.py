"""The drafter inside vLLM equals the plain PyTorch reference, for every dialect (B37)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.dialects import DIALECTS, TARGET, TINY, TinySizes, edit, load_tensors
from tests.models.reference_drafter import ReferenceDrafter
from tests.models.vllm_setup import (
    load_drafter,
    prepare,
    share_target,
    single_process,
    tiny_target,
    use_dense_attention,
)
from vllm_dartree.models import canonical_weights, read_drafter
from vllm_dartree.models.tensors import HEAD_PREFIX
from vllm_dartree.tree.block import DraftBlock

# float32 both sides; the fused K/V GEMM and RMSNorm kernels sum in another order.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(scope="module", autouse=True)
def process_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with single_process(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def random_features(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, len(TINY.layer_ids) * TINY.hidden, generator=generator)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_parameter_is_loaded_once(dialect: str, tmp_path: Path) -> None:
    checkpoint = DIALECTS[dialect](tmp_path / "checkpoint")
    model, _ = load_drafter(checkpoint, tmp_path)
    shared = {"model.mask_embedding"}  # vLLM's placeholder, never read
    shared |= set() if model.spec.has_embed else {"model.embed_tokens.weight"}
    shared |= set() if model.spec.has_lm_head else {"lm_head.weight"}
    gaps = {
        name
        for name, param in model.named_parameters()
        if param.isnan().any() or (param == -(10**6)).any()
    }
    assert gaps == shared
    weights = dict(canonical_weights(load_tensors(checkpoint).items(), model.spec))
    head = {HEAD_PREFIX + name: p for name, p in model.head.named_parameters()}
    assert head.keys() == {name for name in weights if name.startswith(HEAD_PREFIX)}
    assert all(torch.equal(param, weights[name]) for name, param in head.items())
    assert all(param.dtype == TINY.dtype for param in head.values())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_blocks_equal_the_reference_over_rounds(dialect: str, tmp_path: Path) -> None:
    assert_same_blocks(dialect, TINY, tmp_path)


@pytest.mark.parametrize("change", [{"head_dim": 32}, {"attention_bias": True}, {"layers": 1}])
def test_blocks_equal_the_reference_for_other_shapes(change: dict, tmp_path: Path) -> None:
    """As published, head_dim is not hidden_size / num_attention_heads."""
    assert_same_blocks("dflash", dataclasses.replace(TINY, **change), tmp_path)


def assert_same_blocks(dialect: str, sizes: TinySizes, tmp_path: Path) -> None:
    """Prompt, then rounds that accept 2, 0 and 5 drafts: the context grows by one more each."""
    checkpoint = DIALECTS[dialect](tmp_path / "checkpoint", sizes)
    model, vllm_config = load_drafter(checkpoint, tmp_path, sizes)
    target = tiny_target(vllm_config)
    prepare(model, vllm_config)
    share_target(model, target)
    layers = use_dense_attention(model)
    spec = model.spec
    reference = ReferenceDrafter(
        spec, load_tensors(checkpoint), target.embed_tokens.weight, target.lm_head.weight
    )
    for seed, rows in enumerate((7, 3, 1, 6)):
        features, start = random_features(rows, seed), reference.context_len
        reference.append_context(features)
        combined = model.combine_hidden_states(features)
        torch.testing.assert_close(combined, reference.fuse(features), **CLOSE)
        positions = start + torch.arange(rows)
        model.precompute_and_store_context_kv(combined, positions, positions)
        anchor, token = start + rows, 17 + seed
        for layer in layers:
            layer.context_len = anchor
        ids = torch.tensor([token] + [spec.mask_token_id] * (spec.block_size - 1))
        hidden = model(ids, anchor + torch.arange(spec.block_size))
        expected = reference.block(token, anchor)
        torch.testing.assert_close(hidden, expected, **CLOSE)
        logits = model.compute_draft_logits(hidden.unsqueeze(0))
        assert logits.shape == (1, spec.block_size, spec.draft_vocab_size)
        torch.testing.assert_close(logits[0], reference.base_logits(expected), **CLOSE)


def test_draft_ids_map_to_target_ids(tmp_path: Path) -> None:
    checkpoint = DIALECTS["speculators_dspark"](tmp_path / "checkpoint")
    model, vllm_config = load_drafter(checkpoint, tmp_path)
    prepare(model, vllm_config)
    kept = load_tensors(checkpoint)["t2d"].nonzero().flatten()
    assert torch.equal(model.draft_to_target, kept)
    hidden = torch.randn(3, TINY.hidden)
    scattered = model.compute_logits(hidden)
    assert torch.equal(scattered[:, kept], model.compute_draft_logits(hidden))


def test_full_vocabulary_has_no_map(tmp_path: Path) -> None:
    model, _ = load_drafter(DIALECTS["domino"](tmp_path / "checkpoint"), tmp_path)
    assert model.draft_to_target is None


def test_domino_head_reads_the_embedding_shared_after_loading(tmp_path: Path) -> None:
    checkpoint = DIALECTS["domino"](tmp_path / "checkpoint")
    model, vllm_config = load_drafter(checkpoint, tmp_path)
    target = tiny_target(vllm_config)
    prepare(model, vllm_config)
    share_target(model, target)
    block = DraftBlock.from_logits(
        torch.tensor([3]),
        torch.zeros(1, TINY.block, TINY.hidden),
        model.spec.slots,
        torch.zeros(1, model.spec.horizon, TINY.vocab),
        num_candidates=4,
    )
    state = model.head.root_state(block)
    expected, _ = model.head.prefix_gru(target.embed_tokens.weight[None, 3:4])
    torch.testing.assert_close(state, expected, **CLOSE)
    assert len(list(model.head.parameters())) == 4, "the embedding is not the head's parameter"


def test_zlab_scales_apply_to_embeddings_and_base_logits(tmp_path: Path) -> None:
    scales = {
        "input_embedding_scale": 8.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 2.0,
    }
    checkpoint = edit(
        DIALECTS["dflash"](tmp_path / "checkpoint"), lambda c: c["dflash_config"].update(scales)
    )
    model, vllm_config = load_drafter(checkpoint, tmp_path)
    target = tiny_target(vllm_config)
    prepare(model, vllm_config)
    share_target(model, target)
    embed, lm_head = target.embed_tokens.weight, target.lm_head.weight
    reference = ReferenceDrafter(model.spec, load_tensors(checkpoint), embed, lm_head)
    ids = torch.tensor([5, TINY.mask])
    torch.testing.assert_close(model.model.embed_input_ids(ids), 8.0 * embed[ids])
    hidden = 20 * torch.randn(4, TINY.hidden)
    logits = model.compute_draft_logits(hidden)
    assert logits.abs().max() > 1.9, "the cap must bite"
    torch.testing.assert_close(logits, reference.base_logits(hidden), **CLOSE)


def test_own_lm_head_is_kept_and_equal_one_is_shared(tmp_path: Path) -> None:
    checkpoint = DIALECTS["dspark"](tmp_path / "checkpoint")
    model, vllm_config = load_drafter(checkpoint, tmp_path)
    target = tiny_target(vllm_config)
    target.lm_head.weight.data.copy_(model.lm_head.weight)
    prepare(model, vllm_config)
    share_target(model, target)
    assert model.lm_head is target.lm_head
    assert model.model.embed_tokens is not target.embed_tokens


def test_sliding_layers_reach_vllm_with_their_window_and_causality(tmp_path: Path) -> None:
    def window(config: dict) -> None:
        layers = config.get("transformer_layer_config", config)
        layers["layer_types"] = ["sliding_attention"] * TINY.layers
        layers |= {"sliding_window": 64, "use_sliding_window": True}

    for dialect, expected in (("dflash", 64), ("speculators_dflash", 64 + TINY.block)):
        folder = tmp_path / dialect
        checkpoint = edit(DIALECTS[dialect](folder / "checkpoint"), window)
        model, _ = load_drafter(checkpoint, folder, max_model_len=64)
        assert [layer.self_attn.sliding_window for layer in model.model.layers] == [expected] * 2
        assert model.get_draft_attn_causal() == [True, True]


def test_unknown_or_missing_weights_do_not_load(tmp_path: Path) -> None:
    checkpoint = DIALECTS["domino"](tmp_path / "checkpoint")
    model, _ = load_drafter(checkpoint, tmp_path)
    tensors = load_tensors(checkpoint)
    with pytest.raises(ValueError, match=r"extra\.weight"):
        model.load_weights((tensors | {"extra.weight": torch.zeros(1)}).items())
    del tensors["embed_proj.2.weight"]
    with pytest.raises(ValueError, match=r"head.embed_proj.2.weight: not in the weights"):
        model.load_weights(tensors.items())


def test_block_reads_target_features_in_layer_order(tmp_path: Path) -> None:
    """vLLM concatenates aux states in layer order; fc's columns follow target_layer_ids."""
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config

    sizes = dataclasses.replace(TINY, layer_ids=(-1, 1, 3))
    checkpoint = DIALECTS["dspark"](tmp_path / "checkpoint", sizes)
    _, vllm_config = load_drafter(checkpoint, tmp_path, sizes)
    assert get_eagle3_aux_layers_from_config(vllm_config.speculative_config) == (0, 2, 4)
    assert read_drafter(checkpoint).target_layer_ids[-1] + 1 <= TARGET.num_hidden_layers
