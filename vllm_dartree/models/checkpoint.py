"""`read_drafter`: any published dialect of DFlash, Domino and DSpark -> one DrafterSpec.

Dialects: z-lab DFlash, raw Domino and its prefixed exports, SpecForge's nested DSpark, DeepSpec's
native DSpark (and its `dflash_*_block7`, DSpark without a head), and the speculators format with
its two Domino dialects. Only config.json and safetensors headers are read, never a tensor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from vllm_dartree.models.backbone import Backbone, read_backbone, tensor_size
from vllm_dartree.models.config_reader import ConfigReader, agree, read_config, required
from vllm_dartree.models.refusals import refuse_other_architectures
from vllm_dartree.models.spec import DrafterSpec, Family, MarkovHeadType
from vllm_dartree.models.tensors import TensorHeader, check_tensors, read_tensor_headers

Headers = Mapping[str, TensorHeader]

_PROJECTORS: dict[str, Family] = {
    "domino": "domino",
    "causal_v5": "domino",  # legacy alias on the Domino authors' serving branch
    "dspark": "dspark",
    "dflash": "dflash",
}
_MAX_BLOCK_SIZE = 1024


def read_drafter(path: str | os.PathLike[str]) -> DrafterSpec:
    """The spec of the drafter in folder `path`.

    Raises ValueError, naming the field, the values and the fix, for anything that is not exactly a
    supported drafter: unknown or missing tensors, shapes that contradict config.json, another
    architecture, keys with the wrong type or with two different values.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(
            f"model: {folder} is not a folder, expected one with config.json and *.safetensors. "
            "Download the checkpoint first and give the folder's path."
        )
    config = read_config(folder)
    headers = read_tensor_headers(folder)
    spec = describe(config, headers)
    check_tensors(spec, headers)
    return spec


def describe(config: Mapping[str, Any], headers: Headers) -> DrafterSpec:
    """The spec that a config.json and the tensor shapes describe (see `read_drafter`)."""
    draft = ConfigReader(config, "dflash_config")
    layers = draft
    exporter = draft.text("speculators_model_type")
    if exporter is not None:
        layers = ConfigReader(
            required(draft.mapping("transformer_layer_config"), "transformer_layer_config")
        )
    refuse_other_architectures((draft, layers), headers)
    family = _detect_family(draft, exporter, headers)
    anchor_first, prefix_len = _layout(draft, exporter, family)
    block_size = required(draft.integer("block_size", minimum=2), "block_size")
    if block_size > _MAX_BLOCK_SIZE:
        raise ValueError(
            f"block_size: got {block_size}, expected at most {_MAX_BLOCK_SIZE}. "
            "Correct it in config.json."
        )
    # Domino inside speculators' dflash type drafts B - 1 tokens although its slots are shifted.
    full_block = anchor_first and not (family == "domino" and exporter == "dflash")
    horizon = block_size if full_block else block_size - 1
    if prefix_len > horizon:
        raise ValueError(
            f"pure_draft_prefix_len: got {prefix_len}, expected 0 to {horizon} (the number of "
            f"tokens that a block of {block_size} drafts). Correct it in config.json."
        )
    backbone = read_backbone(draft, layers, exporter, headers)
    return DrafterSpec(
        family=family,
        block_size=block_size,
        horizon=horizon,
        anchor_first=anchor_first,
        pure_draft_prefix_len=prefix_len,
        mask_token_id=_mask_token_id(draft, backbone),
        **_read_head(draft, family, headers),
        **_read_scales(draft, family),
        **backbone,
    )


def _detect_family(draft: ConfigReader, exporter: str | None, headers: Headers) -> Family:
    claims: dict[str, Family] = {}
    if exporter is not None:
        if exporter not in get_args(Family):
            raise ValueError(
                f"speculators_model_type: got {exporter!r}, supported: "
                f"{', '.join(get_args(Family))}. Use a drafter of one of these types."
            )
        if exporter != "dflash":  # dflash also carries Domino, as a sub-mode
            claims[f"speculators_model_type={exporter!r}"] = exporter  # type: ignore[assignment]
    projector = draft.text("projector_type")
    if projector is not None:
        if projector not in _PROJECTORS:
            raise ValueError(
                f"projector_type: got {projector!r}, supported: {', '.join(_PROJECTORS)}. "
                "Use a drafter of one of these kinds."
            )
        claims[f"projector_type={projector!r}"] = _PROJECTORS[projector]
    if "head.prefix_gru.weight_ih_l0" in headers:
        claims["tensor prefix_gru.weight_ih_l0"] = "domino"
    if "head.markov_w1.weight" in headers:
        claims["tensor markov_w1.weight"] = "dspark"
    if len(set(claims.values())) > 1:
        told = ", ".join(f"{source} says {family}" for source, family in claims.items())
        raise ValueError(f"drafter family: {told}. Use the config.json of this checkpoint.")
    if claims:
        return next(iter(claims.values()))
    # Architectures decide last: plugins list foreign ones as sentinels, converters rename them.
    architectures = draft.texts("architectures") or ()
    for part, family in (("Domino", "domino"), ("DSpark", "dspark"), ("DFlash", "dflash")):
        if any(part in name for name in architectures):
            return family  # type: ignore[return-value]
    if exporter == "dflash":
        return "dflash"
    raise ValueError(
        f"architectures: got {list(architectures)}, expected a name with DFlash, Domino or DSpark "
        "in it. Use a drafter of one of these families, or add its architecture to config.json."
    )


