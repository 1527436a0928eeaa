"""The drafter inside vLLM: its DFlash model plus a correction head and unscattered draft logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM, DFlashQwen3Model

from vllm_dartree.heads import MARKOV_HEADS, CorrectionHead, DominoHead, NullHead
from vllm_dartree.models.canonical import spec_from_hf_config
from vllm_dartree.models.spec import DrafterSpec
from vllm_dartree.models.tensors import HEAD_PREFIX, canonical_weights


class DARTreeBackbone(DFlashQwen3Model):
    """vLLM's DFlash backbone with z-lab's `input_embedding_scale`, and correct on CPUs too."""

    def __init__(
        self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = ""
    ) -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        self.input_embedding_scale = spec_from_hf_config(self.config).input_embedding_scale

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embeds = super().embed_input_ids(input_ids)
        scale = self.input_embedding_scale
        return embeds if scale == 1.0 else embeds * scale

    def _normalize_context_k(self, all_k: Tensor) -> Tensor:
        # vLLM's CUDA kernel takes one row of weights per layer, its CPU kernel reads the first row
        # for all of them: from layer 1 on the context keys would have the wrong norm.
        if all_k.device.type != "cpu":
            return super()._normalize_context_k(all_k)
        normed = torch.empty_like(all_k)
        for layer, weight in enumerate(self._k_norm_weights):
            ops.rms_norm(normed[layer], all_k[layer], weight, self.config.rms_norm_eps)
        return normed


class DARTreeDraftModel(DFlashQwen3ForCausalLM):
    """A drafter of any supported family, described by `spec`.

    `model` is the backbone, `head` the correction head (in the model's dtype, replicated on every
    tensor-parallel rank). Token ids inside the drafter are *draft ids*, 0..Vd-1; `draft_to_target`
    maps them when the vocabulary is reduced. vLLM's load_dflash_model replaces `embed_tokens` and
    `lm_head` with the target's after loading unless the checkpoint has different ones.
    """

    model_cls = DARTreeBackbone

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.spec = spec = spec_from_hf_config(self.config)
        self.head = build_head(spec, cast(torch.dtype, vllm_config.model_config.dtype))
        # vLLM caps before it scales; z-lab scales before it caps: c tanh(m x / c) either way.
        cap, multiplier = spec.final_logit_softcapping, spec.output_multiplier
        self.logits_processor = LogitsProcessor(
            spec.draft_vocab_size,
            scale=multiplier,
            soft_cap=None if cap is None else cap / multiplier,
        )
        self.bind_target_embedding()

    def bind_target_embedding(self) -> None:
        """Let a Domino head read `model.embed_tokens`, whichever module that is at the time.

        The module is looked up at each call, so sharing the target's embedding afterwards (and a
        tensor-parallel one) works. The rows are raw: Domino's GRU takes no embedding scale.
        """
        if isinstance(self.head, DominoHead):
            self.head.bind_embedding(lambda token_ids: self.model.embed_tokens(token_ids))

    def tabulate_head(self, max_bytes: int) -> None:
        """Let a Domino head look up its GRU's input gates per token, if the table fits.

        The table has a row of 3G numbers per token; without it the head multiplies every drafted
        token's embedding by W_ih. Call it once the embedding is the one that stays.
        """
        weight = cast(Tensor, self.model.embed_tokens.weight)
        width = 3 * self.spec.gru_hidden_dim
        if (
            isinstance(self.head, DominoHead)
            and get_tensor_model_parallel_world_size() == 1
            and weight.shape[0] * width * weight.element_size() <= max_bytes
        ):
            self.head.bind_embedding(weight, tabulate=True)

    @property
    def draft_to_target(self) -> Tensor | None:
        """[Vd] int64: the target id of each draft id; None if the two are the same."""
        offsets = self.draft_id_to_target_id
        if offsets is None:
            return None
        return torch.arange(offsets.shape[0], device=offsets.device) + offsets

    def compute_draft_logits(self, hidden: Tensor) -> Tensor:
        """Base logits [..., Vd] in draft ids of hidden states [..., H] after the final norm."""
        logits = self.logits_processor(self.lm_head, hidden.reshape(-1, hidden.shape[-1]))
        return logits.unflatten(0, hidden.shape[:-1])

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:  # type: ignore[override]
        """Load a checkpoint of any dialect. Raises ValueError unless it is complete.

        Returns no names, as in the base class: vLLM would ask for the ones shared later.
        """
        head_params = dict(self.head.named_parameters())
        backbone: list[tuple[str, Tensor]] = []
        for name, tensor in canonical_weights(weights, self.spec):
            if name.startswith(HEAD_PREFIX):
                head_params.pop(name.removeprefix(HEAD_PREFIX)).data.copy_(tensor)
            else:
                backbone.append((name, tensor))
        assert not head_params, f"no tensor for {sorted(head_params)}"
        super().load_weights(backbone)


def build_head(spec: DrafterSpec, dtype: torch.dtype) -> CorrectionHead:
    """The correction head of a drafter, weights not loaded, on the default device."""
    if spec.head == "domino":
        return DominoHead(
            spec.hidden_size,
            spec.gru_hidden_dim,
            spec.emb_dim,
            spec.draft_vocab_size,
            pure_draft_prefix_len=spec.pure_draft_prefix_len,
            dtype=dtype,
        )
    if spec.head == "markov":
        assert spec.markov_head_type is not None
        return MARKOV_HEADS[spec.markov_head_type](
            spec.hidden_size, spec.markov_rank, spec.vocab_size, spec.draft_vocab_size, dtype=dtype
        )
    return NullHead()
