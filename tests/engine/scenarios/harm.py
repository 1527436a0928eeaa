"""Stock engines in a process that has vllm-dartree, before, beside and after its use."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.engine.engine import Engine
from tests.engine.prompts import MIXED
from tests.engine.scenarios.plain import runner_class


def tokens(engine: Engine) -> dict[str, Any]:
    """Who runs a stock engine here, what it answers, and which patches are in place."""
    run = engine.generate(MIXED[:4], 60)
    return {
        "wrong": engine.wrong(MIXED[:4], run),
        "runner": runner_class(engine)["runner"],
        "speculator": type(getattr(engine.runner, "speculator", None)).__name__,
        "drafter": type(getattr(engine.runner, "drafter", None)).__name__,
        **in_place(),
    }


def in_place() -> dict[str, Any]:
    """What of vllm-dartree this process has imported and applied."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.worker.gpu.block_table import _gather_block_tables_kernel

    applied = []
    if "vllm_dartree.engine.activation" in sys.modules:
        applied = [p.target for p in _patches() if p.applied]
    entry = importlib.import_module("vllm_dartree.patches.speculative_config").PATCH
    cpu = sys.modules.get("vllm_dartree.cpu")
    return {
        "applied": applied or [entry.target] * entry.applied,
        "native_kernels": len(cpu.installed_kernels()) if cpu else 0,
        "backend": AttentionBackendEnum.CPU_ATTN.get_path(),
        "kernel": type(_gather_block_tables_kernel).__name__,
    }


def deactivated(engine: Engine) -> dict[str, Any]:
    """Undo everything; the patched names have their pinned sources again."""
    from vllm_dartree.engine.activation import deactivate

    deactivate()
    deactivate()
    return {**in_place(), "fit": {patch.target: patch.check() for patch in _patches()}}


def _patches() -> list[Any]:
    from vllm_dartree.engine.activation import all_patches

    return all_patches()
