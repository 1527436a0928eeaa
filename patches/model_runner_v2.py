"""``VllmConfig``: a dartree configuration runs on Model Runner V2, with or without Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_dartree.engine.payload import payload_of
from vllm_dartree.patches.ledger import Patch


def _make_use_v2(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(original)
    def use_v2_model_runner(self: Any) -> bool:
        return payload_of(self.speculative_config) is not None or original(self)

    return use_v2_model_runner


def _make_validate(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def _validate_v2_model_runner(self: Any) -> None:
        if payload_of(self.speculative_config) is None:
            return original(self)
        from vllm_dartree.cpu import triton_counts_as_present
        from vllm_dartree.engine.support import check_engine_supported

        with triton_counts_as_present():
            original(self)
        check_engine_supported(self)

    return _validate_v2_model_runner


def _make_lookahead(original: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(original)
    def num_lookahead_tokens(self: Any) -> int:
        payload = payload_of(self.speculative_config)
        # The walk ends at most `depth` positions after the root, and from there the drafter writes
        # its whole block, whose length has nothing to do with the budget.
        return original(self) if payload is None else payload.num_query_slots

    return num_lookahead_tokens


def _make_draft_slots(original: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(original)
    def max_num_new_slots_for_drafting(self: Any) -> int:
        payload = payload_of(self)
        return original(self) if payload is None else payload.num_query_slots - 1

    return max_num_new_slots_for_drafting


_UNTIL = "vLLM keeps a drafter's horizon apart from num_speculative_tokens"

PATCHES = [
    Patch(
        target="vllm.config.vllm:VllmConfig.use_v2_model_runner",
        fingerprint="c935f4252380",
        make=_make_use_v2,
        why="trees need Model Runner V2, which a CPU does not choose by itself",
        until="Model Runner V2 is the default on every platform",
    ),
    Patch(
        target="vllm.config.vllm:VllmConfig._validate_v2_model_runner",
        fingerprint="31f64b51fcb7",
        make=_make_validate,
        why="native kernels take Triton's place on a CPU; engine features that trees do not "
        "support are refused by name at start-up",
        until="vLLM asks a speculator what it supports, and its CPU wheel ships a Triton",
    ),
    Patch(
        target="vllm.config.vllm:VllmConfig.num_lookahead_tokens",
        fingerprint="d09e6aad2430",
        make=_make_lookahead,
        why="KV slots after the verified rows: the drafter's block, not the budget",
        until=_UNTIL,
    ),
    Patch(
        target="vllm.config.speculative:SpeculativeConfig.max_num_new_slots_for_drafting",
        fingerprint="9829b71bdb26",
        make=_make_draft_slots,
        why="draft rows per request in the scheduler's token budget: the block, not the budget",
        until=_UNTIL,
    ),
]
