"""What the target computes at the nodes of a tree, and what the drafter's attention knows of it."""

from __future__ import annotations

import pytest

from tests.engine.harness import Reports


def test_B03_siblings_share_a_position_but_no_slot(reports: Reports) -> None:
    report = reports("inside", "trees.nodes")
    assert report["siblings"] > 100
    assert report["wrong_positions"] == []
    assert report["shared_slots"] == []


def test_B03_a_node_s_logits_are_those_of_a_causal_run_of_its_path(reports: Reports) -> None:
    """Random trees in random valid orders, against transformers' own model."""
    report = reports("inside", "trees.nodes")
    assert report["wrong"] == [] and report["nodes"] > 300
    assert report["worst"] < 1e-4


def test_B04_a_token_changes_its_own_and_its_descendants_logits_only(reports: Reports) -> None:
    """Exactly: whoever is not below the changed node has bit-identical logits."""
    report = reports("inside", "trees.influence")
    assert report["unexpected"] == []
    assert report["changed"] > 30 and report["unchanged"] > 150


@pytest.mark.parametrize("engine, groups", [("inside", 1), ("windowed_one_group", 1)])
def test_B16_tree_metadata_reaches_the_target_s_layers_only(
    reports: Reports, engine: str, groups: int
) -> None:
    _check_metadata(reports, engine, groups)


def test_B16_more_kv_groups_than_one(reports: Reports) -> None:
    _check_metadata(reports, "windowed", 4)


def _check_metadata(reports: Reports, engine: str, groups: int) -> None:
    report = reports(engine, "drafter.metadata")
    assert report["drafted"] > 0 and report["groups"] == groups
    assert report["kinds"] == {
        "draft": ["CPUAttentionMetadata"],
        "target": ["TreeAttentionMetadata"],
    }
    assert report["layers"] == {"draft": report["draft_layers"], "target": report["target_layers"]}


def test_B16_the_tree_s_shape_does_not_change_what_is_drafted_from_the_same_root(
    reports: Reports,
) -> None:
    report = reports("inside", "drafter.independence")
    assert report["compared"] > 10
    assert report["worst"] < 1e-5 * report["largest"]


@pytest.mark.parametrize("shape", ["second", "zigzag", "bushy"])
@pytest.mark.parametrize("engine", ["windowed", "windowed_one_group"])
def test_B45_a_sliding_window_counts_positions(reports: Reports, engine: str, shape: str) -> None:
    """Window 16, less than B + 1 rows; one KV group per kind of layer, or one for both."""
    for batch in reports(engine, f"matrix.shape:{shape}").values():
        assert batch["wrong"] == []
        assert batch["drafted"] > 0 and batch["fewest_rounds"] >= 20
        assert batch["tokens_per_round"] > 2
