"""Tree attention on vLLM's CPU backend.

Rows of requests with a tree attend to their committed prefix in the paged cache and, among the
rows of this step, to their ancestors and themselves. Their keys and values stay out of the cache:
they are set aside, and only those of the accepted path are written (`commit`). So the cache never
holds a rejected node. All other requests go through the stock kernel.

vLLM's CPU cache keeps, per block and head, keys as ``[head_size, block_size]`` and values as
``[block_size, head_size]`` (instruction sets ``vec`` and ``vec16``); `check_cache_layout` makes
sure of it once at start-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from vllm_dartree.engine.payload import payload_of
from vllm_dartree.engine.tree_state import TreeBatch


@dataclass(frozen=True)
class TreePlan:
    """One tree's rows and what they may look at.

    rows: of the flat batch. blocks: cache blocks of its committed prefix, in order.
    masked_from: the first key column, of the prefix's columns followed by the tree's own rows, from
    which on `bias` has to be added; a multiple of the block size.
    bias: [M, columns - masked_from] float32, 0 where row m may look, -inf elsewhere.
    """

    rows: slice
    blocks: list[int]
    masked_from: int
    bias: Tensor


@dataclass
class TreeAttentionMetadata(CPUAttentionMetadata):
    """Metadata of a step with trees, for the target's layers only.

    plans: the trees' plans per sliding window of the group's layers (-1: no window).
    rest: stock metadata of the requests without a tree, None when there are none.
    set_aside: per layer name, keys and values [num_rows, num_kv_heads, head_size] of tree rows.
    """

    num_tree_rows: int = 0
    plans: dict[int, list[TreePlan]] = field(default_factory=dict)
    rest: CPUAttentionMetadata | None = None
    set_aside: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class TreeCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """The stock builder unless it is handed a `TreeBatch`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ours = payload_of(self.vllm_config.speculative_config) is not None
        if ours and self.isa == "amx":  # keys packed tile by tile; `vec` runs everywhere
            self.isa = "vec"
            self._set_isa_to_layers(self.layer_names)
        # A group may hold layers with different windows; the stock kernel asks each layer too.
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
        self.windows = {cast(Any, layer.impl).sliding_window for layer in layers.values()}

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        tree: TreeBatch | None = None,
    ) -> CPUAttentionMetadata:
        common = common_attn_metadata
        if tree is None:
            return super().build(common_prefix_len, common, fast_build)
        rest = None
        if tree.num_trees < common.num_reqs:
            rest = super().build(common_prefix_len, _without_trees(common, tree), fast_build)
        return TreeAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
            causal=True,
            num_tree_rows=tree.num_rows,
            plans={
                window: plan_trees(tree, common.block_table_tensor, self.block_size, window)
                for window in self.windows
            },
            rest=rest,
        )


class TreeCPUAttentionImpl(CPUAttentionBackendImpl):
    """Splits a batch between tree attention and the stock kernel."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(attn_metadata, TreeAttentionMetadata):
            return super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
        n = attn_metadata.num_tree_rows
        keys, values = key[:n].clone(), value[:n].clone()
        attn_metadata.set_aside[layer.layer_name] = keys, values
        key_blocks, value_blocks = split_cache(kv_cache)
        for plan in attn_metadata.plans[self.sliding_window]:
            output[plan.rows] = tree_attention(
                query[plan.rows],
                keys[plan.rows],
                values[plan.rows],
                key_blocks,
                value_blocks,
                plan,
                self.scale,
                self.logits_soft_cap,
            )
        if attn_metadata.rest is not None:
            super().forward(
                layer, query[n:], key[n:], value[n:], kv_cache, attn_metadata.rest, output[n:]
            )
        return output

    def commit(self, layer: Any, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write rows [A, num_kv_heads, head_size] into cache slots [A]; slot -1 is skipped."""
        self.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)


class TreeCPUAttentionBackend(CPUAttentionBackend):
    """Stands in for ``CPU_ATTN``; without trees it is the stock backend."""

    @staticmethod
    def get_impl_cls() -> type[TreeCPUAttentionImpl]:
        return TreeCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TreeCPUAttentionMetadataBuilder]:
        return TreeCPUAttentionMetadataBuilder


