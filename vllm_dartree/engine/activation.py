"""Applies and reverts all patches of one process, and tells which are in place."""

from __future__ import annotations

from vllm_dartree.patches.ledger import Patch, apply_all, revert_all

TREE_BACKEND = "vllm_dartree.engine.cpu_attention.TreeCPUAttentionBackend"


def all_patches() -> list[Patch]:
    """Every patch that a process with a dartree configuration applies, in order."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    from vllm_dartree.patches import (
        admission,
        cpu_runner,
        model_runner_v2,
        speculative_config,
        speculator,
    )

    cpu_without_triton = current_platform.is_cpu() and not HAS_TRITON
    return [
        speculative_config.PATCH,
        *model_runner_v2.PATCHES,
        *(cpu_runner.PATCHES if cpu_without_triton else ()),
        speculator.PATCH,
        admission.PATCH,
    ]


def activate() -> None:
    """Patch this process; a second call changes nothing.

    Raises:
        vllm_dartree.patches.ledger.PatchError: something does not fit; nothing is changed then.
    """
    patches = all_patches()
    if all(patch.applied for patch in patches):
        return
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from vllm_dartree.models import register_models

    apply_all(patches)
    register_models()
    if current_platform.is_cpu():
        register_backend(AttentionBackendEnum.CPU_ATTN, TREE_BACKEND)
        _forget_chosen_backends()


def deactivate() -> None:
    """Undo `activate`; the entry point's own patch goes too, one repair of vLLM's stays."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from vllm_dartree.cpu import remove_native_kernels
    from vllm_dartree.patches.cpu_runner import KERNEL_SCAN

    AttentionBackendEnum.CPU_ATTN.clear_override()
    _forget_chosen_backends()
    remove_native_kernels()
    revert_all([patch for patch in all_patches() if patch is not KERNEL_SCAN])


def _forget_chosen_backends() -> None:
    """vLLM remembers the backend class per configuration; an engine may have run before."""
    from vllm.v1.attention import selector

    selector._cached_get_attn_backend.cache_clear()
