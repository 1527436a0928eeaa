"""The drafter backbone in plain PyTorch, float32, straight from the published description.

Truth for parity tests: target features -> context K/V -> one block -> hidden states and base logits
of every block slot. No vLLM, no batching, one request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_dartree.models import DrafterSpec, canonical_weights


class ReferenceDrafter:
    """One request's drafter with an incremental context cache.

    `weights` are the checkpoint's tensors under their file names; `embed` and `lm_head` [V, H] are
    the target's, used where the checkpoint ships none. Round by round: `append_context` with the
    features of the newly committed tokens, then `block` at the next position. Blocks leave nothing
    behind in the cache.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        weights: Mapping[str, Tensor],
        embed: Tensor | None = None,
        lm_head: Tensor | None = None,
    ):
        self.spec = spec
        self.weights = {k: v.float() for k, v in canonical_weights(weights.items(), spec)}
        for name, shared in (("embed_tokens.weight", embed), ("lm_head.weight", lm_head)):
            if name not in self.weights:
                assert shared is not None, f"the checkpoint ships no {name}: pass the target's"
                self.weights[name] = shared.float()
        shape = (0, spec.num_key_value_heads, spec.head_dim)
        self.keys = [torch.zeros(shape) for _ in range(spec.num_hidden_layers)]
        self.values = [torch.zeros(shape) for _ in range(spec.num_hidden_layers)]

    @property
    def context_len(self) -> int:
        return self.keys[0].shape[0]

    def fuse(self, features: Tensor) -> Tensor:
        """fc f [T, H] for features [T, m * H]; vLLM's combine_hidden_states."""
        return F.linear(features.float(), self.weights["fc.weight"])

    def append_context(self, features: Tensor) -> None:
        """Cache K/V of the next tokens: features [T, m * H] of positions context_len onwards."""
        context = self._norm(self.fuse(features), "hidden_norm")
        positions = self.context_len + torch.arange(context.shape[0])
        for layer in range(self.spec.num_hidden_layers):
            key, value = self._key_value(layer, context, positions)
            self.keys[layer] = torch.cat([self.keys[layer], key])
            self.values[layer] = torch.cat([self.values[layer], value])

    def block(self, anchor_token: int, anchor_position: int) -> Tensor:
        """Hidden states [B, H] after the final norm, one per block slot."""
        spec = self.spec
        assert self.context_len == anchor_position, "the context ends right before the anchor"
        ids = torch.full((spec.block_size,), spec.mask_token_id)
        ids[0] = anchor_token
        positions = anchor_position + torch.arange(spec.block_size)
        x = F.embedding(ids, self.weights["embed_tokens.weight"]) * spec.input_embedding_scale
        for layer in range(spec.num_hidden_layers):
            prefix = f"layers.{layer}"
            normed = self._norm(x, f"{prefix}.input_layernorm")
            x = x + self._attention(layer, normed, positions)
            normed = self._norm(x, f"{prefix}.post_attention_layernorm")
            gate = self._linear(normed, f"{prefix}.mlp.gate_proj")
            up = self._linear(normed, f"{prefix}.mlp.up_proj")
            x = x + self._linear(F.silu(gate) * up, f"{prefix}.mlp.down_proj")
        return self._norm(x, "norm")

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U [B, Vd] in draft ids."""
        spec = self.spec
        logits = F.linear(hidden, self.weights["lm_head.weight"]) * spec.output_multiplier
        cap = spec.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _attention(self, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        spec = self.spec
        prefix = f"layers.{layer}.self_attn"
        key, value = self._key_value(layer, x, positions)
        key = torch.cat([self.keys[layer], key])
        value = torch.cat([self.values[layer], value])
        query = self._linear(x, f"{prefix}.q_proj").unflatten(-1, (-1, spec.head_dim))
        query = self._rotate(self._norm(query, f"{prefix}.q_norm"), positions)
        group = spec.num_attention_heads // spec.num_key_value_heads
        key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(spec.head_dim)
        scores = scores.masked_fill(~self._visible(layer, positions), float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
        return self._linear(mixed.flatten(1), f"{prefix}.o_proj")

    def _visible(self, layer: int, positions: Tensor) -> Tensor:
        """[B, context + B] bool: what each block slot sees."""
        spec = self.spec
        anchor = positions[0]
        query = positions[:, None]
        key = torch.arange(self.context_len + len(positions))[None, :]
        visible = torch.ones(len(positions), key.shape[1], dtype=torch.bool)
        if spec.layer_is_causal(layer):
            visible &= key <= query
        if spec.layer_types[layer] == "sliding_attention":
            assert spec.sliding_window is not None
            if spec.window_origin == "query":
                oldest = query - (spec.sliding_window - 1)
            else:
                oldest = anchor - spec.sliding_window
            visible &= key >= oldest
        return visible

    def _key_value(self, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        prefix = f"layers.{layer}.self_attn"
        shape = (-1, self.spec.head_dim)
        key = self._linear(x, f"{prefix}.k_proj").unflatten(-1, shape)
        value = self._linear(x, f"{prefix}.v_proj").unflatten(-1, shape)
        return self._rotate(self._norm(key, f"{prefix}.k_norm"), positions), value

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE on [T, heads, d], halves rotated."""
        assert self.spec.rope_parameters["rope_type"] == "default"
        d = self.spec.head_dim
        theta = self.spec.rope_parameters["rope_theta"]
        inverse = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = (positions[:, None, None].double() * inverse).float()
        cos, sin = angle.cos(), angle.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.spec.rms_norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))
