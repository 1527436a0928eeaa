"""The KV cache after every step, for target and drafter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.harness import Reports

ROUNDING = 1e-5  # float32 sums of the same products in another order


@pytest.mark.parametrize("engine", ["inside", "windowed", "windowed_one_group"])
def test_B01_every_position_holds_what_a_fresh_prefill_writes(
    reports: Reports, engine: str
) -> None:
    """All steps of three requests, all layers of the target; blocks a window gave back are out."""
    _check_contents(reports(engine, "cache.contents:zigzag"), "target")


def test_B01_second_siblings_too(reports: Reports) -> None:
    _check_contents(reports("inside", "cache.contents:second"), "target")


@pytest.mark.parametrize("engine", ["inside", "windowed", "windowed_one_group"])
def test_B15_the_drafter_s_context_is_what_a_fresh_prefill_writes(
    reports: Reports, engine: str
) -> None:
    _check_contents(reports(engine, "cache.contents:zigzag"), "draft")


def _check_contents(report: dict[str, Any], kind: str) -> None:
    assert report["wrong"] == []
    assert report["steps"] > 20 and report["positions"] > 1500
    assert len(report["layers"][kind]) == 2
    assert report["worst"][kind] < ROUNDING


def test_B01_bfloat16_caches_hold_the_accepted_path(reports: Reports) -> None:
    """Rounding differs by a few units of 2**-8; another token's keys would differ by whole ones."""
    report = reports("bfloat16", "cache.contents_in_bfloat16")
    assert report["drafted"] > 0 and report["rounds"] < report["steps"]
    assert report["positions"] > 1000 and report["dtype"] == "torch.bfloat16"
    assert max(report["worst"].values()) < 0.3


def test_B15_the_drafter_gets_the_hidden_states_of_the_accepted_path(reports: Reports) -> None:
    """Against transformers' own run; one request accepts all, one nothing, one changes branches."""
    report = reports("inside", "drafter.context")
    assert report["wrong"] == []
    assert report["steps"] > 50 and report["rows"] > 150
    assert report["worst"] < ROUNDING * report["largest"]


def test_what_earlier_requests_left_in_the_cache_is_not_read(reports: Reports) -> None:
    report = reports("inside", "cache.leftovers")
    assert report["wrong"] == []
    assert report["drafted"] > 0 and 0 < report["rounds"] < 3 * 70


def test_B30_writes_go_to_unshared_blocks_of_running_requests(reports: Reports) -> None:
    """B = 16 nodes over 8 depths; sequences that end at 15 mod 16 and at the model's limit."""
    report = reports("inside", "cache.slots")
    assert report["writes"] > 0
    assert report["strangers"] == []


def test_B30_all_blocks_come_back(reports: Reports) -> None:
    report = reports("inside", "cache.slots")
    assert report["free_after"] == report["free_before"]


def test_B27_hits_and_tokens_equal_stock_vllm(reports: Reports) -> None:
    ours, stock = reports("inside", "prefixes.hits"), reports("plain", "prefixes.hits")
    for key in ("name", "tokens", "hits"):
        assert [entry[key] for entry in ours] == [entry[key] for entry in stock]
    assert {entry["name"]: entry["hits"] for entry in ours} == {
        "first": 0,
        "continued": 96,
        "one block": 0,
        "one block and a token": 32,
        "two blocks": 32,
        "two blocks and a token": 64,
        "again": 64,
    }
    assert all(entry["drafted"] > 0 for entry in ours)


def test_B27_found_blocks_hold_what_a_fresh_prefill_writes(reports: Reports) -> None:
    """Target and drafter: a block that trees filled, found by a later request."""
    report = reports("inside", "prefixes.contents")
    assert report["hits"] == 96 and report["steps"] > 4
    assert len(report["worst"]) == 4
    assert max(report["worst"].values()) < ROUNDING
