"""What every builder promises: order, closure, padding, independence of requests, hygiene."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_dartree.heads import NullHead
from vllm_dartree.tree import BUILDERS, DraftBlock, TreeOptions, build, parse_token_tree
from vllm_dartree.tree.builders.fixed import even_widths

PATHS = parse_token_tree([(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (2, 0, 0)])
BATCHED = [name for name in BUILDERS if name != "best_first"]


def options_for(name, budget=8, **kwargs):
    return TreeOptions(budget, token_tree=PATHS if name == "static" else None, **kwargs)


@pytest.mark.parametrize("bad_rate", [0.0, 0.3])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_prefix_is_closed_under_parents_and_padding_is_blank(cases, name, bad_rate):
    block, head = cases.block(60), cases.head(bad_rate=bad_rate)
    tree = build(name, block, head, options_for(name, depth_bonus=0.0))
    assert tree.tokens.shape == (60, 8) and tree.num_nodes.max() > 0
    nodes = torch.arange(8)
    # A parent before its child for every node: then any prefix holds the parents of its nodes.
    assert (tree.parents < nodes).all()
    assert torch.equal(tree.valid, tree.tokens >= 0) and torch.equal(tree.valid, tree.depths > 0)
    assert torch.equal(tree.valid, tree.scores > float("-inf"))
    assert (tree.parents[~tree.valid] == -1).all() and not tree.scores.isnan().any()
    depth_of_row = torch.cat([torch.zeros(60, 1, dtype=torch.int64), tree.depths], dim=1)
    expected = depth_of_row.gather(1, tree.parent_rows) + 1
    assert torch.equal(tree.depths[tree.valid], expected[tree.valid])


@pytest.mark.parametrize("name", BUILDERS)
def test_B38_nodes_follow_the_tie_rule_and_siblings_are_distinct(cases, name):
    block, head = cases.block(80, seed=2), cases.head(seed=2)
    tree = build(name, block, head, options_for(name, depth_bonus=0.0))
    for r in range(80):
        columns = (-tree.scores[r], tree.depths[r], tree.parents[r], tree.tokens[r])
        keys = list(zip(*(c[: tree.num_nodes[r]].tolist() for c in columns), strict=True))
        assert keys == sorted(set(keys))


@pytest.mark.parametrize("name", BUILDERS)
def test_requests_do_not_influence_each_other(cases, name):
    block, head = cases.block(7, seed=4), cases.head(bad_rate=0.2, seed=4)
    options = options_for(name)
    together = build(name, block, head, options)
    for r in range(7):
        alone = build(name, block.request(r), head, options)
        cases.assert_same_tree(cases.rows_of(together, slice(r, r + 1)), alone)


@pytest.mark.parametrize("name", BUILDERS)
def test_B38_duplicate_draft_ids_of_one_token_are_drafted_once(name):
    logits = torch.tensor([3.0, 2.9, 1.0]).expand(1, 3, 3)
    block = DraftBlock.from_logits(
        torch.tensor([0]), torch.zeros(1, 3, 1), (0, 1, 2), logits, 3, torch.tensor([7, 7, 8])
    )
    paths = parse_token_tree([(0,), (1,), (2,), (0, 0)])
    tree = build(name, block, NullHead(), TreeOptions(6, token_tree=paths))
    children = tree.tokens[0][(tree.parents[0] == -1) & tree.valid[0]].tolist()
    assert sorted(children) == sorted(set(children)) and children[0] == 7


@pytest.mark.parametrize("name", BUILDERS)
def test_a_request_without_a_usable_logit_gets_an_empty_tree(cases, name):
    logits = torch.randn(3, 4, 10, generator=torch.manual_seed(0))
    logits[0] = float("nan")
    logits[1] = float("-inf")
    tree = build(name, cases.block(3, logits=logits), NullHead(), options_for(name))
    assert tree.num_nodes.tolist()[:2] == [0, 0] and tree.num_nodes[2] > 3
    assert (tree.tokens[:2] == -1).all()


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("name", BUILDERS)
def test_an_unusable_candidate_is_never_a_node_and_spoils_no_other(cases, name, value):
    logits = torch.randn(2, 4, 10, generator=torch.manual_seed(1))
    removed = logits.clone()
    logits[:, 1, 3], removed[:, 1, 3] = value, float("-inf")
    options = options_for(name)
    tree = build(name, cases.block(2, logits=logits), NullHead(), options)
    assert (tree.num_nodes > 3).all()
    cases.assert_same_tree(tree, build(name, cases.block(2, logits=removed), NullHead(), options))


@pytest.mark.parametrize("name", BUILDERS)
def test_huge_logits_stay_finite(cases, name):
    logits = torch.randn(2, 4, 10, generator=torch.manual_seed(1)) * 1e38
    tree = build(name, cases.block(2, logits=logits), NullHead(), options_for(name))
    assert (tree.num_nodes > 0).all() and tree.scores[tree.valid].isfinite().all()
    assert (tree.scores[tree.valid] <= 0).all()


@pytest.mark.parametrize("budget", [1, 2, 16, 64, 128, 129])
@pytest.mark.parametrize("name", BUILDERS)
def test_B48_a_budget_beyond_the_supertree_gives_fewer_nodes(cases, name, budget):
    """Three tokens, width 5, one or two depths: 3 + 9 prefixes at most."""
    for num_depths in (1, 2):
        block = cases.block(2, num_depths, vocab_size=3, num_candidates=64)
        paths = ((0,),) if budget == 1 else ((0,), (1,))
        options = TreeOptions(budget, width=5, token_tree=paths if name == "static" else None)
        tree = build(name, block, NullHead(), options)
        supertree = {"chain": num_depths, "static": len(paths)}.get(name, 3 + 9 * (num_depths - 1))
        if name == "pruned":
            supertree = 3 + 5 * (num_depths - 1)
        if name == "fixed":
            supertree = 3 if num_depths == 1 else sum(map(min, even_widths(budget, 2), (3, 9)))
        assert tree.tokens.shape == (2, budget)
        assert tree.num_nodes.tolist() == [min(budget, supertree)] * 2


@pytest.mark.parametrize("name", BUILDERS)
def test_width_and_candidates_beyond_the_vocabulary_are_legal(cases, name):
    block = cases.block(2, 3, vocab_size=4, num_candidates=99)
    assert block.num_candidates == 4
    assert (build(name, block, NullHead(), options_for(name, width=500)).num_nodes > 2).all()


@pytest.mark.parametrize("budget", [1, 3, 4, 9, 64])
def test_fixed_spreads_the_budget_evenly_and_favours_shallow_depths(cases, budget):
    block, head = cases.block(5, 4, 20, 20), cases.head(20)
    tree = build("fixed", block, head, TreeOptions(budget))
    for r in range(5):
        per_depth = torch.bincount(tree.depths[r][tree.valid[r]], minlength=5)[1:].tolist()
        assert per_depth == [budget // 4 + (d < budget % 4) for d in range(4)]


def test_chain_is_one_path_of_at_most_the_horizon(cases):
    tree = build("chain", cases.block(6), cases.head(), TreeOptions(9))
    assert tree.num_nodes.tolist() == [4] * 6
    assert tree.parents[:, :4].tolist() == [[-1, 0, 1, 2]] * 6
    assert (
        build("chain", cases.block(6), cases.head(), TreeOptions(2)).num_nodes.tolist() == [2] * 6
    )


@pytest.mark.parametrize("name", ["chain", "static"])
def test_ranks_are_counted_among_usable_corrections(cases, name):
    """NaN sorts first in torch: it must not take the place of the best child."""
    head = cases.head(bad_rate=0.15)
    assert head.table.isnan().any()
    options = TreeOptions(
        4, token_tree=((0,), (1,), (0, 0), (0, 0, 0)) if name == "static" else None
    )
    assert build(name, cases.block(20), head, options).num_nodes.tolist() == [4] * 20


def test_chain_ddtree_scores_every_branch_with_the_chains_conditionals(cases):
    logits = torch.randn(5, 3, 10, generator=torch.manual_seed(4))
    block, head = cases.block(5, 3, 10, 10, logits=logits), cases.head()
    tree = build("chain_ddtree", block, head, TreeOptions(12))
    greedy = build("chain", block, head, TreeOptions(3))
    state, conditionals = head.root_state(block), []
    for depth in (1, 2, 3):
        conditionals.append(head.score(depth, block, state)[:, 0].log_softmax(-1))
        state = head.advance(depth, block, state, greedy.tokens[:, depth - 1 : depth])
    for r in range(5):
        for node in range(12):
            expected, row = 0.0, node
            while row >= 0:
                depth = int(tree.depths[r, row])
                tokens = block.candidate_tokens[r, depth - 1].tolist()
                expected += float(
                    conditionals[depth - 1][r, tokens.index(int(tree.tokens[r, row]))]
                )
                row = int(tree.parents[r, row])
            assert abs(expected - float(tree.scores[r, node])) < 1e-5  # float32 sums of 3 terms


def test_scores_are_path_log_probabilities_plus_the_depth_bonus(cases):
    block, head = cases.block(4, seed=9), cases.head(seed=9)
    plain = build("chain", block, head, TreeOptions(4, depth_bonus=0.0))
    bonus = build("chain", block, head, TreeOptions(4, depth_bonus=-0.5))
    torch.testing.assert_close(bonus.scores, plain.scores - 0.5 * plain.depths)


def test_an_unknown_builder_is_refused_with_the_known_names(cases):
    with pytest.raises(ValueError, match=r"'beam' is unknown.*pruned.*static"):
        build("beam", cases.block(), NullHead(), TreeOptions(4))


class NoHostRead(TorchDispatchMode):
    """Fails on operations that make the host wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in {
            "_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2",
        }, f"{func} reads a result back to the host"  # fmt: skip
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BATCHED)
def test_batched_builders_never_wait_for_the_device(cases, name):
    block = cases.block()
    with NoHostRead():
        build(name, block, NullHead(), options_for(name))


@pytest.mark.parametrize("name", BATCHED)
def test_batched_builders_have_static_shapes_and_run_without_data(name):
    """On the meta device any .item(), .tolist() or .cpu() raises."""
    block = DraftBlock.from_logits(
        torch.zeros(3, dtype=torch.int64, device="meta"),
        torch.zeros(3, 4, 2, device="meta"),
        (0, 1, 2, 3),
        torch.zeros(3, 4, 5000, device="meta"),
        num_candidates=6,
    )
    tree = build(name, block, NullHead(), options_for(name, budget=9))
    assert tree.tokens.device.type == "meta" and tree.scores.shape == (3, 9)
