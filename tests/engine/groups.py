"""The engines of the suite, by process."""

from __future__ import annotations

from tests.engine.harness import EngineJob, Group
from tests.engine.oracles import SHAPES
from tests.engine.request_options import REFUSED

BY_BATCH_SIZE = "num_speculative_tokens_per_batch_size"
SCHEDULE = [[1, 1, 16], [2, 3, 9], [4, 8, 4]]  # first and last batch size, drafts
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
WINDOW_SCENARIOS = (
    "matrix.shape:second",
    "matrix.shape:zigzag",
    "matrix.shape:bushy",
    "drafter.metadata",
    "cache.contents:zigzag",
)
SMALL_STEPS = {"max_num_batched_tokens": 64}
B16 = {"num_speculative_tokens": 16}
MATRIX = tuple(f"matrix.shape:{name}" for name in SHAPES)

REFUSALS = tuple(f"requests.refused:{option}" for option in REFUSED)

DRAFTERS = tuple(
    EngineJob(
        f"{dialect}_{budget}",
        ("drafter.parity", "drafter.own_drafts"),
        {"num_speculative_tokens": budget, **more},
        drafter=dialect,
    )
    for dialect, budget, more in (
        ("dspark", 2, {}),
        ("dspark_gated", 128, {}),
        ("dspark_rnn", 64, {"dartree_width": 100}),
        ("dflash", 256, {"dartree_builder": "ddtree"}),
        ("dflash_windowed", 16, {}),
        ("speculators_dspark_one_plus_n", 1, {}),
        ("speculators_dflash", 16, {"dartree_depth": 1}),
    )
)

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
                    "cache.leftovers",
                    "sampler.purity",
                    "sampler.broken_rows:nan",
                    "sampler.broken_rows:-inf",
                    "sampler.broken_rows:one finite",
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
            EngineJob("bfloat16", ("cache.contents_in_bfloat16",), B16, {"dtype": "bfloat16"}),
            EngineJob("shrinking", ("batches.shrinking",), B16 | {BY_BATCH_SIZE: SCHEDULE}),
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
                ("requests.logprobs", "batches.inputs"),
                B16,
                # vLLM's CPU platform turns asynchronous scheduling off, asked for or not.
                SMALL_STEPS | {"logprobs_mode": "processed_logprobs", "async_scheduling": True},
            ),
            EngineJob(
                "few_blocks",
                ("lifecycle.preemptions:equal", "lifecycle.preemptions:mixed"),
                B16,
                {
                    "num_gpu_blocks_override": 12,
                    "max_model_len": 256,
                    "scheduling_policy": "priority",
                },
            ),
        ),
        env={"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1"},  # a name used again is the same id
    ),
    "models": Group(
        (
            *DRAFTERS,
            EngineJob("windowed", WINDOW_SCENARIOS, B16, target="windowed"),
            EngineJob(
                "windowed_one_group",
                WINDOW_SCENARIOS,
                B16,
                {"disable_hybrid_kv_cache_manager": True},
                target="windowed",
            ),
        )
    ),
    "processes": Group(
        (
            EngineJob(
                "processes",
                ("processes.drafts:zigzag", "processes.drafts:second", "processes.patches"),
                B16,
                {"scheduler_cls": "tests.engine.remote.ReportingScheduler"},
            ),
        ),
        env={
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        },
    ),
    "harm": Group(
        (
            EngineJob("stock_before", ("harm.tokens",)),
            EngineJob("ngram", ("harm.tokens",), options={"speculative_config": NGRAM}),
            EngineJob("dartree_between", ("drafter.own_drafts",), B16),
            EngineJob("stock_after", ("harm.tokens", "harm.deactivated")),
            EngineJob("stock_last", ("harm.tokens",)),
        )
    ),
}
