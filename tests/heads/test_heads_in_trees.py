"""Trees built through real heads: every node is scored after its own path."""

import pytest
import torch

from vllm_dartree.heads import DominoHead
from vllm_dartree.tree import BUILDERS, DraftBlock, TreeOptions, build, parse_token_tree

PATHS = parse_token_tree([(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (2, 0, 0)])
# Matrix products of other shapes round differently: requests whose nodes lie closer than this
# may come out in another order, and are left out of exact comparisons.
GAP = 1e-4


def options_for(name, budget=8, **kwargs):
    return TreeOptions(budget, token_tree=PATHS if name == "static" else None, **kwargs)


def clear_requests(block, head, name, options):
    """[R] bool: neighbours in node order, the first node left out included, differ by > GAP."""
    budget = options.budget if name == "static" else options.budget + 1
    longer = build(name, block, head, options_for(name, budget, width=options.width))
    gaps = -longer.scores.diff(dim=1)
    clear = (gaps.nan_to_num(nan=1.0) > GAP).all(dim=1)
    assert clear.float().mean() > 0.8, "too few requests left for the comparison to mean much"
    return clear


def path_to(tree, request, node):
    path = []
    while node >= 0:
        path.append(int(tree.tokens[request, node]))
        node = int(tree.parents[request, node])
    return path[::-1]


@pytest.mark.parametrize("name", ["pruned", "fixed", "best_first", "static"])
@torch.no_grad()
def test_node_scores_are_the_literal_path_scores(cases, kind, anchor_first, name):
    """A state gathered from the wrong parent, or advanced by the wrong token, shows here."""
    case = cases.make(kind, num_requests=4, anchor_first=anchor_first)
    block = case.block(num_candidates=9)
    tree = build(name, block, case.head, options_for(name, budget=30))
    assert tree.depths.max() > 2
    for request in range(4):
        for node in range(int(tree.num_nodes[request])):
            path = path_to(tree, request, node)
            expected = 0.0
            for depth, logits in enumerate(case.literal(request, path[:-1])[: len(path)]):
                log_q = logits[block.candidate_ids[request, depth]].log_softmax(-1)
                tokens = block.candidate_tokens[request, depth].tolist()
                expected += float(log_q[tokens.index(path[depth])]) - 0.2
            assert abs(float(tree.scores[request, node]) - expected) < 1e-3  # float32 rounding


@torch.no_grad()
def test_states_of_many_prefixes_are_those_of_each_prefix_alone(cases, kind, anchor_first):
    case = cases.make(kind, anchor_first=anchor_first)
    block = case.block()
    tokens = torch.randint(0, 30, (3, 5, 3))
    state = case.head.root_state(block).expand(-1, 5, -1)
    for depth in (1, 2, 3):
        state = case.head.advance(depth, block, state, tokens[:, :, depth - 1])
    for request in range(3):
        one = block.request(request)
        for prefix in range(5):
            alone = case.head.root_state(one)
            for depth in (1, 2, 3):
                token = tokens[request, prefix, depth - 1].view(1, 1)
                alone = case.head.advance(depth, one, alone, token)
            torch.testing.assert_close(state[request, prefix], alone[0, 0])


@pytest.mark.parametrize("num_candidates", [6, 20])
@torch.no_grad()
def test_pruned_equals_best_first_through_every_head(cases, kind, anchor_first, num_candidates):
    case = cases.make(kind, num_requests=60, anchor_first=anchor_first, seed=num_candidates)
    block, options = case.block(num_candidates), TreeOptions(10, width=11)
    clear = clear_requests(block, case.head, "pruned", options)
    fast = build("pruned", block, case.head, options)
    slow = build("best_first", block, case.head, options)
    for field in ("tokens", "parents", "depths"):
        assert torch.equal(getattr(fast, field)[clear], getattr(slow, field)[clear]), field
    torch.testing.assert_close(fast.scores, slow.scores, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", BUILDERS)
@torch.no_grad()
def test_requests_do_not_influence_each_other_through_a_head(cases, kind, name):
    case = cases.make(kind, num_requests=12)
    block, options = case.block(9), options_for(name)
    clear = clear_requests(block, case.head, name, options)
    together = build(name, block, case.head, options)
    for request in clear.nonzero().flatten().tolist():
        alone = build(name, block.request(request), case.head, options)
        assert torch.equal(together.tokens[request], alone.tokens[0])
        assert torch.equal(together.parents[request], alone.parents[0])
        torch.testing.assert_close(together.scores[request], alone.scores[0], rtol=0, atol=1e-3)


@torch.no_grad()
def test_an_undefined_hidden_state_of_one_request_empties_its_tree_alone(cases):
    case = cases.make("domino", prefix_len=0)
    options = TreeOptions(8)
    before = build("pruned", case.block(), case.head, options)
    case.hidden[1] = float("nan")
    after = build("pruned", case.block(), case.head, options)
    assert after.num_nodes.tolist() == [8, 0, 8]
    assert torch.equal(after.tokens[[0, 2]], before.tokens[[0, 2]])


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "best_first"])
def test_heads_never_wait_for_the_device(cases, kind, anchor_first, name):
    """On the meta device any .item(), .tolist() or .cpu() raises."""
    head = cases.head(kind).to("meta")
    if isinstance(head, DominoHead):
        head.bind_embedding(torch.zeros(30, 6, device="meta"))
    block = DraftBlock.from_logits(
        torch.zeros(2, dtype=torch.int64, device="meta"),
        torch.zeros(2, 5, 6, device="meta"),
        (0, 1, 2, 3) if anchor_first else (1, 2, 3, 4),
        torch.zeros(2, 4, 20, device="meta"),
        num_candidates=6,
        draft_to_target=torch.zeros(20, dtype=torch.int64, device="meta"),
    )
    assert build(name, block, head, options_for(name)).tokens.shape == (2, 8)
