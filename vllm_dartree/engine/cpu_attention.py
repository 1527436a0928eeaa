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
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from vllm_dartree.engine.tree_state import TreeBatch


@dataclass
class TreeAttentionMetadata(CPUAttentionMetadata):
    """Metadata of a step with trees, for the target's layers only.

    tree: the step's trees. prefix_blocks: [T, P] int64 cache blocks of the prefixes, padded with
    block 0. bias: [T, 1, M, S + M] float32, 0 where row m of a tree may look, -inf elsewhere; the
    first S = P * block_size columns are the prefix, the others the tree's own rows.
    rest: stock metadata of the requests without a tree, None when there are none.
    set_aside: per layer name, keys and values [num_rows, num_kv_heads, head_size] of tree rows.
    """

    tree: TreeBatch = None  # type: ignore[assignment]
    prefix_blocks: Tensor = None  # type: ignore[assignment]
    bias: Tensor = None  # type: ignore[assignment]
    rest: CPUAttentionMetadata | None = None
    set_aside: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class TreeCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """The stock builder unless it is handed a `TreeBatch`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.isa == "amx":  # its key layout is packed tile by tile; `vec` runs everywhere
            self.isa = "vec"
            self._set_isa_to_layers(self.layer_names)

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
        num_blocks = -(-common.max_seq_len // self.block_size)
        prefix_blocks = common.block_table_tensor[: tree.num_trees, :num_blocks].long()
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
            tree=tree,
            prefix_blocks=prefix_blocks,
            bias=attention_bias(tree, num_blocks * self.block_size, self.window_size),
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
        n = attn_metadata.tree.num_rows
        keys, values = key[:n].clone(), value[:n].clone()
        attn_metadata.set_aside[layer.layer_name] = keys, values
        output[:n] = tree_attention(
            query[:n], keys, values, kv_cache, attn_metadata, self.scale, self.logits_soft_cap
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


def attention_bias(tree: TreeBatch, prefix_columns: int, window: int) -> Tensor:
    """[T, 1, M, prefix_columns + M] float32: 0 where a tree row may look, -inf elsewhere.

    A row sees the committed prefix, its ancestors and itself; with a sliding window (-1: none) only
    what lies fewer than `window` positions back. Positions count depth, not rows.
    """
    columns = torch.arange(prefix_columns, device=tree.rows.device)
    prefix_lens = tree.prefix_lens.long()
    row_depths = torch.nn.functional.pad(tree.tree.depths, (1, 0))
    num_rows = row_depths.shape[1]
    on_prefix = (columns < prefix_lens[:, None])[:, None].expand(-1, num_rows, -1)
    on_tree = tree.visible
    if window > 0:
        positions = prefix_lens[:, None] + row_depths
        on_prefix = on_prefix & (positions[:, :, None] - columns < window)
        on_tree = on_tree & (row_depths[:, :, None] - row_depths[:, None, :] < window)
    seen = torch.cat([on_prefix, on_tree], dim=-1)
    bias = torch.zeros(seen.shape, dtype=torch.float32, device=seen.device)
    return bias.masked_fill_(~seen, float("-inf"))[:, None]


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    kv_cache: Tensor,
    metadata: TreeAttentionMetadata,
    scale: float,
    soft_cap: float,
) -> Tensor:
    """Attention of all tree rows of a step, softmax and sums in float32.

    query: [num_rows, num_heads, head_size]; keys, values: [num_rows, num_kv_heads, head_size];
    kv_cache: [num_blocks, num_kv_heads, block_size, 2 * head_size], a block's keys before its
    values. Returns [num_rows, num_heads, head_size] float32.
    """
    rows = metadata.tree.rows
    num_trees, num_tree_rows = rows.shape
    _, num_heads, head_size = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    key_blocks, value_blocks = split_cache(kv_cache)

    # [T, kv, D, S + M] and [T, kv, S + M, D]: prefix columns, then the tree's rows.
    prefix_keys = key_blocks[metadata.prefix_blocks].permute(0, 2, 3, 1, 4).flatten(3)
    prefix_values = value_blocks[metadata.prefix_blocks].transpose(1, 2).flatten(2, 3)
    all_keys = torch.cat([prefix_keys, keys[rows].permute(0, 2, 3, 1)], dim=3).float()
    all_values = torch.cat([prefix_values, values[rows].transpose(1, 2)], dim=2).float()

    q = (query.float() * scale)[rows].view(num_trees, num_tree_rows, num_kv_heads, group, head_size)
    q = q.permute(0, 2, 3, 1, 4).reshape(num_trees, num_kv_heads, -1, head_size)
    scores = torch.matmul(q, all_keys)
    if soft_cap > 0:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    by_row = scores.view(num_trees, num_kv_heads * group, num_tree_rows, -1)
    by_row += metadata.bias
    out = torch.matmul(torch.softmax(scores, dim=-1), all_values)
    out = out.view(num_trees, num_heads, num_tree_rows, head_size).transpose(1, 2)
    return out[metadata.tree.in_tree]


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
