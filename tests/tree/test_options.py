"""Options and token trees are checked once, with messages that say what to do."""

import pytest
import torch

from vllm_dartree.heads import NullHead
from vllm_dartree.tree import TreeOptions, build, parse_token_tree


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"budget": 0}, r"budget=0 must be an integer >= 1"),
        ({"budget": 2.0}, r"budget=2.0"),
        ({"budget": True}, r"budget=True"),
        ({"budget": 4, "width": -3}, r"width=-3"),
        ({"budget": 4, "depth_bonus": 0.1}, r"depth_bonus=0.1 .*<= 0.*Lemma 1.*\[-0.2, 0\]"),
        ({"budget": 4, "depth_bonus": float("nan")}, r"depth_bonus=nan"),
        ({"budget": 4, "depth_bonus": float("-inf")}, r"depth_bonus=-inf"),
        ({"budget": 1, "token_tree": ((0,), (1,))}, r"lists 2 nodes.*budget=1"),
        ({"budget": 4, "token_tree": ((0,), (1, 0))}, r"\(1, 0\) has no parent: add \(1,\)"),
    ],
)
def test_invalid_options_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TreeOptions(**kwargs)


def test_a_depth_bonus_of_zero_is_legal():
    assert TreeOptions(1, depth_bonus=0.0).depth_bonus == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[(0,), (0", "not a Python literal"),
        ("__import__('os')", "not a Python literal"),
        ("7", "not a list of paths"),
        ("[0, 1]", "not a list of paths"),
        ("[]", "empty"),
        ("[()]", "is the root"),
        ("[(-1,)]", "integers >= 0"),
        ("[(0.5,)]", "integers >= 0"),
        ("[('a',)]", "integers >= 0"),
        ("[(0,), (0,)]", "listed twice"),
        ("[(0,), (0, 0, 0)]", r"\(0, 0, 0\) has no parent: add \(0, 0\)"),
    ],
)
def test_what_is_no_token_tree_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_token_tree(text)


def test_token_trees_parse_from_strings_and_lists_breadth_first():
    expected = ((0,), (1,), (0, 0), (1, 2), (0, 0, 1))
    assert parse_token_tree(" [(0,), (0, 0), (0, 0, 1), (1,), (1, 2)]") == expected
    assert parse_token_tree([[1], [0], [1, 2], [0, 0], [0, 0, 1]]) == expected


def test_static_takes_children_by_rank_of_the_corrected_logits(cases):
    logits = torch.randn(5, 3, 10, generator=torch.manual_seed(6)) * 0.1
    block, head = cases.block(5, 3, 10, 10, logits=logits), cases.head(seed=6)
    paths = parse_token_tree([(1,), (3,), (3, 0), (3, 2), (1, 4), (3, 2, 1)])
    tree = build("static", block, head, TreeOptions(6, token_tree=paths))
    for r in range(5):
        one = block.request(r)
        expected = set()
        for path in paths:
            state, tokens = head.root_state(one), []
            for depth, rank in enumerate(path, start=1):
                ranking = head.score(depth, one, state)[0, 0].argsort(descending=True)
                tokens.append(int(one.candidate_tokens[0, depth - 1, ranking[rank]]))
                state = head.advance(depth, one, state, torch.tensor([tokens[-1:]]))
            expected.add(tuple(tokens))
        got = []
        for node in range(6):
            parent = int(tree.parents[r, node])
            got.append((*(got[parent] if parent >= 0 else ()), int(tree.tokens[r, node])))
        assert set(got) == expected


def test_static_equals_best_first_when_it_lists_the_best_nodes(cases):
    """All children of all nodes, to depth 2, of a vocabulary of three: every prefix there is."""
    block = cases.block(30, 2, 3, 3, seed=3)
    paths = parse_token_tree(
        [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]
    )
    options = TreeOptions(12, token_tree=paths)
    head = cases.head(3, seed=3)
    cases.assert_same_tree(
        build("static", block, head, options), build("best_first", block, head, options)
    )


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (None, "needs token_tree"),
        (((0,), (0, 0), (0, 0, 0)), r"3 deep.*depths 1\.\.2"),
        (((0,), (5,)), r"child rank 5.*0\.\.4"),
    ],
)
def test_static_refuses_paths_that_the_drafter_cannot_fill(cases, paths, message):
    block = cases.block(1, 2, 5, 5)
    with pytest.raises(ValueError, match=message):
        build("static", block, NullHead(), TreeOptions(4, token_tree=paths))
