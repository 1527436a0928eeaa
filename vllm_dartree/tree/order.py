"""The one tie rule: (score descending, depth ascending, parent order, token id ascending).

``torch.topk`` promises no order among equal values. Here each entry gets a distinct int64 key,
its float in the upper half and its place in the tie rule in the lower half, so that any sort or
top-k algorithm, stable or not, on any device, gives one and the same answer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_dartree.tree.draft_tree import NEG_INF

_CHUNK = 64


def score_keys(scores: Tensor, places: Tensor) -> Tensor:
    """int64 keys whose *ascending* order is (score descending, place ascending).

    ``scores`` float32, at most 0 or -inf, no NaN; ``places`` int64 in [0, 2**32), broadcastable.
    The bits of a non-negative float grow with its value, so the bits of |score| do the sorting;
    ``abs`` also makes -0.0 and 0.0 the tie they are.

        >>> keys = score_keys(torch.tensor([-1.0, -0.5, -1.0, -0.5]), torch.tensor([0, 3, 2, 1]))
        >>> keys.argsort().tolist()
        [3, 1, 0, 2]
    """
    return (scores.abs().view(torch.int32).to(torch.int64) << 32) + places


def best_columns(scores: Tensor, count: int, places: Tensor | None = None) -> Tensor:
    """[R, count] int64: the columns of the best ``scores`` [R, N], best first, ties to the left.

    ``places`` is arange(N), for callers that have it at hand.

    >>> best_columns(torch.tensor([[-2.0, -1.0, -2.0, -1.0]]), 3).tolist()
    [[1, 3, 0]]
    """
    if places is None:
        places = torch.arange(scores.shape[1], device=scores.device)
    return score_keys(scores, places).topk(count, dim=1, largest=False, sorted=True).indices


def top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of ``logits`` [..., V] float32 (no NaN), best first, ties to low ids.

    Returns values and ids, both [..., count]. A large vocabulary is read once: the winners lie
    in the ``count`` best chunks when chunks are ordered by (maximum, position), since each such
    chunk holds an entry that comes before all entries of any other chunk.

        >>> top_candidates(torch.tensor([1.0, 3.0, 3.0, 2.0]), 2)[1].tolist()
        [1, 2]
    """
    vocab_size = logits.shape[-1]
    if vocab_size <= 2 * count * _CHUNK:
        ids = _largest(logits, torch.arange(vocab_size, device=logits.device), count)
        return logits.gather(-1, ids), ids
    if vocab_size % _CHUNK:
        logits = F.pad(logits, (0, -vocab_size % _CHUNK), value=NEG_INF)
    chunks = logits.unflatten(-1, (-1, _CHUNK))
    chunk_max = chunks.amax(-1)
    places = torch.arange(chunk_max.shape[-1], device=logits.device)
    best = _largest(chunk_max, places, count).unsqueeze(-1)
    ids = (best * _CHUNK + torch.arange(_CHUNK, device=logits.device)).flatten(-2)
    values = logits.gather(-1, ids)
    winners = _largest(values, ids, count)
    return values.gather(-1, winners), ids.gather(-1, winners)


def _largest(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Indices of the largest ``values`` of any sign; equal ones in ascending ``places``."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # two's-complement order of IEEE floats
    keys = (ascending.to(torch.int64) << 32) - places
    return keys.topk(count, dim=-1, largest=True, sorted=True).indices
