"""From the tokens drawn at the rows to the tokens emitted."""

from __future__ import annotations

import pytest
import torch

from tests.engine.harness import Reports
from tests.engine.tree_batches import BRANCHED, step_with

pytest.importorskip("vllm")

from vllm_dartree.engine.rejection_sampler import _emitted, accept, path_first

NOWHERE = 50  # a token that no node has


def test_B07_bonus_comes_from_the_deepest_accepted_row_of_each_request() -> None:
    """Three requests with trees of different sizes and one without; no leaf is the last node."""
    state = step_with([BRANCHED, BRANCHED[:1], BRANCHED[:3]], [7, 9, 40], num_others=1)
    drawn = torch.tensor(
        # rows:  root 1   2   3   4   5   6 | root 1 | root 1   2   3 | another request
        [12, 21, 15, 23, 24, 25, 26, NOWHERE, 31, 13, 41, 42, 43, 60]
    )
    verdict = accept(state.batch, drawn, state.depth)
    tokens, num_sampled = _emitted(state.batch, verdict, drawn, num_reqs=4)
    emitted = [row[:n].tolist() for row, n in zip(tokens, num_sampled.tolist(), strict=True)]
    assert emitted == [[12, 15, 25], [NOWHERE], [13, 43], [60]]
    assert verdict.sources[0, :3].tolist() == [0, 2, 5]


def test_B07_a_request_with_rows_but_no_nodes_emits_the_root_s_draw() -> None:
    state = step_with([[], BRANCHED], [3, 8], num_drafts=[6, 6])
    drawn = torch.cat([torch.arange(10, 17), torch.tensor([11, NOWHERE, 1, 2, 3, 4, 5])])
    verdict = accept(state.batch, drawn, state.depth)
    tokens, num_sampled = _emitted(state.batch, verdict, drawn, num_reqs=2)
    assert num_sampled.tolist() == [1, 2]
    assert tokens[:, :2].tolist() == [[10, -1], [11, NOWHERE]]


def test_B14_rows_of_emitted_tokens_come_first_in_path_order() -> None:
    state = step_with([BRANCHED, BRANCHED[:3]], [7, 9], num_others=2)
    drawn = torch.tensor([12, 1, 15, 1, 1, 16, NOWHERE, NOWHERE, 1, 1, 1, 1, 1])
    verdict = accept(state.batch, drawn, state.depth)
    order = path_first(verdict, len(drawn)).tolist()
    assert order[:4] == [0, 2, 5, 6]
    assert order[7] == 7 and order[11:] == [11, 12]
    assert torch.equal(drawn[order[:4]], torch.tensor([12, 15, 16, NOWHERE]))


def test_B19_accept_leaves_its_inputs_as_they_were_and_repeats() -> None:
    state = step_with([BRANCHED, BRANCHED[:3]], [7, 9])
    drawn = torch.tensor([12, 1, 15, 1, 1, 16, NOWHERE, NOWHERE, 1, 1, 1])
    snapshot = drawn.clone(), state.batch.tree.tokens.clone(), state.batch.rows.clone()
    first, again = accept(state.batch, drawn, 6), accept(state.batch, drawn, 6)
    assert torch.equal(first.sources, again.sources)
    after = drawn, state.batch.tree.tokens, state.batch.rows
    assert all(torch.equal(a, b) for a, b in zip(snapshot, after, strict=True))


def test_B19_sampling_leaves_logits_as_they_were_and_repeats(reports: Reports) -> None:
    report = reports("inside", "sampler.purity")
    assert report["calls"] > 0 and report["drafted"] > 0
    assert report["changed"] == 0
    assert report["different"] == 0


@pytest.mark.parametrize("kind", ["nan", "-inf", "one finite"])
def test_B18_broken_rows_give_a_token_of_the_vocabulary(reports: Reports, kind: str) -> None:
    """All rows of one request are broken; the other request does not notice."""
    report = reports("inside", f"sampler.broken_rows:{kind}")
    assert report["steps_broken"] > 3
    assert report["outside"] == []
    assert report["length"] == 30
    assert report["neighbour_wrong"] == []
    assert report["drafted"] > 0
    if kind == "one finite":
        assert set(report["tokens"][1:]) == {report["finite_token"]}
    else:
        assert set(report["tokens"][1:]) == {0}
