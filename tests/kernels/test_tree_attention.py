"""The CPU's tree attention over a paged cache equals the written-out reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from vllm_dartree.kernels.tree_attention.reference import tree_attention as reference
from vllm_dartree.tree import DraftTree

cpu_attention = pytest.importorskip("vllm_dartree.engine.cpu_attention")
TreeState = pytest.importorskip("vllm_dartree.engine.tree_state").TreeState

HEAD_SIZE, KV_HEADS, BLOCK_SIZE = 32, 2, 32
# Both sum a few hundred float32 products, in another order.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-5}


@dataclass(frozen=True)
class Case:
    """Two requests with a random tree each and their caches."""

    state: TreeState
    cache: Tensor
    block_table: Tensor
    prefixes: list[tuple[Tensor, Tensor]]
    query: Tensor
    keys: Tensor
    values: Tensor


def random_tree(num_nodes: int, generator: np.random.Generator) -> list[tuple[int, int, float]]:
    return [(n, int(generator.integers(-1, n)), -float(n)) for n in range(num_nodes)]


def make_case(
    prefix_lens: list[int], sizes: list[int], group: int, dtype: torch.dtype, seed: int
) -> Case:
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    budget = max(sizes)
    state = TreeState(len(sizes), budget, budget, torch.device("cpu"))
    trees = DraftTree.from_nodes([random_tree(n, generator) for n in sizes], budget)
    slots = torch.arange(len(sizes))
    state.store(slots, trees)
    starts = np.concatenate([[0], np.cumsum([n + 1 for n in sizes])])
    state.begin_step(slots, np.array(sizes), starts, torch.tensor(prefix_lens, dtype=torch.int32))

    num_blocks = [-(-length // BLOCK_SIZE) for length in prefix_lens]
    width = max([*num_blocks, 1])
    order = torch.randperm(sum(num_blocks)) + 1
    block_table = torch.zeros(len(sizes), width, dtype=torch.int32)
    cache = torch.randn(sum(num_blocks) + 1, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE).to(dtype)
    key_blocks, value_blocks = cpu_attention.split_cache(cache)
    prefixes, first = [], 0
    for request, (length, blocks) in enumerate(zip(prefix_lens, num_blocks, strict=True)):
        own = order[first : first + blocks]
        first += blocks
        block_table[request, :blocks] = own
        keys = key_blocks[own].permute(0, 3, 1, 2).reshape(-1, KV_HEADS, HEAD_SIZE)[:length]
        values = value_blocks[own].transpose(1, 2).reshape(-1, KV_HEADS, HEAD_SIZE)[:length]
        prefixes.append((keys, values))
    num_rows = int(starts[-1])
    query = torch.randn(num_rows, KV_HEADS * group, HEAD_SIZE).to(dtype)
    keys, values = torch.randn(2, num_rows, KV_HEADS, HEAD_SIZE).to(dtype)
    return Case(state, cache, block_table, prefixes, query, keys, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("window", [-1, 1, 20])
@pytest.mark.parametrize("soft_cap", [0.0, 5.0])
def test_B04_rows_see_their_prefix_and_ancestors_only(
    dtype: torch.dtype, group: int, window: int, soft_cap: float
) -> None:
    case = make_case([70, 31], [9, 4], group, dtype, seed=group + window)
    _check(case, window, soft_cap, TOLERANCE[dtype])


@pytest.mark.parametrize("prefix_len", [0, 1, 31, 32, 33, 64])
def test_prefixes_of_every_length_around_a_block_edge(prefix_len: int) -> None:
    case = make_case([prefix_len, 5], [6, 1], 2, torch.float32, seed=prefix_len)
    _check(case, -1, 0.0, TOLERANCE[torch.float32])


def test_layout_check_knows_this_machine_s_cache() -> None:
    cpu_attention.check_cache_layout(64, 128, torch.float32, "vec")
    cpu_attention.check_cache_layout(80, 16, torch.float32, "vec16")


def test_layout_check_refuses_another_layout_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_elsewhere(key: Tensor, value: Tensor, key_cache: Tensor, *args: object, **kw: object):
        key_cache.fill_(7.0)

    monkeypatch.setattr(cpu_attention.ops, "cpu_attn_reshape_and_cache", write_elsewhere)
    with pytest.raises(ValueError, match="layout that tree attention does not know"):
        cpu_attention.check_cache_layout(64, 32, torch.float32, "vec")


def _check(case: Case, window: int, soft_cap: float, tolerance: float) -> None:
    batch = case.state.batch
    scale = HEAD_SIZE**-0.5
    key_blocks, value_blocks = cpu_attention.split_cache(case.cache)
    plans = cpu_attention.plan_trees(batch, case.block_table, BLOCK_SIZE, window)
    for request, plan in enumerate(plans):
        rows = plan.rows
        ours = cpu_attention.tree_attention(
            case.query[rows],
            case.keys[rows],
            case.values[rows],
            key_blocks,
            value_blocks,
            plan,
            scale,
            soft_cap,
        )
        num_rows = rows.stop - rows.start
        depths = batch.positions[rows] - batch.prefix_lens[request]
        expected = reference(
            case.query[rows],
            case.keys[rows],
            case.values[rows],
            *case.prefixes[request],
            batch.visible[request, :num_rows, :num_rows],
            depths,
            scale,
            soft_cap,
            max(window, 0),
        )
        torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
