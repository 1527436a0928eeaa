"""What stock vLLM does, for comparison."""

from __future__ import annotations

from typing import Any

from tests.engine.engine import Engine
from tests.engine.prompts import ANSWER_LEN, ANSWERED, MAX_MODEL_LEN


def answers(engine: Engine) -> list[dict[str, Any]]:
    """Greedy continuations of all prompts, with the smallest gap between the two best logits."""
    limits = [min(ANSWER_LEN, MAX_MODEL_LEN - len(p)) for p in ANSWERED]
    run = engine.generate(ANSWERED, limits, params={"logprobs": 2})
    return [
        {"prompt": prompt, "tokens": tokens, "min_gap": min(map(_gap, output.outputs[0].logprobs))}
        for prompt, tokens, output in zip(ANSWERED, run.tokens, run.outputs, strict=True)
    ]


def runner_class(engine: Engine) -> dict[str, str]:
    """Who ran this and whether vllm-dartree was loaded as a plugin."""
    from vllm.engine.arg_utils import EngineArgs

    kind = type(engine.runner)
    return {
        "runner": f"{kind.__module__}.{kind.__qualname__}",
        "wrapped": hasattr(EngineArgs.create_speculative_config, "__wrapped__"),
    }


def _gap(logprobs: dict[int, Any]) -> float:
    best, second, *_ = sorted((entry.logprob for entry in logprobs.values()), reverse=True)
    return best - second
