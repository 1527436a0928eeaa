"""Drafts arrive whether engine core and worker share a process or not."""

from __future__ import annotations

import pytest

from tests.engine.harness import Reports


@pytest.mark.parametrize("shape", ["zigzag", "second"])
def test_B34_drafts_reach_the_scheduler_across_processes(reports: Reports, shape: str) -> None:
    report = reports("processes", f"processes.drafts:{shape}")
    assert report["wrong"] == []
    assert report["drafted"] > 0
    assert report["rounds"] < 15  # 60 tokens each
    counts = report["metrics"]
    assert counts["vllm:spec_decode_num_draft_tokens"] > 0
    assert counts["vllm:spec_decode_num_accepted_tokens"] > 150


def test_B34_drafts_reach_the_scheduler_in_one_process(reports: Reports) -> None:
    report = reports("block32", "matrix.shape:zigzag")["8"]
    assert report["wrong"] == [] and report["drafted"] > 0
    assert report["tokens_per_round"] > 5
