"""The drafter inside the engine says what the same drafter says in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.groups import DRAFTERS
from tests.engine.harness import Reports

ROUNDING = 1e-5  # of the largest logit: float32 sums in another order, through several layers
ENGINES = ["inside", *(job.name for job in DRAFTERS)]

BUDGETS = {
    "dspark_2": 2,
    "dspark_gated_128": 96,  # the whole supertree: 12 per depth, 8 deep
    "dspark_rnn_64": 64,  # W = 100 > V
    "dflash_256": 256,
    "speculators_dspark_one_plus_n_1": 1,
    "speculators_dflash_16": 12,  # depth 1: 12 nodes at most
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("acceptance", ["perfect", "until_depth", "never"])
def test_B37_base_logits_equal_the_reference_drafter_s(
    reports: Reports, engine: str, acceptance: str
) -> None:
    """Blocks after the prefill, after acceptance, and after rejection at depth 0 and 2."""
    report = _parity(reports, engine)[acceptance]
    assert len(report["worst_by_block"]) >= 8
    assert max(report["worst_by_block"]) < ROUNDING * report["largest"]


@pytest.mark.parametrize("engine", ENGINES)
def test_B37_tokens_under_oracles_equal_stock_vllm(reports: Reports, engine: str) -> None:
    report = reports(engine, "drafter.parity")
    assert report["wrong"] == []


def test_B37_a_drafter_that_is_always_right_earns_depth_plus_one(reports: Reports) -> None:
    blocks = _parity(reports, "inside")["perfect"]["worst_by_block"]
    # 30 tokens each for two requests: one from the prefill, then 9 per round.
    assert len(blocks) == 2 * (1 + 4)


def _parity(reports: Reports, engine: str) -> dict[str, Any]:
    return reports(engine, "drafter.parity")["blocks"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_dialect_s_own_trees_leave_the_text_alone(reports: Reports, engine: str) -> None:
    report = reports(engine, "drafter.own_drafts")
    assert report["wrong"] == []
    assert report["drafted"] > 0
    assert 0 < report["rounds"] <= 39


@pytest.mark.parametrize("engine, budget", BUDGETS.items())
def test_B48_engines_run_at_every_budget_or_with_fewer_nodes(
    reports: Reports, engine: str, budget: int
) -> None:
    report = reports(engine, "drafter.own_drafts")
    assert report["budget"] == report["max_tree"] == budget
    assert report["drafted"] > 0


@pytest.mark.parametrize("batch_size", ["1", "3", "8"])
@pytest.mark.parametrize("engine", ["block32", "block128"])
def test_B38_the_same_token_twice_under_one_parent(
    reports: Reports, engine: str, batch_size: str
) -> None:
    report = reports(engine, "matrix.shape:duplicate")[batch_size]
    assert report["wrong"] == [] and report["drafted"] > 0
    assert report["fewest_rounds"] < 30  # the first of the twins goes on, to depth 8
