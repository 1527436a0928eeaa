"""Tiny drafter checkpoints on disk, one function per dialect of docs and published files.

`DIALECTS[name](folder)` writes config.json and model.safetensors into `folder` and returns it. All
fit `TARGET` (or the `TinySizes` that are passed in) and carry random but well-scaled weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_dartree.models import TargetFacts, read_drafter

Config = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class TinySizes:
    """Sizes of the drafter and its target; the defaults are as small as every shape differs."""

    hidden: int = 64
    mlp: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 256
    draft_vocab: int = 100
    block: int = 6
    target_layers: int = 4
    layer_ids: tuple[int, ...] = (0, 2)
    mask: int = 255
    gru: int = 32
    emb: int = 24
    rank: int = 16
    rope_theta: float = 10000.0
    attention_bias: bool = False
    seed: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def aux_ids(self) -> list[int]:
        return [i + 1 for i in self.layer_ids]


TINY = TinySizes()
TARGET = TargetFacts(
    hidden_size=TINY.hidden,
    vocab_size=TINY.vocab,
    num_hidden_layers=TINY.target_layers,
    max_model_len=512,
)


class Weights:
    """Random tensors of a given size; one generator, so a seed fixes a checkpoint."""

    def __init__(self, sizes: TinySizes):
        self.sizes = sizes
        self.generator = torch.Generator().manual_seed(sizes.seed)

    def matrix(self, rows: int, columns: int) -> Tensor:
        value = torch.randn(rows, columns, generator=self.generator) * columns**-0.5
        return value.to(self.sizes.dtype)

    def vector(self, size: int, centre: float = 0.0) -> Tensor:
        value = centre + 0.1 * torch.randn(size, generator=self.generator)
        return value.to(self.sizes.dtype)

    def backbone(self) -> Tensors:
        s = self.sizes
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        tensors = {
            "fc.weight": self.matrix(s.hidden, len(s.layer_ids) * s.hidden),
            "hidden_norm.weight": self.vector(s.hidden, 1.0),
            "norm.weight": self.vector(s.hidden, 1.0),
        }
        for layer in range(s.layers):
            for name, shape in {
                "self_attn.q_proj": (q, s.hidden),
                "self_attn.k_proj": (kv, s.hidden),
                "self_attn.v_proj": (kv, s.hidden),
                "self_attn.o_proj": (s.hidden, q),
                "mlp.gate_proj": (s.mlp, s.hidden),
                "mlp.up_proj": (s.mlp, s.hidden),
                "mlp.down_proj": (s.hidden, s.mlp),
            }.items():
                tensors[f"layers.{layer}.{name}.weight"] = self.matrix(*shape)
                if s.attention_bias and name.startswith("self_attn"):
                    tensors[f"layers.{layer}.{name}.bias"] = self.vector(shape[0])
            for name, size in {
                "self_attn.q_norm": s.head_dim,
                "self_attn.k_norm": s.head_dim,
                "input_layernorm": s.hidden,
                "post_attention_layernorm": s.hidden,
            }.items():
                tensors[f"layers.{layer}.{name}.weight"] = self.vector(size, 1.0)
        return tensors

    def domino_head(self, prefix: str = "", rows: int | None = None) -> Tensors:
        s = self.sizes
        return {
            f"{prefix}prefix_gru.weight_ih_l0": self.matrix(3 * s.gru, s.hidden),
            f"{prefix}prefix_gru.weight_hh_l0": self.matrix(3 * s.gru, s.gru),
            f"{prefix}embed_proj.0.weight": self.matrix(s.emb, s.hidden + s.gru),
            f"{prefix}embed_proj.2.weight": 4 * self.matrix(rows or s.vocab, s.emb),
        }

    def markov_head(
        self, kind: str, prefix: str = "markov_head.", rows: int | None = None
    ) -> Tensors:
        s = self.sizes
        tensors = {
            f"{prefix}markov_w1.weight": 4 * self.matrix(s.vocab, s.rank),
            f"{prefix}markov_w2.weight": self.matrix(rows or s.vocab, s.rank),
        }
        if kind == "gated":
            tensors[f"{prefix}gate_proj.weight"] = self.matrix(s.rank, s.hidden + s.rank)
            tensors[f"{prefix}gate_proj.bias"] = self.vector(s.rank)
        elif kind == "rnn":
            tensors[f"{prefix}joint_proj.weight"] = self.matrix(3 * s.rank, 2 * s.rank + s.hidden)
            tensors[f"{prefix}joint_proj.bias"] = self.vector(3 * s.rank)
        return tensors

    def confidence_head(self) -> Tensors:
        s = self.sizes
        return {
            "confidence_head.proj.weight": self.matrix(1, s.hidden + s.rank),
            "confidence_head.proj.bias": self.vector(1),
        }

    def embed_and_lm_head(self) -> Tensors:
        s = self.sizes
        return {
            "embed_tokens.weight": self.matrix(s.vocab, s.hidden),
            "lm_head.weight": self.matrix(s.vocab, s.hidden),
        }

    def reduced_vocabulary(self) -> Tensors:
        s = self.sizes
        kept = torch.randperm(s.vocab, generator=self.generator)[: s.draft_vocab].sort().values
        return {
            "lm_head.weight": self.matrix(s.draft_vocab, s.hidden),
            "d2t": kept - torch.arange(s.draft_vocab),
            "t2d": torch.zeros(s.vocab, dtype=torch.bool).index_fill(0, kept, True),
        }


def qwen3_config(s: TinySizes) -> Config:
    """What all dialects say of the layers (transformers 4 style, as published)."""
    return {
        "model_type": "qwen3",
        "hidden_size": s.hidden,
        "intermediate_size": s.mlp,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "attention_bias": s.attention_bias,
        "rms_norm_eps": 1e-6,
        "rope_theta": s.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "layer_types": ["full_attention"] * s.layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": s.layers,
        "vocab_size": s.vocab,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def zlab_config(s: TinySizes, **dflash: Any) -> Config:
    """z-lab's and SpecForge's form: drafter keys nested, sizes at top level."""
    return qwen3_config(s) | {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": s.block,
        "num_target_layers": s.target_layers,
        "dflash_config": {"mask_token_id": s.mask, "target_layer_ids": list(s.layer_ids)} | dflash,
    }


def domino_config(s: TinySizes, **dflash: Any) -> Config:
    return zlab_config(
        s,
        **{
            "projector_type": "domino",
            "pure_draft_prefix_len": 1,
            "emb_dim": s.emb,
            "gru_hidden_dim": s.gru,
            "shift_label": True,
        }
        | dflash,
    ) | {"emb_dim": s.emb}


def deepspec_config(s: TinySizes, rank: int, kind: str | None) -> Config:
    """DeepSpec's native form: the target's config with drafter keys at top level."""
    config = qwen3_config(s) | {
        "architectures": ["Qwen3DSparkModel"],
        "num_target_layers": s.target_layers,
        "block_size": s.block,
        "mask_token_id": s.mask,
        "target_layer_ids": list(s.layer_ids),
        "num_anchors": 512,
        "enable_confidence_head": rank > 0,
        "markov_rank": rank,
    }
    if kind is not None:
        config |= {"markov_head_type": kind, "confidence_head_with_markov": True}
    return config


def speculators_config(s: TinySizes, kind: str, **extra: Any) -> Config:
    return {
        "speculators_model_type": kind,
        "architectures": [f"{kind.capitalize()}Speculator"],
        "transformer_layer_config": qwen3_config(s),
        "draft_vocab_size": s.vocab,
        "block_size": s.block,
        "target_hidden_size": s.hidden,
        "aux_hidden_state_layer_ids": s.aux_ids,
        "mask_token_id": s.mask,
        "sliding_window_non_causal": False,
        "speculators_config": {"algorithm": kind, "proposal_methods": [], "verifier": {}},
    } | extra


def write(folder: Path, config: Config, tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def edit(
    folder: Path,
    config: Callable[[Config], None] | None = None,
    tensors: Callable[[Tensors], None] | None = None,
) -> Path:
    """Change a written checkpoint in place; the functions mutate what they get."""
    current, weights = json.loads((folder / "config.json").read_text()), load_tensors(folder)
    if config is not None:
        config(current)
    if tensors is not None:
        tensors(weights)
    return write(folder, current, weights)


def assert_refused(folder: Path, words: str) -> None:
    """read_drafter raises ValueError with all `words` (separated by " / ") and a fix."""
    with pytest.raises(ValueError) as caught:
        read_drafter(folder)
    message = str(caught.value)
    absent = [word for word in words.split(" / ") if word not in message]
    assert not absent, f"{absent} not in: {message}"
    assert re.search(r"\. [A-Z].*\.$", message, re.DOTALL), f"no fix at the end of: {message}"


def load_tensors(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def dflash(folder: Path, s: TinySizes = TINY) -> Path:
    """z-lab DFlash b16 (2602.06036): depth d in slot d, no head."""
    return write(folder, zlab_config(s), Weights(s).backbone())


def dflash_nested(folder: Path, s: TinySizes = TINY) -> Path:
    """Newer z-lab: block_size nested, rope_theta in rope_parameters (transformers 5)."""
    config = zlab_config(s, block_size=s.block)
    del config["block_size"], config["rope_scaling"]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    return write(folder, config, Weights(s).backbone())


def domino(folder: Path, s: TinySizes = TINY) -> Path:
    """Raw Domino (2605.29707) as published: shifted labels, prefix 1."""
    w = Weights(s)
    return write(folder, domino_config(s), w.backbone() | w.domino_head())


def domino_unshifted(folder: Path, s: TinySizes = TINY) -> Path:
    """SpecForge's full-attention recipe with shift_label false, under its own class name."""
    w = Weights(s)
    config = domino_config(s, shift_label=False) | {"architectures": ["DominoDraftModel"]}
    return write(folder, config, w.backbone() | w.domino_head())


