"""The training model: a DFlash backbone with Domino's causal correction head, in plain PyTorch.

Sizes in the docstrings: R sequences, S context tokens, A anchors per sequence, B block size (equal
to the draft depth J: anchor first), H hidden, V vocabulary, G GRU width, E bottleneck, M captured
layers. Parameter names are those of the checkpoint, so ``state_dict()`` is what is exported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DrafterConfig:
    """Shapes of the drafter; the defaults fit SmolLM2-135M."""

    hidden_size: int = 576
    num_layers: int = 2
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    intermediate_size: int = 1536
    vocab_size: int = 49152
    block_size: int = 8
    target_layer_ids: tuple[int, ...] = (1, 8, 15, 22, 27)
    mask_token_id: int = 16  # a reserved special token of the target
    gru_hidden_dim: int = 256
    emb_dim: int = 128
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 8192

    def to_checkpoint(self) -> dict[str, Any]:
        """``config.json`` in the dialect of the published Domino checkpoints."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": self.block_size,
            "dflash_config": {
                "projector_type": "domino",
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
                "pure_draft_prefix_len": 1,
                "emb_dim": self.emb_dim,
                "gru_hidden_dim": self.gru_hidden_dim,
                "shift_label": True,
            },
            "emb_dim": self.emb_dim,
            "gru_hidden_dim": self.gru_hidden_dim,
            "num_target_layers": 30,
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "layer_types": ["full_attention"] * self.num_layers,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": self.num_layers,
            "vocab_size": self.vocab_size,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "dtype": "bfloat16",
        }

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RMSNorm(nn.Module):
    """Qwen3's kind: statistics in float32, cast back before the weight is applied."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * (x.float() * scale).to(x.dtype)


def rotary_tables(config: DrafterConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, [..., head_dim] float32, of positions [...] (half-split layout)."""
    exponent = torch.arange(0, config.head_dim, 2, device=positions.device) / config.head_dim
    angles = positions[..., None].float() * config.rope_theta**-exponent
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x [R, heads, T, head_dim] with tables [R, T, head_dim]."""
    cos, sin = (table[:, None].to(x.dtype) for table in tables)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Block queries attend to the context features and to all slots of their own block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim, self.block_size = config.head_dim, config.block_size
        self.q_proj = linear(config.hidden_size, config.num_heads * config.head_dim)
        self.k_proj = linear(config.hidden_size, config.num_kv_heads * config.head_dim)
        self.v_proj = linear(config.hidden_size, config.num_kv_heads * config.head_dim)
        self.o_proj = linear(config.num_heads * config.head_dim, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def _heads(self, x: Tensor, num_heads: int) -> Tensor:
        return x.view(*x.shape[:2], num_heads, self.head_dim)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        x_tables: tuple[Tensor, Tensor],
        context_tables: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:
        """x [R, A*B, H], context [R, S, H] and an additive mask [R, 1, 1, A*B, S]: [R, A*B, H].

        Scores against the context and inside the blocks are computed apart: one dense mask over all
        blocks would spend most of the work on pairs of blocks that do not see each other.
        """
        block = (-1, self.block_size)
        query = self.q_norm(self._heads(self.q_proj(x), self.num_heads)).transpose(1, 2)
        query = rotate(query, x_tables) * self.head_dim**-0.5
        query = query.unflatten(1, (self.num_kv_heads, -1))  # [R, KV heads, queries per KV, A*B, d]
        context_key, context_value = self._keys_and_values(context, context_tables)
        key, value = self._keys_and_values(x, x_tables)
        context_scores = query.flatten(2, 3) @ context_key.transpose(-1, -2)
        context_scores = context_scores.unflatten(2, query.shape[2:4]) + mask
        own_key, own_value = (part.unflatten(2, block)[:, :, None] for part in (key, value))
        own_scores = (query.unflatten(3, block) @ own_key.transpose(-1, -2)).flatten(3, 4)
        weights = torch.cat([context_scores, own_scores], -1).softmax(-1).to(x.dtype)
        context_weights, own_weights = weights.split([context.shape[1], self.block_size], -1)
        attended = (context_weights.flatten(2, 3) @ context_value).unflatten(2, query.shape[2:4])
        attended = attended + (own_weights.unflatten(3, block) @ own_value).flatten(3, 4)
        return self.o_proj(attended.flatten(1, 2).transpose(1, 2).flatten(2))

    def _keys_and_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Both [R, KV heads, T, d]; context and blocks share the projections."""
        key = self.k_norm(self._heads(self.k_proj(x), self.num_kv_heads)).transpose(1, 2)
        value = self._heads(self.v_proj(x), self.num_kv_heads).transpose(1, 2)
        return rotate(key, tables), value


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, *attention_inputs: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *attention_inputs)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Backbone and head. The embedding and the LM head are the target's and come as arguments."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        hidden, gru, bottleneck = config.hidden_size, config.gru_hidden_dim, config.emb_dim
        self.fc = linear(len(config.target_layer_ids) * hidden, hidden)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.prefix_gru = nn.GRU(hidden, gru, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            linear(hidden + gru, bottleneck), nn.SiLU(), linear(bottleneck, config.vocab_size)
        )
        # 1 / scale of each feature. The residual stream grows tenfold over the layers and has a few
        # huge channels; features of one size train much faster. Export folds the gain into fc.
        self.register_buffer("feature_gain", torch.ones(self.fc.in_features), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and "prefix_gru" not in name:
                nn.init.normal_(parameter, std=0.02)
        # Embeddings are small (about 0.13 per channel): let the gates see them from the start.
        self.prefix_gru.weight_ih_l0.data.mul_(4.0)

    def block_hidden(
        self, features: Tensor, token_ids: Tensor, anchors: Tensor, embedding: Tensor
    ) -> Tensor:
        """h [R, A, B, H]: slot k of the block at an anchor predicts position anchor + 1 + k.

        features [R, S, M*H]: the target's hidden states; token_ids [R, S]; anchors [R, A]: their
        positions; embedding [V, H]. A block sees itself and the context strictly before its anchor.
        """
        num_requests, num_anchors = anchors.shape
        block_size = self.config.block_size
        context = self.hidden_norm(self.fc(features * self.feature_gain.to(features.dtype)))
        block_ids = torch.full((num_requests, num_anchors, block_size), self.config.mask_token_id)
        block_ids[:, :, 0] = token_ids.gather(1, anchors)
        x = F.embedding(block_ids, embedding).to(context.dtype).flatten(1, 2)
        positions = (anchors[:, :, None] + torch.arange(block_size)).flatten(1)
        context_positions = torch.arange(features.shape[1]).expand(num_requests, -1)
        anchor_of_slot = anchors.repeat_interleave(block_size, 1)
        hidden = context_positions[:, None] >= anchor_of_slot[..., None]
        mask = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill_(hidden, -torch.inf)
        mask = mask[:, None, None]
        x_tables = rotary_tables(self.config, positions)
        context_tables = rotary_tables(self.config, context_positions)
        for layer in self.layers:
            x = layer(x, context, x_tables, context_tables, mask)
        return self.norm(x).unflatten(1, (num_anchors, block_size))

    def head_states(self, previous_ids: Tensor, embedding: Tensor) -> Tensor:
        """s [N, B, G] after the GRU consumed previous_ids[:, :k+1] [N, B]; the anchor is first."""
        inputs = F.embedding(previous_ids, embedding).to(self.prefix_gru.weight_ih_l0.dtype)
        return self.prefix_gru(inputs)[0]

    def correction_bottleneck(self, hidden: Tensor, states: Tensor) -> Tensor:
        """SiLU(W1 [z ; s]) [..., E]; W2's rows turn it into corrections of single tokens."""
        return self.embed_proj[1](self.embed_proj[0](torch.cat([hidden, states], -1)))

    @property
    def correction_rows(self) -> nn.Parameter:
        """W2 [V, E]."""
        return self.embed_proj[2].weight
