"""Reaching into a running in-process engine, for demonstrations, benchmarks and tests."""

from __future__ import annotations

from typing import Any


def runner_of(llm: Any) -> Any:
    """The model runner of a `vllm.LLM` whose engine core and worker live in this process.

    Raises:
        ValueError: the engine core runs in another process.
    """
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)
    if core is None:
        raise ValueError(
            f"the engine core behind {type(client).__name__} is in another process: "
            "set VLLM_ENABLE_V1_MULTIPROCESSING=0 before importing vllm"
        )
    return core.model_executor.driver_worker.worker.model_runner
