"""Greedy runs of the demo pair in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DRAFTER = ROOT / "examples" / "drafters" / "smollm2-135m-domino"
STOCK = {"VLLM_PLUGINS": ""}
"""Environment of a process in which vLLM loads no plugin."""


def demo_target() -> Path:
    """The demo target's directory; fetched once."""
    return _example("demo_target").ensure_target()


def evaluation_prompts(count: int) -> list[str]:
    """The first `count` of GSM8K and HumanEval, alternating; no drafter was trained on them."""
    sets = _example("prompts")
    pairs = zip(sets.gsm8k(), sets.human_eval(), strict=False)
    return [prompt.text for pair in pairs for prompt in pair][:count]


def greedy(
    target: str,
    texts: list[str],
    max_tokens: int,
    dtype: str,
    batch: int,
    speculative_config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Token ids per prompt, the runner's class, and the rounds that verified trees."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=batch,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 30,
        disable_log_stats=False,  # for the number of rounds
        speculative_config=speculative_config,
    )
    conversations = [[{"role": "user", "content": text}] for text in texts]
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs = llm.chat(conversations, params, use_tqdm=False)
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    rounds = metrics.get("vllm:spec_decode_num_drafts")
    return {
        "prompt_ids": [list(output.prompt_token_ids or ()) for output in outputs],
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "rounds": rounds.value if rounds is not None else 0,
    }


def top_two(target: str, prefixes: list[list[int]], dtype: str) -> list[list[tuple[int, float]]]:
    """The two most likely next tokens after each prefix with their log-probabilities."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=8,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 30,
    )
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
    prompts = [{"prompt_token_ids": prefix} for prefix in prefixes]
    rows = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        first = output.outputs[0].logprobs[0]
        ranked = sorted(first.items(), key=lambda item: -item[1].logprob)[:2]
        rows.append([(token, entry.logprob) for token, entry in ranked])
    return rows


def _example(name: str) -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)
