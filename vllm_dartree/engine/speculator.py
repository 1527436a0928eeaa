"""Drafts trees: vLLM's DFlash block pass, then a tree builder over it.

vLLM keeps one number for what is drafted and what is verified. Here they are two: the drafter runs
its block for the checkpoint's horizon J, and `propose` hands out the B nodes of each tree.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from vllm_dartree.engine.model_state import tree_model_state
from vllm_dartree.engine.payload import payload_of
from vllm_dartree.engine.rejection_sampler import path_first
from vllm_dartree.engine.support import check_target_layers
from vllm_dartree.engine.tree_state import TreeState
from vllm_dartree.models import spec_from_hf_config
from vllm_dartree.models.drafter import DARTreeDraftModel
from vllm_dartree.tree import DraftBlock, DraftTree, build

logger = init_logger("vllm.dartree")

_MAX_TABLE_BYTES = 256 << 20


class TreeSpeculator(DFlashSpeculator):
    """Holds the step from the target's hidden states to stored draft trees."""

    _speculator_name = "DARTree"
    model: DARTreeDraftModel

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        speculative_config = vllm_config.speculative_config
        payload = payload_of(speculative_config)
        assert speculative_config is not None and payload is not None
        self.options = payload.options
        self.spec = spec_from_hf_config(speculative_config.draft_model_config.hf_config)
        super().__init__(_drafting_config(vllm_config, self.spec.horizon), device)
        self.sample_from_anchor = self.spec.anchor_first
        self.num_query_per_req = payload.num_query_slots
        self.trees = TreeState(self.max_num_reqs, self.options.budget, self.options.depth, device)
        self.tree_options = self.options.tree
        self.clock = self.trees.clock
        self._drafting = True

    def load_draft_model(
        self, target_model: nn.Module, target_attn_layer_names: set[str]
    ) -> nn.Module:
        check_target_layers(self.vllm_config, target_attn_layer_names)
        return super().load_draft_model(target_model, target_attn_layer_names)

    def load_model(self, target_model: nn.Module) -> None:
        super().load_model(target_model)
        self.model.tabulate_head(_MAX_TABLE_BYTES)
        state_class = tree_model_state(self.trees, frozenset(self.draft_attn_layer_names))
        # vLLM asks the model first which model state it wants.
        cast(Any, target_model).get_model_state_cls = lambda: state_class
        logger.info("DARTree is active: %s", describe(self.spec, self.options))

    def prepare_context_anchor(self, input_batch: InputBatch, num_rejected: Tensor) -> None:
        """Bring the hidden states of each accepted path to the front of its request's rows."""
        batch, verdict = self.trees.batch, self.trees.verdict
        if batch is None or verdict is None:
            return
        order = path_first(verdict, batch.num_rows)
        self.hidden_states[: batch.num_rows] = self.hidden_states[order]

    def propose(self, input_batch: InputBatch, *args: Any, **kwargs: Any) -> Tensor:
        """Draft a tree per request; returns their tokens [R, B] int64 in tree order.

        When vLLM's schedule plans no draft tokens for the next step, only the drafter's context is
        brought up to date, so that a later step can draft again.
        """
        self.clock.mark("rest")
        self._drafting = kwargs.get("num_speculative_tokens") != 0
        super().propose(input_batch, *args, **kwargs)
        self.trees.end_step()
        return self.trees.tokens(input_batch.idx_mapping)

    def _generate_draft(
        self,
        num_reqs: int,
        num_tokens_padded: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, Tensor] | None,
        num_tokens_across_dp: Tensor | None,
        cudagraph_runtime_mode: Any = None,
    ) -> None:
        if not self._drafting:
            self.clock.mark("draft")
            return
        num_slots = self.num_query_per_req
        hidden = self._run_model(
            num_tokens_padded,
            attn_metadata,
            slot_mappings,
            num_tokens_across_dp,
            cudagraph_runtime_mode,
        )
        hidden = hidden[: num_reqs * num_slots].view(num_reqs, num_slots, -1)
        block = self._block(hidden, self.input_buffers.input_ids[: num_reqs * num_slots])
        request_slots = self.sample_idx_mapping[: num_reqs * self.num_speculative_steps]
        request_slots = request_slots.view(num_reqs, -1)[:, 0]
        self.clock.mark("draft")
        self.trees.store(request_slots, self.build_trees(block, request_slots))
        self.clock.mark("build")

    def build_trees(self, block: DraftBlock, request_slots: Tensor) -> DraftTree:
        """The draft trees of R requests; request_slots: [R] int64, their state indices."""
        return build(self.options.builder, block, self.model.head, self.tree_options)

    def _block(self, hidden: Tensor, input_ids: Tensor) -> DraftBlock:
        slots = self.spec.slots[: self.options.depth]
        logits = self.model.compute_draft_logits(hidden[:, slots[0] : slots[-1] + 1])
        return DraftBlock.from_logits(
            anchors=input_ids.view(hidden.shape[0], -1)[:, 0].long(),
            hidden=hidden,
            slots=slots,
            logits=logits,
            num_candidates=self.options.candidates,
            draft_to_target=self.model.draft_to_target,
            with_logsumexp=self.options.builder == "ddtree",
        )


def describe(spec: Any, options: Any) -> str:
    """One line on what is drafted and verified."""
    return (
        f"{spec.family} drafter (head {spec.head}, horizon {spec.horizon}), "
        f"builder {options.builder} (W={options.width}, K={options.candidates}, "
        f"beta={options.depth_bonus}, depth {options.depth}), "
        f"at most B={options.budget} nodes verified per request and step"
    )


def _drafting_config(vllm_config: VllmConfig, horizon: int) -> VllmConfig:
    """A copy in which ``num_speculative_tokens`` is what the drafter's buffers are made for."""
    drafting, speculative_config = copy.copy(vllm_config), copy.copy(vllm_config.speculative_config)
    assert speculative_config is not None
    speculative_config.num_speculative_tokens = horizon
    drafting.speculative_config = speculative_config
    return drafting
