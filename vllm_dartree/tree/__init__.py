"""Draft trees in pure PyTorch: building, masks, the lossless walk, the commit plan."""

from vllm_dartree.tree.block import DraftBlock
from vllm_dartree.tree.builders import BUILDERS, Builder, build
from vllm_dartree.tree.commit import CommitPlan, commit_plan
from vllm_dartree.tree.draft_tree import DraftTree
from vllm_dartree.tree.masks import ancestor_mask
from vllm_dartree.tree.options import TreeOptions
from vllm_dartree.tree.token_tree import TokenTree, parse_token_tree
from vllm_dartree.tree.walk import Walk, walk

__all__ = [
    "BUILDERS",
    "Builder",
    "CommitPlan",
    "DraftBlock",
    "DraftTree",
    "TokenTree",
    "TreeOptions",
    "Walk",
    "ancestor_mask",
    "build",
    "commit_plan",
    "parse_token_tree",
    "walk",
]
