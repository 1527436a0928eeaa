"""The engines of the suite, by process."""

from __future__ import annotations

from tests.engine.harness import EngineJob, Group
from tests.engine.oracles import SHAPES
from tests.engine.scenarios.requests import REFUSED

SMALL_STEPS = {"max_num_batched_tokens": 64}
B16 = {"num_speculative_tokens": 16}
MATRIX = tuple(f"matrix.shape:{name}" for name in SHAPES)

REFUSALS = tuple(f"requests.refused:{option}" for option in REFUSED)

GROUPS: dict[str, Group] = {
    "plain": Group(
        (
            EngineJob(
                "plain",
                (
                    "plain.answers",
                    "plain.runner_class",
                    "prefixes.hits",
                    "requests.constrained:min_tokens",
                    "requests.constrained:allowed_token_ids",
                ),
                options={"max_num_seqs": 64},
            ),
            EngineJob("plain_windowed", ("plain.answers",), target="windowed"),
            EngineJob("plain_raw", ("requests.logprobs",), options=SMALL_STEPS),
            EngineJob(
                "plain_processed",
                ("requests.logprobs",),
                options=SMALL_STEPS | {"logprobs_mode": "processed_logprobs"},
            ),
        ),
        with_plugin=False,
    ),
    "matrix": Group(
        (
            EngineJob("block32", MATRIX, B16),
            EngineJob("block128", MATRIX, B16, {"block_size": 128}),
        )
    ),
    "inside": Group(
        (
            EngineJob(
                "inside",
                (
                    "trees.nodes",
                    "trees.influence",
                    "cache.contents:zigzag",
                    "cache.contents:second",
                    "cache.slots",
                    "drafter.parity",
                    "drafter.context",
                    "drafter.metadata",
                    "drafter.independence",
                    "drafter.own_drafts",
                    "prefixes.hits",
                    "prefixes.contents",
                    "batches.max_tokens",
                    "batches.tree_sizes",
                    "batches.condensing",
                    "batches.stops",
                    "batches.near_the_end",
                    "requests.constrained:min_tokens",
                    "requests.constrained:allowed_token_ids",
                    *REFUSALS,
                ),
                B16,
            ),
        )
    ),
    "pressure": Group(
        (
            EngineJob(
                "small_steps",
                (
                    "batches.short_prompts",
                    "batches.chunked_prefills",
                    "batches.tight_budget",
                    "batches.near_the_end",
                    "requests.logprobs",
                    "lifecycle.aborts",
                ),
                B16,
                SMALL_STEPS,
            ),
            EngineJob(
                "processed",
                ("requests.logprobs",),
                B16,
                SMALL_STEPS | {"logprobs_mode": "processed_logprobs"},
            ),
            EngineJob(
                "few_blocks",
                ("lifecycle.preemptions:equal", "lifecycle.preemptions:mixed"),
                B16,
                {"num_gpu_blocks_override": 14, "scheduling_policy": "priority"},
            ),
        ),
        env={"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1"},  # a name used again is the same id
    ),
}
