"""Correct along the greedy chain once, then DDTree on those conditionals (paper Table 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_dartree.tree.builders.chain import greedy_chain
from vllm_dartree.tree.builders.ddtree import factorised_tree
from vllm_dartree.tree.builders.scoring import candidate_log_probs
from vllm_dartree.tree.draft_tree import DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def chain_ddtree(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The B best prefixes when every prefix is scored as if it followed the greedy chain.

    log q is the head's, normalised over the candidates; beta is not used. The weakness that
    DARTree removes: off the chain the corrections belong to another prefix.

    Example: without a head these are DDTree's prefixes.

        >>> import torch
        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> chain_ddtree(block, NullHead(), TreeOptions(budget=4)).tokens.tolist()
        [[0, 0, 1, 1]]
    """
    block = block.by_token()
    num_depths = min(block.num_depths, options.budget)
    path = greedy_chain(block, head, num_depths, depth_bonus=0.0)
    log_q = candidate_log_probs(path.logits)
    return factorised_tree(log_q, block.candidate_tokens[:, :num_depths], options.budget)
