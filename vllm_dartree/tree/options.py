"""The builders' options, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_dartree.tree.token_tree import TokenTree, check_token_tree


@dataclass(frozen=True)
class TreeOptions:
    """How to build a draft tree.

    Attributes:
        budget: B, the most nodes a tree may have, root not counted.
        width: W, the nodes kept per depth while building (``pruned``).
        depth_bonus: beta <= 0, added to the score once per depth. The DDTree builders leave it
            out: their scores are log-probabilities.
        token_tree: the paths of ``static``, from ``parse_token_tree``.

    >>> TreeOptions(budget=64)
    TreeOptions(budget=64, width=12, depth_bonus=-0.2, token_tree=None)
    >>> TreeOptions(budget=64, depth_bonus=0.1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: depth_bonus=0.1 must be a finite number <= 0: ...
    """

    budget: int
    width: int = 12
    depth_bonus: float = -0.2
    token_tree: TokenTree | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer >= 1: set it to 1 or more")
        if not (math.isfinite(self.depth_bonus) and self.depth_bonus <= 0):
            raise ValueError(
                f"depth_bonus={self.depth_bonus!r} must be a finite number <= 0: with a positive "
                "bonus a child could beat its parent and the pruned tree would lose the parent "
                "(Lemma 1 fails); use a value in [-0.2, 0]"
            )
        if self.token_tree is not None:
            check_token_tree(self.token_tree)
            if len(self.token_tree) > self.budget:
                raise ValueError(
                    f"token_tree lists {len(self.token_tree)} nodes, the allowed range is "
                    f"1..budget={self.budget}: raise the budget or drop paths"
                )
