"""Options of single requests that the suite tries."""

from __future__ import annotations

from typing import Any

# Option: a value that this version refuses. (min_p is none: vLLM drops it from greedy requests.)
REFUSED: dict[str, Any] = {
    "temperature": 0.7,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "bad_words": ["word"],
    "logit_bias": {3: 1.0},
    "structured_outputs": {"choice": ["a", "b"]},
    "thinking_token_budget": 10,
    "logprob_token_ids": [1, 2],
}

CONSTRAINTS: dict[str, list[dict[str, Any]]] = {
    # Stop tokens forbidden up to a length that ends inside a tree.
    "min_tokens": [
        {"stop_token_ids": list(range(40)), "min_tokens": least} for least in (0, 3, 9, 18)
    ],
    "allowed_token_ids": [{"allowed_token_ids": list(range(first, 64, 2))} for first in (0, 1)],
}
