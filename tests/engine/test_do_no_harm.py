"""Stock engines do not notice that vllm-dartree is installed, nor that it was used."""

from __future__ import annotations

import pytest

from tests.engine.harness import Reports
from tests.engine.test_patches import PATCHED

STOCK_RUNNER = "vllm.v1.worker.cpu_model_runner.CPUModelRunner"
STOCK_BACKEND = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
# numba stays imported, and without this repair no stock engine would start beside it.
KERNEL_SCAN = "vllm.triton_utils.dispatcher:vars"
ENGINES = ["stock_before", "ngram", "stock_after", "stock_last"]


@pytest.mark.parametrize("engine", ENGINES)
def test_stock_engines_run_on_the_stock_runner_with_the_same_tokens(
    reports: Reports, engine: str
) -> None:
    report = reports(engine, "harm.tokens")
    assert report["runner"] == STOCK_RUNNER
    assert report["wrong"] == []
    assert report["speculator"] == "NoneType"
    assert report["drafter"] == ("NgramProposer" if engine == "ngram" else "NoneType")


@pytest.mark.parametrize("engine", ["stock_before", "ngram"])
def test_nothing_but_the_entry_point_is_patched_until_dartree_is_asked_for(
    reports: Reports, engine: str
) -> None:
    report = reports(engine, "harm.tokens")
    assert report["applied"] == PATCHED[:1]
    assert report["native_kernels"] == 0
    assert report["backend"] == STOCK_BACKEND
    assert report["kernel"] == "function"


def test_dartree_runs_after_stock_engines_in_the_same_process(reports: Reports) -> None:
    report = reports("dartree_between", "drafter.own_drafts")
    assert report["wrong"] == [] and report["drafted"] > 0


def test_deactivation_leaves_the_repair_of_the_kernel_scan_and_nothing_else(
    reports: Reports,
) -> None:
    report = reports("stock_after", "harm.deactivated")
    assert report["applied"] == [KERNEL_SCAN] and report["native_kernels"] == 0
    assert report["backend"] == STOCK_BACKEND
    assert report["kernel"] == "function"
    assert report["fit"] == {
        target: "applied" if target == KERNEL_SCAN else "fits" for target in PATCHED
    }


def test_a_stock_engine_after_deactivation_finds_no_patch(reports: Reports) -> None:
    report = reports("stock_last", "harm.tokens")
    assert report["applied"] == [KERNEL_SCAN] and report["backend"] == STOCK_BACKEND
