"""Masks, walk and commit plan against naive Python; truncation."""

import pytest
import torch

from vllm_dartree.heads import NullHead
from vllm_dartree.tree import DraftTree, TreeOptions, ancestor_mask, build, commit_plan, walk


def naive_mask(tree, r):
    rows = tree.budget + 1
    mask = [[i == j for j in range(rows)] for i in range(rows)]
    for node in range(int(tree.num_nodes[r])):
        row = node + 1
        while row > 0:
            row = int(tree.parents[r, row - 1]) + 1
            mask[node + 1][row] = True
    return mask


def naive_walk(tree, sampled, r):
    rows, tokens, row = [], [], 0
    while True:
        draw = int(sampled[r, row])
        rows.append(row)
        tokens.append(draw)
        matching = [
            node + 1
            for node in range(int(tree.num_nodes[r]))
            if int(tree.parents[r, node]) == row - 1 and int(tree.tokens[r, node]) == draw
        ]
        if not matching:
            return rows, tokens
        row = matching[0]


def padded(values, length):
    return values + [-1] * (length - len(values))


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 20])
def test_a_row_sees_the_root_its_ancestors_and_itself(cases, budget):
    tree = cases.random_tree(40, budget, seed=budget)
    mask = ancestor_mask(tree)
    assert mask.dtype == torch.bool
    assert [m.tolist() for m in mask] == [naive_mask(tree, r) for r in range(40)]


def test_a_chain_of_full_depth_has_a_causal_mask():
    chain = DraftTree.from_nodes([[(7, node - 1, -1.0) for node in range(9)]])
    assert torch.equal(ancestor_mask(chain)[0], torch.ones(10, 10).tril().bool())


@pytest.mark.parametrize("budget", [1, 2, 9, 20])
def test_B38_the_walk_follows_the_draws_to_the_first_matching_child(cases, budget):
    tree = cases.random_tree(200, budget, seed=budget + 1)
    sampled = torch.randint(0, 3, (200, budget + 1), generator=torch.manual_seed(budget))
    accepted = walk(tree, sampled)
    assert accepted.num_emitted.max() > 1, "no token accepted: the test would show nothing"
    for r in range(200):
        rows, tokens = naive_walk(tree, sampled, r)
        assert accepted.num_emitted[r] == len(rows)
        assert accepted.path_rows[r].tolist() == padded(rows, budget + 1)
        assert accepted.tokens[r].tolist() == padded(tokens, budget + 1)


def test_the_walk_of_an_empty_tree_emits_the_roots_draw(cases):
    tree = DraftTree.from_nodes([[], []], budget=3)
    accepted = walk(tree, torch.tensor([[4, -1, -1, -1], [-1, -1, -1, -1]]))
    assert accepted.num_emitted.tolist() == [1, 1]
    assert accepted.tokens.tolist() == [[4, -1, -1, -1], [-1, -1, -1, -1]]


def test_the_walk_can_be_as_narrow_as_the_trees_are_deep(cases):
    tree = build("pruned", cases.block(30), NullHead(), TreeOptions(12))
    sampled = torch.randint(20, 24, (30, 13), generator=torch.manual_seed(0))
    wide, narrow = walk(tree, sampled), walk(tree, sampled, max_depth=4)
    assert narrow.path_rows.shape == (30, 5) and wide.num_emitted.max() > 1
    assert torch.equal(wide.path_rows[:, :5], narrow.path_rows)
    assert torch.equal(wide.num_emitted, narrow.num_emitted)


def test_commit_rows_allow_an_ascending_sequential_copy(cases):
    tree = cases.random_tree(200, 9, seed=3, num_tokens=2)
    sampled = torch.randint(0, 2, (200, 10), generator=torch.manual_seed(3))
    accepted = walk(tree, sampled)
    plan = commit_plan(accepted)
    rows = torch.arange(10).expand(200, 10)
    for r in range(200):
        count = int(plan.num_rows[r])
        source, dest = plan.source_rows[r, :count], plan.dest_rows[r, :count]
        assert dest.tolist() == list(range(count))
        assert (source >= dest).all() and (source.diff() > 0).all() and source[0] == 0
        assert (plan.source_rows[r, count:] == -1).all() and (plan.dest_rows[r, count:] == -1).all()
        memory = rows[r].clone()
        for s, d in zip(source.tolist(), dest.tolist(), strict=True):
            memory[d] = memory[s]
        assert torch.equal(memory[:count], rows[r][source])


def test_B06_truncation_leaves_the_best_tree_of_the_smaller_size(cases):
    block, head = cases.block(20), cases.head()
    full = build("best_first", block, head, TreeOptions(12))
    for size in (0, 1, 5, 12, 99):
        cut = full.truncate(size)
        assert cut.tokens.shape == (20, 12)
        assert cut.num_nodes.tolist() == [min(size, 12)] * 20
        if 0 < size <= 12:
            small = build("best_first", block, head, TreeOptions(size))
            for name in ("tokens", "parents", "depths", "scores"):
                assert torch.equal(getattr(cut, name)[:, :size], getattr(small, name)), name
        assert (cut.tokens[:, size:] == -1).all() and (cut.parents[:, size:] == -1).all()


def test_B06_truncation_per_request_cuts_mask_and_walk_alike(cases):
    tree = cases.random_tree(100, 9, seed=8)
    limits = torch.randint(-1, 12, (100,), generator=torch.manual_seed(8))
    sampled = torch.randint(0, 3, (100, 10), generator=torch.manual_seed(9))
    cut = tree.truncate(limits)
    assert torch.equal(cut.num_nodes, torch.minimum(tree.num_nodes, limits.clamp(min=0)))
    accepted = walk(cut, sampled)
    for r in range(100):
        size = int(cut.num_nodes[r])
        assert (cut.parents[r, :size] < torch.arange(size)).all()
        assert ancestor_mask(cut)[r].tolist() == naive_mask(cut, r)
        rows, tokens = naive_walk(cut, sampled, r)
        assert accepted.path_rows[r].tolist() == padded(rows, 10)
        assert accepted.tokens[r].tolist() == padded(tokens, 10)


def test_mask_walk_and_commit_never_wait_for_the_device():
    meta = {"dtype": torch.int64, "device": "meta"}
    tree = DraftTree(
        *(torch.zeros(2, 5, **meta) for _ in range(3)),
        scores=torch.zeros(2, 5, device="meta"),
        num_nodes=torch.zeros(2, **meta),
    )
    plan = commit_plan(walk(tree.truncate(3), torch.zeros(2, 6, **meta), max_depth=3))
    assert plan.source_rows.shape == (2, 4) and ancestor_mask(tree).shape == (2, 6, 6)
