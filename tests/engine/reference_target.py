"""The target in transformers' own PyTorch: one causal run, no cache, no trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


class ReferenceTarget:
    def __init__(self, directory: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._layer_outputs: dict[int, Tensor] = {}
        for index, layer in enumerate(self.model.model.layers):
            layer.register_forward_hook(self._remember(index))

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[T, V] float32."""
        return self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]

    @torch.inference_mode()
    def features(self, tokens: Sequence[int], layer_ids: Sequence[int]) -> Tensor:
        """[T, m * H]: the outputs of the given layers side by side."""
        self.logits(tokens)
        return torch.cat([self._layer_outputs[i] for i in layer_ids], dim=-1)

    @property
    def lm_head(self) -> Tensor:
        return self.model.lm_head.weight.detach()

    @property
    def embedding(self) -> Tensor:
        return self.model.model.embed_tokens.weight.detach()

    def _remember(self, index: int):  # type: ignore[no-untyped-def]
        def hook(module, inputs, output):  # type: ignore[no-untyped-def]
            hidden = output[0] if isinstance(output, tuple) else output
            self._layer_outputs[index] = hidden.reshape(-1, hidden.shape[-1])

        return hook
