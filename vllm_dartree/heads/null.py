"""No correction: DFlash drafters, and DSpark ones of rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from vllm_dartree.heads.base import CorrectionHead, base_scores

if TYPE_CHECKING:
    from vllm_dartree.tree.block import DraftBlock


class NullHead(CorrectionHead):
    """Every prefix sees the drafter's base logits; S = 0."""

    def root_state(self, block: DraftBlock) -> Tensor:
        return block.base_logits.new_empty((block.num_requests, 1, 0))

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        return base_scores(depth, block, state)

    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        return state
