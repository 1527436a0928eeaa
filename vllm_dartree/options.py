"""The user's options of ``method: "dartree"``, validated once.

In ``speculative_config`` they stand flat beside vLLM's own keys and carry the prefix ``dartree_``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from vllm_dartree.tree.builders import BUILDERS
from vllm_dartree.tree.options import TreeOptions
from vllm_dartree.tree.token_tree import TokenTree, parse_token_tree

METHOD = "dartree"
PREFIX = "dartree_"
MAX_BUDGET = 256
DEFAULT_BUDGET_CPU = 16
DEFAULT_BUDGET_GPU = 64


@dataclass(frozen=True)
class DartreeOptions:
    """How trees are drafted.

    builder: a name of `vllm_dartree.tree.builders.BUILDERS`.
    budget: B, the most nodes verified per request and step (``num_speculative_tokens``).
    width: W, prefixes kept per depth while building.
    candidates: K, base-logit candidates per depth.
    depth_bonus: beta <= 0, added per depth to a node's score.
    depth: J, the deepest a tree may be; at most what the checkpoint drafts.
    token_tree: paths of child ranks, for ``static`` only.
    """

    builder: str = "pruned"
    budget: int = DEFAULT_BUDGET_GPU
    width: int = 12
    candidates: int = 64
    depth_bonus: float = -0.2
    depth: int = 1
    token_tree: TokenTree | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DartreeOptions:
        fields = dict(values)
        if fields["token_tree"] is not None:
            fields["token_tree"] = tuple(tuple(path) for path in fields["token_tree"])
        return cls(**fields)

    @property
    def tree(self) -> TreeOptions:
        return TreeOptions(
            budget=self.budget,
            width=self.width,
            depth_bonus=self.depth_bonus,
            token_tree=self.token_tree,
        )

    @property
    def max_nodes(self) -> int:
        """The most nodes the builder can ever make: verifying more rows would be waste."""
        if self.builder == "chain":
            return min(self.budget, self.depth)
        if self.builder == "static":
            assert self.token_tree is not None
            return len(self.token_tree)
        if self.builder == "pruned":
            return min(self.budget, _supertree_size(self.width, self.candidates, self.depth))
        return self.budget


OPTION_KEYS = {PREFIX + field.name for field in fields(DartreeOptions)} - {PREFIX + "budget"}
"""Our keys of ``speculative_config``; the budget is vLLM's ``num_speculative_tokens``."""


def check_option_keys(user: Mapping[str, Any]) -> None:
    """Raises:
    ValueError: a key with our prefix is none of `OPTION_KEYS`; the message names the nearest.
    """
    for key in user:
        if key.startswith(PREFIX):
            check_known("speculative_config key", key, OPTION_KEYS)


def _supertree_size(width: int, candidates: int, depth: int) -> int:
    """Nodes of a full supertree: the first depth has min(W, K), later ones min(W, W K) = W."""
    return min(width, candidates) + (depth - 1) * min(width, width * candidates)


def parse_options(
    user: Mapping[str, Any], *, horizon: int, draft_vocab_size: int, on_gpu: bool
) -> DartreeOptions:
    """Read the ``dartree_*`` keys and ``num_speculative_tokens`` of a speculative config.

    horizon: J of the checkpoint, the upper bound and default of ``dartree_depth``.

    Raises:
        ValueError: an unknown key (with the nearest valid one) or a value out of its range.
    """
    check_option_keys(user)
    builder = user.get(PREFIX + "builder", DartreeOptions.builder)
    check_known(PREFIX + "builder", builder, BUILDERS)
    depth = _integer(user, PREFIX + "depth", horizon, 1, horizon)
    default_budget = DEFAULT_BUDGET_GPU if on_gpu else DEFAULT_BUDGET_CPU
    token_tree = user.get(PREFIX + "token_tree")
    if (builder == "static") != (token_tree is not None):
        raise ValueError(
            f"dartree_token_tree={token_tree!r} with dartree_builder={builder!r}: "
            'the builder "static" needs a token tree and no other builder takes one'
        )
    options = DartreeOptions(
        builder=builder,
        budget=_integer(user, "num_speculative_tokens", default_budget, 1, MAX_BUDGET),
        width=_integer(user, PREFIX + "width", DartreeOptions.width, 1, 1024),
        candidates=_integer(
            user,
            PREFIX + "candidates",
            min(DartreeOptions.candidates, draft_vocab_size),
            1,
            draft_vocab_size,
        ),
        depth_bonus=_number(user, PREFIX + "depth_bonus", DartreeOptions.depth_bonus),
        depth=depth,
        token_tree=None if token_tree is None else _token_tree(token_tree, depth),
    )
    size = len(options.token_tree or ())
    most = MAX_BUDGET if user.get("num_speculative_tokens") is None else options.budget
    if size > most:
        raise ValueError(
            f"dartree_token_tree lists {size} nodes, but num_speculative_tokens allows {most}: "
            f"drop paths or raise num_speculative_tokens (at most {MAX_BUDGET})"
        )
    options = replace(options, budget=options.max_nodes)
    assert options.tree.budget == options.budget  # TreeOptions has checks of its own
    return options


def _token_tree(text: Any, depth: int) -> TokenTree:
    tree = parse_token_tree(text)
    deepest = max(map(len, tree))
    if deepest > depth:
        raise ValueError(
            f"dartree_token_tree has a path of length {deepest}, the drafter drafts {depth} deep: "
            "drop the longer paths"
        )
    return tree


def check_known(what: str, value: Any, known: Iterable[str]) -> None:
    """Raises:
    ValueError: `value` is not one of `known`; the message names the nearest one.
    """
    known = sorted(known)
    if value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"{what} {value!r} is unknown{hint} Valid: {', '.join(known)}")


def _integer(user: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = user.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{key}={value!r} must be a whole number from {low} to {high}")
    return value


def _number(user: Mapping[str, Any], key: str, default: float) -> float:
    value = user.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 0:
        raise ValueError(
            f"{key}={value!r} must be a number from -100 to 0: with a positive bonus a child could "
            "outscore its parent and the pruned tree would lose nodes' ancestors"
        )
    return float(value)
