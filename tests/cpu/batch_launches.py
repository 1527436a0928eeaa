"""Launches of the kernels that lay out, advance and draft for a batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tests.cpu.batches import (
    MAX_DRAFTS,
    MAX_LEN,
    MAX_REQS,
    VOCAB,
    Batch,
    int32,
    random_batch,
)
from tests.cpu.kernel_launch import Launch, Pointers

SEEDS = range(6)


def launches() -> Iterator[Launch]:
    for seed in SEEDS:
        batch = random_batch(seed)
        yield staged_write(batch, torch.int32, flat=False)
        yield staged_write(batch, torch.float32, flat=False)
        yield staged_write(batch, torch.int64, flat=False)
        yield staged_write(batch, torch.int32, flat=True)
        yield staged_write_of_groups(batch)
        yield prefill_inputs(batch, num_lookahead=1 + seed % 3)
        yield positions_and_lengths(batch)
        yield combined_tokens(batch)
        yield expanded_mapping(batch)
        yield num_sampled_and_rejected(batch)
        yield post_update(batch, counts=seed % 2 == 0, with_queries=seed % 3 > 0)
        yield advanced(batch)
        yield gathered_block_tables(batch)
        yield slot_mappings(batch)
        yield gathered_drafts(batch)
        yield flattened_samples(batch)
        yield dflash_inputs(batch, sample_from_anchor=seed % 2 == 0)
        yield replayed_trace(batch)
        yield prompt_embeds(batch, torch.float32 if seed % 2 else torch.bfloat16)
        yield zeroed_blocks(batch)


def staged_write(batch: Batch, dtype: torch.dtype, flat: bool) -> Launch:
    rng = batch.rng
    count = int(rng.integers(1, 9))
    shape = (MAX_REQS,) if flat else (MAX_REQS, MAX_LEN)
    lengths = np.ones(count, int) if flat else rng.integers(1, 20, count)
    # Rows may repeat, but staged runs never overlap: the grid's programs have no order.
    rows = rng.permutation(MAX_REQS)[: min(count, MAX_REQS)]
    lengths = lengths[: len(rows)]
    output = torch.from_numpy(rng.integers(-9, 9, shape)).to(dtype)
    contents = torch.from_numpy(rng.integers(100, 999, int(lengths.sum()))).to(dtype)
    return Launch(
        "gpu.buffer_utils._apply_write_kernel",
        (len(rows),),
        {
            "output": output,
            "stride": output.stride(0),
            "rows": int32(rows),
            "starts": int32(np.zeros(len(rows)) if flat else rng.integers(0, 40, len(rows))),
            "contents": contents,
            "cumulative": int32(np.cumsum(lengths)),
            "groups": None,
        },
        {"BLOCK_SIZE": 8, "MULTI_GROUP": False},
    )


def staged_write_of_groups(batch: Batch) -> Launch:
    rng = batch.rng
    tables = tuple(batch.tokens(MAX_REQS, width) for width in (16, 48, 32))
    groups = np.repeat([0, 1, 2], 2)
    rows = np.concatenate([rng.permutation(MAX_REQS)[:2] for _ in tables])
    lengths = rng.integers(1, 9, len(groups))
    return Launch(
        "gpu.buffer_utils._apply_write_kernel",
        (len(groups),),
        {
            "output": Pointers(tables),
            "strides": torch.tensor([t.stride(0) for t in tables]),
            "rows": int32(rows),
            "starts": int32(rng.integers(0, 8, len(groups))),
            "contents": batch.tokens(int(lengths.sum())),
            "cumulative": int32(np.cumsum(lengths)),
            "groups": int32(groups),
        },
        {"BLOCK_SIZE": 4, "MULTI_GROUP": True},
    )


def prefill_inputs(batch: Batch, num_lookahead: int) -> Launch:
    ahead = batch.tokens(num_lookahead, MAX_REQS)
    all_token_ids = batch.tokens(MAX_REQS, MAX_LEN)
    return Launch(
        "gpu.input_batch._prepare_prefill_inputs_kernel",
        (batch.num_reqs,),
        {
            "input_ids": batch.tokens(batch.num_tokens + 3),
            "next_prefill_tokens": ahead,
            "next_prefill_tokens_stride": ahead.stride(0),
            "num_lookahead": num_lookahead,
            "idx_mapping": batch.idx_mapping,
            "query_start_loc": batch.query_start_loc,
            "all_token_ids": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "prefill_lens": int32(batch.prefill_len),
            "num_computed_tokens": int32(batch.num_computed),
        },
        {"BLOCK_SIZE": 16, "LOOKAHEAD_BLOCK": 4},
    )


def positions_and_lengths(batch: Batch) -> Launch:
    return Launch(
        "gpu.input_batch._prepare_pos_seq_lens_kernel",
        (batch.num_reqs + 1,),
        {
            "pos": batch.tokens(batch.num_tokens + 3, dtype=torch.int64),
            "seq_lens": batch.tokens(MAX_REQS),
            "idx_mapping": batch.idx_mapping,
            "query_start_loc": batch.query_start_loc,
            "num_computed_tokens": int32(batch.num_computed),
            "max_num_reqs": MAX_REQS,
        },
        {"BLOCK_SIZE": 4},
    )


def combined_tokens(batch: Batch) -> Launch:
    draft_tokens = batch.tokens(MAX_REQS, MAX_DRAFTS, dtype=torch.int64)
    return Launch(
        "gpu.input_batch._combine_sampled_and_draft_tokens_kernel",
        (batch.num_reqs,),
        {
            "input_ids": batch.tokens(batch.num_tokens + 3),
            "idx_mapping": batch.idx_mapping,
            "last_sampled_tokens": batch.tokens(MAX_REQS, 1, dtype=torch.int64),
            "query_start_loc": batch.query_start_loc,
            "seq_lens": batch.seq_lens,
            "prefill_len": int32(batch.prefill_len),
            "draft_tokens": draft_tokens,
            "draft_tokens_stride": draft_tokens.stride(0),
            "cu_num_logits": batch.cu_num_logits,
            "logits_indices": batch.tokens(batch.num_logits, dtype=torch.int64),
        },
        {"BLOCK_SIZE": 8, "NUM_NEW_SAMPLED_TOKENS": 1},
    )


def expanded_mapping(batch: Batch) -> Launch:
    return Launch(
        "gpu.input_batch._expand_idx_mapping_kernel",
        (batch.num_reqs,),
        {
            "idx_mapping": batch.idx_mapping,
            "expanded_idx_mapping": batch.tokens(batch.num_logits, dtype=torch.int64),
            "expanded_local_pos": batch.tokens(batch.num_logits),
            "cu_num_logits": batch.cu_num_logits,
        },
        {"BLOCK_SIZE": 8},
    )


def _num_sampled(batch: Batch) -> torch.Tensor:
    return int32(batch.rng.integers(1, batch.num_drafts + 2))


def num_sampled_and_rejected(batch: Batch) -> Launch:
    return Launch(
        "gpu.input_batch._get_num_sampled_and_rejected_kernel",
        (batch.num_reqs,),
        {
            "num_sampled": _num_sampled(batch),
            "num_rejected": batch.tokens(batch.num_reqs),
            "seq_lens": batch.seq_lens,
            "cu_num_logits": batch.cu_num_logits,
            "idx_mapping": batch.idx_mapping,
            "prefill_len": int32(batch.prefill_len),
        },
    )


def post_update(batch: Batch, counts: bool, with_queries: bool) -> Launch:
    idx_mapping = batch.idx_mapping
    if batch.num_reqs > 1:
        idx_mapping[batch.rng.integers(batch.num_reqs)] = -1  # a masked row
    sampled = batch.tokens(batch.num_reqs, MAX_DRAFTS + 1, dtype=torch.int64)
    all_token_ids = batch.tokens(MAX_REQS, MAX_LEN)
    num_sampled = _num_sampled(batch)
    num_sampled[0] = 0
    bins = int32(batch.rng.integers(0, 3, (MAX_REQS, VOCAB))) if counts else None
    return Launch(
        "gpu.input_batch._post_update_kernel",
        (batch.num_reqs,),
        {
            "idx_mapping": idx_mapping,
            "num_computed_tokens": int32(batch.num_computed),
            "last_sampled_tokens": batch.tokens(MAX_REQS, 1, dtype=torch.int64),
            "output_bin_counts": bins,
            "output_bin_counts_stride": VOCAB if counts else 0,
            "sampled_tokens": sampled,
            "sampled_tokens_stride": sampled.stride(0),
            "num_sampled": num_sampled,
            "num_rejected": int32(batch.num_drafts + 1) - num_sampled,
            "query_start_loc": batch.query_start_loc if with_queries else None,
            "all_token_ids": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "total_len": int32(batch.total_len),
        },
        {"num_warps": 1},
    )


def advanced(batch: Batch) -> Launch:
    return Launch(
        "gpu.input_batch._post_update_num_computed_tokens_kernel",
        (batch.num_reqs,),
        {
            "idx_mapping": batch.idx_mapping,
            "num_computed_tokens": int32(batch.num_computed),
            "query_start_loc": batch.query_start_loc,
        },
    )


def _block_tables(batch: Batch) -> tuple[torch.Tensor, ...]:
    widths = (MAX_LEN // 4, MAX_LEN // 8 + 3)
    return tuple(int32(batch.rng.integers(1, 200, (MAX_REQS, width))) for width in widths)


def gathered_block_tables(batch: Batch) -> Launch:
    sources = _block_tables(batch)
    targets = tuple(torch.full_like(table, -7) for table in sources)
    num_blocks = int32(batch.rng.integers(0, MAX_LEN // 8, (len(sources), MAX_REQS)))
    return Launch(
        "gpu.block_table._gather_block_tables_kernel",
        (len(sources), batch.num_reqs),
        {
            "batch_idx_to_req_idx": batch.idx_mapping,
            "sources": Pointers(sources),
            "targets": Pointers(targets),
            "strides": torch.tensor([table.stride(0) for table in sources]),
            "num_blocks": num_blocks,
            "num_blocks_stride": num_blocks.stride(0),
            "num_reqs": batch.num_reqs,
        },
        {"BLOCK_SIZE": 8},
    )


def slot_mappings(batch: Batch) -> Launch:
    tables = _block_tables(batch)
    idx_mapping = batch.idx_mapping
    if batch.num_reqs > 2:
        idx_mapping[1] = -1  # a dummy request
    max_num_tokens = batch.num_tokens + 9
    slots = batch.tokens(2, max_num_tokens, dtype=torch.int64)
    return Launch(
        "gpu.block_table._compute_slot_mappings_kernel",
        (len(tables), batch.num_reqs + 1),
        {
            "max_num_tokens": max_num_tokens,
            "idx_mapping": idx_mapping,
            "query_start_loc": batch.query_start_loc,
            "pos": batch.positions,
            "block_table_ptrs": Pointers(tables),
            "block_table_strides": torch.tensor([table.stride(0) for table in tables]),
            "block_sizes": torch.tensor([4, 8], dtype=torch.int32),
            "slot_mapping_enabled": torch.tensor([True, bool(batch.rng.integers(2))]),
            "dcp_sharded": torch.tensor([True, True]),
            "slot_mappings": slots,
            "slot_mappings_stride": slots.stride(0),
            "cp_rank": 0,
        },
        {"CP_SIZE": 1, "CP_INTERLEAVE": 1, "PAD_ID": -1, "TRITON_BLOCK_SIZE": 8},
    )


def gathered_drafts(batch: Batch) -> Launch:
    local_pos = batch.expanded_local_pos
    prefill_len = int32(batch.prefill_len + batch.rng.integers(0, 25, MAX_REQS))
    return Launch(
        "gpu.spec_decode.rejection_sampler._gather_draft_sampled_kernel",
        ((batch.num_logits + 7) // 8,),
        {
            "draft_sampled": batch.tokens(batch.num_logits),
            "pos": batch.tokens(batch.num_logits, dtype=torch.int64),
            "input_ids": batch.tokens(batch.num_tokens),
            "positions": batch.positions,
            "logits_indices": batch.logits_indices,
            "expanded_idx_mapping": batch.expanded_idx_mapping,
            "expanded_local_pos": local_pos,
            "prefill_len": prefill_len,
            "num_logits": batch.num_logits,
        },
        {"BLOCK_SIZE": 8},
    )


def flattened_samples(batch: Batch) -> Launch:
    sampled = batch.tokens(batch.num_reqs, MAX_DRAFTS + 1, dtype=torch.int64)
    return Launch(
        "gpu.spec_decode.rejection_sampler._flatten_sampled_kernel",
        (batch.num_reqs,),
        {
            "flat_sampled": batch.tokens(batch.num_logits, dtype=torch.int64),
            "sampled": sampled,
            "sampled_stride": sampled.stride(0),
            "num_sampled": _num_sampled(batch),
            "cu_num_logits": batch.cu_num_logits,
        },
        {"num_warps": 1},
    )


def dflash_inputs(batch: Batch, sample_from_anchor: bool) -> Launch:
    steps = 4
    queries = steps + (0 if sample_from_anchor else 1)
    max_tokens = MAX_REQS * queries + batch.num_tokens
    num_sampled = _num_sampled(batch)
    num_sampled[batch.seq_lens < int32(batch.prefill_len[batch.slots])] = 0
    num_rejected = torch.where(num_sampled > 0, int32(batch.num_drafts + 1) - num_sampled, 0)
    # Block 0 marks evicted blocks of a sliding window.
    block_table = int32(batch.rng.integers(0, 9, (MAX_REQS, MAX_LEN // 4)))
    max_span = int(batch.query_len.max()) + queries
    wide = torch.int64
    return Launch(
        "gpu.spec_decode.dflash.speculator._prepare_dflash_inputs_kernel",
        (batch.num_reqs, (max_span + 7) // 8),
        {
            "out_input_ids": batch.tokens(max_tokens),
            "out_query_positions": batch.tokens(max_tokens, dtype=wide),
            "out_query_start_loc": batch.tokens(MAX_REQS + 1),
            "out_seq_lens": batch.tokens(MAX_REQS),
            "out_query_slot_mapping": batch.tokens(max_tokens, dtype=wide),
            "out_context_positions": batch.tokens(max_tokens, dtype=wide),
            "out_context_slot_mapping": batch.tokens(max_tokens, dtype=wide),
            "out_sample_indices": batch.tokens(MAX_REQS * steps, dtype=wide),
            "out_sample_pos": batch.tokens(MAX_REQS * steps, dtype=wide),
            "out_sample_idx_mapping": batch.tokens(MAX_REQS * steps, dtype=wide),
            "out_temperature": torch.full((MAX_REQS,), 9.0),
            "out_seeds": batch.tokens(MAX_REQS, dtype=wide),
            "target_positions": batch.positions,
            "target_query_start_loc": batch.query_start_loc,
            "idx_mapping": batch.idx_mapping,
            "last_sampled": batch.tokens(MAX_REQS, 1, dtype=wide),
            "next_prefill_tokens": batch.tokens(1, MAX_REQS),
            "num_sampled": num_sampled,
            "num_rejected": num_rejected.to(torch.int32),
            "temperature": torch.from_numpy(batch.rng.random(MAX_REQS).astype(np.float32)),
            "seeds": batch.tokens(MAX_REQS, dtype=wide),
            "block_table": block_table,
            "block_table_stride": block_table.stride(0),
            "parallel_drafting_token_id": VOCAB - 1,
            "block_size": 4,
            "num_query_per_req": queries,
            "num_speculative_steps": steps,
            "max_num_reqs": MAX_REQS,
            "max_num_tokens": max_tokens,
            "max_model_len": int(batch.seq_lens.max()) + 2,
            "cp_rank": 0,
        },
        {
            "SAMPLE_FROM_ANCHOR": sample_from_anchor,
            "PAD_SLOT_ID": -1,
            "CP_SIZE": 1,
            "CP_INTERLEAVE": 1,
            "BLOCK_SIZE": 8,
        },
    )


def replayed_trace(batch: Batch) -> Launch:
    idx_mapping = batch.idx_mapping
    if batch.num_reqs > 1:
        idx_mapping[0] = -1
    trace = batch.tokens(MAX_REQS, MAX_LEN)
    return Launch(
        "gpu.sample.trace_replay._trace_replay_kernel",
        (batch.num_reqs,),
        {
            "sampled": batch.tokens(batch.num_reqs, dtype=torch.int64),
            "idx_mapping": idx_mapping,
            "trace_token_ids": trace,
            "trace_token_ids_stride": trace.stride(0),
            "trace_len": int32(batch.rng.integers(0, 12, MAX_REQS)),
            "total_len": int32(batch.total_len),
            "prompt_len": int32(batch.prompt_len),
        },
    )


def prompt_embeds(batch: Batch, dtype: torch.dtype) -> Launch:
    hidden = 20
    lengths = batch.rng.integers(0, 2, MAX_REQS) * batch.prompt_len
    embeds = tuple(batch.logits(int(n) + 1, hidden).to(dtype) for n in lengths)
    masks = tuple(torch.from_numpy(batch.rng.integers(0, 2, int(n) + 1) == 1) for n in lengths)
    inputs_embeds = batch.logits(batch.num_tokens, hidden).to(dtype)
    return Launch(
        "gpu.model_states.prompt_embeds._apply_prompt_embeds_kernel",
        (batch.num_reqs, (int(batch.query_len.max()) + 3) // 4),
        {
            "inputs_embeds": inputs_embeds,
            "inputs_embeds_stride": inputs_embeds.stride(0),
            "embeds": Pointers(embeds),
            "masks": Pointers(tuple(mask.to(torch.int8) for mask in masks)),
            "embeds_lens": int32(lengths),
            "idx_mapping": batch.idx_mapping,
            "query_start_loc": batch.query_start_loc,
            "num_computed_tokens": int32(batch.num_computed),
        },
        {"hidden_size": hidden, "TOKEN_BLOCK": 4, "BLOCK_SIZE": 16},
    )


def zeroed_blocks(batch: Batch) -> Launch:
    # Two segments of 6 blocks: pages of 12 and 5 words at strides of 12 and 8 words.
    segments = tuple(batch.tokens(6 * stride) for stride in (12, 8))
    block_ids = torch.from_numpy(batch.rng.permutation(6)[:3])
    return Launch(
        "utils._zero_kv_blocks_kernel",
        (len(block_ids), len(segments), 3),
        {
            "seg_addrs": Pointers(segments),
            "seg_block_strides": torch.tensor([12, 8]),
            "seg_page_sizes": torch.tensor([12, 5]),
            "block_ids": block_ids,
        },
        {"BLOCK_SIZE": 4},
    )