def domino_prefixed(folder: Path, s: TinySizes = TINY) -> Path:
    """Legacy SpecForge export: tensors below logit_head, old alias, top-level emb_dim only."""
    w = Weights(s)
    config = domino_config(s, projector_type="causal_v5", emb_dim=None)
    return write(folder, config, w.backbone() | w.domino_head("logit_head."))


def speculators_domino_submode(folder: Path, s: TinySizes = TINY) -> Path:
    """Domino as a sub-mode of speculators' dflash: one token fewer, reduced vocabulary."""
    w = Weights(s)
    config = speculators_config(
        s,
        "dflash",
        draft_vocab_size=s.draft_vocab,
        projector_type="domino",
        gru_hidden_dim=s.gru,
        emb_dim=s.emb,
        pure_draft_prefix_len=1,
        shift_label=True,
        sample_from_anchor=False,
    )
    head = w.domino_head("domino_head.", rows=s.draft_vocab)
    return write(folder, config, w.backbone() | head | w.reduced_vocabulary())


def speculators_domino(folder: Path, s: TinySizes = TINY) -> Path:
    """A fork's own speculators type; sample_from_anchor (default true) and prefix 1 unsaid."""
    w = Weights(s)
    config = speculators_config(
        s, "domino", gru_hidden_dim=s.gru, logits_correction_emb_dim=s.emb
    ) | {"architectures": ["DominoSpeculator", "Qwen3DSparkModel"]}
    return write(folder, config, w.backbone() | w.domino_head("logits_correction."))


