"""Batches that mix trees of all sizes with prefills, and requests that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.harness import Reports

B = 16


def _check(report: dict[str, Any]) -> None:
    assert report["wrong"] == []
    assert report["drafted"] > 0
    assert 0 < report["rounds"] < report["tokens"]
    assert report["more_nodes_than_planned"] == []


def test_B05_short_prompts_are_no_trees(reports: Reports) -> None:
    """Prompts of 1..B+2 tokens, prefilled beside trees, as a whole or in chunks."""
    report = reports("small_steps", "batches.short_prompts")
    _check(report)
    assert set(report["short_prefills_beside_trees"]) >= {1, 2, 3, 4, 5, 6, 7, 8}


def test_B05_chunks_of_long_prompts_are_no_trees(reports: Reports) -> None:
    report = reports("small_steps", "batches.chunked_prefills")
    _check(report)
    assert len(report["short_prefills_beside_trees"]) > 3


def test_B06_a_step_too_small_for_all_trees_cuts_them(reports: Reports) -> None:
    """64 tokens per step; three requests want 17 rows each and 7 more to draft."""
    report = reports("small_steps", "batches.tight_budget")
    _check(report)
    assert report["truncated_trees"] > 3
    assert report["rounds"] < 60 / 5


@pytest.mark.parametrize("engine", ["inside", "small_steps"])
def test_B06_requests_reach_the_end_of_the_model_s_length(reports: Reports, engine: str) -> None:
    report = reports(engine, "batches.near_the_end")
    _check(report)
    assert report["lengths"] == [3, 10, 40]
    assert report["finish_reasons"] == ["length"] * 3
    assert report["truncated_trees"] > 3


def test_B17_requests_leave_and_join_and_keep_their_own_trees(reports: Reports) -> None:
    """Eight requests with an oracle of their own each; two join while others finish."""
    report = reports("inside", "batches.condensing")
    assert report["wrong"] == []
    assert (report["finished"], report["joined_late"]) == (8, 2)
    assert report["drafted"] > 0 and report["rounds"] < 70


@pytest.mark.parametrize("max_tokens", range(1, B + 3))
def test_B23_never_more_than_max_tokens(reports: Reports, max_tokens: int) -> None:
    alone = reports("inside", "batches.max_tokens")["alone"][max_tokens - 1]
    assert alone["wrong"] == []
    assert alone["lengths"] == [max_tokens]
    # One token from the prefill, nine per round.
    assert alone["rounds"] == -(-(max_tokens - 1) // 9)


def test_B23_limits_of_one_batch_do_not_mix(reports: Reports) -> None:
    report = reports("inside", "batches.max_tokens")
    _check(report["together"])
    assert report["together"]["lengths"] == report["limits"]


def test_B23_trees_of_no_node_one_node_and_B_nodes_in_one_batch(reports: Reports) -> None:
    report = reports("inside", "batches.tree_sizes")
    _check(report)
    sizes = [set(sizes) for sizes in report["tree_sizes"]]
    assert {0, 1, B} in sizes


def test_vllm_s_own_schedule_shrinks_trees_by_batch_size(reports: Reports) -> None:
    """A plan of fewer drafts is a smaller tree, and the best one of its size."""
    report = reports("shrinking", "batches.shrinking")
    assert report["wrong"] == [] and report["drafted"] > 0
    assert report["rounds"] < 80 / 2
    assert [max(report["planned"][size]) for size in ("4", "3", "2", "1")] == [4, 9, 9, 16]


def test_stop_tokens_end_requests_in_the_middle_of_an_accepted_path(reports: Reports) -> None:
    report = reports("inside", "batches.stops")
    assert report["drafted"] > 0
    assert report["got"] == report["expected"]
    assert report["finish_reasons"] == ["stop"] * 4


@pytest.mark.parametrize("priorities", ["equal", "mixed"])
def test_B25_preempted_requests_go_on_as_if_nothing_happened(
    reports: Reports, priorities: str
) -> None:
    report = reports("few_blocks", f"lifecycle.preemptions:{priorities}")
    assert report["preemptions"] > 3
    assert report["wrong"] == []
    assert report["drafted"] > 0
    assert report["free_after"] == report["free_before"]


@pytest.mark.parametrize("priorities", ["equal", "mixed"])
def test_B25_preemption_drops_the_tree(reports: Reports, priorities: str) -> None:
    report = reports("few_blocks", f"lifecycle.preemptions:{priorities}")
    assert report["drafts_of_preempted"] == 0
    assert report["joined"] == 4 + report["preemptions"]
    assert report["nodes_after_joining"] == 0


def test_B26_asynchronous_scheduling_is_off_on_a_cpu_though_asked_for(reports: Reports) -> None:
    report = reports("processed", "batches.inputs")
    assert report["asynchronous"] is False
    assert report["scheduler"] == "Scheduler"


def test_B26_placeholders_never_reach_the_target(reports: Reports) -> None:
    report = reports("processed", "batches.inputs")
    assert report["placeholders"] > 0
    assert report["ids"][0] >= 0 and report["ids"][1] < report["vocab_size"]
    assert report["positions"][0] == 0 and report["positions"][1] < 512


def test_B26_requests_that_a_step_leaves_out_lose_nothing(reports: Reports) -> None:
    """At most three of eight fit into a step of 64 tokens."""
    report = reports("small_steps", "batches.short_prompts")
    _check(report)
    assert max(len(sizes) for sizes in report["tree_sizes"]) <= 3


def test_B29_aborts_at_any_step_and_names_used_again(reports: Reports) -> None:
    report = reports("small_steps", "lifecycle.aborts")
    assert report["aborted"] > 100 and report["finished"] > 20
    assert report["wrong"] == []
    assert report["free_after"] == report["free_before"]