def _layout(draft: ConfigReader, exporter: str | None, family: Family) -> tuple[bool, int]:
    """(anchor_first, pure_draft_prefix_len) of a family in a dialect.

    A wrong value here raises no error later; acceptance just collapses. Hence the defaults below
    are those of the code that wrote each dialect.
    """
    from_anchor = draft.boolean("sample_from_anchor")
    if family == "dflash":
        return bool(from_anchor), 0
    if family == "dspark":
        # Old speculators exports predate the key and are 1 + N; native files have no key at all.
        return (exporter is None if from_anchor is None else from_anchor), 0
    shift = draft.boolean("shift_label")
    prefix_len = draft.integer("pure_draft_prefix_len", minimum=0)
    if exporter == "dflash":
        # This dialect's state at slot k has consumed the token at a + k whatever shift_label is,
        # so an unshifted head was trained on its own label. Its sample_from_anchor is not used.
        if not required(shift, "shift_label"):
            raise ValueError(
                "shift_label: got False, supported in this dialect: True (unshifted heads of the "
                "speculators dflash type saw their own label). Use a drafter with shifted labels."
            )
        return True, required(prefix_len, "pure_draft_prefix_len")
    if shift is not None and from_anchor is not None and shift != from_anchor:
        raise ValueError(
            f"shift_label: got {shift}, but sample_from_anchor is {from_anchor}; they are two "
            "names of one setting. Keep the one that the drafter was trained with."
        )
    stated = shift if from_anchor is None else from_anchor
    if exporter == "domino":
        return (True if stated is None else stated), (1 if prefix_len is None else prefix_len)
    return bool(stated), prefix_len or 0


def _mask_token_id(draft: ConfigReader, backbone: Backbone) -> int:
    mask = required(draft.integer("mask_token_id", minimum=0), "mask_token_id")
    rows = backbone["vocab_size"]
    if mask >= rows:
        raise ValueError(
            f"mask_token_id: got {mask}, but vocab_size is {rows}; expected 0 to {rows - 1}. "
            "Correct it in config.json."
        )
    return mask


def _read_head(draft: ConfigReader, family: Family, headers: Headers) -> dict[str, Any]:
    head = {
        "head": "none",
        "markov_head_type": None,
        "gru_hidden_dim": 0,
        "emb_dim": 0,
        "markov_rank": 0,
    }
    if family == "domino":
        gru_tensor, proj_tensor = "head.prefix_gru.weight_hh_l0", "head.embed_proj.0.weight"
        gru = agree(
            "gru_hidden_dim",
            draft.integer("gru_hidden_dim"),
            tensor_size(headers, gru_tensor, 1),
            gru_tensor,
        )
        stated = draft.integer("emb_dim")
        fork_stated = draft.integer("logits_correction_emb_dim")
        if stated is not None and fork_stated is not None and stated != fork_stated:
            raise ValueError(
                f"emb_dim: got {stated}, but logits_correction_emb_dim is {fork_stated}. "
                "Keep the one that the drafter was trained with."
            )
        emb = agree(
            "emb_dim",
            fork_stated if stated is None else stated,
            tensor_size(headers, proj_tensor, 0),
            proj_tensor,
        )
        head["head"] = "domino"
        head["gru_hidden_dim"] = required(gru, "gru_hidden_dim")
        head["emb_dim"] = required(emb, "emb_dim")
    elif family == "dspark":
        stated = draft.integer("markov_rank", minimum=0)
        shipped = tensor_size(headers, "head.markov_w1.weight", 1)
        rank = agree("markov_rank", stated, shipped, "head.markov_w1.weight")
        if rank:  # 0: DeepSpec's dflash_*_block7, the DSpark layout without a head
            head["head"] = "markov"
            head["markov_rank"] = rank
            head["markov_head_type"] = _markov_head_type(draft, headers)
    return head


def _markov_head_type(draft: ConfigReader, headers: Headers) -> MarkovHeadType:
    stated = draft.text("markov_head_type")
    if stated not in (None, *get_args(MarkovHeadType)):
        raise ValueError(
            f"markov_head_type: got {stated!r}, supported: {', '.join(get_args(MarkovHeadType))}. "
            "Correct it in config.json."
        )
    shipped: MarkovHeadType = "vanilla"
    if "head.gate_proj.weight" in headers:
        shipped = "gated"
    elif "head.joint_proj.weight" in headers:
        shipped = "rnn"
    if stated not in (None, shipped):
        raise ValueError(
            f"markov_head_type: config.json says {stated!r}, the tensors are those of a "
            f"{shipped!r} head. Use the config.json of this checkpoint."
        )
    return shipped


def _read_scales(draft: ConfigReader, family: Family) -> dict[str, Any]:
    """Scales that z-lab's DFlash applies to the block's embeddings and to the base logits."""
    softcap = draft.get("final_logit_softcapping")
    scales = {
        "input_embedding_scale": draft.positive("input_embedding_scale") or 1.0,
        "output_multiplier": draft.positive("output_multiplier") or 1.0,
        # z-lab's code takes 0 for "no cap".
        "final_logit_softcapping": (
            None if softcap == 0 else draft.positive("final_logit_softcapping")
        ),
    }
    neutral = {"input_embedding_scale": 1.0, "output_multiplier": 1.0}
    for key, value in scales.items():
        if family != "dflash" and value != neutral.get(key):
            raise ValueError(
                f"{key}: got {value}, supported with a {family} drafter: {neutral.get(key)} (no "
                "reference says whether the head's correction is scaled too). "
                "Use a drafter without it."
            )
    return scales