def dspark_specforge(folder: Path, s: TinySizes = TINY) -> Path:
    """SpecForge DSpark: everything nested, embedding and LM head shared."""
    w = Weights(s)
    config = zlab_config(
        s,
        attention_mode="gqa",
        projector_type="dspark",
        markov_rank=s.rank,
        markov_head_type="vanilla",
        confidence_head_alpha=1.0,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    ) | {"architectures": ["DSparkDraftModel"]}
    return write(folder, config, w.backbone() | w.markov_head("vanilla") | w.confidence_head())


def dspark_hybrid(folder: Path, s: TinySizes = TINY) -> Path:
    """SpecForge's serving export: head keys hoisted, mask and layer ids still nested."""
    w = Weights(s)
    config = zlab_config(s, projector_type="dspark", markov_rank=s.rank) | {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": s.rank,
        "markov_head_type": "vanilla",
    }
    return write(folder, config, w.backbone() | w.markov_head("vanilla"))


def _deepspec(folder: Path, s: TinySizes, kind: str) -> Path:
    w = Weights(s)
    tensors = w.backbone() | w.markov_head(kind) | w.confidence_head() | w.embed_and_lm_head()
    return write(folder, deepspec_config(s, s.rank, kind), tensors)


def dspark(folder: Path, s: TinySizes = TINY) -> Path:
    """DeepSpec dspark_*_block7 (2607.05147): depth d in slot d - 1, own embedding and LM head."""
    return _deepspec(folder, s, "vanilla")


