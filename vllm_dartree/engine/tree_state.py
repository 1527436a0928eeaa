"""The draft trees of all requests, between the step that drafts and the step that verifies them.

Like every per-request tensor of Model Runner V2 the trees live in persistent slots, one per request
state index, so a batch may be reordered, condensed or joined without moving them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vllm_dartree.engine.stage_clock import StageClock
from vllm_dartree.tree import DraftTree, Walk, ancestor_mask


@dataclass(frozen=True)
class TreeBatch:
    """The trees verified in one step. T requests with a tree lead the batch of R requests.

    tree: their trees, cut to what the scheduler kept, padded to N nodes.
    rows: [T, N + 1] int64, index in the flat batch of each tree row (row 0 the root); rows past a
        request's last node repeat its last row.
    in_tree: [T, N + 1] bool, false past the request's last scheduled row.
    num_rows: rows of all trees; they are the first rows of the flat batch.
    positions: [num_rows] int64, position of each flat row: its root's position plus its depth.
    visible: [T, N + 1, N + 1] bool, whether a row sees another: its ancestors and itself.
    prefix_lens: [T] int32, committed tokens before the root.
    """

    tree: DraftTree
    rows: Tensor
    in_tree: Tensor
    num_rows: int
    positions: Tensor
    visible: Tensor
    prefix_lens: Tensor

    @property
    def num_trees(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True)
class Verdict:
    """What the walk of one step accepted, as moves between rows of the flat batch.

    The token at position root + i is in row sources[:, i] and belongs in row targets[:, i], the row
    that was scheduled for that position. on_path: [T, D + 1] bool, whether the path is that long;
    past its end source and target are both the root's row. All three: [T, D + 1], rows int64.
    """

    walk: Walk
    sources: Tensor
    targets: Tensor
    on_path: Tensor


class TreeState:
    """Persistent trees of `max_num_reqs` request slots, budget B and depth D each."""

    def __init__(self, max_num_reqs: int, budget: int, depth: int, device: torch.device) -> None:
        self.budget = budget
        self.depth = min(depth, budget)
        self.device = device
        shape = (max_num_reqs, budget)
        self._tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self._parents = torch.full(shape, -1, dtype=torch.int64, device=device)
        self._depths = torch.zeros(shape, dtype=torch.int64, device=device)
        self._scores = torch.full(shape, float("-inf"), device=device)
        self._num_nodes = torch.zeros(max_num_reqs, dtype=torch.int64, device=device)
        self.batch: TreeBatch | None = None
        self.verdict: Verdict | None = None
        self.clock = StageClock()

    def store(self, request_slots: Tensor, tree: DraftTree) -> None:
        """Keep the trees of R requests, tree i in slot request_slots[i] ([R] int64)."""
        num_nodes = tree.tokens.shape[1]
        # Input ids past the last node must still be tokens: the scheduler plans B rows per request.
        self._tokens[request_slots, :num_nodes] = tree.tokens.clamp(min=0)
        self._parents[request_slots, :num_nodes] = tree.parents
        self._depths[request_slots, :num_nodes] = tree.depths
        self._scores[request_slots, :num_nodes] = tree.scores
        self._num_nodes[request_slots] = tree.num_nodes

    def tokens(self, request_slots: Tensor) -> Tensor:
        """[R, B] int64, the rows to verify; 0 past a tree's last node."""
        return self._tokens[request_slots]

    def forget(self, request_slot: int) -> None:
        """A request that starts over in this slot has no tree yet."""
        self._num_nodes[request_slot] = 0

    def gather(self, request_slots: Tensor, num_scheduled: Tensor, width: int) -> DraftTree:
        """The trees of T slots cut to num_scheduled[i] nodes ([T] int64) and to `width` columns."""
        tree = DraftTree(
            tokens=self._tokens[request_slots, :width],
            parents=self._parents[request_slots, :width],
            depths=self._depths[request_slots, :width],
            scores=self._scores[request_slots, :width],
            num_nodes=self._num_nodes[request_slots],
        )
        return tree.truncate(num_scheduled)

    def end_step(self) -> None:
        """The step's trees are settled and the next ones stored."""
        self.clock.num_rounds += self.batch is not None
        self.batch = self.verdict = None

    def begin_step(
        self,
        request_slots: Tensor,
        num_drafts: np.ndarray | None,
        query_start: np.ndarray,
        num_computed_tokens: Tensor,
    ) -> None:
        """Describe the trees of this step's batch.

        request_slots: [R] int64. num_drafts: [R] draft tokens the scheduler planned per request,
        None when it planned none. query_start: [R + 1] first flat row of each request.
        num_computed_tokens: [max_num_reqs] int32, committed tokens before the root, on the device.
        """
        self.verdict = None
        self.batch = None
        if num_drafts is None or not num_drafts.any():
            return
        num_trees = int(np.count_nonzero(num_drafts))
        assert num_drafts[:num_trees].all(), "requests with drafts lead the batch"
        assert (np.diff(query_start[: num_trees + 1]) == num_drafts[:num_trees] + 1).all(), (
            "a request with drafts has exactly its root and its nodes in the batch"
        )
        width = int(num_drafts.max())
        slots = request_slots[:num_trees]
        num_scheduled = torch.from_numpy(num_drafts[:num_trees].astype(np.int64)).to(self.device)
        starts = torch.from_numpy(query_start[:num_trees].astype(np.int64)).to(self.device)
        columns = torch.arange(width + 1, device=self.device)
        tree = self.gather(slots, num_scheduled, width)
        rows = starts[:, None] + torch.minimum(columns, num_scheduled[:, None])
        in_tree = columns <= num_scheduled[:, None]
        num_rows = int(query_start[num_trees])
        prefix_lens = num_computed_tokens[slots]
        tree_positions = prefix_lens[:, None] + torch.nn.functional.pad(tree.depths, (1, 0))
        positions = tree_positions[in_tree]  # the flat rows, in their order
        self.batch = TreeBatch(
            tree=tree,
            rows=rows,
            in_tree=in_tree,
            num_rows=num_rows,
            positions=positions,
            visible=ancestor_mask(tree),
            prefix_lens=prefix_lens,
        )
