"""The draft tree: what every builder returns and every later step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEG_INF = float("-inf")


@dataclass(frozen=True)
class DraftTree:
    """R draft trees of at most B nodes each, nodes best first, ancestors before descendants.

    Node order is (score descending, depth ascending, parent order, token id ascending). No child
    beats its parent, so every prefix of the node list is closed under parents: it is itself the
    best draft tree of its size, and cutting the list is always legal.

    Row convention of the verify batch: row 0 is the root, node n is row n + 1.

    Attributes:
        tokens: [R, B] int64, target-vocabulary ids, -1 past ``num_nodes``.
        parents: [R, B] int64, node index of the parent; -1 for a child of the root and past
            ``num_nodes``.
        depths: [R, B] int64, 1 for a child of the root; 0 past ``num_nodes``.
        scores: [R, B] float32, path score; -inf past ``num_nodes``.
        num_nodes: [R] int64.

    Example: the root has the children 5 and 8, and 5 has the child 6.

        >>> tree = DraftTree.from_nodes([[(5, -1, -0.1), (6, 0, -0.4), (8, -1, -2.0)]], budget=4)
        >>> tree.tokens.tolist(), tree.depths.tolist(), tree.num_nodes.tolist()
        ([[5, 6, 8, -1]], [[1, 2, 1, 0]], [3])
        >>> tree.parent_rows.tolist()
        [[0, 1, 0, 0]]
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    num_nodes: Tensor

    @property
    def budget(self) -> int:
        """B, the number of node columns."""
        return self.tokens.shape[1]

    @property
    def parent_rows(self) -> Tensor:
        """[R, B] int64: row of each node's parent (0 = root; meaningless past ``num_nodes``)."""
        return self.parents + 1

    @property
    def valid(self) -> Tensor:
        """[R, B] bool: True for the columns that hold a node."""
        columns = torch.arange(self.budget, device=self.tokens.device)
        return columns < self.num_nodes.unsqueeze(1)

    def truncate(self, num_nodes: int | Tensor) -> DraftTree:
        """Keep the first ``num_nodes`` nodes of each tree (an int for all, or [R] int64).

        The shape stays [R, B]; 0 leaves the root alone; more than there are changes nothing.

            >>> tree = DraftTree.from_nodes([[(5, -1, -0.1), (6, 0, -0.4), (8, -1, -2.0)]])
            >>> tree.truncate(2).tokens.tolist()
            [[5, 6, -1]]
            >>> tree.truncate(torch.tensor([0])).num_nodes.tolist()
            [0]
        """
        if isinstance(num_nodes, Tensor):
            kept = torch.minimum(self.num_nodes, num_nodes.to(self.num_nodes)).clamp(min=0)
        else:
            kept = self.num_nodes.clamp(max=max(num_nodes, 0))
        return DraftTree(self.tokens, self.parents, self.depths, self.scores, kept).blank_padding()

    def blank_padding(self) -> DraftTree:
        """The same tree with the sentinels written past ``num_nodes``."""
        padding = ~self.valid
        return DraftTree(
            tokens=self.tokens.masked_fill(padding, -1),
            parents=self.parents.masked_fill(padding, -1),
            depths=self.depths.masked_fill(padding, 0),
            scores=self.scores.masked_fill(padding, NEG_INF),
            num_nodes=self.num_nodes,
        )

    @staticmethod
    def from_nodes(
        requests: Sequence[Sequence[tuple[int, int, float]]], budget: int | None = None
    ) -> DraftTree:
        """Trees from Python lists of (token, parent node index or -1, score), in node order.

        ``budget`` is the number of columns, by default the size of the largest tree.
        """
        columns = max(map(len, requests), default=0) if budget is None else budget
        tokens, parents, depths, scores = [], [], [], []
        for nodes in requests:
            depth_of: list[int] = []
            for node, (_, parent, _) in enumerate(nodes):
                assert -1 <= parent < node, f"node {node}: parent {parent} must come before it"
                depth_of.append(1 if parent < 0 else depth_of[parent] + 1)
            padding = columns - len(nodes)
            tokens.append([token for token, _, _ in nodes] + [-1] * padding)
            parents.append([parent for _, parent, _ in nodes] + [-1] * padding)
            depths.append(depth_of + [0] * padding)
            scores.append([score for _, _, score in nodes] + [NEG_INF] * padding)
        shape = (len(requests), columns)
        return DraftTree(
            tokens=torch.tensor(tokens, dtype=torch.int64).view(shape),
            parents=torch.tensor(parents, dtype=torch.int64).view(shape),
            depths=torch.tensor(depths, dtype=torch.int64).view(shape),
            scores=torch.tensor(scores, dtype=torch.float32).view(shape),
            num_nodes=torch.tensor([len(nodes) for nodes in requests], dtype=torch.int64),
        )
