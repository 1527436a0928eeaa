"""Writing an accepted path into the paged cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.engine.oracles import Node
from tests.engine.tree_batches import step_with

pytest.importorskip("vllm")

from vllm_dartree.engine.commit import CachePort
from vllm_dartree.engine.cpu_attention import TreeCPUAttentionImpl, split_cache
from vllm_dartree.engine.rejection_sampler import accept

HEAD_SIZE, KV_HEADS, BLOCK_SIZE, LAYER = 32, 2, 32, "layer"

# Nodes as (token, parent): the accepted path is rows {1, 2, 3}, {2, 3, 5} and {1, 4, 5}.
PATHS: dict[tuple[int, ...], list[Node]] = {
    (1, 2, 3): [(1, -1, 0.0), (2, 0, 0.0), (3, 1, 0.0)],
    (2, 3, 5): [(9, -1, 0.0), (1, -1, 0.0), (2, 1, 0.0), (9, 2, 0.0), (3, 2, 0.0)],
    (1, 4, 5): [(1, -1, 0.0), (9, -1, 0.0), (8, -1, 0.0), (2, 0, 0.0), (3, 3, 0.0)],
    (): [(9, -1, 0.0), (8, -1, 0.0)],
}


@pytest.mark.parametrize("root", [3, 29, 30, 31])  # the last three make paths cross a block edge
@pytest.mark.parametrize("blocks", [(0, 1), (1, 0)])
@pytest.mark.parametrize("path", PATHS)
def test_B02_commit_equals_gather_then_scatter(
    path: tuple[int, ...], blocks: tuple[int, int], root: int
) -> None:
    """Two blocks, so that a layout guessed from the shape would be caught."""
    state = step_with([PATHS[path]], [root])
    num_rows = state.batch.num_rows
    slots = [_slot(blocks, root + i) for i in range(num_rows)]
    cache = torch.randn(2, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
    before = cache.clone()
    keys, values = torch.randn(2, num_rows, KV_HEADS, HEAD_SIZE)

    _commit(state, cache, slots, keys, values, drawn=_along(PATHS[path], path))

    expected = before.clone()
    key_blocks, value_blocks = split_cache(expected)
    for place, row in enumerate(path, start=1):
        block, offset = divmod(slots[place], BLOCK_SIZE)
        key_blocks[block, :, :, offset] = keys[row]
        value_blocks[block, :, offset] = values[row]
    assert torch.equal(cache, expected)


def test_B02_requests_of_one_step_do_not_touch_each_other() -> None:
    trees = [PATHS[2, 3, 5], PATHS[()], PATHS[1, 4, 5]]
    state = step_with(trees, [30, 5, 62])
    tables = [(0, 1), (2, 3), (4, 5, 6)]
    rows = [(2, 3, 5), (), (1, 4, 5)]
    slots: list[int] = []
    drawn: list[torch.Tensor] = []
    for tree, table, root, path in zip(trees, tables, (30, 5, 62), rows, strict=True):
        slots += [_slot(table, root + i) for i in range(len(tree) + 1)]
        drawn.append(_along(tree, path))
    cache = torch.randn(7, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
    expected = cache.clone()
    keys, values = torch.randn(2, len(slots), KV_HEADS, HEAD_SIZE)

    _commit(state, cache, slots, keys, values, torch.cat(drawn))

    key_blocks, value_blocks = split_cache(expected)
    first = 0
    for tree, path in zip(trees, rows, strict=True):
        for place, row in enumerate(path, start=1):
            block, offset = divmod(slots[first + place], BLOCK_SIZE)
            key_blocks[block, :, :, offset] = keys[first + row]
            value_blocks[block, :, offset] = values[first + row]
        first += len(tree) + 1
    assert torch.equal(cache, expected)


def _slot(table: tuple[int, ...], position: int) -> int:
    return table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def _along(tree: list[Node], path: tuple[int, ...]) -> torch.Tensor:
    """Draws that lead down `path` and to a token no node has from its end on."""
    drawn = torch.full((len(tree) + 1,), 50)
    for row, child in zip((0, *path), path, strict=False):
        drawn[row] = tree[child - 1][0]
    return drawn


def _commit(
    state: object,
    cache: torch.Tensor,
    slots: list[int],
    keys: torch.Tensor,
    values: torch.Tensor,
    drawn: torch.Tensor,
) -> None:
    impl = TreeCPUAttentionImpl.__new__(TreeCPUAttentionImpl)
    impl.attn_type, impl.kv_cache_dtype = "decoder", "auto"
    layer = SimpleNamespace(
        impl=impl, kv_cache=cache, isa="vec", _k_scale_float=1.0, _v_scale_float=1.0
    )
    mapping = torch.tensor([slots])
    group = SimpleNamespace(layer_names=[LAYER, "drafter"])
    config = SimpleNamespace(kv_cache_groups=[group])
    port = CachePort.divert(state.batch, mapping, config, frozenset({"drafter"}))
    port.metadata = {LAYER: SimpleNamespace(set_aside={LAYER: (keys, values)})}
    compilation = SimpleNamespace(static_forward_context={LAYER: layer})
    verdict = accept(state.batch, drawn, state.depth)
    port.commit(SimpleNamespace(compilation_config=compilation), verdict)
    roots = set(state.batch.rows[:, 0].tolist())
    kept = [slot if row in roots else -1 for row, slot in enumerate(slots)]
    assert mapping[0].tolist() == kept, "the forward itself may write the roots only"
