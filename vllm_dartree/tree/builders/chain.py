"""The greedy single path: Domino's and DSpark's own drafting, and DFlash's without a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_dartree.tree.builders.scoring import child_scores, usable_logits
from vllm_dartree.tree.builders.supertree import pad_columns
from vllm_dartree.tree.draft_tree import NEG_INF, DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


@dataclass(frozen=True)
class Chain:
    """The greedy path: ``tokens`` and ``scores`` [R, D]; ``logits`` [R, D, K], corrected."""

    tokens: Tensor
    scores: Tensor
    logits: Tensor


def greedy_chain(
    block: DraftBlock, head: CorrectionHead, num_depths: int, depth_bonus: float
) -> Chain:
    """The best child of the best child and so on, ``num_depths`` deep.

    ``block`` must be in ``by_token`` order. The choice is made on the logits: scores along a long
    path are rounded more coarsely and could tie where the logits do not.
    """
    score = block.base_logits.new_zeros((block.num_requests, 1))
    state = head.root_state(block)
    tokens, scores, all_logits = [], [], []
    for depth in range(1, num_depths + 1):
        logits = head.score(depth, block, state)
        best = usable_logits(logits).argmax(-1)  # [R, 1]; the first of equal ones: the lowest id
        score = child_scores(logits, score, depth_bonus)[:, 0].gather(1, best)
        token = block.candidate_tokens[:, depth - 1].gather(1, best)
        tokens.append(token)
        scores.append(score)
        all_logits.append(logits)
        if depth < num_depths:
            state = head.advance(depth, block, state, token)
    return Chain(torch.cat(tokens, 1), torch.cat(scores, 1), torch.cat(all_logits, 1))


def chain(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """A tree without branches: the greedy path through the head, at most B nodes.

    Example: the best token is 0 at both depths.

        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> tree = chain(block, NullHead(), TreeOptions(budget=3))
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([[0, 0, -1]], [[-1, 0, -1]])
    """
    num_depths = min(block.num_depths, options.budget)
    path = greedy_chain(block.by_token(), head, num_depths, options.depth_bonus)
    depths = torch.arange(1, num_depths + 1, device=path.tokens.device).expand_as(path.tokens)
    tree = DraftTree(
        tokens=path.tokens,
        parents=depths - 2,
        depths=depths,
        scores=path.scores,
        num_nodes=(path.scores > NEG_INF).sum(1),
    )
    return pad_columns(tree, options.budget).blank_padding()
