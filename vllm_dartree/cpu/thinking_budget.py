"""Native versions of the kernels that end reasoning when its token budget is used up."""

import torch
from numba import njit

from .memory import address, float32_at, int32_at, int64_at
from .registry import native

_FORCED_LOGIT = 1.0e9


@njit(cache=True)
def _marker_at(tokens, start, marker, marker_len):
    matches = True
    for i in range(marker_len):
        matches = matches and tokens[start + i] == marker[i]
    return matches


@njit(cache=True)
def _find_markers(
    slots,
    budgets,
    all_token_ids,
    all_token_ids_stride,
    total_lens,
    last_starts,
    last_ends,
    scan_positions,
    start_marker,
    end_marker,
    start_len,
    end_len,
    longest,
    block_size,
    num_reqs,
):
    slots = int64_at(slots)
    budgets = int32_at(budgets)
    all_token_ids = int32_at(all_token_ids)
    total_lens = int32_at(total_lens)
    last_starts = int32_at(last_starts)
    last_ends = int32_at(last_ends)
    scan_positions = int32_at(scan_positions)
    start_marker = int32_at(start_marker)
    end_marker = int32_at(end_marker)
    for i in range(num_reqs):
        slot = slots[i]
        if budgets[slot] < 0:
            continue
        row = slot * all_token_ids_stride
        total_len = total_lens[slot]
        scan = scan_positions[slot]
        last_start = last_starts[slot]
        last_end = last_ends[slot]
        if scan > total_len:  # the request was rolled back
            scan = 0
            last_start = -1
            last_end = -1
        if scan == 0 and last_start < 0 and last_end < 0:
            # First scan: from the end, block by block, until a block holds a marker.
            high = total_len
            while high > 0 and last_start < 0 and last_end < 0:
                low = max(high - block_size, 0)
                for place in range(low, high):
                    if place + start_len <= total_len and _marker_at(
                        all_token_ids, row + place, start_marker, start_len
                    ):
                        last_start = place
                    if place + end_len <= total_len and _marker_at(
                        all_token_ids, row + place, end_marker, end_len
                    ):
                        last_end = place
                high = low
        else:
            for place in range(scan, total_len):
                if place + start_len <= total_len and _marker_at(
                    all_token_ids, row + place, start_marker, start_len
                ):
                    last_start = place
                if place + end_len <= total_len and _marker_at(
                    all_token_ids, row + place, end_marker, end_len
                ):
                    last_end = place
        last_starts[slot] = last_start
        last_ends[slot] = last_end
        scan_positions[slot] = max(total_len - (longest - 1), 0)


