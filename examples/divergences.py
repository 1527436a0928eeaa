"""Where two greedy answers part, and how close the target's choice was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PLAIN = "plain"


@dataclass(frozen=True)
class Divergence:
    """The first token in which an answer differs from plain vLLM's at the same batch size.

    token: index in the answer. plain, other: the two tokens as text ("" where an answer ended).
    gap: difference of the target's two highest logits there, in a new run of plain vLLM.
    """

    configuration: str
    batch_size: int
    round: int
    prompt: int
    token: int
    plain: str
    other: str
    gap: float


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Index of the first differing token, None when both are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def find_divergences(
    plain_engine: Any,
    prompts: list[list[int]],
    results: dict[tuple[str, int], list[dict[str, Any]]],
    tokenizer: Any,
) -> list[Divergence]:
    """Compare every answer of every round with plain vLLM's first round at its batch size.

    An answer that differs in the same way in several rounds is listed once.
    """
    found = []
    for (name, batch_size), rounds in results.items():
        expected = results[PLAIN, batch_size][0]["tokens"]
        seen = set()
        for number, result in enumerate(rounds):
            for prompt, (plain, other) in enumerate(zip(expected, result["tokens"], strict=True)):
                at = first_difference(plain, other)
                if at is None or (prompt, at, *other[at : at + 1]) in seen:
                    continue
                seen.add((prompt, at, *other[at : at + 1]))
                likeliest = plain_engine.call(
                    "top_logprobs", prompt=prompts[prompt] + plain[:at], count=2
                )
                best, second = sorted(likeliest.values(), reverse=True)[:2]
                found.append(
                    Divergence(
                        configuration=name,
                        batch_size=batch_size,
                        round=number,
                        prompt=prompt,
                        token=at,
                        plain=tokenizer.decode(plain[at : at + 1]),
                        other=tokenizer.decode(other[at : at + 1]),
                        gap=best - second,
                    )
                )
    return found
