"""The demo's own arithmetic, without an engine: what counts as the same, and what is reported."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LICENCES = {"gsm8k": "MIT", "human_eval": "MIT", "mt_bench": "Apache-2.0"}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the examples, which are scripts and no package."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def _run(tokens: list[list[int]], seconds: float, drafts: int = 0, accepted: int = 0) -> dict:
    stages = {"target": 3 * seconds / 4, "draft": seconds / 4} if drafts else {}
    return {
        "tokens": tokens,
        "seconds": seconds,
        "drafts": drafts,
        "accepted": accepted,
        "stages": stages,
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([], [1], 0),
    ],
)
def test_answers_differ_where_a_token_or_the_end_does(
    example: Any, one: list[int], other: list[int], expected: int | None
) -> None:
    assert example("divergences").first_difference(one, other) == expected


def test_speed_up_is_a_ratio_of_medians_and_every_round_has_to_be_identical(example: Any) -> None:
    plain = [[1, 2, 3], [4, 5, 6]]
    results = {
        ("plain", 1): [_run(plain, 2.0), _run(plain, 2.0), _run(plain, 8.0)],
        ("pruned", 1): [
            _run(plain, 1.0, drafts=2, accepted=2),
            _run([[1, 2, 3], [4, 9, 6]], 1.0, drafts=2, accepted=4),
            _run(plain, 1.0, drafts=2, accepted=0),
        ],
    }
    stock, trees = example("offline_report").summarise(results)
    assert stock.speed_up == 1 and stock.identical == 2
    assert stock.tokens_per_round is None and stock.target_share is None
    assert trees.speed_up == 2
    assert trees.tokens_per_round == 1 + 6 / 6
    assert trees.target_share == 0.75
    assert trees.identical == 1


def test_a_divergence_carries_both_tokens_and_the_gap_of_plain_vllm(example: Any) -> None:
    class PlainEngine:
        def call(self, operation: str, prompt: list[int], count: int) -> dict[int, float]:
            assert (operation, prompt, count) == ("top_logprobs", [7, 1], 2)
            return {2: -0.50, 9: -0.75}

    class Tokenizer:
        def decode(self, tokens: list[int]) -> str:
            return " ".join(map(str, tokens))

    results = {("plain", 8): [_run([[1, 2]], 1.0)], ("chain", 8): [_run([[1, 9]], 1.0)] * 2}
    [found] = example("divergences").find_divergences(PlainEngine(), [[7]], results, Tokenizer())
    assert (found.configuration, found.batch_size, found.prompt, found.token) == ("chain", 8, 0, 1)
    assert (found.plain, found.other, found.gap) == ("2", "9", 0.25)


def test_results_are_json(example: Any) -> None:
    report = example("offline_report")
    rows = report.summarise({("plain", 1): [_run([[1]], 1.0)]})
    args = Namespace(dtype="float32", max_tokens=1, rounds=1, drafter=Path("some/drafter"))
    written = json.loads(json.dumps(report.to_json(rows, [], args)))
    assert written["results"][0]["configuration"] == "plain"
    assert written["environment"]["cores"] > 0


def test_the_shipped_prompts_are_evaluation_prompts_as_in_their_sets(example: Any) -> None:
    shipped = [json.loads(line) for line in (EXAMPLES / "demo_prompts.jsonl").open()]
    prompts = example("prompts")
    everything = [*prompts.gsm8k(), *prompts.human_eval(), *prompts.mt_bench()]
    texts = {prompt.id: prompt.text for prompt in everything}
    assert len(shipped) >= 8 and len({entry["id"] for entry in shipped}) == len(shipped)
    for entry in shipped:
        assert entry["text"] == texts[entry["id"]]
        assert entry["licence"] == LICENCES[entry["kind"]]
        assert prompts.is_held_out(prompts.Prompt(entry["id"], entry["kind"], entry["text"]))
