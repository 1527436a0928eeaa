"""Each head against a literal decoder of its published formula."""

import pytest
import torch

from vllm_dartree.heads import DominoHead
from vllm_dartree.tree import TreeOptions, build

# float32, sums of at most a dozen products of order one in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def head_logits(case, block, request, path):
    """The head's logits of depths 1..len(path)+1 along one path."""
    one, state, logits = block.request(request), case.head.root_state(block.request(request)), []
    for depth in range(1, block.num_depths + 1):
        logits.append(case.head.score(depth, one, state)[0, 0])
        if depth > len(path) or depth == block.num_depths:
            return logits
        state = case.head.advance(depth, one, state, torch.tensor([[path[depth - 1]]]))
    return logits


@torch.no_grad()
def test_scores_along_a_path_are_the_literal_formula(cases, kind, anchor_first):
    for seed in range(10):
        case = cases.make(kind, anchor_first=anchor_first, seed=seed)
        block = case.block()
        for request in range(3):
            path = torch.randint(0, 30, (3,)).tolist()
            expected = case.literal(request, path)
            for depth, logits in enumerate(head_logits(case, block, request, path)):
                ids = block.candidate_ids[request, depth]
                torch.testing.assert_close(logits, expected[depth][ids], **TOLERANCE)


@torch.no_grad()
def test_the_chain_builder_is_the_literal_greedy_decoder(cases, kind, anchor_first):
    case = cases.make(kind, num_requests=40, anchor_first=anchor_first)
    tree = build("chain", case.block(), case.head, TreeOptions(cases.depths))
    for request in range(40):
        path = []
        for depth in range(cases.depths):
            best = int(case.literal(request, path)[depth].argmax())
            path.append(int(case.draft_to_target[best]))
        assert tree.tokens[request].tolist() == path


@pytest.mark.parametrize("prefix_len", [0, 1, 2, 3])
@torch.no_grad()
def test_domino_keeps_the_base_logits_of_its_prefix_only(cases, prefix_len, anchor_first):
    case = cases.make("domino", anchor_first=anchor_first, prefix_len=prefix_len)
    block = case.block()
    path = [3, 14, 15]
    for depth, logits in enumerate(head_logits(case, block, 0, path), start=1):
        base = block.base_logits[0, depth - 1]
        assert torch.equal(logits, base) == (depth <= prefix_len)
        expected = case.literal(0, path)[depth - 1][block.candidate_ids[0, depth - 1]]
        torch.testing.assert_close(logits, expected, **TOLERANCE)


@torch.no_grad()
def test_domino_states_are_those_of_the_gru_module(cases):
    case = cases.make("domino")
    tokens = torch.cat([case.anchors.unsqueeze(1), torch.randint(0, 30, (3, 3))], dim=1)
    expected, _ = case.head.prefix_gru(case.embedding[tokens])
    block = case.block()
    state = case.head.root_state(block)
    for depth in range(4):
        torch.testing.assert_close(state[:, 0], expected[:, depth], **TOLERANCE)
        if depth < 3:
            state = case.head.advance(depth + 1, block, state, tokens[:, depth + 1 : depth + 2])


@torch.no_grad()
def test_restricted_scores_are_the_full_vocabularys_gathered(cases, kind, anchor_first):
    case = cases.make(kind, anchor_first=anchor_first)
    full, few = case.block(), case.block(num_candidates=5)
    tokens = torch.randint(0, 30, (3, 6))
    state = case.head.root_state(full).expand(-1, 6, -1)
    state = case.head.advance(1, full, state, tokens)
    position = (full.candidate_ids[:, 1, None] == few.candidate_ids[:, 1, :, None]).int().argmax(-1)
    expected = case.head.score(2, full, state).gather(-1, position.unsqueeze(1).expand(-1, 6, -1))
    torch.testing.assert_close(case.head.score(2, few, state), expected, **TOLERANCE)


@pytest.mark.parametrize("kind", ["domino", "gated", "rnn"], indirect=True)
@torch.no_grad()
def test_slots_shifted_by_one_change_the_scores(cases, kind, anchor_first):
    case = cases.make(kind, anchor_first=anchor_first)
    path = [3, 14, 15]
    right = torch.stack(head_logits(case, case.block(), 0, path))
    wrong = torch.stack(head_logits(case, case.block(slot_shift=1), 0, path))
    assert (right - wrong).abs().amax(dim=1)[1:].min() > 0.05


