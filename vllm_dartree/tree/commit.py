"""Where the accepted path's rows go once the tree is settled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_dartree.tree.walk import Walk


@dataclass(frozen=True)
class CommitPlan:
    """Row moves within each request's span of the verify batch.

    Row i of the accepted path (KV entry, hidden state) goes to row i. Destinations are 0..L-1;
    sources ascend, because ancestors come before descendants, and no source is smaller than its
    destination. So both a gather followed by a scatter and a sequential copy in ascending order
    are safe although sources and destinations overlap; a parallel in-place copy is not.

    Attributes:
        source_rows: [R, D + 1] int64, padded with -1.
        dest_rows: [R, D + 1] int64, padded with -1.
        num_rows: [R] int64, L: accepted nodes + the root.
    """

    source_rows: Tensor
    dest_rows: Tensor
    num_rows: Tensor


def commit_plan(walk: Walk) -> CommitPlan:
    """The moves that make an accepted path consecutive.

    Example: the path root, row 2, row 5 is moved to rows 0, 1, 2.

        >>> accepted = Walk(path_rows=torch.tensor([[0, 2, 5, -1]]),
        ...     num_emitted=torch.tensor([3]), tokens=torch.tensor([[7, 8, 9, -1]]))
        >>> plan = commit_plan(accepted)
        >>> plan.source_rows.tolist(), plan.dest_rows.tolist(), plan.num_rows.tolist()
        ([[0, 2, 5, -1]], [[0, 1, 2, -1]], [3])
    """
    places = torch.arange(walk.path_rows.shape[1], device=walk.path_rows.device)
    dest_rows = torch.where(walk.path_rows >= 0, places, -1)
    return CommitPlan(walk.path_rows, dest_rows, walk.num_emitted)
