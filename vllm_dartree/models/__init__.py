"""Drafter checkpoints of every dialect, and the vLLM model that runs them."""

from vllm_dartree.models.canonical import ARCHITECTURE, canonical_config, spec_from_hf_config
from vllm_dartree.models.checkpoint import read_drafter
from vllm_dartree.models.spec import DrafterSpec, TargetFacts, check_fits_target
from vllm_dartree.models.tensors import canonical_weights

__all__ = [
    "DrafterSpec",
    "TargetFacts",
    "canonical_config",
    "canonical_weights",
    "check_fits_target",
    "read_drafter",
    "register_models",
    "spec_from_hf_config",
]


def register_models() -> None:
    """Register the drafter's architecture with vLLM. Idempotent; imports no model code."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "vllm_dartree.models.drafter:DARTreeDraftModel")
