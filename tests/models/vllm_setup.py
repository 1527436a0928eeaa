"""A drafter inside a real vLLM config, in one process and without an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.models.dialects import TINY, TinySizes, load_tensors, qwen3_config
from vllm_dartree.models import canonical_config, read_drafter, register_models


@contextmanager
def single_process(folder: Path) -> Iterator[None]:
    """vLLM's process groups for a world of one."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{folder / 'rendezvous'}",
            backend="gloo",
        )
        initialize_model_parallel(1, 1)
    yield
    cleanup_dist_env_and_memory()


def load_drafter(checkpoint: Path, work: Path, s: TinySizes = TINY, max_model_len: int = 512):
    """(model, vllm_config): `checkpoint` loaded into DARTreeDraftModel, every gap left as NaN.

    vLLM sees only the canonical config, as method "dflash", and the weights of `checkpoint`.
    """
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.torch_utils import set_default_torch_dtype

    from vllm_dartree.models.drafter import DARTreeDraftModel

    register_models()
    spec = read_drafter(checkpoint)
    target = qwen3_config(s) | {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": s.target_layers,
        "layer_types": None,
    }
    for name, config in {
        "target": target,
        "canonical": canonical_config(spec, max_model_len),
    }.items():
        (work / name).mkdir()
        (work / name / "config.json").write_text(json.dumps(config))
    vllm_config = EngineArgs(
        model=str(work / "target"),
        skip_tokenizer_init=True,
        max_model_len=max_model_len,
        dtype="float32",
        enforce_eager=True,
        speculative_config={
            "method": "dflash",
            "model": str(work / "canonical"),
            "num_speculative_tokens": spec.block_size - 1,
        },
    ).create_engine_config()
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(s.dtype):
        model = DARTreeDraftModel(vllm_config=vllm_config)
        for param in model.parameters():
            param.data.fill_(float("nan") if param.is_floating_point() else -(10**6))
        model.load_weights(load_tensors(checkpoint).items())
    return model, vllm_config


def tiny_target(vllm_config, s: TinySizes = TINY) -> nn.Module:
    """A target's embedding and LM head with random rows, as vLLM layers."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    target = nn.Module()
    with set_current_vllm_config(vllm_config):
        target.embed_tokens = VocabParallelEmbedding(s.vocab, s.hidden)
        target.lm_head = ParallelLMHead(s.vocab, s.hidden)
    generator = torch.Generator().manual_seed(7)
    for layer in (target.embed_tokens, target.lm_head):
        layer.weight.data = torch.randn(layer.weight.shape, generator=generator) * s.hidden**-0.5
    prepare(target, vllm_config)
    return target


def prepare(module: nn.Module, vllm_config) -> None:
    """What vLLM's loader does last; linear layers may give up their plain weights here."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    process_weights_after_loading(module, vllm_config.model_config, torch.device("cpu"))


def share_target(model, target: nn.Module) -> None:
    """What vLLM's load_dflash_model does after loading."""
    from vllm.v1.worker.gpu.spec_decode.eagle.utils import _should_share, maybe_share_target_embed

    maybe_share_target_embed(model, model.model, target)
    if _should_share(model, "has_own_lm_head", model.lm_head, target.lm_head):
        del model.lm_head
        model.lm_head = target.lm_head


class DenseAttention(nn.Module):
    """Stands in for vLLM's paged attention: full context plus the whole block, one request."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, num_slots: int = 512):
        super().__init__()
        self.shape = (-1, num_kv_heads, head_dim)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.context_len = 0
        self.keys = torch.full((num_slots, num_kv_heads, head_dim), float("nan"))
        self.values = self.keys.clone()
        self.kv_cache, self.impl = None, self

    def do_kv_cache_update(self, attn, key: Tensor, value: Tensor, cache, slots: Tensor) -> None:
        self.keys[slots], self.values[slots] = key, value

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query.view(-1, self.num_heads, self.head_dim).transpose(0, 1)
        key = torch.cat([self.keys[: self.context_len], key.view(self.shape)]).transpose(0, 1)
        value = torch.cat([self.values[: self.context_len], value.view(self.shape)]).transpose(0, 1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return mixed.transpose(0, 1).flatten(1)


def use_dense_attention(model) -> list[DenseAttention]:
    """Replace the attention layers of a loaded drafter."""
    spec = model.spec
    layers = []
    for layer in model.model.layers:
        layer.self_attn.attn = DenseAttention(
            spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
        )
        layers.append(layer.self_attn.attn)
    model.model._attn_layers = layers
    return layers
