"""The prompts of the suite: reproducible token ids below 60."""

from __future__ import annotations

import random

Prompt = list[int]

MAX_MODEL_LEN = 512
ANSWER_LEN = 200


def prompt(length: int, stream: int = 0) -> Prompt:
    """The first `length` tokens of a stream: prompts of one stream share their beginning."""
    return random.Random(stream).choices(range(60), k=MAX_MODEL_LEN)[:length]


# Two prompts end right before, on and after a block edge; the first three are the batches of one.
MATRIX = {
    32: [prompt(n, 1 + i) for i, n in enumerate((40, 63, 33, 5, 17, 31, 32, 64))],
    128: [prompt(n, 11 + i) for i, n in enumerate((200, 255, 197, 5, 210, 127, 128, 129))],
}
SHORT = [prompt(n, 100 + n) for n in range(1, 19)]  # 1..B+1 and one more
MIXED = [prompt(n, 30 + i) for i, n in enumerate((9, 21, 2, 45, 14, 30, 7, 26))]
LONG = [prompt(n, 50 + i) for i, n in enumerate((70, 61, 85, 77))]
NEAR_END = [prompt(MAX_MODEL_LEN - n, 60 + n) for n in (3, 10, 40)]
SHARED = prompt(150, 70)

ANSWERED = [*MATRIX[32], *MATRIX[128], *SHORT, *MIXED, *LONG, *NEAR_END]
ANSWERED += [SHARED[:n] for n in (32, 33, 64, 65, 70)]
"""What stock vLLM answers once per test session, for the oracles and for comparison."""
