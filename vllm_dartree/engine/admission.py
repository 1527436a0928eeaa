"""Which requests are taken: what verification would get wrong on a branch is refused by name."""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

_GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS


class UnsupportedOption(VLLMValidationError, ValueError):
    """Status 400 for vLLM's servers, which go by its own class, and a ``ValueError`` for others."""


def check_sampling_params(params: Any) -> None:
    """Refuse options whose effect depends on what stands before a node on its own branch.

    Raises:
        UnsupportedOption: with the option, its value, what is allowed and the fix; the request is
            not admitted, others go on.
    """
    for name, refused, allowed in (
        ("temperature", params.temperature >= _GREEDY_BELOW, "0 (greedy)"),
        ("presence_penalty", params.presence_penalty != 0.0, "0"),
        ("frequency_penalty", params.frequency_penalty != 0.0, "0"),
        ("repetition_penalty", params.repetition_penalty != 1.0, "1"),
        ("bad_words", bool(params.bad_words), "none"),
        ("logit_bias", bool(params.logit_bias), "none"),
        ("min_p", params.min_p > 0.0, "0"),
        ("structured_outputs", params.structured_outputs is not None, "none"),
        ("thinking_token_budget", params.thinking_token_budget is not None, "none"),
        ("logprob_token_ids", bool(params.logprob_token_ids), "none"),
    ):
        if refused:
            raise UnsupportedOption(
                f"{name}={getattr(params, name)!r} is not supported with speculative method "
                f"'dartree' (allowed: {allowed}): set it to that, or send the request to a server "
                "without speculative_config",
                parameter=name,
                value=getattr(params, name),
            )
