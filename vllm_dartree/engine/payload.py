"""The part of vLLM's configuration that is ours, and how a process learns of it.

vLLM sends one pickled configuration to every process that takes part (engine core, workers, Ray
actors). `Payload` rides in the draft model's ``hf_config``; unpickling it applies the patches. So a
process is patched exactly when it receives a configuration that needs it, before anything reads
that configuration, and a process that never sees ``method: "dartree"`` stays stock.
"""

from __future__ import annotations

from typing import Any

from vllm_dartree.options import DartreeOptions

KEY = "dartree_payload"


class Payload(dict[str, Any]):
    """``{"options": ..., "block_size": ...}`` as plain JSON values, beside the drafter's spec."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (dict(self),)

    @property
    def options(self) -> DartreeOptions:
        return DartreeOptions.from_json(self["options"])

    @property
    def num_query_slots(self) -> int:
        """Rows of one request in the drafter's forward: the block the checkpoint was trained on."""
        return int(self["block_size"])


def _receive(values: dict[str, Any]) -> Payload:
    from vllm_dartree.engine.activation import activate

    activate()
    return Payload(values)


def payload_of(speculative_config: Any) -> Payload | None:
    """The payload of a vLLM ``SpeculativeConfig``, None when it is not one of ours."""
    draft_model_config = getattr(speculative_config, "draft_model_config", None)
    payload = getattr(getattr(draft_model_config, "hf_config", None), KEY, None)
    return payload if isinstance(payload, Payload) else None
