"""Model Runner V2 with native kernels generates what the stock V1 runner generates on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_process import run_engine

PROMPTS = [list(range(1, 6)), list(range(3, 40)), [(7 * i) % 61 for i in range(50)]]
# Smaller than two of the prompts: they are prefilled in chunks, next to decoding requests.
ENGINE = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
NEW_TOKENS = 24

GREEDY = {"temperature": 0.0}
GREEDY_OPTIONS = {
    "penalties": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.6,
        "presence_penalty": 0.5,
    },
    "logit_bias": {"logit_bias": {3: 4.0, 9: -100.0}},
    "allowed_token_ids": {"allowed_token_ids": [1, 5, 8, 13, 40]},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": list(range(0, 60, 2)), "ignore_eos": False},
    "logprobs": {"logprobs": 4, "prompt_logprobs": 2},
    "logprob_token_ids": {"logprob_token_ids": [2, 7, 11]},
}
SAMPLED = {"temperature": 0.8, "seed": 7}
SAMPLED_OPTIONS = {
    "plain": {},
    "temperature_1": {"temperature": 1.0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "presence_penalty": 0.4},
}


def enable_model_runner_v2() -> None:
    """What a dartree configuration does, without drafts: the runner and its kernels alone."""
    import vllm.config.vllm

    from vllm_dartree.patches.cpu_runner import PATCHES

    vllm.config.vllm.HAS_TRITON = True
    for patch in PATCHES:
        patch.apply()


def generate(model: str, v2: bool, batches: dict[str, Any]) -> dict[str, Any]:
    """Outputs of each named batch; a batch is [prompts, sampling parameters]."""
    if v2:
        enable_model_runner_v2()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        **ENGINE,
    )
    worker = llm.llm_engine.model_executor.driver_worker
    assert ("worker.gpu." in type(worker.model_runner).__mro__[1].__module__) == v2
    results = {}
    for name, (prompts, parameters) in batches.items():
        options = {"max_tokens": NEW_TOKENS, "detokenize": False, "ignore_eos": True, **parameters}
        if "logit_bias" in options:  # JSON made the keys strings
            options["logit_bias"] = {int(k): v for k, v in options["logit_bias"].items()}
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(**options),
            use_tqdm=False,
        )
        results[name] = [
            {
                "tokens": output.outputs[0].token_ids,
                "logprobs": _plain(output.outputs[0].logprobs),
                "prompt_logprobs": _plain(output.prompt_logprobs),
            }
            for output in outputs
        ]
    return results


def _plain(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    return [
        None if place is None else {str(t): [v.logprob, v.rank] for t, v in place.items()}
        for place in logprobs
    ]


GREEDY_BATCHES = {
    "one": [PROMPTS[2:], GREEDY],
    "three": [PROMPTS, GREEDY],
    **{name: [PROMPTS, GREEDY | options] for name, options in GREEDY_OPTIONS.items()},
}
SAMPLED_BATCHES = {
    f"{name}, {size}": [prompts, SAMPLED | options]
    for name, options in SAMPLED_OPTIONS.items()
    for size, prompts in (("three", PROMPTS), ("again", PROMPTS), ("alone", PROMPTS[1:2]))
}


@pytest.fixture(scope="module")
def v1(tiny_target: Path) -> dict[str, Any]:
    return run_engine(
        generate,
        environment={"VLLM_PLUGINS": ""},
        model=tiny_target,
        v2=False,
        batches=GREEDY_BATCHES,
    )


@pytest.fixture(scope="module")
def v2(tiny_target: Path) -> dict[str, Any]:
    return run_engine(
        generate,
        environment={"VLLM_PLUGINS": "", "VLLM_USE_V2_MODEL_RUNNER": "1"},
        model=tiny_target,
        v2=True,
        batches=GREEDY_BATCHES | SAMPLED_BATCHES,
    )


def tokens(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["tokens"] for result in results]


@pytest.mark.parametrize("batch", GREEDY_BATCHES)
def test_greedy_tokens_equal_the_stock_runner(
    batch: str, v1: dict[str, Any], v2: dict[str, Any]
) -> None:
    assert tokens(v2[batch]) == tokens(v1[batch])


@pytest.mark.parametrize("option", ["penalties", "logit_bias", "allowed_token_ids", "min_tokens"])
def test_options_matter(option: str, v2: dict[str, Any]) -> None:
    assert tokens(v2[option]) != tokens(v2["three"])


@pytest.mark.parametrize("batch", ["logprobs", "logprob_token_ids"])
@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_equal_the_stock_runner(
    batch: str, field: str, v1: dict[str, Any], v2: dict[str, Any]
) -> None:
    for found, expected in zip(v2[batch], v1[batch], strict=True):
        if expected[field] is None:
            assert found[field] is None
            continue
        for here, there in zip(found[field], expected[field], strict=True):
            # Another order of summing the softmax normaliser in float32.
            assert (here or {}).keys() == (there or {}).keys()
            for token, (logprob, rank) in (there or {}).items():
                assert here[token] == [pytest.approx(logprob, abs=1e-4), rank]


@pytest.mark.parametrize("option", SAMPLED_OPTIONS)
def test_seeded_samples_are_reproducible_alone_and_in_company(
    option: str, v2: dict[str, Any]
) -> None:
    three = tokens(v2[f"{option}, three"])
    assert tokens(v2[f"{option}, again"]) == three
    assert tokens(v2[f"{option}, alone"]) == three[1:2]
    assert three != tokens(v2["three"])
