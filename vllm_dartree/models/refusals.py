"""Drafters that look like a supported one but compute something else: refused by name.

Each would load and draft without an error, only with an acceptance near zero, so the check comes
before anything is read from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_dartree.models.config_reader import ConfigReader
from vllm_dartree.models.tensors import TensorHeader

_DFLASH2 = "this is DFlash2, another architecture"
_DFLARE = "this is a dflare drafter, another architecture"
_SINK = "attention sinks are not part of the DFlash backbone"

# key -> (values that change nothing, why others are refused). A missing key or null is fine.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "conv_kernel_size": ((), _DFLASH2),
    "conv_group_size": ((), _DFLASH2),
    "selector_rank": ((), _DFLASH2),
    "selector_top_k": ((), _DFLASH2),
    "fusion_mode": ((), _DFLARE),
    "use_swa": ((False,), "its window is not that of layer_types; set layer_types instead"),
    "attention_sink_bias": ((False,), _SINK),
    "add_swa_attention_sink_bias": ((False,), _SINK),
    "attention_value_scale": ((1, 1.0), "values are not scaled in the DFlash backbone"),
    "attention_mode": (("gqa",), "only grouped-query attention is supported"),
    "use_aux_hidden_state": ((True,), "the drafter must read target hidden states"),
    "hidden_act": (("silu",), "the DFlash backbone uses silu"),
    "is_neox_style": ((True,), "the DFlash backbone rotates halves"),
    "logit_scale": ((1, 1.0), "base logits are not scaled; see output_multiplier"),
    "partial_rotary_factor": ((1, 1.0), "the DFlash backbone rotates whole heads"),
    "mrope_section": ((), "drafters use one-dimensional positions"),
    "quantization_config": ((), "use the unquantised checkpoint"),
}
_DFLARE_MODULES = ("k_proj_target", "v_proj_target", "input_proj", "output_proj")


def refuse_other_architectures(
    readers: tuple[ConfigReader, ...], headers: Mapping[str, TensorHeader]
) -> None:
    """Raise ValueError, naming key and value, for a drafter of an unsupported kind."""
    for reader in readers:
        for key, (harmless, why) in _REFUSED.items():
            value = reader.get(key)
            if value is not None and value not in harmless:
                raise _refusal(key, value, harmless, why)
        for name in reader.texts("architectures") or ():
            if name.startswith(("DFlash2", "Gemma", "DeepSeek", "Deepseek", "MuseGlimmer")):
                accepted = ("DFlash*", "*Domino*", "*DSpark*")
                raise _refusal("architectures", name, accepted, "another architecture")
    for header in headers.values():
        for module in header.name.split("."):
            if "conv" in module or "selector" in module:
                raise _refusal("tensor", header.name, (), _DFLASH2)
            if module in _DFLARE_MODULES:
                raise _refusal("tensor", header.name, (), _DFLARE)


def _refusal(key: str, value: object, harmless: tuple[Any, ...], why: str) -> ValueError:
    accepted = " or ".join(repr(v) for v in harmless[:3]) or "none of its kind"
    return ValueError(
        f"{key}: got {value!r}, supported: {accepted} ({why}). "
        "Use a DFlash, Domino or DSpark drafter with a Qwen3-style backbone."
    )
