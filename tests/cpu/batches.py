"""Random but consistent batches: permuted request slots, prompts in chunks, decodes with drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

MAX_REQS = 7
MAX_LEN = 96
VOCAB = 210
MAX_DRAFTS = 5


@dataclass(frozen=True)
class Batch:
    """R scheduled requests in slots of a table of MAX_REQS; `num_drafts[r]` is 0 in a prompt."""

    rng: np.random.Generator
    slots: np.ndarray  # [R]
    prompt_len: np.ndarray  # [MAX_REQS]
    prefill_len: np.ndarray  # [MAX_REQS]
    total_len: np.ndarray  # [MAX_REQS]
    num_computed: np.ndarray  # [MAX_REQS]
    query_len: np.ndarray  # [R]
    num_drafts: np.ndarray  # [R]

    @property
    def num_reqs(self) -> int:
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        return int(self.query_len.sum())

    @property
    def num_logits(self) -> int:
        return int((self.num_drafts + 1).sum())

    @property
    def idx_mapping(self) -> torch.Tensor:
        return torch.from_numpy(self.slots.astype(np.int64))

    @property
    def query_start_loc(self) -> torch.Tensor:
        return offsets(self.query_len)

    @property
    def cu_num_logits(self) -> torch.Tensor:
        return offsets(self.num_drafts + 1)

    @property
    def seq_lens(self) -> torch.Tensor:
        return int32(self.num_computed[self.slots] + self.query_len)

    @property
    def positions(self) -> torch.Tensor:
        spans = [
            np.arange(start, start + length)
            for start, length in zip(self.num_computed[self.slots], self.query_len, strict=True)
        ]
        return torch.from_numpy(np.concatenate(spans).astype(np.int64))

    @property
    def logits_indices(self) -> torch.Tensor:
        ends = np.cumsum(self.query_len)
        spans = [np.arange(e - d - 1, e) for e, d in zip(ends, self.num_drafts, strict=True)]
        return torch.from_numpy(np.concatenate(spans).astype(np.int64))

    @property
    def expanded_idx_mapping(self) -> torch.Tensor:
        return torch.from_numpy(np.repeat(self.slots, self.num_drafts + 1).astype(np.int64))

    @property
    def expanded_local_pos(self) -> torch.Tensor:
        return int32(np.concatenate([np.arange(d + 1) for d in self.num_drafts]))

    def tokens(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Random token ids: live data, or what a stale buffer might hold."""
        return torch.from_numpy(self.rng.integers(0, VOCAB, shape)).to(dtype)

    def logits(self, rows: int, vocab: int = VOCAB) -> torch.Tensor:
        return torch.from_numpy(self.rng.normal(0, 4, (rows, vocab)).astype(np.float32))


def random_batch(seed: int, num_reqs: int | None = None, decode_only: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    count = num_reqs or int(rng.integers(1, MAX_REQS + 1))
    slots = rng.permutation(MAX_REQS)[:count]
    prompt_len = rng.integers(1, 40, MAX_REQS)
    # A request resumed after preemption prefills part of its output too.
    prefill_len = prompt_len + rng.integers(0, 2, MAX_REQS) * rng.integers(0, 6, MAX_REQS)
    num_computed = prefill_len + rng.integers(0, 20, MAX_REQS)
    query_len = np.zeros(count, np.int64)
    num_drafts = np.zeros(count, np.int64)
    for row, slot in enumerate(slots):
        if decode_only or rng.random() < 0.6:
            num_drafts[row] = rng.integers(0, MAX_DRAFTS + 1)
            query_len[row] = 1 + num_drafts[row]
        else:
            num_computed[slot] = rng.integers(0, prefill_len[slot])
            query_len[row] = rng.integers(1, prefill_len[slot] - num_computed[slot] + 1)
    total_len = np.maximum(prefill_len, num_computed + 1)
    return Batch(
        rng, slots, prompt_len, prefill_len, total_len, num_computed, query_len, num_drafts
    )


def int32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.int32))


def offsets(lengths: np.ndarray) -> torch.Tensor:
    return int32(np.concatenate([[0], np.cumsum(lengths)]))
