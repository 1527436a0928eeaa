"""What single requests may ask for: exact, or refused before they are admitted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.harness import Reports
from tests.engine.request_options import CONSTRAINTS, REFUSED

TOLERANCE = 1e-4  # of log-probabilities: another kernel's rounding, through the log-softmax
PAIRS = [("small_steps", "plain_raw"), ("processed", "plain_processed")]


@pytest.mark.parametrize("option", REFUSED)
def test_B20_refused_options_are_named_with_their_value(reports: Reports, option: str) -> None:
    report = reports("inside", f"requests.refused:{option}")
    assert report["kinds"] == ["UnsupportedOption"] * 2
    value = REFUSED[option]
    for message in report["messages"]:
        assert "method 'dartree'" in message and "allowed:" in message
        if option == "structured_outputs":
            assert f"{option}=StructuredOutputsParams" in message
        else:
            assert f"{option}={value!r}" in message


@pytest.mark.parametrize("option", REFUSED)
def test_B20_others_go_on_beside_a_refused_request(reports: Reports, option: str) -> None:
    report = reports("inside", f"requests.refused:{option}")
    assert report["good"] and report["alive"]
    assert report["others"] == []
    assert report["drafted"] > 0


@pytest.mark.parametrize("ours, stock", PAIRS)
def test_B14_tokens_with_logprobs_equal_stock_vllm(reports: Reports, ours: str, stock: str) -> None:
    entries, expected = _both(reports, ours, stock)
    assert [e["tokens"] for e in entries] == [e["tokens"] for e in expected]
    assert entries[0]["drafted"] > 0 and entries[0]["rounds"] < 39


@pytest.mark.parametrize("ours, stock", PAIRS)
@pytest.mark.parametrize("kind", ["logprobs", "prompt_logprobs"])
def test_B14_logprobs_are_those_of_the_emitted_tokens(
    reports: Reports, ours: str, stock: str, kind: str
) -> None:
    """One entry per token, with the same ids, ranks and, within rounding, values."""
    some = 0
    for entry, expected in zip(*_both(reports, ours, stock), strict=True):
        if expected[kind] is None:
            assert entry[kind] is None
            continue
        assert len(entry[kind]) == len(expected[kind])
        if kind == "logprobs":
            assert len(entry[kind]) == len(entry["tokens"])
        for found, wanted in zip(entry[kind], expected[kind], strict=True):
            some += _check_position(found, wanted)
    assert some > 30


def _check_position(found: Any, wanted: Any) -> int:
    if wanted is None:  # the first token of a prompt
        assert found is None
        return 0
    assert found.keys() == wanted.keys()
    for token, (value, rank) in wanted.items():
        assert abs(found[token][0] - value) < TOLERANCE
        assert found[token][1] == rank
    return 1


@pytest.mark.parametrize("ours, stock", PAIRS)
def test_B14_cumulative_logprob_adds_up(reports: Reports, ours: str, stock: str) -> None:
    for entry, expected in zip(*_both(reports, ours, stock), strict=True):
        if expected["cumulative"] is None:
            assert entry["cumulative"] is None
        else:
            assert abs(entry["cumulative"] - expected["cumulative"]) < 40 * TOLERANCE


def _both(reports: Reports, ours: str, stock: str) -> tuple[list[Any], list[Any]]:
    return reports(ours, "requests.logprobs"), reports(stock, "requests.logprobs")


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_that_hold_for_every_row_are_exact(reports: Reports, name: str) -> None:
    scenario = f"requests.constrained:{name}"
    for ours, stock in zip(reports("inside", scenario), reports("plain", scenario), strict=True):
        assert ours["without_trees"] == ours["with_trees"] == stock["without_trees"]
        assert ours["tree_reasons"] == stock["reasons"]
        assert ours["drafted"] > 0
        assert ours["rounds"] < max(map(len, ours["with_trees"]))
