"""Greedy output equals stock vLLM's for every oracle, batch size and block size."""

from __future__ import annotations

import pytest

from tests.engine.harness import Reports
from tests.engine.oracles import SHAPES

NEAR_TIE = 1e-4  # logits closer than this may be ordered differently by another kernel

# Tokens per round and request that each oracle earns in batches of one; J = 8, B = 16.
EARNED = {
    "perfect": (8.5, 9.0),
    "second": (8.5, 9.0),
    "zigzag": (5.5, 6.5),
    "never": (1.0, 1.0),
    "until_depth": (2.9, 3.0),
    "duplicate": (8.5, 9.0),
    "short": (4.0, 6.0),
    "bushy": (1.5, 4.0),
}


def test_no_answer_of_stock_vllm_is_a_near_tie(reports: Reports) -> None:
    answers = reports("plain", "plain.answers") + reports("plain_windowed", "plain.answers")
    assert [a["prompt"] for a in answers if a["min_gap"] < NEAR_TIE] == []


def test_stock_answers_come_from_the_v1_runner_without_the_plugin(reports: Reports) -> None:
    assert reports("plain", "plain.runner_class") == {
        "runner": "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        "wrapped": False,
    }


@pytest.mark.parametrize("engine", ["block32", "block128"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_B01_tokens_equal_stock_vllm(
    reports: Reports, engine: str, batch_size: int, shape: str
) -> None:
    report = reports(engine, f"matrix.shape:{shape}")[str(batch_size)]
    assert report["wrong"] == []
    assert report["drafted"] > 0
    assert report["fewest_rounds"] >= 20
    assert report["blocks_spanned"] >= 3


@pytest.mark.parametrize("engine", ["block32", "block128"])
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_tokens_per_round_are_what_the_oracle_earns(
    reports: Reports, engine: str, shape: str
) -> None:
    low, high = EARNED[shape]
    assert low <= reports(engine, f"matrix.shape:{shape}")["1"]["tokens_per_round"] <= high
