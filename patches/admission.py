"""``SamplingParams._validate_spec_decode``: refuse at admission what trees cannot do exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_dartree.engine.payload import payload_of
from vllm_dartree.patches.ledger import Patch


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _validate_spec_decode(self: Any, speculative_config: Any) -> None:
        if payload_of(speculative_config) is None:
            return original(self, speculative_config)
        from vllm_dartree.engine.admission import check_sampling_params

        check_sampling_params(self)

    return _validate_spec_decode


PATCH = Patch(
    target="vllm.sampling_params:SamplingParams._validate_spec_decode",
    fingerprint="2283724c4c43",
    make=_make,
    why="refuse by name what verification along tree branches would get wrong",
    until="vLLM asks the speculator which sampling parameters it supports",
)
