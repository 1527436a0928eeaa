"""Applies and reverts all patches of one process, and tells which are in place."""

from __future__ import annotations

from vllm_dartree.patches.ledger import Patch, apply_all, revert_all

TREE_BACKEND = "vllm_dartree.engine.cpu_attention.TreeCPUAttentionBackend"


def all_patches() -> list[Patch]:
    """Every patch that a process with a dartree configuration applies, in order."""
    from vllm_dartree.patches import admission, model_runner_v2, speculative_config, speculator

    return [
        speculative_config.PATCH,
        *model_runner_v2.PATCHES,
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

    from vllm_dartree.models import register_models

    apply_all(patches)
    register_models()
    if current_platform.is_cpu():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        from vllm_dartree.cpu import enable_model_runner_v2

        enable_model_runner_v2()
        register_backend(AttentionBackendEnum.CPU_ATTN, TREE_BACKEND)


def deactivate() -> None:
    """Undo `activate`; the entry point's own patch goes too."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        from vllm_dartree.cpu import disable_model_runner_v2

        AttentionBackendEnum.CPU_ATTN.clear_override()
        disable_model_runner_v2()
    revert_all(all_patches())
