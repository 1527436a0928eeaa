"""DDTree is exact: compared with enumeration and with a heap over the factorised distribution."""

import heapq
import itertools

import pytest
import torch

from vllm_dartree.heads import NullHead
from vllm_dartree.tree import DraftBlock, TreeOptions, build
from vllm_dartree.tree.builders.ddtree import factorised_tree


def enumerated(log_q, tokens, budget):
    """All prefixes of one request, sorted: [(token path, score)], float32 sums from the root."""
    num_depths, num_candidates = log_q.shape
    prefixes = []
    for depth in range(1, num_depths + 1):
        for choice in itertools.product(range(num_candidates), repeat=depth):
            score = torch.zeros(())
            for position, candidate in enumerate(choice):
                score = score + log_q[position, candidate]
            path = tuple(int(tokens[p, c]) for p, c in enumerate(choice))
            if score > float("-inf"):
                prefixes.append((path, float(score)))
    return sorted(prefixes, key=lambda item: (-item[1], len(item[0])))[:budget]


def paths_of(tree, request):
    paths = []
    for node in range(int(tree.num_nodes[request])):
        parent = int(tree.parents[request, node])
        head = paths[parent] if parent >= 0 else ()
        paths.append((*head, int(tree.tokens[request, node])))
    return paths


def heap_tree(log_q, tokens, budget):
    """The best-first oracle: pops (score, depth, parent node, token) with float32 sums."""
    nodes = []
    heap = []

    def push(parent, score, depth):
        sums = (torch.tensor(score) + log_q[depth]).tolist()
        for token, value in zip(tokens[depth].tolist(), sums, strict=True):
            if value > float("-inf"):
                heapq.heappush(heap, (-value, depth + 1, parent, token))

    push(-1, 0.0, 0)
    while heap and len(nodes) < budget:
        negated, depth, parent, token = heapq.heappop(heap)
        nodes.append((token, parent, depth, -negated))
        if depth < log_q.shape[0]:
            push(len(nodes) - 1, -negated, depth)
    return nodes


def assert_equals_heap(tree, log_q, tokens, budget):
    for r in range(log_q.shape[0]):
        expected = heap_tree(log_q[r], tokens[r], budget)
        columns = (tree.tokens[r], tree.parents[r], tree.depths[r], tree.scores[r])
        got = list(zip(*(c[: tree.num_nodes[r]].tolist() for c in columns), strict=True))
        assert got == expected


@pytest.mark.parametrize("budget", [1, 4, 11, 50])
def test_ddtree_is_the_enumerated_best_of_the_full_vocabulary(cases, budget):
    logits = torch.randn(6, 3, 5, generator=torch.manual_seed(budget)) * 2
    block = cases.block(6, 3, 5, num_candidates=5, logits=logits)
    tree = build("ddtree", block, NullHead(), TreeOptions(budget))
    log_q = block.base_logits - block.base_logsumexp.unsqueeze(-1)
    for r in range(6):
        expected = enumerated(log_q[r], block.candidate_tokens[r], budget)
        assert paths_of(tree, r) == [path for path, _ in expected]
        assert tree.scores[r, : len(expected)].tolist() == [score for _, score in expected]


def test_as_many_candidates_as_nodes_are_enough(cases):
    logits = torch.randn(20, 4, 100, generator=torch.manual_seed(8))
    exact, restricted = (
        build("ddtree", cases.block(20, 4, 100, k, logits=logits), NullHead(), TreeOptions(12))
        for k in (100, 12)
    )
    cases.assert_same_tree(exact, restricted)


def test_log_q_is_normalised_over_the_whole_vocabulary(cases):
    logits = torch.zeros(1, 1, 8)
    tree = build("ddtree", cases.block(1, 1, 8, 2, logits=logits), NullHead(), TreeOptions(2))
    torch.testing.assert_close(tree.scores.exp(), torch.full((1, 2), 1 / 8))


@pytest.mark.parametrize(
    ("num_depths", "num_candidates", "budget"), [(5, 7, 16), (3, 20, 9), (9, 2, 30)]
)
def test_the_beam_equals_the_heap_on_ties_and_dead_candidates(num_depths, num_candidates, budget):
    generator = torch.manual_seed(budget)
    log_q = -torch.randint(0, 4, (60, num_depths, num_candidates), generator=generator) / 4
    log_q[torch.rand(log_q.shape, generator=generator) < 0.2] = float("-inf")
    tokens = torch.arange(num_candidates).expand(log_q.shape) + 3
    assert_equals_heap(factorised_tree(log_q, tokens, budget), log_q, tokens, budget)


def test_the_beam_equals_the_heap_when_sums_collapse_to_equal_floats():
    """Candidates that differ by less than a rounding step of the sum tie by token id."""
    log_q = torch.full((1, 2, 12), 0.0)
    log_q[0, 0] = -1e6 - torch.arange(12) * 0.5
    log_q[0, 1] = -torch.arange(12).flip(0) * 1e-3  # better with the token id, but lost in the sum
    tokens = torch.arange(12).expand(1, 2, 12)
    tree = factorised_tree(log_q, tokens, 9)
    assert (tree.scores[0].diff() == 0).any()
    assert_equals_heap(tree, log_q, tokens, 9)


def test_ddtree_without_the_log_sum_exp_is_refused():
    block = DraftBlock.from_logits(
        torch.tensor([0]), torch.zeros(1, 1, 1), (0,), torch.zeros(1, 1, 4), 4, with_logsumexp=False
    )
    with pytest.raises(ValueError, match="with_logsumexp=True"):
        build("ddtree", block, NullHead(), TreeOptions(2))