def dspark_gated(folder: Path, s: TinySizes = TINY) -> Path:
    return _deepspec(folder, s, "gated")


def dspark_rnn(folder: Path, s: TinySizes = TINY) -> Path:
    return _deepspec(folder, s, "rnn")


def deepspec_dflash(folder: Path, s: TinySizes = TINY) -> Path:
    """DeepSpec dflash_*_block7: DSpark's layout with Markov rank 0."""
    w = Weights(s)
    tensors = w.backbone() | w.embed_and_lm_head()
    return write(folder, deepspec_config(s, 0, None), tensors)


def speculators_dflash(folder: Path, s: TinySizes = TINY) -> Path:
    """speculators dflash with a reduced vocabulary: d2t offsets and an LM head of its own."""
    w = Weights(s)
    config = speculators_config(s, "dflash", draft_vocab_size=s.draft_vocab)
    return write(folder, config, w.backbone() | w.reduced_vocabulary())


def speculators_dspark(folder: Path, s: TinySizes = TINY) -> Path:
    """speculators dspark with sample_from_anchor: native DSpark's layout, reduced vocabulary."""
    w = Weights(s)
    config = speculators_config(
        s,
        "dspark",
        draft_vocab_size=s.draft_vocab,
        sample_from_anchor=True,
        markov_rank=s.rank,
        markov_head_type="gated",
    )
    head = w.markov_head("gated", rows=s.draft_vocab)
    return write(folder, config, w.backbone() | head | w.reduced_vocabulary())


def speculators_dspark_one_plus_n(folder: Path, s: TinySizes = TINY) -> Path:
    """Older speculators dspark, before sample_from_anchor: slot d, warmed-up recurrent head."""
    w = Weights(s)
    config = speculators_config(s, "dspark", markov_rank=s.rank, markov_head_type="rnn")
    tensors = w.backbone() | w.markov_head("rnn") | w.embed_and_lm_head()
    return write(folder, config, tensors)


DIALECTS: dict[str, Callable[..., Path]] = {
    f.__name__: f
    for f in (
        dflash,
        dflash_nested,
        domino,
        domino_unshifted,
        domino_prefixed,
        speculators_domino_submode,
        speculators_domino,
        dspark_specforge,
        dspark_hybrid,
        dspark,
        dspark_gated,
        dspark_rnn,
        deepspec_dflash,
        speculators_dflash,
        speculators_dspark,
        speculators_dspark_one_plus_n,
    )
}
