"""Names and shapes of a drafter's tensors, read from safetensors headers only.

Canonical names are the exporters' own for the backbone (`layers.*`, `fc.weight`,
`hidden_norm.weight`, `norm.weight`), `embed_tokens.weight`, `lm_head.weight` and `d2t`. The
correction head, which exporters put under different prefixes, becomes `head.*`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open

from vllm_dartree.models.spec import DrafterSpec

T = TypeVar("T")

HEAD_PREFIX = "head."
_HEAD_MODULES = ("prefix_gru", "embed_proj", "markov_w1", "markov_w2", "gate_proj", "joint_proj")
# Outermost first: SpecForge's logit_head may contain DeepSpec's markov_head.
_EXPORT_PREFIXES = ("logit_head.", "logits_correction.", "domino_head.", "markov_head.")
_UNUSED = ("t2d", "confidence_head.proj.weight", "confidence_head.proj.bias")
_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class TensorHeader:
    """Shape and safetensors dtype of one tensor, and the name it has in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def canonical_name(name: str) -> str:
    """The canonical name of a checkpoint tensor.

    >>> canonical_name("logit_head.markov_head.markov_w1.weight")
    'head.markov_w1.weight'
    >>> canonical_name("layers.0.mlp.gate_proj.weight")
    'layers.0.mlp.gate_proj.weight'
    """
    bare = name
    for prefix in _EXPORT_PREFIXES:
        bare = bare.removeprefix(prefix)
    module = bare.partition(".")[0]
    if module in _HEAD_MODULES:
        return HEAD_PREFIX + bare
    # A prefix in front of anything but a head is not a known export; keep it so that it shows.
    return bare if module == "confidence_head" else name


def read_tensor_headers(folder: Path) -> dict[str, TensorHeader]:
    """Canonical name -> header of every tensor in `folder`'s safetensors files.

    Raises ValueError for pickle checkpoints, unreadable files and names that occur twice.
    """
    headers: dict[str, TensorHeader] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    part = file.get_slice(name)
                    key = canonical_name(name)
                    if key in headers:
                        raise ValueError(
                            f"{key}: shipped twice, as {headers[key].name} and as {name} "
                            f"({path.name}). Keep one."
                        )
                    headers[key] = TensorHeader(name, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: unreadable ({error}). Download the file again.") from error
    return headers


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that vLLM's loader would read: those of the index, else all."""
    if (folder / "mask_embedding.pt").exists():
        raise ValueError(
            f"mask_embedding.pt: {folder} ships a separate mask embedding, expected the mask token "
            "to be a row of the target's embedding. Such drafters are not supported."
        )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        raise ValueError(
            f"model: {folder} has no *.safetensors, found {pickles or 'no weights'}. Pickle files "
            "are never opened; convert the checkpoint with safetensors.torch.save_file."
        )
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return files
    try:
        listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index}: no weight_map in it ({error}). Download it again.") from error
    absent = sorted(str(name) for name in listed - {f.name for f in files})
    if absent:
        raise ValueError(f"{index}: lists {absent}, which {folder} lacks. Download them.")
    return [f for f in files if f.name in listed]


