"""Lemma 1: pruning a wide enough supertree is best-first search."""

import pytest
import torch

from vllm_dartree.heads import NullHead
from vllm_dartree.tree import TreeOptions, build

# (budget, depths, vocabulary, candidates): 12 x 300 cases below.
SHAPES = [(8, 4, 10, 6), (12, 3, 5, 9), (5, 6, 8, 8), (16, 2, 12, 12)]


@pytest.mark.parametrize("depth_bonus", [0.0, -0.2, -1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_pruned_equals_best_first_node_for_node_on_tied_logits(cases, shape, depth_bonus):
    budget, num_depths, vocab_size, num_candidates = shape
    block = cases.block(300, num_depths, vocab_size, num_candidates, seed=budget)
    head = cases.head(vocab_size, seed=budget)
    options = TreeOptions(budget, width=budget, depth_bonus=depth_bonus)
    tree = build("pruned", block, head, options)
    assert (tree.scores.diff(dim=1) == 0).any(), "the cases must contain exact ties"
    cases.assert_same_tree(tree, build("best_first", block, head, options))


def test_pruned_equals_best_first_when_corrections_are_unusable(cases):
    block, head = cases.block(400, seed=5), cases.head(bad_rate=0.5, seed=5)
    options = TreeOptions(budget=9, width=9, depth_bonus=0.0)
    tree = build("pruned", block, head, options)
    assert (tree.num_nodes < 9).any() and (tree.num_nodes == 9).any()
    cases.assert_same_tree(tree, build("best_first", block, head, options))


def test_pruned_equals_best_first_when_log_q_rounds_to_zero(cases):
    logits = torch.zeros(50, 4, 6)
    logits[:, :, 2] = torch.randint(0, 2, (50, 4), generator=torch.manual_seed(3)) * 200.0
    block = cases.block(50, 4, 6, 6, logits=logits)
    options = TreeOptions(budget=8, width=8, depth_bonus=0.0)
    tree = build("pruned", block, NullHead(), options)
    assert (tree.scores == 0).any(), "a child must tie with its parent"
    cases.assert_same_tree(tree, build("best_first", block, NullHead(), options))


def test_pruned_equals_best_first_on_untied_logits(cases):
    logits = torch.randn(300, 5, 40, generator=torch.manual_seed(0)) * 3
    block = cases.block(300, 5, 40, 16, logits=logits)
    options = TreeOptions(budget=12, width=12)
    cases.assert_same_tree(
        build("pruned", block, NullHead(), options), build("best_first", block, NullHead(), options)
    )


def test_a_supertree_too_narrow_is_not_best_first(cases):
    block, head = cases.block(50), cases.head()
    narrow = build("pruned", block, head, TreeOptions(8, width=2, depth_bonus=0.0))
    exact = build("best_first", block, head, TreeOptions(8, depth_bonus=0.0))
    assert narrow.num_nodes.tolist() == exact.num_nodes.tolist() == [8] * 50
    assert (narrow.scores <= exact.scores).all() and (narrow.scores < exact.scores).any()


def test_width_one_is_the_chain(cases):
    block = cases.block(40, 4, 60, 8, logits=torch.randn(40, 4, 60, generator=torch.manual_seed(1)))
    head, options = cases.head(60), TreeOptions(4, width=1)
    cases.assert_same_tree(
        build("pruned", block, head, options), build("chain", block, head, options)
    )


def test_restriction_to_candidates_keeps_a_tree_that_needs_no_others(cases):
    """With peaked logits the children all lie in the top candidates, whatever K is."""
    logits = torch.randn(20, 4, 60, generator=torch.manual_seed(2)) * 8
    options = TreeOptions(6, width=6)
    few, many = (
        build("pruned", cases.block(20, 4, 60, k, logits=logits), NullHead(), options)
        for k in (16, 60)
    )
    assert torch.equal(few.tokens, many.tokens) and torch.equal(few.parents, many.parents)
    torch.testing.assert_close(few.scores, many.scores, rtol=0, atol=1e-2)
