"""The tie rule's keys and the candidate selection against plain sorting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_dartree.tree import DraftBlock
from vllm_dartree.tree.order import best_columns, score_keys, top_candidates

scores = st.lists(
    st.one_of(
        st.sampled_from([0.0, -0.0, -1.0, -(2.0**-149), float("-inf")]),
        st.floats(max_value=0, width=32, allow_nan=False),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(scores)
def test_columns_come_out_by_score_then_position(values):
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert best_columns(torch.tensor([values]), len(values))[0].tolist() == expected


def test_the_largest_place_does_not_reach_the_score():
    keys = score_keys(torch.tensor([-1.0, -1.0000001]), torch.tensor([2**32 - 1, 0]))
    assert keys[0] < keys[1]


@pytest.mark.parametrize("vocab_size", [7, 500, 3000, 4096])
def test_candidates_are_the_best_logits_with_ties_to_the_lower_id(vocab_size):
    generator = torch.manual_seed(vocab_size)
    logits = torch.randint(-30, 31, (3, 2, vocab_size), generator=generator) / 10
    logits[0, 0] = 0.0
    logits[0, 1, ::2] = -0.0  # a tie with 0.0
    logits[1, 0, 5:] = float("-inf")
    values, ids = top_candidates(logits, 5)
    expected = (logits + 0.0).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(ids, expected.indices[..., :5])
    assert torch.equal(values, expected.values[..., :5])


def test_a_block_restricts_and_maps_its_candidates():
    logits = torch.tensor([[[0.0, 5.0, float("nan"), 5.0, float("inf")]]]).to(torch.bfloat16)
    block = DraftBlock.from_logits(
        torch.tensor([1]), torch.zeros(1, 2, 3), (1,), logits, 3, torch.tensor([9, 8, 7, 6, 5])
    )
    assert block.candidate_ids.tolist() == [[[1, 3, 0]]]
    assert block.candidate_tokens.tolist() == [[[8, 6, 9]]]
    assert block.base_logits.dtype == torch.float32
    torch.testing.assert_close(
        block.base_logsumexp, torch.tensor([[0.0, 5.0, 5.0]]).logsumexp(-1, keepdim=True)[0][None]
    )
    assert block.by_token().candidate_ids.tolist() == [[[3, 1, 0]]]


@pytest.mark.parametrize("slots", [(0, 1), (2,), (-1,)])
def test_slots_must_fit_the_block(slots):
    with pytest.raises(AssertionError, match="slots"):
        DraftBlock.from_logits(
            torch.tensor([1]), torch.zeros(1, 2, 3), slots, torch.zeros(1, 1, 4), 2
        )
