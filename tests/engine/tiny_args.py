"""Arguments of an engine on the tiny target, for tests that stop at its configuration."""

from __future__ import annotations

from typing import Any


def tiny_engine_args(target: str, **options: Any) -> Any:
    """vLLM's ``EngineArgs``; vllm is imported here because a test may set its environment first."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=target,
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=256,
        block_size=32,
        max_num_seqs=4,
        kv_cache_memory_bytes=1 << 25,
        **options,
    )
