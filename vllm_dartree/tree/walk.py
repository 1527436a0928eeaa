"""Lossless acceptance: follow the target's own draws through the tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_dartree.tree.draft_tree import DraftTree


@dataclass(frozen=True)
class Walk:
    """The accepted path of each request.

    Attributes:
        path_rows: [R, D + 1] int64, the rows walked, root row 0 first, padded with -1.
        num_emitted: [R] int64, rows walked = tokens emitted (accepted nodes + 1), at least 1.
        tokens: [R, D + 1] int64, the emitted tokens, the last one the bonus token, padded with -1.
    """

    path_rows: Tensor
    num_emitted: Tensor
    tokens: Tensor


def walk(tree: DraftTree, sampled: Tensor, max_depth: int | None = None) -> Walk:
    """Walk from the root to the child whose token is the current row's draw, while there is one.

    ``sampled`` [R, B + 1] int64 holds the target's draw at every row. Should siblings share a
    token, the first one counts. ``max_depth`` D bounds the depth of the trees and sets the width
    of the result; by default it is B.

    Exact because each emitted token is a draw from the target given the emitted prefix
    (algorithm: a draw per row, then a walk; DARTree keeps DDTree's verifier).

    Example: 5 -> 6, and 8 beside 5. The target draws 5 at the root, 6 after 5 and 1 after 6.

        >>> tree = DraftTree.from_nodes([[(5, -1, -0.1), (6, 0, -0.4), (8, -1, -2.0)]])
        >>> accepted = walk(tree, torch.tensor([[5, 6, 1, 9]]))
        >>> accepted.path_rows.tolist(), accepted.tokens.tolist(), accepted.num_emitted.tolist()
        ([[0, 1, 2, -1]], [[5, 6, 1, -1]], [3])
    """
    budget = tree.budget
    depth_limit = budget if max_depth is None else min(max_depth, budget)
    sampled = sampled.to(torch.int64)
    num_requests = sampled.shape[0]
    stop = budget + 1
    # A padding node reads as a child of the root with token -1: it must not match a draw of -1.
    hits = (tree.tokens == sampled.gather(1, tree.parent_rows)) & tree.valid
    child_rows = torch.arange(1, stop, device=sampled.device)
    reached = torch.where(hits, child_rows, stop)
    following = torch.full((num_requests, budget + 2), stop, device=sampled.device)
    following.scatter_reduce_(1, tree.parent_rows, reached, "amin")

    row = sampled.new_zeros((num_requests, 1))
    rows = [row]
    for _ in range(depth_limit):
        row = following.gather(1, row)
        rows.append(row)
    path = torch.cat(rows, dim=1)
    on_path = path < stop
    draws = sampled.gather(1, path.clamp(max=budget))
    return Walk(
        path_rows=path.masked_fill(~on_path, -1),
        num_emitted=on_path.sum(1),
        tokens=draws.masked_fill(~on_path, -1),
    )
