"""What a drafter checkpoint is, in one form for every family and dialect.

Glossary (docs and papers use the same letters): B block size, J horizon (number of draft depths),
H hidden size, V vocabulary, Vd draft vocabulary, G GRU width, e bottleneck, r Markov rank, N target
layers, a anchor position (the position of the last committed token, whose target hidden state does
not exist yet).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["dflash", "domino", "dspark"]
HeadKind = Literal["none", "domino", "markov"]
MarkovHeadType = Literal["vanilla", "gated", "rnn"]
WindowOrigin = Literal["query", "anchor"]


@dataclass(frozen=True)
class DrafterSpec:
    """The canonical description of one drafter.

    The block that the backbone sees is always `[anchor token, mask x (B - 1)]` at positions
    `a .. a + B - 1`. What differs between families is which block slot predicts depth d (`slots`),
    which depths the head corrects, and what the head is.

    Sources: DFlash arXiv 2602.06036, Domino arXiv 2605.29707, DSpark arXiv 2607.05147.
    """

    family: Family
    block_size: int
    """B, the anchor slot included."""
    horizon: int
    """J: depths 1..J can be drafted."""
    anchor_first: bool
    """True: slot d - 1 predicts depth d. False: slot d does, and the output of slot 0 is unused."""
    pure_draft_prefix_len: int
    """Depths 1..P keep the base logits (Domino); the head's state consumes their tokens anyway."""
    target_layer_ids: tuple[int, ...]
    """0-based: id l is the residual stream after target layer l, -1 the embedding output."""
    mask_token_id: int
    num_target_layers: int | None
    """N of the target that the drafter was trained for, where the checkpoint says so."""

    head: HeadKind
    markov_head_type: MarkovHeadType | None
    gru_hidden_dim: int
    """G; 0 without a Domino head."""
    emb_dim: int
    """e; 0 without a Domino head."""
    markov_rank: int
    """r; 0 without a Markov head."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: dict[str, Any] = field(hash=False)
    """At least rope_type and rope_theta, in the form of transformers 5."""
    layer_types: tuple[str, ...]
    """full_attention or sliding_attention for each draft layer."""
    sliding_window: int | None
    window_origin: WindowOrigin
    """query: block slot k sees context t >= a + k - (W - 1); anchor: t >= a - W for every slot."""
    causal: bool | None
    """Inside the block. None: sliding layers are causal, full-attention layers are not."""

    vocab_size: int
    draft_vocab_size: int
    has_embed: bool
    """The checkpoint ships embed_tokens; otherwise the target's is shared."""
    has_lm_head: bool
    """The checkpoint ships lm_head; otherwise the target's is shared."""

    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None

    @property
    def slots(self) -> tuple[int, ...]:
        """The block slot of each depth: `slots[d - 1]` predicts depth d, d = 1..J."""
        first = 0 if self.anchor_first else 1
        return tuple(range(first, first + self.horizon))

    @property
    def rnn_warm_up(self) -> bool:
        """Whether the Markov RNN first steps on slot 0 with the anchor and drops that output.

        Drafters trained on 1 + N blocks ran their recurrence over the unused slot 0 as well.
        """
        return self.markov_head_type == "rnn" and not self.anchor_first

    @property
    def reduced_vocabulary(self) -> bool:
        return self.draft_vocab_size < self.vocab_size

    def layer_is_causal(self, layer: int) -> bool:
        """Whether draft layer `layer` is causal inside the block."""
        if self.causal is not None:
            return self.causal
        return self.layer_types[layer] == "sliding_attention"

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values; `from_json` is the inverse."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DrafterSpec:
        """Inverse of `to_json`. Raises ValueError for missing or unknown keys."""
        expected = {f.name for f in dataclasses.fields(cls)}
        if set(values) != expected:
            raise ValueError(
                f"dartree: expected exactly the keys {sorted(expected)}, got {sorted(values)}. "
                "Write the section with DrafterSpec.to_json()."
            )
        plain: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**plain)


@dataclass(frozen=True)
class TargetFacts:
    """What has to be known of a target to judge whether a drafter fits it."""

    hidden_size: int
    vocab_size: int
    """Rows of the embedding matrix, padding rows included."""
    num_hidden_layers: int
    max_model_len: int | None = None
    name: str = "the target"


def check_fits_target(spec: DrafterSpec, target: TargetFacts) -> None:
    """Raise ValueError unless the drafter can draft for the target.

    Every message names the field, the drafter's value, the target's value and the fix.

    Layer ids: vLLM asks the target for aux id l + 1, and its Qwen and Llama models capture aux id i
    before layer i as `hidden_states + residual`, aux id N after the last layer and before the final
    norm. So -1 <= l <= N - 1 all name a raw residual stream that vLLM hands out.
    """

    def require(ok: bool, name: str, ours: object, theirs: object, fix: str) -> None:
        if not ok:
            raise ValueError(f"{name}: the drafter has {ours}, {target.name} has {theirs}. {fix}")

    other = "Use the target that the drafter was trained for, or another drafter."
    pairs = {
        "hidden_size": (spec.hidden_size, target.hidden_size),
        "vocab_size": (spec.vocab_size, target.vocab_size),
    }
    if spec.num_target_layers is not None:
        pairs["num_target_layers"] = (spec.num_target_layers, target.num_hidden_layers)
    for name, (ours, theirs) in pairs.items():
        require(ours == theirs, name, ours, theirs, other)
    last = max(spec.target_layer_ids)
    require(
        last < target.num_hidden_layers,
        "target_layer_ids",
        f"layer id {last}",
        f"{target.num_hidden_layers} layers (ids 0 to {target.num_hidden_layers - 1})",
        other,
    )
    require(
        spec.mask_token_id < target.vocab_size,
        "mask_token_id",
        spec.mask_token_id,
        f"{target.vocab_size} embedding rows",
        other,
    )
    _check_context_length(spec, target, require)


def _check_context_length(spec: DrafterSpec, target: TargetFacts, require: Any) -> None:
    """Limits on the context that hold for this drafter whatever the target."""
    length = target.max_model_len
    if spec.window_origin == "anchor" and spec.sliding_window is not None:
        # vLLM's window moves with the query, so the two agree only while nothing is cut off.
        require(
            length is not None and length <= spec.sliding_window,
            "sliding_window",
            f"{spec.sliding_window}, counted from the anchor",
            f"max_model_len {length}",
            "vLLM counts windows from each query: set max_model_len to at most "
            f"{spec.sliding_window}, or use a drafter with full attention.",
        )
    if length is not None and spec.rope_parameters["rope_type"] != "default":
        require(
            length <= spec.max_position_embeddings,
            "max_position_embeddings",
            spec.max_position_embeddings,
            f"max_model_len {length}",
            f"Set max_model_len to at most {spec.max_position_embeddings}.",
        )