@native("gpu.sample.thinking_budget._update_committed_marker_cache_kernel")
def update_committed_marker_cache(
    req_ids_ptr: torch.Tensor,
    thinking_token_budget_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    cached_last_start_ptr: torch.Tensor,
    cached_last_end_ptr: torch.Tensor,
    cached_scan_pos_ptr: torch.Tensor,
    reasoning_start_token_ids_ptr: torch.Tensor,
    natural_reasoning_end_token_ids_ptr: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    MAX_LEN: int,
    BLOCK: int,
) -> None:
    """Stands for `_update_committed_marker_cache_kernel`: last reasoning start and end so far."""
    _find_markers(
        address(req_ids_ptr, torch.int64),
        address(thinking_token_budget_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(total_len_ptr, torch.int32),
        address(cached_last_start_ptr, torch.int32),
        address(cached_last_end_ptr, torch.int32),
        address(cached_scan_pos_ptr, torch.int32),
        address(reasoning_start_token_ids_ptr, torch.int32),
        address(natural_reasoning_end_token_ids_ptr, torch.int32),
        START_LEN,
        NATURAL_END_LEN,
        MAX_LEN,
        BLOCK,
        req_ids_ptr.numel(),
    )


@njit(cache=True)
def _effective_token(all_token_ids, row, input_ids, first_input, total_len, place):
    if place < total_len:
        return all_token_ids[row + place]
    # A request's first input is its last committed token; its drafts follow.
    return input_ids[first_input + place - total_len + 1]


@njit(cache=True)
def _effective_marker_at(
    all_token_ids, row, input_ids, first_input, total_len, place, marker, marker_len
):
    for i in range(marker_len):
        token = _effective_token(all_token_ids, row, input_ids, first_input, total_len, place + i)
        if token != marker[i]:
            return False
    return True


@njit(cache=True)
def _force_ends(
    logits,
    logits_stride,
    expanded_idx_mapping,
    budgets,
    all_token_ids,
    all_token_ids_stride,
    total_lens,
    input_ids,
    expanded_local_pos,
    last_starts,
    last_ends,
    start_marker,
    natural_end_marker,
    forced_end,
    start_len,
    natural_end_len,
    forced_end_len,
    num_rows,
):
    logits = float32_at(logits)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    budgets = int32_at(budgets)
    tokens = int32_at(all_token_ids)
    total_lens = int32_at(total_lens)
    inputs = int32_at(input_ids)
    expanded_local_pos = int32_at(expanded_local_pos)
    last_starts = int32_at(last_starts)
    last_ends = int32_at(last_ends)
    start_marker = int32_at(start_marker)
    natural_end_marker = int32_at(natural_end_marker)
    forced_end = int32_at(forced_end)
    for logits_row in range(num_rows):
        slot = expanded_idx_mapping[logits_row]
        budget = budgets[slot]
        if budget < 0:
            continue
        row = slot * all_token_ids_stride
        first_input = logits_row - expanded_local_pos[logits_row]
        total_len = total_lens[slot]
        length = total_len + expanded_local_pos[logits_row]

        # Markers that reach into the drafts: the cache knows committed tokens only.
        last_start = last_starts[slot]
        for place in range(max(total_len - start_len + 1, 0), length - start_len + 1):
            if _effective_marker_at(
                tokens, row, inputs, first_input, total_len, place, start_marker, start_len
            ):
                last_start = place
        last_end = last_ends[slot]
        for place in range(max(total_len - natural_end_len + 1, 0), length - natural_end_len + 1):
            if _effective_marker_at(
                tokens,
                row,
                inputs,
                first_input,
                total_len,
                place,
                natural_end_marker,
                natural_end_len,
            ):
                last_end = place
        if last_start < 0 or last_start <= last_end:
            continue  # not reasoning
        if length - (last_start + start_len) < budget:
            continue

        # Continue a forced end that is already under way.
        forced_so_far = 0
        for prefix_len in range(1, min(forced_end_len - 1, length) + 1):
            if _effective_marker_at(
                tokens,
                row,
                inputs,
                first_input,
                total_len,
                length - prefix_len,
                forced_end,
                prefix_len,
            ):
                forced_so_far = prefix_len
        logits[logits_row * logits_stride + forced_end[forced_so_far]] = _FORCED_LOGIT


@native("gpu.sample.thinking_budget._thinking_budget_kernel")
def apply_thinking_budget(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    thinking_token_budget_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cached_last_start_ptr: torch.Tensor,
    cached_last_end_ptr: torch.Tensor,
    reasoning_start_token_ids_ptr: torch.Tensor,
    natural_reasoning_end_token_ids_ptr: torch.Tensor,
    reasoning_end_token_ids_ptr: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    END_LEN: int,
) -> None:
    """Stands for `_thinking_budget_kernel`: force the end marker once the budget is used up."""
    _force_ends(
        address(logits_ptr, torch.float32),
        logits_stride,
        address(expanded_idx_mapping_ptr, torch.int64),
        address(thinking_token_budget_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(total_len_ptr, torch.int32),
        address(input_ids_ptr, torch.int32),
        address(expanded_local_pos_ptr, torch.int32),
        address(cached_last_start_ptr, torch.int32),
        address(cached_last_end_ptr, torch.int32),
        address(reasoning_start_token_ids_ptr, torch.int32),
        address(natural_reasoning_end_token_ids_ptr, torch.int32),
        address(reasoning_end_token_ids_ptr, torch.int32),
        START_LEN,
        NATURAL_END_LEN,
        END_LEN,
        expanded_idx_mapping_ptr.numel(),
    )