def plan_trees(
    tree: TreeBatch, block_table: Tensor, block_size: int, window: int
) -> list[TreePlan]:
    """One plan per tree of the step.

    A row sees the committed prefix, its ancestors and itself; with a sliding window (-1: none) only
    what lies fewer than `window` positions back. Positions count depth, not rows.
    block_table: [R, blocks] int32; the trees' requests lead.
    """
    plans = []
    positions = tree.positions
    prefix_lens = tree.prefix_lens.tolist()
    num_rows = tree.in_tree.sum(1).tolist()
    start = 0
    for index, (prefix_len, rows) in enumerate(zip(prefix_lens, num_rows, strict=True)):
        num_blocks = -(-prefix_len // block_size)
        # Without a window every row sees all of the prefix but the unused end of its last block.
        masked_from = 0 if window > 0 else max(num_blocks - 1, 0) * block_size
        columns = torch.arange(masked_from, num_blocks * block_size)
        own = positions[start : start + rows]
        on_prefix = (columns < prefix_len).expand(rows, -1)
        on_tree = tree.visible[index, :rows, :rows]
        if window > 0:
            on_prefix = on_prefix & (own[:, None] - columns < window)
            on_tree = on_tree & (own[:, None] - own < window)
        hidden = ~torch.cat([on_prefix, on_tree], dim=1)
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        blocks = block_table[index, :num_blocks].tolist()
        plans.append(TreePlan(slice(start, start + rows), blocks, masked_from, bias))
        start += rows
    return plans


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    key_blocks: Tensor,
    value_blocks: Tensor,
    plan: TreePlan,
    scale: float,
    soft_cap: float,
) -> Tensor:
    """Attention of one tree's M rows, softmax and sums in float32.

    query: [M, num_heads, D]; keys, values: [M, num_kv_heads, D]; key_blocks, value_blocks: as
    `split_cache` gives them. The prefix is read block by block where it lies, so that
    nothing is copied. Returns [M, num_heads, D] float32.
    """
    (num_rows, num_heads, head_size), num_kv_heads = query.shape, keys.shape[1]
    group = num_heads // num_kv_heads
    q = (query.float() * scale).view(num_rows, num_kv_heads, group, head_size)
    q = q.permute(1, 2, 0, 3).reshape(num_kv_heads, group * num_rows, head_size)

    parts = [torch.bmm(q, key_blocks[block].float()) for block in plan.blocks]
    parts.append(torch.bmm(q, keys.float().permute(1, 2, 0)))
    scores = torch.cat(parts, dim=2)
    if soft_cap > 0:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    masked = scores.view(num_kv_heads, group, num_rows, -1)[..., plan.masked_from :]
    masked += plan.bias
    weights = torch.softmax(scores, dim=2)

    block_size = value_blocks.shape[2]
    out = torch.bmm(weights[..., len(plan.blocks) * block_size :], values.float().transpose(0, 1))
    for place, block in enumerate(plan.blocks):
        columns = weights[..., place * block_size : (place + 1) * block_size]
        out.baddbmm_(columns, value_blocks[block].float())
    return out.view(num_heads, num_rows, head_size).transpose(0, 1)


def split_cache(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the cache: keys [blocks, kv, D, size] and values [blocks, kv, size, D]."""
    num_blocks, num_kv_heads, block_size, both = kv_cache.shape
    head_size = both // 2
    halves = kv_cache.view(num_blocks, num_kv_heads, 2, block_size * head_size)
    keys = halves[:, :, 0].unflatten(2, (head_size, block_size))
    return keys, halves[:, :, 1].unflatten(2, (block_size, head_size))


def check_cache_layout(head_size: int, block_size: int, dtype: torch.dtype, isa: str) -> None:
    """Write a known pattern with vLLM's own op and find it again.

    Raises:
        ValueError: this CPU's cache layout is another one.
    """
    kv_cache = torch.zeros(2, 1, block_size, 2 * head_size, dtype=dtype)
    pattern = torch.arange(1, head_size + 1).view(1, 1, head_size).to(dtype)
    flat = kv_cache.view(2, 1, block_size * 2, head_size)
    key_cache, value_cache = flat.chunk(2, dim=2)
    slot = torch.tensor([block_size + 3])
    ops.cpu_attn_reshape_and_cache(
        pattern,
        -pattern,
        key_cache,
        value_cache,
        slot,
        isa,
        k_scale=1.0,
        v_scale=1.0,
        kv_cache_dtype="auto",
    )
    keys, values = split_cache(kv_cache)
    if not (
        torch.equal(keys[1, 0, :, 3], pattern[0, 0])
        and torch.equal(values[1, 0, 3], -pattern[0, 0])
    ):
        raise ValueError(
            f"the KV cache of vLLM's CPU attention for instruction set {isa!r}, head size "
            f"{head_size} and {dtype} has a layout that tree attention does not know; "
            "run without method 'dartree' on this CPU"
        )


def _without_trees(common: CommonAttentionMetadata, tree: TreeBatch) -> CommonAttentionMetadata:
    """The batch from its first request without a tree on."""
    first, skipped = tree.num_trees, tree.num_rows
    query_start = common.query_start_loc[first:] - skipped
    return replace(
        common,
        query_start_loc=query_start,
        query_start_loc_cpu=common.query_start_loc_cpu[first:] - skipped,
        seq_lens=common.seq_lens[first:],
        num_reqs=common.num_reqs - first,
        num_actual_tokens=common.num_actual_tokens - skipped,
        block_table_tensor=common.block_table_tensor[first:],
        slot_mapping=common.slot_mapping[skipped:],
    )
