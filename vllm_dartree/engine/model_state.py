"""What the target model needs to see trees: depth positions, tree attention, commit.

`tree_model_state` makes the class that vLLM's `resolve_model_state_cls` picks up from the target
model, so no vLLM name is patched for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.model_states.interface import ModelSpecificAttnMetadata

from vllm_dartree.engine.commit import CachePort
from vllm_dartree.engine.rejection_sampler import TreeRejectionSampler
from vllm_dartree.engine.tree_state import TreeBatch, TreeState


class _TreeAttention(ModelSpecificAttnMetadata):
    """Hands the step's trees to the builders that know them, and to no other."""

    def __init__(self, batch: TreeBatch) -> None:
        self.batch = batch

    def get_extra_attn_kwargs(self, attn_metadata_builder: Any, num_reqs: int) -> dict[str, Any]:
        from vllm_dartree.engine.cpu_attention import TreeCPUAttentionMetadataBuilder

        if isinstance(attn_metadata_builder, TreeCPUAttentionMetadataBuilder):
            return {"tree": self.batch}
        return {}


class TreeModelState(DefaultModelState):
    """vLLM's default model state with trees; `trees` and `draft_layers` are set per engine."""

    trees: TreeState
    draft_layers: frozenset[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.rope_state is not None:
            raise ValueError(
                "the target model uses multimodal rotary positions (M-RoPE / XD-RoPE), which "
                "method 'dartree' does not support: run it without speculative_config"
            )
        self.positions = torch.zeros(self.max_num_tokens, dtype=torch.int64, device=self.device)
        self.cache: CachePort | None = None
        self._step: InputBatch | None = None

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        self.trees.forget(req_index)

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any] | None:
        return sampler, TreeRejectionSampler(sampler, self.trees)

    def preprocess_state(
        self,
        input_batch: InputBatch,
        block_tables: tuple[Tensor, ...],
        kv_cache_config: Any,
        num_computed_tokens: Tensor,
    ) -> None:
        self._step = input_batch
        self.trees.begin_step(
            input_batch.idx_mapping,
            input_batch.num_draft_tokens_per_req,
            input_batch.query_start_loc_np,
            num_computed_tokens,
        )

    def prepare_attn(
        self,
        input_batch: InputBatch,
        cudagraph_mode: Any,
        block_tables: tuple[Tensor, ...],
        slot_mappings: Tensor,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        model_specific_attn_metadata: ModelSpecificAttnMetadata | None = None,
    ) -> dict[str, Any]:
        batch = self._trees_of(input_batch)
        if batch is not None:
            model_specific_attn_metadata = _TreeAttention(batch)
            self.cache = CachePort.divert(batch, slot_mappings, kv_cache_config, self.draft_layers)
        metadata = super().prepare_attn(
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            attn_groups,
            kv_cache_config,
            for_capture,
            ubatch_idx,
            model_specific_attn_metadata,
        )
        if self.cache is not None and batch is not None:
            self.cache.metadata = metadata
        # The drafter builds its own metadata; none of the target's may reach it.
        return {name: value for name, value in metadata.items() if name not in self.draft_layers}

    def prepare_inputs(self, input_batch: InputBatch, req_states: Any) -> dict[str, Any]:
        inputs = super().prepare_inputs(input_batch, req_states)
        batch = self._trees_of(input_batch)
        if batch is not None:
            positions = self.positions[: input_batch.num_tokens_after_padding]
            positions.copy_(input_batch.positions)
            positions[: batch.num_rows] = batch.positions
            inputs["positions"] = positions
        self.trees.clock.mark("rest")
        return inputs

    def postprocess_state(
        self, idx_mapping: Tensor, num_sampled: Any, num_computed_tokens: Tensor | None = None
    ) -> None:
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        if self.cache is not None and self.trees.verdict is not None:
            self.trees.clock.mark("rest")
            self.cache.commit(self.vllm_config, self.trees.verdict)
            self.trees.clock.mark("commit")
        else:
            self.trees.clock.mark("target")
        self.cache = None
        self._step = None

    def _trees_of(self, input_batch: InputBatch) -> TreeBatch | None:
        """The trees of this batch; dummy batches have none."""
        return self.trees.batch if input_batch is self._step else None


def tree_model_state(trees: TreeState, draft_layers: frozenset[str]) -> type[TreeModelState]:
    """`TreeModelState` bound to one engine's trees and drafter layers."""
    return type("TreeModelState", (TreeModelState,), {"trees": trees, "draft_layers": draft_layers})