@torch.no_grad()
def test_one_plus_n_rnn_needs_its_warm_up_step(cases):
    case = cases.make("rnn", anchor_first=False)
    path = [3, 14]
    block = case.block()
    ids = block.candidate_ids[0, 0]
    first = head_logits(case, block, 0, path)[0]
    torch.testing.assert_close(first, case.literal(0, path)[0][ids], **TOLERANCE)
    assert (first - case.literal(0, path, warm_up=False)[0][ids]).abs().max() > 0.05


@pytest.mark.parametrize("kind", ["domino", "vanilla", "gated", "rnn"], indirect=True)
@torch.no_grad()
def test_corrections_depend_on_the_previous_token_and_the_anchor(cases, kind):
    case = cases.make(kind, prefix_len=0)
    block = case.block()
    left, right = (torch.stack(head_logits(case, block, 0, [token, 9])) for token in (4, 5))
    assert torch.equal(left[0], right[0]) and (left[1] - right[1]).abs().max() > 0.05
    first = case.head.score(1, block, case.head.root_state(block))
    case.anchors = (case.anchors + 1) % 30
    other = case.block()
    assert (case.head.score(1, other, case.head.root_state(other)) - first).abs().max() > 0.05


@torch.no_grad()
def test_tabulated_and_looked_up_embeddings_score_alike(cases):
    case = cases.make("domino")
    block, options = case.block(), TreeOptions(8)
    plain = build("pruned", block, case.head, options)
    for embedding, tabulate in ((case.embedding, True), (lambda ids: case.embedding[ids], False)):
        case.head.bind_embedding(embedding, tabulate=tabulate)
        tree = build("pruned", block, case.head, options)
        assert torch.equal(tree.tokens, plain.tokens)
        torch.testing.assert_close(tree.scores, plain.scores, **TOLERANCE)


def test_domino_without_the_targets_embedding_says_what_is_missing(cases):
    case = cases.make("domino")
    unbound = DominoHead(6, 5, 4, 20, pure_draft_prefix_len=1)
    with pytest.raises(RuntimeError, match="bind_embedding"):
        unbound.root_state(case.block())
    with pytest.raises(AssertionError, match="width 3"):
        unbound.bind_embedding(torch.zeros(9, 3))


@torch.no_grad()
def test_bfloat16_heads_sum_in_float32(cases, kind, anchor_first):
    case = cases.make(kind, anchor_first=anchor_first, dtype=torch.bfloat16)
    block, path = case.block(), [3, 14, 15]
    for depth, logits in enumerate(head_logits(case, block, 0, path)):
        assert logits.dtype == torch.float32
        expected = case.literal(0, path)[depth][block.candidate_ids[0, depth]]
        # bfloat16 keeps 8 bits of the features; up to 7 products of order one.
        torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.15)
    if kind == "vanilla":
        logits = head_logits(case, block, 0, path)[1]
        exact = case.literal(0, path)[1][block.candidate_ids[0, 1]]
        torch.testing.assert_close(logits, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("null", {}),
        (
            "domino",
            {
                "prefix_gru.weight_ih_l0": (15, 6),
                "prefix_gru.weight_hh_l0": (15, 5),
                "embed_proj.0.weight": (4, 11),
                "embed_proj.2.weight": (20, 4),
            },
        ),
        ("vanilla", {"markov_w1.weight": (30, 7), "markov_w2.weight": (20, 7)}),
        (
            "gated",
            {
                "markov_w1.weight": (30, 7),
                "markov_w2.weight": (20, 7),
                "gate_proj.weight": (7, 13),
                "gate_proj.bias": (7,),
            },
        ),
        (
            "rnn",
            {
                "markov_w1.weight": (30, 7),
                "markov_w2.weight": (20, 7),
                "joint_proj.weight": (21, 20),
                "joint_proj.bias": (21,),
            },
        ),
    ],
)
def test_parameters_have_the_checkpoints_names_and_shapes(cases, kind, shapes):
    head = cases.make(kind).head
    assert {name: tuple(value.shape) for name, value in head.state_dict().items()} == shapes
