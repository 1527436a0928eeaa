"""Every dialect is recognised and lands in the same canonical form."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.models.dialects import DIALECTS, TARGET, TINY, edit, load_tensors
from vllm_dartree.models import DrafterSpec, canonical_weights, check_fits_target, read_drafter
from vllm_dartree.models.tensors import expected_shapes

B = TINY.block
SHIFTED, FULL, UNSHIFTED = (0, B - 1), (0, B), (1, B)

# dialect: family, head, (first slot, end slot), prefix, reduced vocabulary, ships embed, lm_head
EXPECTED = {
    "dflash": ("dflash", "none", UNSHIFTED, 0, False, False, False),
    "dflash_nested": ("dflash", "none", UNSHIFTED, 0, False, False, False),
    "domino": ("domino", "domino", FULL, 1, False, False, False),
    "domino_unshifted": ("domino", "domino", UNSHIFTED, 1, False, False, False),
    "domino_prefixed": ("domino", "domino", FULL, 1, False, False, False),
    "speculators_domino_submode": ("domino", "domino", SHIFTED, 1, True, False, True),
    "speculators_domino": ("domino", "domino", FULL, 1, False, False, False),
    "dspark_specforge": ("dspark", "vanilla", FULL, 0, False, False, False),
    "dspark_hybrid": ("dspark", "vanilla", FULL, 0, False, False, False),
    "dspark": ("dspark", "vanilla", FULL, 0, False, True, True),
    "dspark_gated": ("dspark", "gated", FULL, 0, False, True, True),
    "dspark_rnn": ("dspark", "rnn", FULL, 0, False, True, True),
    "deepspec_dflash": ("dspark", "none", FULL, 0, False, True, True),
    "speculators_dflash": ("dflash", "none", UNSHIFTED, 0, True, False, True),
    "speculators_dspark": ("dspark", "gated", FULL, 0, True, False, True),
    "speculators_dspark_one_plus_n": ("dspark", "rnn", UNSHIFTED, 0, False, True, True),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialect_is_read_into_canonical_form(dialect: str, tmp_path: Path) -> None:
    spec = read_drafter(DIALECTS[dialect](tmp_path))
    family, head, slots, prefix, reduced, embed, lm_head = EXPECTED[dialect]
    assert spec.family == family
    assert (spec.markov_head_type or spec.head) == head
    assert spec.slots == tuple(range(*slots))
    assert spec.horizon == len(spec.slots)
    assert spec.pure_draft_prefix_len == prefix
    assert spec.draft_vocab_size == (TINY.draft_vocab if reduced else TINY.vocab)
    assert (spec.has_embed, spec.has_lm_head) == (embed, lm_head)
    assert spec.block_size == B
    assert spec.target_layer_ids == TINY.layer_ids
    assert spec.mask_token_id == TINY.mask
    assert spec.head_dim == TINY.head_dim
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": TINY.rope_theta}
    assert not any(spec.layer_is_causal(i) for i in range(spec.num_hidden_layers))
    sizes = (spec.gru_hidden_dim, spec.emb_dim, spec.markov_rank)
    assert sizes == {"domino": (TINY.gru, TINY.emb, 0), "none": (0, 0, 0)}.get(
        spec.head, (0, 0, TINY.rank)
    )
    check_fits_target(spec, TARGET)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_weights_are_renamed_without_loss(dialect: str, tmp_path: Path) -> None:
    spec = read_drafter(DIALECTS[dialect](tmp_path))
    weights = dict(canonical_weights(load_tensors(tmp_path).items(), spec))
    assert {k: tuple(v.shape) for k, v in weights.items()} == expected_shapes(spec)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_spec_survives_json(dialect: str, tmp_path: Path) -> None:
    spec = read_drafter(DIALECTS[dialect](tmp_path))
    text = json.dumps(spec.to_json())
    assert DrafterSpec.from_json(json.loads(text)) == spec
    assert len({spec, DrafterSpec.from_json(json.loads(text))}) == 1


def test_rnn_warms_up_only_on_one_plus_n_blocks(tmp_path: Path) -> None:
    specs = {n: read_drafter(f(tmp_path / n)) for n, f in DIALECTS.items()}
    assert [n for n, s in specs.items() if s.rnn_warm_up] == ["speculators_dspark_one_plus_n"]


@pytest.mark.parametrize(
    ("dialect", "key", "value", "slots"),
    [
        ("speculators_dflash", "sample_from_anchor", True, FULL),
        ("speculators_dspark", "sample_from_anchor", False, UNSHIFTED),
        ("speculators_dspark", "sample_from_anchor", None, UNSHIFTED),  # older than the key
        ("speculators_domino", "sample_from_anchor", False, UNSHIFTED),
        ("dspark", "sample_from_anchor", False, UNSHIFTED),
    ],
)
def test_slots_follow_sample_from_anchor(
    dialect: str, key: str, value: bool | None, slots: tuple[int, int], tmp_path: Path
) -> None:
    folder = edit(DIALECTS[dialect](tmp_path), lambda c: c.update({key: value}))
    assert read_drafter(folder).slots == tuple(range(*slots))


def test_raw_domino_without_the_keys_has_the_code_defaults(tmp_path: Path) -> None:
    """The authors' code takes shift_label False and prefix 0 when config.json is silent."""

    def forget(config: dict) -> None:
        for key in ("shift_label", "pure_draft_prefix_len", "projector_type", "gru_hidden_dim"):
            del config["dflash_config"][key]

    spec = read_drafter(edit(DIALECTS["domino"](tmp_path), forget))
    assert (spec.family, spec.anchor_first, spec.pure_draft_prefix_len) == ("domino", False, 0)
    assert spec.gru_hidden_dim == TINY.gru


