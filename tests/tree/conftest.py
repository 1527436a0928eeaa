"""Small exact cases: logits on a coarse grid, so that equal path scores are common."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from vllm_dartree.heads import CorrectionHead
from vllm_dartree.tree import DraftBlock, DraftTree

NEG_INF = float("-inf")


class TableHead(CorrectionHead):
    """Corrections looked up by a hash of the path: path-dependent, and exact for any batch shape.

    A real head's matrix products round differently for different batch shapes; tests of the
    *builders* must not depend on that.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # [codes, Vd]

    def root_state(self, block: DraftBlock) -> Tensor:
        return (block.anchors % len(self.table)).float().view(-1, 1, 1)

    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        rows = self.table[state[..., 0].long()]  # [R, P, Vd]
        ids = block.candidate_ids[:, depth - 1].unsqueeze(1).expand(-1, rows.shape[1], -1)
        return block.base_logits[:, depth - 1].unsqueeze(1) + rows.gather(-1, ids)

    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        return ((state[..., 0].long() * 31 + tokens * 7 + depth) % len(self.table))[
            ..., None
        ].float()


def grid_logits(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Integers 0..3: ties everywhere."""
    return torch.randint(0, 4, shape, generator=generator).float()


def make_block(
    num_requests: int = 3,
    num_depths: int = 4,
    vocab_size: int = 10,
    num_candidates: int = 6,
    seed: int = 0,
    logits: Tensor | None = None,
) -> DraftBlock:
    generator = torch.Generator().manual_seed(seed)
    if logits is None:
        logits = grid_logits((num_requests, num_depths, vocab_size), generator)
    # A draft vocabulary in another order than the target's: ids and tokens must not be mixed up.
    draft_to_target = torch.randperm(vocab_size, generator=generator) + 20
    return DraftBlock.from_logits(
        anchors=torch.randint(0, 100, (num_requests,), generator=generator),
        hidden=torch.zeros(num_requests, num_depths, 2),
        slots=tuple(range(num_depths)),
        logits=logits,
        num_candidates=num_candidates,
        draft_to_target=draft_to_target,
    )


def make_head(vocab_size: int = 10, bad_rate: float = 0.0, seed: int = 0) -> TableHead:
    """``bad_rate`` of the corrections are -inf or NaN."""
    generator = torch.Generator().manual_seed(seed + 1)
    table = grid_logits((61, vocab_size), generator)
    draw = torch.rand(table.shape, generator=generator)
    table[draw < bad_rate] = NEG_INF
    table[draw < bad_rate / 2] = float("nan")
    return TableHead(table)


def assert_same_tree(left: DraftTree, right: DraftTree) -> None:
    for name in DraftTree.__match_args__:
        assert torch.equal(getattr(left, name), getattr(right, name)), name


def rows_of(tree: DraftTree, rows: slice) -> DraftTree:
    return DraftTree(*(getattr(tree, name)[rows] for name in DraftTree.__match_args__))


def random_tree(num_requests: int, budget: int, seed: int, num_tokens: int = 3) -> DraftTree:
    """Random shapes of random sizes; few tokens, so siblings often share one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    requests = [
        [(draw(0, num_tokens), draw(-1, node), -float(node)) for node in range(draw(0, budget + 1))]
        for _ in range(num_requests)
    ]
    return DraftTree.from_nodes(requests, budget)


@pytest.fixture(scope="session")
def cases() -> SimpleNamespace:
    return SimpleNamespace(
        TableHead=TableHead,
        block=make_block,
        head=make_head,
        assert_same_tree=assert_same_tree,
        rows_of=rows_of,
        random_tree=random_tree,
    )
