"""The user's options: what is taken, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny_args import tiny_engine_args
from tests.engine_process import run_engine
from vllm_dartree.options import MAX_BUDGET, DartreeOptions, parse_options
from vllm_dartree.tree.builders import BUILDERS

HORIZON, VOCAB = 8, 64


def parse(on_gpu: bool = False, horizon: int = HORIZON, **user: Any) -> DartreeOptions:
    return parse_options(user, horizon=horizon, draft_vocab_size=VOCAB, on_gpu=on_gpu)


def test_defaults_are_the_papers_but_for_the_budget_of_a_cpu() -> None:
    assert parse() == DartreeOptions("pruned", 16, 12, 64, -0.2, HORIZON)
    assert parse(on_gpu=True).budget == 64
    assert parse(on_gpu=True, horizon=16).depth == 16


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("dartree_dept", "dartree_depth"),
        ("dartree_with", "dartree_width"),
        ("dartree_candidate", "dartree_candidates"),
        ("dartree_depth_bonuses", "dartree_depth_bonus"),
        ("dartree_tree", "dartree_token_tree"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"{key}' is unknown; did you mean '{nearest}'"):
        parse(**{key: 3})


def test_unknown_builders_are_refused_with_the_nearest_and_all_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"dartree_builder 'prune'.*'pruned'") as caught:
        parse(dartree_builder="prune")
    assert all(name in str(caught.value) for name in BUILDERS)


@pytest.mark.parametrize(
    "key, value, allowed",
    [
        ("num_speculative_tokens", 0, f"1 to {MAX_BUDGET}"),
        ("num_speculative_tokens", MAX_BUDGET + 1, f"1 to {MAX_BUDGET}"),
        ("num_speculative_tokens", 2.5, "whole number"),
        ("num_speculative_tokens", True, "whole number"),
        ("num_speculative_tokens", "16", "whole number"),
        ("dartree_depth", 0, f"1 to {HORIZON}"),
        ("dartree_depth", HORIZON + 1, f"1 to {HORIZON}"),
        ("dartree_width", 0, "1 to 1024"),
        ("dartree_width", 1025, "1 to 1024"),
        ("dartree_candidates", VOCAB + 1, f"1 to {VOCAB}"),
        ("dartree_candidates", -3, f"1 to {VOCAB}"),
        ("dartree_depth_bonus", 0.1, "-100 to 0"),
        ("dartree_depth_bonus", float("nan"), "-100 to 0"),
        ("dartree_depth_bonus", float("-inf"), "-100 to 0"),
        ("dartree_depth_bonus", "-0.1", "-100 to 0"),
    ],
)
def test_values_out_of_range_are_refused_with_value_and_range(
    key: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError) as caught:
        parse(**{key: value})
    assert f"{key}={value!r}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("budget", [1, 2, 16, 64, 128, MAX_BUDGET])
@pytest.mark.parametrize("builder", sorted({*BUILDERS} - {"static"}))
def test_B48_budgets_up_to_the_limit_are_kept_or_cut_to_the_supertree(
    builder: str, budget: int
) -> None:
    options = parse(num_speculative_tokens=budget, dartree_builder=builder)
    most = {"chain": HORIZON, "pruned": 12 * HORIZON}.get(builder, MAX_BUDGET)
    assert options.budget == min(budget, most)


def test_B48_a_budget_over_the_limit_names_the_limit() -> None:
    with pytest.raises(ValueError, match=r"num_speculative_tokens=257 .* from 1 to 256"):
        parse(num_speculative_tokens=257)


def test_B48_wider_than_the_vocabulary_is_no_error() -> None:
    assert parse(dartree_width=1000, num_speculative_tokens=256).budget == 256
    assert parse(dartree_width=1000, dartree_depth=1, num_speculative_tokens=256).budget == VOCAB


def test_B48_depth_one_verifies_no_more_than_one_depth_can_hold() -> None:
    assert parse(dartree_depth=1, num_speculative_tokens=64).budget == 12
    assert parse(dartree_depth=1, dartree_builder="chain").budget == 1


def test_chain_clamps_the_budget_to_its_depth() -> None:
    assert parse(dartree_builder="chain", num_speculative_tokens=64).budget == HORIZON
    assert parse(dartree_builder="chain", num_speculative_tokens=3).budget == 3
    assert parse(dartree_builder="chain", dartree_depth=5).budget == 5


def test_static_takes_its_budget_from_the_tree() -> None:
    options = parse(dartree_builder="static", dartree_token_tree="[(0,), (1,), (0, 0)]")
    assert options.budget == 3
    assert options.token_tree == ((0,), (1,), (0, 0))


@pytest.mark.parametrize(
    "user, words",
    [
        ({"dartree_builder": "static"}, "needs a token tree"),
        (
            {
                "dartree_builder": "static",
                "dartree_token_tree": [(0,), (1,), (0, 0)],
                "num_speculative_tokens": 2,
            },
            "lists 3 nodes, but num_speculative_tokens allows 2",
        ),
        ({"dartree_token_tree": "[(0,)]"}, "no other builder takes one"),
        ({"dartree_builder": "static", "dartree_token_tree": "[(0, 0)]"}, "add (0,)"),
        ({"dartree_builder": "static", "dartree_token_tree": "(0"}, "not a Python literal"),
        (
            {"dartree_builder": "static", "dartree_token_tree": [(0,), (0, 0)], "dartree_depth": 1},
            "path of length 2, the drafter drafts 1 deep",
        ),
    ],
)
def test_static_trees_that_do_not_fit_are_refused(user: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(**user)
    assert words in str(caught.value)


def test_static_trees_over_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="lists 300 nodes, but num_speculative_tokens allows 256"):
        parse(dartree_builder="static", dartree_token_tree=[(i,) for i in range(300)])


def test_options_survive_the_way_to_other_processes() -> None:
    for options in (
        parse(),
        parse(dartree_builder="static", dartree_token_tree="[(0,), (1,), (0, 0)]"),
    ):
        assert DartreeOptions.from_json(options.to_json()) == options


def configured(target: str, drafter: str, given: list[dict[str, Any]]) -> list[Any]:
    """Budget and builder, or the error, for ways of giving options to ``EngineArgs``."""
    from vllm_dartree import register
    from vllm_dartree.engine.payload import payload_of

    register()
    results: list[Any] = []
    for arguments in given:
        for key, value in arguments.items():
            if value == "DRAFTER":
                arguments[key] = drafter
        if arguments.get("speculative_config", {}).get("model") == "DRAFTER":
            arguments["speculative_config"]["model"] = drafter
        try:
            config = tiny_engine_args(target, **arguments).create_engine_config()
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
            continue
        speculative = config.speculative_config
        options = payload_of(speculative).options
        results.append(
            {
                "budget": options.budget,
                "builder": options.builder,
                "planned": speculative.num_speculative_tokens,
                "lookahead": config.num_lookahead_tokens,
                "model": speculative.model == drafter,
            }
        )
    return results


def test_options_arrive_as_a_dictionary_as_flags_and_mixed(tmp_path: Path) -> None:
    from tests.engine.checkpoints import write_all

    directories = write_all(tmp_path, {"full", "tiny"})
    pair = {"method": "dartree", "model": "DRAFTER"}
    ways = {
        "dictionary": {"speculative_config": {**pair, "num_speculative_tokens": 9}},
        "dashes": {"speculative_config": {**pair, "num-speculative-tokens": 9}},
        "flags": {"spec_method": "dartree", "spec_model": "DRAFTER", "spec_tokens": 9},
        "mixed": {
            "spec_method": "dartree",
            "spec_tokens": 9,
            "speculative_config": {"model": "DRAFTER", "dartree_builder": "fixed"},
        },
        "twice": {"spec_tokens": 4, "speculative_config": {**pair, "num_speculative_tokens": 9}},
        "no model": {"speculative_config": {"method": "dartree"}},
        "misspelt": {"speculative_config": {**pair, "num_speculative_token": 9}},
        "misspelt ours": {"speculative_config": {**pair, "dartree_widht": 9}},
        "sampled drafts": {
            "speculative_config": {**pair, "draft_sample_method": "probabilistic"},
        },
        "too many": {"speculative_config": {**pair, "num_speculative_tokens": 257}},
        "chain": {"speculative_config": {**pair, "dartree_builder": "chain"}},
    }
    given = list(ways.values())
    results = run_engine(
        configured, target=directories["full"], drafter=directories["tiny"], given=given
    )
    said = dict(zip(ways, results, strict=True))
    nine = {"budget": 9, "builder": "pruned", "planned": 9, "lookahead": 8, "model": True}
    assert said["dictionary"] == said["dashes"] == said["flags"] == nine
    assert said["mixed"] == nine | {"builder": "fixed"}
    assert "num_speculative_tokens given both as a flag and in" in said["twice"]
    assert 'needs "model"' in said["no model"]
    assert "did you mean 'num_speculative_tokens'" in said["misspelt"]
    assert "did you mean 'dartree_width'" in said["misspelt ours"]
    assert "draft_sample_method='probabilistic'" in said["sampled drafts"]
    assert "allowed: 'greedy'" in said["sampled drafts"]
    assert "num_speculative_tokens=257 must be a whole number from 1 to 256" in said["too many"]
    assert said["chain"]["budget"] == said["chain"]["planned"] == HORIZON
