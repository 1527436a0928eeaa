"""DDTree: the exact best prefixes of a factorised distribution."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_dartree.tree.builders.scoring import usable_logits
from vllm_dartree.tree.builders.supertree import Level, prune
from vllm_dartree.tree.draft_tree import NEG_INF, DraftTree
from vllm_dartree.tree.order import score_keys

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def ddtree(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The B most probable prefixes under the drafter's marginals (DDTree, 2604.12989).

    The head is not asked and beta is not used. log q is normalised over the whole vocabulary, so
    the result is exact for K >= B: a child has fewer than B better siblings.

    Example: q = 3/4, 1/4 at both depths.

        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> tree = ddtree(block, NullHead(), TreeOptions(budget=4))
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([[0, 0, 1, 1]], [[-1, 0, -1, 0]])
    """
    if block.base_logsumexp is None:
        raise ValueError("ddtree needs base_logsumexp: build the block with with_logsumexp=True")
    block = block.by_token()
    assert block.base_logsumexp is not None
    log_q = usable_logits(block.base_logits) - block.base_logsumexp.unsqueeze(-1)
    log_q = log_q.nan_to_num_(nan=NEG_INF, posinf=0.0, neginf=NEG_INF).clamp_(max=0.0)
    return factorised_tree(log_q, block.candidate_tokens, options.budget)


def factorised_tree(log_q: Tensor, tokens: Tensor, budget: int) -> DraftTree:
    """The ``budget`` best prefixes when a prefix scores sum of ``log_q`` [R, J, K].

    ``tokens`` [R, J, K] ascend along K. Exact, by a beam that is wide enough:

    * The chosen tree T holds at most B - d + 1 nodes of depth d, since one of them brings d - 1
      ancestors. All prefixes of depth d that come before one in T are in T. So T's nodes of
      depth d are the first ones of that depth, and level d needs B - d + 1 of them.
    * The parents of these are in T as well, hence in level d - 1: growing level d from level
      d - 1 misses none.
    * Not all pairs (parent i, child rank k) compete. Adding the same or a better log q to a
      parent that comes earlier gives a prefix that comes earlier, also after rounding, ties
      included. So i * (k + 1) prefixes come before pair (i, k): it is dropped when they already
      fill the level. About B ln B of the B * K pairs stay.
    """
    num_candidates = log_q.shape[2]
    # Sorted from ascending token order by a stable sort: by (log q, token), and where a
    # candidate came from is the rank of its token.
    log_q, token_rank = log_q.sort(dim=-1, descending=True, stable=True)
    tokens = tokens.gather(-1, token_rank)
    scores = log_q.new_zeros((log_q.shape[0], 1))
    levels = []
    for depth in range(1, min(log_q.shape[1], budget) + 1):
        width = budget - depth + 1
        parent, child = _competing_pairs(scores.shape[1], num_candidates, width, log_q.device)
        pair_scores = scores.index_select(1, parent) + log_q[:, depth - 1].index_select(1, child)
        ranks = token_rank[:, depth - 1].index_select(1, child)
        keys = score_keys(pair_scores, parent * num_candidates + ranks)
        kept = keys.topk(min(width, keys.shape[1]), largest=False, sorted=True).indices
        scores = pair_scores.gather(1, kept)
        level_tokens = tokens[:, depth - 1].gather(1, child[kept])
        levels.append(Level(level_tokens, parent[kept], scores))
    return prune(levels, budget)


# Cached for the same reason as the supertree's columns: no host-to-device copy in a CUDA graph.
@lru_cache(maxsize=256)
def _competing_pairs(
    num_parents: int, num_candidates: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Parent positions and child ranks of all pairs (i, k) with i * (k + 1) < width."""
    pairs = [
        (i, k)
        for i in range(num_parents)
        for k in range(min(num_candidates, -(-width // i) if i else num_candidates))
        if i * (k + 1) < width
    ]
    parents, children = zip(*pairs, strict=True)
    return torch.tensor(parents, device=device), torch.tensor(children, device=device)