@pytest.mark.parametrize(("layers", "expected"), [(2, (1, 9)), (1, (6,))])
def test_missing_layer_ids_are_spread_over_the_target(
    layers: int, expected: tuple[int, ...], tmp_path: Path
) -> None:
    sizes = dataclasses.replace(TINY, layers=layers, layer_ids=expected, target_layers=12)
    folder = edit(
        DIALECTS["dflash"](tmp_path, sizes), lambda c: c["dflash_config"].pop("target_layer_ids")
    )
    assert read_drafter(folder).target_layer_ids == expected


def test_embedding_output_may_be_a_target_feature(tmp_path: Path) -> None:
    sizes = dataclasses.replace(TINY, layer_ids=(-1, 3))
    spec = read_drafter(DIALECTS["dspark"](tmp_path, sizes))
    assert spec.target_layer_ids == (-1, 3)
    check_fits_target(spec, TARGET)


def test_sharded_checkpoint_reads_the_files_of_the_index(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = load_tensors(DIALECTS["domino"](tmp_path))
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for file, part in shards.items():
        save_file({n: tensors[n] for n in part}, tmp_path / file)
    save_file(tensors, tmp_path / "consolidated.safetensors")  # not in the index: not read
    weight_map = {n: file for file, part in shards.items() for n in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_drafter(tmp_path).family == "domino"


def test_windows_and_causality_of_the_two_exporters(tmp_path: Path) -> None:
    def window(config: dict) -> None:
        layers = config.get("transformer_layer_config", config)
        layers["layer_types"] = ["full_attention", "sliding_attention"]
        layers |= {"sliding_window": 2048, "use_sliding_window": True}

    zlab = read_drafter(edit(DIALECTS["dflash"](tmp_path / "z"), window))
    assert (zlab.sliding_window, zlab.window_origin) == (2048, "query")
    assert [zlab.layer_is_causal(i) for i in range(2)] == [False, True]
    folder = edit(DIALECTS["speculators_dflash"](tmp_path / "s"), window)
    exported = read_drafter(folder)
    assert (exported.sliding_window, exported.window_origin) == (2048, "anchor")
    assert [exported.layer_is_causal(i) for i in range(2)] == [False, True]
    edit(folder, lambda c: c.update(sliding_window_non_causal=True))
    assert not any(read_drafter(folder).layer_is_causal(i) for i in range(2))