def expected_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor the drafter needs from its checkpoint."""
    hidden, d = spec.hidden_size, spec.head_dim
    q, kv = spec.num_attention_heads * d, spec.num_key_value_heads * d
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(spec.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(spec.num_hidden_layers):
        attn, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        for name, rows, columns in (
            ("q", q, hidden),
            ("k", kv, hidden),
            ("v", kv, hidden),
            ("o", hidden, q),
        ):
            shapes[f"{attn}.{name}_proj.weight"] = (rows, columns)
            if spec.attention_bias:
                shapes[f"{attn}.{name}_proj.bias"] = (rows,)
        shapes[f"{attn}.q_norm.weight"] = shapes[f"{attn}.k_norm.weight"] = (d,)
        shapes[f"{mlp}.gate_proj.weight"] = (spec.intermediate_size, hidden)
        shapes[f"{mlp}.up_proj.weight"] = (spec.intermediate_size, hidden)
        shapes[f"{mlp}.down_proj.weight"] = (hidden, spec.intermediate_size)
        shapes[f"layers.{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"layers.{layer}.post_attention_layernorm.weight"] = (hidden,)
    if spec.has_embed:
        shapes["embed_tokens.weight"] = (spec.vocab_size, hidden)
    if spec.has_lm_head:
        shapes["lm_head.weight"] = (spec.draft_vocab_size, hidden)
    if spec.reduced_vocabulary:
        shapes["d2t"] = (spec.draft_vocab_size,)
    return shapes | _head_shapes(spec)


def _head_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    hidden, rank, gru = spec.hidden_size, spec.markov_rank, spec.gru_hidden_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.head == "domino":
        shapes = {
            "prefix_gru.weight_ih_l0": (3 * gru, hidden),
            "prefix_gru.weight_hh_l0": (3 * gru, gru),
            "embed_proj.0.weight": (spec.emb_dim, hidden + gru),
            "embed_proj.2.weight": (spec.draft_vocab_size, spec.emb_dim),
        }
    elif spec.head == "markov":
        shapes = {
            "markov_w1.weight": (spec.vocab_size, rank),
            "markov_w2.weight": (spec.draft_vocab_size, rank),
        }
        if spec.markov_head_type == "gated":
            shapes |= {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)}
        elif spec.markov_head_type == "rnn":
            shapes |= {
                "joint_proj.weight": (3 * rank, 2 * rank + hidden),
                "joint_proj.bias": (3 * rank,),
            }
    return {HEAD_PREFIX + name: shape for name, shape in shapes.items()}


def check_tensors(spec: DrafterSpec, headers: Mapping[str, TensorHeader]) -> None:
    """Raise ValueError unless the checkpoint has exactly the tensors of `expected_shapes`.

    The mask t2d and the confidence head may be there too; drafting does not use them.
    """
    expected = expected_shapes(spec)
    for name, shape in expected.items():
        header = headers.get(name)
        if header is None:
            raise ValueError(
                f"{name}: missing from the checkpoint, expected shape {list(shape)} for a "
                f"{spec.family} drafter with head {spec.head!r}. Download the checkpoint again, "
                "or correct config.json if it describes another drafter."
            )
        if header.shape != shape:
            raise ValueError(
                f"{header.name}: shape {list(header.shape)}, config.json implies {list(shape)}. "
                "Use the config.json of this checkpoint."
            )
        dtypes = ("I64", "I32") if name == "d2t" else _FLOATS
        if header.dtype not in dtypes:
            raise ValueError(
                f"{header.name}: dtype {header.dtype}, expected one of {', '.join(dtypes)}. "
                "Quantised drafters are not supported; use the unquantised checkpoint."
            )
    unknown = sorted(h.name for key, h in headers.items() if key not in {*expected, *_UNUSED})
    if unknown:
        raise ValueError(
            f"{unknown[0]}: unknown tensor (of {len(unknown)}), expected the {len(expected)} of a "
            f"{spec.family} drafter with head {spec.head!r}. Use the config.json of this "
            "checkpoint; if it is, this kind of drafter is not supported."
        )


def canonical_weights(
    weights: Iterable[tuple[str, T]], spec: DrafterSpec
) -> Iterator[tuple[str, T]]:
    """The checkpoint's (name, tensor) pairs under canonical names, without the unused ones.

    Raises ValueError for a tensor that `spec` does not know, and at the end for missing ones.
    """
    missing = set(expected_shapes(spec))
    for name, tensor in weights:
        key = canonical_name(name)
        if key in _UNUSED:
            continue
        if key not in missing:
            raise ValueError(f"{name}: unknown or repeated tensor for this {spec.family} drafter.")
        missing.remove(key)
        yield key, tensor
    if missing:
        raise ValueError(
            f"{min(missing)}: not in the weights (missing in all: {len(missing)}). "
            "Download the checkpoint again."
        )
