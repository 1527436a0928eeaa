"""``init_speculator`` as Model Runner V2 imports it: builds our speculator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_dartree.engine.payload import payload_of
from vllm_dartree.patches.ledger import Patch


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if payload_of(vllm_config.speculative_config) is None:
            return original(vllm_config, device, req_states)
        from vllm_dartree.engine.speculator import TreeSpeculator

        return TreeSpeculator(vllm_config, device)

    return init_speculator


PATCH = Patch(
    target="vllm.v1.worker.gpu.model_runner:init_speculator",
    fingerprint="e86cedd1d4c3",
    make=_make,
    why="draft trees with our subclass of vLLM's DFlash speculator",
    until="vLLM has a registry of speculators",
)
