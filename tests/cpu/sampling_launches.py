"""Launches of the kernels behind sampling options, logprobs and structured outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tests.cpu.batches import MAX_LEN, MAX_REQS, VOCAB, Batch, int32, random_batch
from tests.cpu.kernel_launch import Launch

SEEDS = range(100, 105)

# All else is equal bit for bit, Gumbel noise included: its two logarithms come from numpy on both
# sides. (On a GPU they may differ by an ulp, as the hash and the uniforms cannot.)
# The softmax normaliser is a sum over the vocabulary in another order.
LOG_SOFTMAX = 2e-5


def launches() -> Iterator[Launch]:
    for seed in SEEDS:
        batch = random_batch(seed, decode_only=True)
        odd = seed % 2 == 1
        for drafting, scaled, double in (
            (False, False, False),
            (True, True, False),
            (odd, odd, True),
        ):
            yield gumbel(batch, torch.float32, drafting, scaled, double, cached=drafting)
        yield gumbel(batch, torch.bfloat16, False, True, False, cached=False)
        yield temperature(batch)
        yield min_p(batch)
        yield penalties(batch)
        yield bincount(batch)
        yield logit_bias(batch, check_all_masked=odd)
        yield bad_words(batch)
        yield grammar(batch, (torch.float32, torch.bfloat16, torch.float16)[seed % 3])
        yield log_softmax(batch, torch.bfloat16 if odd else torch.float32)
        yield ranks(batch, torch.float32 if odd else torch.float16)
        yield logprob_token_ids(batch, num_topk=seed % 4)
        yield prompt_logprob_token_ids(random_batch(seed))
        yield sampling_mask(batch, rows_per_request=1 + seed % 3)
        yield num_nans(batch)
        yield thinking_markers(batch)
        yield thinking_budget(batch)


def _rows(batch: Batch) -> dict[str, torch.Tensor]:
    return {"expanded_idx_mapping": batch.expanded_idx_mapping}


def _masked_logits(batch: Batch, rows: int, vocab: int = VOCAB) -> torch.Tensor:
    """Logits where top-k has left a few tokens in some rows, one row with none at all."""
    logits = batch.logits(rows, vocab)
    for row in range(0, rows, 2):
        logits[row, batch.logits(1, vocab)[0] < 3] = -torch.inf
    if rows > 3:
        logits[3] = -torch.inf
    return logits


def gumbel(
    batch: Batch, dtype: torch.dtype, drafting: bool, scaled: bool, double: bool, cached: bool
) -> Launch:
    block_size = 128
    num_blocks = (VOCAB + block_size - 1) // block_size
    rows = batch.num_logits
    slots = batch.expanded_idx_mapping
    if drafting and rows > 1:
        slots[rows // 2] = -1  # an inert row
    logits = _masked_logits(batch, rows).to(dtype)
    # Two equal maxima: the first token wins.
    logits[0, 5] = logits[0, 150] = logits[0, 151] = 40.0
    temperatures = batch.rng.choice([0.0, 0.3, 0.7, 1.0, 1.7], MAX_REQS).astype(np.float32)
    seeds = batch.rng.integers(-(2**62), 2**62, MAX_REQS)
    columns = 3
    cache = batch.logits(MAX_REQS * columns, VOCAB + 6).view(MAX_REQS, columns, -1).to(dtype)
    per_row = rows % 2 == 1
    column = int32(batch.rng.integers(0, columns, rows if per_row else ()))
    local_argmax = batch.tokens(rows, num_blocks, dtype=torch.int64)
    local_max = batch.logits(rows, num_blocks).to(torch.float64 if double else torch.float32)
    return Launch(
        "gpu.sample.gumbel._gumbel_sample_kernel",
        (rows, num_blocks),
        {
            "local_argmax": local_argmax,
            "local_argmax_stride": local_argmax.stride(0),
            "local_max": local_max,
            "local_max_stride": local_max.stride(0),
            "logits_cache": cache if cached else None,
            "logits_cache_stride_0": cache.stride(0) if cached else 0,
            "logits_cache_stride_1": cache.stride(1) if cached else 0,
            "logits_cache_col": column if cached else None,
            "logits_cache_source": logits if cached else None,
            "logits_cache_source_stride": logits.stride(0) if cached else 0,
            "logits": logits,
            "logits_stride": logits.stride(0),
            "expanded_idx_mapping": slots,
            "seeds": torch.from_numpy(seeds),
            "pos": torch.from_numpy(batch.rng.integers(0, 5000, rows)),
            "temp": torch.from_numpy(temperatures),
            "vocab_size": VOCAB,
        },
        {
            "BLOCK_SIZE": block_size,
            "IS_DRAFTING": drafting,
            "APPLY_TEMPERATURE": scaled,
            "USE_FP64": double,
            "PER_TOKEN_COL": cached and per_row,
        },
    )


def temperature(batch: Batch) -> Launch:
    logits = _masked_logits(batch, batch.num_logits)
    temperatures = batch.rng.choice([0.0, 0.3, 1.0, 1.7], MAX_REQS).astype(np.float32)
    return Launch(
        "gpu.sample.gumbel._temperature_kernel",
        (batch.num_logits, 4),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            **_rows(batch),
            "temperature": torch.from_numpy(temperatures),
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64},
    )


def min_p(batch: Batch) -> Launch:
    logits = _masked_logits(batch, batch.num_logits)
    thresholds = batch.rng.choice([0.0, 0.05, 0.4, 1.0], MAX_REQS).astype(np.float32)
    return Launch(
        "gpu.sample.min_p._min_p_kernel",
        (batch.num_logits,),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            **_rows(batch),
            "min_p": torch.from_numpy(thresholds),
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64},
    )


def _bits(batch: Batch, rows: int, vocab: int = VOCAB, share: float = 0.5) -> torch.Tensor:
    words = (vocab + 31) // 32
    bits = batch.rng.random((rows, words * 32)) < share
    packed = np.packbits(bits, axis=-1, bitorder="little").view(np.int32)
    return torch.from_numpy(packed.copy())


def penalties(batch: Batch) -> Launch:
    logits = batch.logits(batch.num_logits)
    prompt_mask = _bits(batch, MAX_REQS, share=0.1)
    counts = int32(batch.rng.poisson(0.2, (MAX_REQS, VOCAB)))

    def choice(*values: float) -> torch.Tensor:
        return torch.from_numpy(batch.rng.choice(values, MAX_REQS).astype(np.float32))

    return Launch(
        "gpu.sample.penalties._penalties_kernel",
        (batch.num_logits, 4),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            **_rows(batch),
            "token_ids": batch.tokens(batch.num_logits),
            "expanded_local_pos": batch.expanded_local_pos,
            "repetition_penalty": choice(1.0, 1.3, 0.8),
            "frequency_penalty": choice(0.0, 0.7, -0.4),
            "presence_penalty": choice(0.0, 0.9, -0.3),
            "prompt_bin_mask": prompt_mask,
            "prompt_bin_mask_stride": prompt_mask.stride(0),
            "output_bin_counts": counts,
            "output_bin_counts_stride": counts.stride(0),
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64},
    )


def bincount(batch: Batch) -> Launch:
    all_token_ids = batch.tokens(MAX_REQS, MAX_LEN)
    prompt_mask = torch.zeros(MAX_REQS, (VOCAB + 31) // 32, dtype=torch.int32)
    counts = torch.zeros(MAX_REQS, VOCAB, dtype=torch.int32)
    return Launch(
        "gpu.sample.penalties._bincount_kernel",
        (batch.num_reqs, (int(batch.prefill_len.max()) + 15) // 16),
        {
            "slots": batch.idx_mapping,
            "all_token_ids": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "prompt_len": int32(batch.prompt_len),
            "prefill_len": int32(batch.prefill_len),
            "prompt_bin_mask": prompt_mask,
            "prompt_bin_mask_stride": prompt_mask.stride(0),
            "output_bin_counts": counts,
            "output_bin_counts_stride": counts.stride(0),
        },
        {"BLOCK_SIZE": 16},
    )


def logit_bias(batch: Batch, check_all_masked: bool) -> Launch:
    rng = batch.rng
    logits = batch.logits(batch.num_logits)
    width = 12
    tokens = [
        int32(np.stack([rng.permutation(VOCAB)[:width] for _ in range(MAX_REQS)])) for _ in range(3)
    ]
    allowed, biased, stops = tokens
    if check_all_masked:
        # Rows that a grammar has cut down to the request's stop tokens.
        for row, slot in enumerate(batch.expanded_idx_mapping.tolist()):
            if row % 2 == 0:
                kept = torch.zeros(VOCAB, dtype=torch.bool)
                kept[stops[slot, :4].long()] = True
                logits[row, ~kept] = -torch.inf

    def count(low: int = 0) -> torch.Tensor:
        return int32(rng.integers(low, width, MAX_REQS) * rng.integers(0, 2, MAX_REQS))

    positions = torch.from_numpy(batch.positions.numpy()[batch.logits_indices.numpy()])
    return Launch(
        "gpu.sample.logit_bias._bias_kernel",
        (batch.num_logits,),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            "vocab_size": VOCAB,
            **_rows(batch),
            "num_allowed": count() if not check_all_masked else torch.zeros_like(count()),
            "allowed": allowed,
            "allowed_stride": allowed.stride(0),
            "num_biased": count(),
            "biased": biased,
            "biased_stride": biased.stride(0),
            "bias": batch.logits(MAX_REQS, width),
            "bias_stride": width,
            "pos": positions,
            "min_lens": int32(batch.total_len + rng.integers(-2, 6, MAX_REQS)),
            "num_stops": count(4),
            "restore_when_all_masked": int32(rng.integers(0, 2, MAX_REQS)),
            "stops": stops,
            "stops_stride": stops.stride(0),
        },
        {"BLOCK_SIZE": 16, "LOGITS_BLOCK_SIZE": 64, "CHECK_ALL_MASKED_ROWS": check_all_masked},
    )


def bad_words(batch: Batch) -> Launch:
    rng = batch.rng
    # Three tokens in all, so that prefixes do match.
    history = int32(rng.integers(0, 3, (MAX_REQS, MAX_LEN)))
    lengths = rng.integers(1, 4, (MAX_REQS, 4))
    words = int32(rng.integers(0, 3, (MAX_REQS, int(lengths.sum(1).max()))))
    offsets = int32(np.pad(np.cumsum(lengths, 1), ((0, 0), (1, 0))))
    num_words = int32(rng.integers(0, 5, MAX_REQS))
    logits = batch.logits(batch.num_logits)
    return Launch(
        "gpu.sample.bad_words._bad_words_kernel",
        (batch.num_logits, 4),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            **_rows(batch),
            "bad_word_token_ids": words,
            "bad_word_token_ids_stride": words.stride(0),
            "bad_word_offsets": offsets,
            "bad_word_offsets_stride": offsets.stride(0),
            "num_bad_words": num_words,
            "all_token_ids": history,
            "all_token_ids_stride": history.stride(0),
            "prompt_len": int32(batch.prompt_len),
            "total_len": int32(batch.total_len),
            "input_ids": int32(rng.integers(0, 3, batch.num_logits)),
            "expanded_local_pos": batch.expanded_local_pos,
        },
    )


def grammar(batch: Batch, dtype: torch.dtype) -> Launch:
    stride = int(batch.num_drafts.max()) + 2
    # One place more than each request has rows: adaptive verification may drop the last.
    mapping = [
        request * stride + place
        for request, drafts in enumerate(batch.num_drafts.tolist())
        for place in range(drafts + 2)
        if request % 2 == 0
    ]
    logits = batch.logits(batch.num_logits).to(dtype)
    bitmask = _bits(batch, len(mapping))
    bitmask[:, 1] = -1
    bitmask[:, 3] = 0
    return Launch(
        "gpu.structured_outputs._apply_grammar_bitmask_kernel",
        (len(mapping), 4),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            "logits_indices": int32(np.array(mapping)),
            "cu_num_logits": batch.cu_num_logits,
            "bitmask": bitmask,
            "bitmask_stride": bitmask.stride(0),
            "vocab_size": VOCAB,
        },
        {"MASK_STRIDE": stride, "BLOCK_SIZE": 64},
    )


def log_softmax(batch: Batch, dtype: torch.dtype) -> Launch:
    logits = batch.logits(batch.num_logits).to(dtype)
    logits[0, :150] = -torch.inf
    topk = 6
    ids = batch.tokens(batch.num_logits, topk, dtype=torch.int64)
    return Launch(
        "gpu.sample.logprob._topk_log_softmax_kernel",
        (batch.num_logits,),
        {
            "output": batch.logits(batch.num_logits, topk),
            "logits": logits,
            "logits_stride": logits.stride(0),
            "topk_ids": ids,
            "topk_ids_stride": ids.stride(0),
            "topk": topk,
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64, "TOPK_BLOCK_SIZE": 4},
        tolerance={"output": LOG_SOFTMAX},
    )


def ranks(batch: Batch, dtype: torch.dtype) -> Launch:
    # Rounded, for ties. (The interpreter compares bfloat16 numbers by their bits: not used here.)
    logits = batch.logits(batch.num_logits).round().to(dtype)
    return Launch(
        "gpu.sample.logprob._ranks_kernel",
        (batch.num_logits,),
        {
            "output": batch.tokens(batch.num_logits, dtype=torch.int64),
            "logits": logits,
            "logits_stride": logits.stride(0),
            "token_ids": batch.tokens(batch.num_logits, dtype=torch.int64),
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64},
    )


def logprob_token_ids(batch: Batch, num_topk: int) -> Launch:
    custom = batch.tokens(MAX_REQS, 8)
    num_custom = int32(batch.rng.integers(0, 6, MAX_REQS) * batch.rng.integers(0, 2, MAX_REQS))
    topk = batch.tokens(batch.num_logits, num_topk) if num_topk else custom
    out = torch.zeros(batch.num_logits, 7, dtype=torch.int64)
    return Launch(
        "gpu.sample.logprob._fill_logprob_token_ids_kernel",
        (batch.num_logits,),
        {
            "out_token_ids": out,
            "out_token_ids_stride": out.stride(0),
            "out_valid_mask": torch.zeros_like(out, dtype=torch.bool),
            "out_valid_mask_stride": out.stride(0),
            "sampled_token_ids": batch.tokens(batch.num_logits, dtype=torch.int64),
            "topk_indices": topk,
            "topk_indices_stride": topk.stride(0),
            **_rows(batch),
            "num_per_req_token_ids": num_custom,
            "per_req_token_ids": custom,
            "per_req_token_ids_stride": custom.stride(0),
        },
        {"NUM_TOPK": num_topk, "PADDED_COLS": 8},
    )


def prompt_logprob_token_ids(batch: Batch) -> Launch:
    all_token_ids = batch.tokens(MAX_REQS, MAX_LEN)
    return Launch(
        "gpu.sample.prompt_logprob._prompt_logprobs_token_ids_kernel",
        (batch.num_reqs,),
        {
            "token_ids": batch.tokens(batch.num_tokens, dtype=torch.int64),
            "query_start_loc": batch.query_start_loc,
            "idx_mapping": batch.idx_mapping,
            "num_computed_tokens": int32(batch.num_computed),
            "all_token_ids": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
        },
        {"BLOCK_SIZE": 4},
    )


def sampling_mask(batch: Batch, rows_per_request: int) -> Launch:
    logits = _masked_logits(batch, batch.num_logits)
    num_rows = batch.num_reqs * rows_per_request
    # Zeros, since the kernel leaves the rest of a row as it was.
    token_ids = torch.zeros(num_rows, 20, dtype=torch.int32)
    packed = torch.zeros(num_rows, (VOCAB + 7) // 8, dtype=torch.uint8)
    drafts = np.minimum(batch.num_drafts + 1, rows_per_request)
    return Launch(
        "gpu.sample.output._compact_sampling_mask_kernel",
        (num_rows,),
        {
            "logits": logits,
            "logits_row_stride": logits.stride(0),
            "logits_col_stride": logits.stride(1),
            "cu_num_logits": batch.cu_num_logits,
            "num_sampled_tokens": int32(batch.rng.integers(0, drafts + 1)),
            "token_ids": token_ids,
            "token_ids_row_stride": token_ids.stride(0),
            "packed_mask": packed,
            "packed_mask_row_stride": packed.stride(0),
            "counts": batch.tokens(num_rows),
            "vocab_size": VOCAB,
            "max_num_kept": 20,
        },
        {"ROWS_PER_REQUEST": rows_per_request, "BLOCK_SIZE": 64},
    )


def num_nans(batch: Batch) -> Launch:
    logits = batch.logits(batch.num_logits)
    logits[torch.from_numpy(batch.rng.random(tuple(logits.shape)) < 0.02)] = torch.nan
    return Launch(
        "gpu.metrics.logits._num_nans_kernel",
        (batch.num_logits,),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            "num_nans": batch.tokens(batch.num_logits),
            "vocab_size": VOCAB,
        },
        {"BLOCK_SIZE": 64},
    )


def _thinking(batch: Batch) -> dict[str, torch.Tensor]:
    """Four tokens in all, so that start marker [0, 1] and end marker [2] occur often."""
    return {
        "budgets": int32(batch.rng.integers(-1, 6, MAX_REQS)),
        "all_token_ids": int32(batch.rng.integers(0, 4, (MAX_REQS, MAX_LEN))),
        "total_len": int32(batch.total_len),
    }


def _markers() -> dict[str, torch.Tensor]:
    return {"start": int32(np.array([0, 1])), "natural_end": int32(np.array([2]))}


def thinking_markers(batch: Batch) -> Launch:
    state = _thinking(batch)
    cold = batch.rng.integers(0, 2, MAX_REQS) == 0
    scanned = np.where(cold, 0, batch.total_len - batch.rng.integers(-2, 4, MAX_REQS))
    start = np.where(cold, -1, batch.rng.integers(-1, 4, MAX_REQS))
    return Launch(
        "gpu.sample.thinking_budget._update_committed_marker_cache_kernel",
        (batch.num_reqs,),
        {
            "req_ids": batch.idx_mapping,
            "budgets": state["budgets"],
            "all_token_ids": state["all_token_ids"],
            "all_token_ids_stride": MAX_LEN,
            "total_len": state["total_len"],
            "last_start": int32(start),
            "last_end": int32(np.where(cold, -1, batch.rng.integers(-1, 4, MAX_REQS))),
            "scan_pos": int32(np.maximum(scanned, 0)),
            **_markers(),
        },
        {"START_LEN": 2, "NATURAL_END_LEN": 1, "MAX_LEN": 2, "BLOCK": 8},
    )


def thinking_budget(batch: Batch) -> Launch:
    state = _thinking(batch)
    logits = batch.logits(batch.num_logits)
    return Launch(
        "gpu.sample.thinking_budget._thinking_budget_kernel",
        (batch.num_logits,),
        {
            "logits": logits,
            "logits_stride": logits.stride(0),
            **_rows(batch),
            "budgets": state["budgets"],
            "all_token_ids": state["all_token_ids"],
            "all_token_ids_stride": MAX_LEN,
            "total_len": state["total_len"],
            "input_ids": int32(batch.rng.integers(0, 4, batch.num_logits)),
            "expanded_local_pos": batch.expanded_local_pos,
            "last_start": int32(batch.rng.integers(-1, 6, MAX_REQS)),
            "last_end": int32(batch.rng.integers(-1, 4, MAX_REQS)),
            **_markers(),
            "forced_end": int32(np.array([3, 1, 2])),
        },
        {"START_LEN": 2, "NATURAL_END_LEN": 1, "END_LEN": 3},
    )
