"""One file per way to build a draft tree; same interface, same verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from vllm_dartree.tree.builders.best_first import best_first
from vllm_dartree.tree.builders.chain import chain
from vllm_dartree.tree.builders.chain_ddtree import chain_ddtree
from vllm_dartree.tree.builders.ddtree import ddtree
from vllm_dartree.tree.builders.fixed import fixed
from vllm_dartree.tree.builders.pruned import pruned
from vllm_dartree.tree.builders.static import static
from vllm_dartree.tree.draft_tree import DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


class Builder(Protocol):
    """Builds one tree of at most ``options.budget`` nodes per request of the block.

    All but ``best_first`` are fixed-shape and never wait for the device: after one warm-up call
    they may be captured in a CUDA graph. A candidate whose corrected logit is not finite is never
    a node, so a tree may be shorter than the budget, down to the root alone.
    """

    def __call__(
        self, block: DraftBlock, head: CorrectionHead, options: TreeOptions
    ) -> DraftTree: ...


BUILDERS: dict[str, Builder] = {
    "pruned": pruned,
    "fixed": fixed,
    "ddtree": ddtree,
    "chain": chain,
    "chain_ddtree": chain_ddtree,
    "best_first": best_first,
    "static": static,
}


@torch.no_grad()
def build(name: str, block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The draft trees of ``block`` by the builder called ``name``; ValueError if there is none."""
    builder = BUILDERS.get(name)
    if builder is None:
        raise ValueError(f"builder={name!r} is unknown: use one of {', '.join(BUILDERS)}")
    return builder(block, head, options)


__all__ = ["BUILDERS", "Builder", "build"]
